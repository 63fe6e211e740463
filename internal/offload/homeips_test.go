package offload

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func testHomeIPs(t *testing.T, c *cluster) {
	id, name := c.fresh("cpu=1,pods=10")
	p, stop := c.start(t)
	remote := name + "-" + peerA.Short()
	apply(t, p, id, namespaceObject(name, "Suffixed"),
		thing(peering.KindPod, name, "asks", "uid-asks-"+name, `{"metadata":{"annotations":{"`+api.AnnotationPodIP+`":"Home","`+api.AnnotationHomeIPs+`":"192.0.2.1"}},
		"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}]}]}}`),
		thing(peering.KindPod, name, "silent", "uid-silent-"+name, `{"metadata":{"annotations":{"`+api.AnnotationHomeIPs+`":"192.0.2.1"}},
		"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"IP","valueFrom":{"fieldRef":{"fieldPath":"status.podIP"}}}]}]}}`))
	var asks, silent corev1.Pod
	eventually(t, "both are made", func() bool { return c.get(t, remote, "asks", &asks) && c.get(t, remote, "silent", &silent) })
	from := asks.Spec.Containers[0].Env[0].ValueFrom
	if from.ConfigMapKeyRef == nil {
		t.Fatalf("it reads its address of %+v", from)
	}
	if _, said := silent.Annotations[api.AnnotationHomeIPs]; said || silent.Spec.Containers[0].Env[0].ValueFrom.FieldRef == nil {
		t.Errorf("one that does not ask has %+v, %v", silent.Spec.Containers[0].Env[0].ValueFrom, silent.Annotations)
	}
	config := func() (out *corev1.ConfigMap) {
		out = &corev1.ConfigMap{}
		if !c.get(t, remote, from.ConfigMapKeyRef.Name, out) {
			return nil
		}
		return out
	}
	says := func(want string) func() bool {
		return func() bool { return c.get(t, remote, "asks", &asks) && asks.Annotations[api.AnnotationHomeIPs] == want }
	}
	// A kubelet sets it once there is a sandbox, possibly before home's addresses are known.
	c.unknown.Store(true)
	c.setPhase(t, remote, "asks", corev1.PodPending, "10.200.3.4")
	eventually(t, "its address is recorded", func() bool {
		var o api.OffloadedPod
		return c.get(t, remote, "asks", &o) && len(o.Status.PodIPs) > 0
	})
	if !says("")() || config() != nil {
		t.Errorf("its annotation is %q before home's addresses are known", asks.Annotations[api.AnnotationHomeIPs])
	}
	c.unknown.Store(false)
	p.Refresh(peerA)
	eventually(t, "its annotation has the address", says("198.18.3.4"))
	m := config()
	if m == nil {
		t.Fatal("its ConfigMap does not exist")
	}
	if diff := cmp.Diff(map[string]string{"podIP": "198.18.3.4", "podIPs": "198.18.3.4"}, m.Data); diff != "" {
		t.Errorf("it reads (-want +got):\n%s", diff)
	}
	if len(m.OwnerReferences) != 1 || m.OwnerReferences[0].UID != asks.UID {
		t.Errorf("it does not go with the pod: %+v", m.OwnerReferences)
	}
	held, err := p.Held(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range held {
		if h.Ref.Kind == peering.KindConfigMap {
			t.Errorf("the consumer receives %s, which it did not send", h.Ref)
		}
	}
	// A new sandbox has another address; for one that home does not know there is no annotation.
	c.setPhase(t, remote, "asks", corev1.PodRunning, "10.200.3.5")
	eventually(t, "its annotation has the new address", says("198.18.3.5"))
	if m := config(); m == nil || m.Data["podIP"] != "198.18.3.5" {
		t.Errorf("it reads %+v", m)
	}
	// Whatever another writer did: a restarted agent checks it.
	stop()
	asks.Annotations[api.AnnotationHomeIPs] = "192.0.2.9"
	if err := c.owner.Update(t.Context(), &asks); err != nil {
		t.Fatal(err)
	}
	c.start(t)
	eventually(t, "its annotation is written again", says("198.18.3.5"))
}
