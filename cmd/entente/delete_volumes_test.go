package main

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
)

// heldVolume is a volume of a claim of the namespace shop, or of another one, at a peer.
func heldVolume(namespace, claim, peer string) []runtime.Object {
	uid := types.UID("uid-" + claim)
	return []runtime.Object{
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{
				Name: "entente-" + string(uid), UID: "pv-" + uid, ResourceVersion: "1",
				Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelPeer: peer},
			},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")},
				ClaimRef:                      &corev1.ObjectReference{Namespace: namespace, Name: claim, UID: uid},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
					Driver: v1alpha1.VolumeDriver, VolumeAttributes: map[string]string{v1alpha1.VolumePeer: peer},
				}},
			},
			Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound},
		},
		&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: claim, UID: uid}},
	}
}

// storing is a world in which pods of shop have two volumes at the provider, and others elsewhere.
// Its agent deletes a volume whose deletion is ordered, unless it is away.
func storing(away bool, more ...runtime.Object) *world {
	w := peered()
	objects := slices.Concat(heldVolume("shop", "data-db-0", w.provider.id), heldVolume("shop", "data-db-1", w.provider.id),
		heldVolume("bank", "ledger", w.provider.id), heldVolume("bank", "archive", "another"), more)
	kube := fake.NewClientset(objects...)
	kube.PrependReactor("get", "persistentvolumes", func(a ktesting.Action) (bool, runtime.Object, error) {
		name := a.(ktesting.GetAction).GetName()
		o, err := kube.Tracker().Get(a.GetResource(), "", name)
		if err != nil {
			return true, nil, err
		}
		pv := o.(*corev1.PersistentVolume)
		_, err = kube.Tracker().Get(schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}, pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name)
		if !away && apierrors.IsNotFound(err) && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
			return true, nil, apierrors.NewNotFound(a.GetResource().GroupResource(), name)
		}
		return true, pv, nil
	})
	w.kube = kube
	return w
}

// ordered names the claims that were deleted, and how many policies were set.
func (w *world) ordered() (claims []string, policies int) {
	for _, a := range w.kube.(*fake.Clientset).Actions() {
		switch {
		case a.Matches("delete", "persistentvolumeclaims"):
			claims = append(claims, a.(ktesting.DeleteAction).GetName())
		case a.Matches("patch", "persistentvolumes"):
			policies++
		}
	}
	return claims, policies
}

func TestUnoffloadListsVolumesThatStay(t *testing.T) {
	for name, args := range map[string][]string{"unoffload-volumes": {"unoffload", "namespace", "shop"}, "unpeer-volumes": {"unpeer", "provider"}} {
		w := storing(false)
		golden(t, name, w, args)
		if claims, policies := w.ordered(); len(claims) > 0 || policies > 0 {
			t.Errorf("%q deletes %q, and sets %d policies", args, claims, policies)
		}
	}
}

func TestVolumesAreDeletedByOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want []string
	}{
		"unoffload-delete": {[]string{"unoffload", "namespace", "shop", "--delete-volumes", "--yes"}, []string{"data-db-0", "data-db-1"}},
		"unpeer-delete":    {[]string{"unpeer", "provider", "--delete-volumes", "--yes"}, []string{"ledger", "data-db-0", "data-db-1"}},
	} {
		w := storing(false)
		golden(t, name, w, tc.args)
		if claims, policies := w.ordered(); !slices.Equal(claims, tc.want) || policies != len(tc.want) {
			t.Errorf("%q deletes %q, and sets %d policies; want %q", tc.args, claims, policies, tc.want)
		}
	}
}

func TestVolumesAreDeletedOnlyAfterConfirmation(t *testing.T) {
	user := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db-1"},
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data-db-1"},
		}}}},
	}
	ended := user.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	for name, tc := range map[string]struct {
		input string
		flags []string
		with  []runtime.Object
		away  bool
		code  int
		says  string
		done  bool
	}{
		"yes":                       {input: "y\n", says: "Deleted 2 volumes", done: true},
		"no":                        {input: "n\n", code: exit.Failed, says: "nothing was done"},
		"no terminal":               {code: exit.Usage, says: "add --yes"},
		"a pod uses one":            {flags: []string{"--yes"}, with: []runtime.Object{user}, code: exit.Failed, says: "pods use claim shop/data-db-1: db-1"},
		"a pod that ended used one": {flags: []string{"--yes"}, with: []runtime.Object{ended}, says: "Deleted 2 volumes", done: true},
		"the provider is away":      {flags: []string{"--yes"}, away: true, code: exit.Timeout, says: "the deletion stays requested", done: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := storing(tc.away, tc.with...)
			out, errOut, code := w.run(t, tc.input, append([]string{"unoffload", "namespace", "shop", "--delete-volumes"}, tc.flags...)...)
			if code != tc.code || !strings.Contains(out+errOut, tc.says) || !strings.Contains(out, "volume entente-uid-data-db-0 (10Gi) of claim shop/data-db-0") {
				t.Errorf("exit %d, printed\n%s%s", code, out, errOut)
			}
			if claims, _ := w.ordered(); len(claims) > 0 != tc.done {
				t.Errorf("deleted %q", claims)
			}
			unoffloaded := slices.ContainsFunc(w.consumer.requests, func(r string) bool { return strings.HasPrefix(r, "UnoffloadNamespace") })
			if want := tc.code == exit.OK; unoffloaded != want {
				t.Errorf("the namespace was unoffloaded: %t, want %t", unoffloaded, want)
			}
		})
	}
}

func TestVolumesThatTheUserMayNotListAreMentioned(t *testing.T) {
	w := storing(false)
	w.kube.(*fake.Clientset).PrependReactor("list", "persistentvolumes", func(a ktesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", nil)
	})
	if out, _, code := w.run(t, "", "unoffload", "namespace", "shop"); code != exit.OK || !strings.Contains(out, "may not list them") {
		t.Errorf("exit %d: %s", code, out)
	}
	if _, errOut, code := w.run(t, "", "unoffload", "namespace", "shop", "--delete-volumes", "--yes"); code != exit.Failed || !strings.Contains(errOut, "list persistent volumes") {
		t.Errorf("exit %d: %s", code, errOut)
	}
}
