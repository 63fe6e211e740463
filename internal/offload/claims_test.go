package offload

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/peering"
)

const fastStorage = "fast.storageclass.storage.k8s.io/requests.storage"

func volumeObject(t *testing.T, ns, uid, class string, bytes int64) peering.Object {
	t.Helper()
	data, err := json.Marshal(peering.ClaimObject{Claim: "data-0", StorageClass: class, Bytes: bytes, AccessModes: []string{"ReadWriteOnce"}})
	if err != nil {
		t.Fatal(err)
	}
	return thing(peering.KindClaim, ns, volumes.Name(uid), uid, string(data))
}

// storageClasses makes two classes, of which volumes of fast can be made larger.
func (c *cluster) storageClasses(t *testing.T) {
	t.Helper()
	for _, name := range []string{"fast", "slow"} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "example.com/none", AllowVolumeExpansion: new(name == "fast")}
		if err := c.owner.Create(t.Context(), class); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.owner.Delete(context.WithoutCancel(t.Context()), class) })
	}
}

// free lets a claim go that is being deleted, as the controller manager does.
func (c *cluster) free(t *testing.T, ns, name string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{}
	if c.get(t, ns, name, claim) && claim.DeletionTimestamp != nil && len(claim.Finalizers) > 0 {
		claim.Finalizers = nil
		if err := c.owner.Update(t.Context(), claim); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
}

// testVolumes makes volumes by a contract, counts them, and shows that only a delete deletes one.
func testVolumes(t *testing.T, c *cluster) {
	c.storageClasses(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1," + fastStorage + "=10Gi")
	space := name + "-aaaaaaaa"
	const gi = 1 << 30
	one, two := volumeObject(t, name, "u-1"+name, "fast", 6*gi), volumeObject(t, name, "u-2"+name, "fast", 5*gi)
	refused(t, p.Apply(t.Context(), id, one), peering.RefusedNamespace, true, "not here yet")
	apply(t, p, id, namespaceObject(name, "Suffixed"), one, one)
	claim := &corev1.PersistentVolumeClaim{}
	if !c.get(t, space, one.Ref.Name, claim) {
		t.Fatal("the claim is not there")
	}
	if q := claim.Spec.Resources.Requests[corev1.ResourceStorage]; *claim.Spec.StorageClassName != "fast" || q.Value() != 6*gi ||
		claim.Labels[api.LabelContract] != id || claim.Labels[api.LabelPeer] != string(peerA) || claim.Annotations[api.LabelOriginName] != "data-0" {
		t.Errorf("claim %+v", claim)
	}
	refused(t, p.Apply(t.Context(), id, two), peering.RefusedQuota, true, "10Gi of storage class fast")
	refused(t, p.Apply(t.Context(), id, volumeObject(t, name, "u-3", "slow", gi)), peering.RefusedQuota, false, "no storage of class slow")
	refused(t, p.Apply(t.Context(), id, volumeObject(t, name, "u-1"+name, "slow", gi)), peering.RefusedInvalid, false, "never changes")
	eventually(t, "the volume is counted", func() bool {
		used, _, err := p.Usage(t.Context(), id)
		q := used[fastStorage]
		return err == nil && q.Value() == 6*gi
	})

	// A pod mounts volumes of its consumer and no others.
	pod := thing(peering.KindPod, name, "db-0", "uid-db-0"+name,
		`{"spec":{"containers":[{"name":"c","image":"i"}],"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"`+two.Ref.Name+`"}}]}}`)
	refused(t, p.Apply(t.Context(), id, pod), peering.RefusedInvalid, true, "is not here")
	pod.JSON = []byte(`{"spec":{"containers":[{"name":"c","image":"i"}],"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"` + one.Ref.Name + `"}}]}}`)
	apply(t, p, id, pod)

	testGrowth(t, c, p, id, space, name)

	held, err := p.Held(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, h := range held {
		found = found || h.Ref == one.Ref
	}
	if !found {
		t.Errorf("the volume is not among what is held: %v", held)
	}

	// Neither the end of the contract nor a stranger's delete deletes a volume.
	c.set(id, nil)
	closeContract(t, p, id)
	if !c.get(t, space, one.Ref.Name, claim) || claim.DeletionTimestamp != nil || claim.Labels[api.LabelRetained] != "true" || claim.Annotations[api.AnnotationRetainedSince] == "" {
		t.Fatalf("the volume is not kept: %+v", claim.ObjectMeta)
	}
	if c.get(t, space, recordName, &corev1.ConfigMap{}) {
		t.Error("the namespace's record is left")
	}

	testTakenUp(t, c, p, name, space, one)
}

// testGrowth makes a volume larger.
func testGrowth(t *testing.T, c *cluster, p *Provider, id, space, name string) {
	t.Helper()
	const gi = 1 << 30
	larger := volumeObject(t, name, "u-1"+name, "fast", 8*gi)
	refused(t, p.Apply(t.Context(), id, larger), peering.RefusedInternal, true, "not mounted yet")
	status := func(bytes int64) {
		t.Helper()
		claim := &corev1.PersistentVolumeClaim{}
		c.get(t, space, larger.Ref.Name, claim)
		claim.Spec.VolumeName = "pv"
		if err := c.owner.Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		claim.Status.Phase, claim.Status.Capacity = corev1.ClaimBound, corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)}
		if err := c.owner.Status().Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
	}
	status(6 * gi)
	refused(t, p.Apply(t.Context(), id, volumeObject(t, name, "u-1"+name, "fast", 11*gi)), peering.RefusedQuota, true, "asks for 11Gi")
	refused(t, p.Apply(t.Context(), id, larger), peering.RefusedInternal, true, "being expanded")
	refused(t, p.Apply(t.Context(), id, larger), peering.RefusedInternal, true, "still has 6Gi")
	status(8 * gi)
	apply(t, p, id, larger)
}

// testTakenUp lets a later contract hold a kept volume, and its consumer delete it.
func testTakenUp(t *testing.T, c *cluster, p *Provider, name, space string, one peering.Object) {
	t.Helper()
	next, _ := c.fresh("cpu=1," + fastStorage + "=10Gi")
	// Meanwhile the namespace at home is another one.
	again := namespaceObject(name, "Suffixed")
	again.Ref.UID = "uid-of-another-" + name
	apply(t, p, next, again, one)
	claim := &corev1.PersistentVolumeClaim{}
	if !c.get(t, space, one.Ref.Name, claim) || claim.Labels[api.LabelContract] != next || claim.Labels[api.LabelRetained] != "" {
		t.Errorf("the next contract does not hold the volume: %+v", claim.ObjectMeta)
	}
	// It names the claim that has the volume now.
	renamed := one
	renamed.JSON = bytes.Replace(one.JSON, []byte("data-0"), []byte("data-9"), 1)
	apply(t, p, next, renamed)
	if c.get(t, space, one.Ref.Name, claim); claim.Annotations[api.LabelOriginName] != "data-9" {
		t.Errorf("the volume of another claim says %v", claim.Annotations)
	}
	wrong := one.Ref
	wrong.UID = "another"
	if err := p.Delete(t.Context(), next, wrong, nil); err != nil {
		t.Fatal(err)
	}
	if c.get(t, space, one.Ref.Name, claim); claim.DeletionTimestamp != nil {
		t.Error("a delete of another UID deleted it")
	}
	c.set(next, nil)
	closeContract(t, p, next)
	last, _ := c.fresh("cpu=1," + fastStorage + "=10Gi")
	apply(t, p, last, again, one)
	moved := one.Ref
	moved.Namespace = "elsewhere-" + name
	refused(t, p.Delete(t.Context(), last, moved, nil), peering.RefusedInvalid, true, "in namespace "+space)
	if err := p.Delete(t.Context(), last, one.Ref, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the volume is deleted", func() bool {
		c.free(t, space, one.Ref.Name)
		return !c.get(t, space, one.Ref.Name, &corev1.PersistentVolumeClaim{})
	})
	lost := one
	lost.JSON = bytes.Replace(one.JSON, []byte("{"), []byte(`{"exists":true,`), 1)
	refused(t, p.Apply(t.Context(), last, lost), peering.RefusedInvalid, true, "is gone, with its data")
	c.set(last, nil)
	closeContract(t, p, last)
	eventually(t, "the namespace goes", func() bool { return !c.get(t, "", space, &corev1.Namespace{}) })
}

// testKeptNamespaceGoes has the provider's owner delete the last volume that was kept.
func testKeptNamespaceGoes(t *testing.T, c *cluster) {
	c.storageClasses(t)
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1," + fastStorage + "=1Gi")
	one := volumeObject(t, name, "u-9"+name, "fast", 1<<30)
	apply(t, p, id, namespaceObject(name, "Suffixed"), one)
	if err := p.Delete(t.Context(), id, namespaceObject(name, "").Ref, nil); err != nil {
		t.Fatal(err)
	}
	claim := &corev1.PersistentVolumeClaim{}
	if !c.get(t, name+"-aaaaaaaa", one.Ref.Name, claim) || claim.DeletionTimestamp != nil {
		t.Fatal("the end of offloading deleted a volume")
	}
	if err := c.owner.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace goes with its last volume", func() bool {
		c.free(t, name+"-aaaaaaaa", one.Ref.Name)
		return !c.get(t, "", name+"-aaaaaaaa", &corev1.Namespace{})
	})
}

func closeContract(t *testing.T, p *Provider, id string) {
	t.Helper()
	eventually(t, "nothing is left of the contract", func() bool {
		left, err := p.CloseContract(t.Context(), peerA, id)
		return err == nil && left.None()
	})
}
