package offload

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// A record that the cache does not show, though it is there, is found by making it, and
// counts once.
func TestARecordThatTheCacheDoesNotShowIsFoundByMakingIt(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	id, name := c.fresh("cpu=1,pods=10")
	p, _ := c.start(t)
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	apply(t, p, id, podObject(name, "web", "100m"))
	key := types.NamespacedName{Namespace: name + "-" + peerA.Short(), Name: "web"}
	eventually(t, "it runs", func() bool {
		o := p.inv.offloaded(key)
		return o != nil && o.Status.PodUID != ""
	})
	if err := p.inv.offloads.Delete(p.inv.offloaded(key)); err != nil {
		t.Fatal(err)
	}
	apply(t, p, id, podObject(name, "web", "100m"))
	used, pods, err := p.Usage(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if cpu := used["cpu"]; pods != 1 || cpu.String() != "100m" {
		t.Errorf("%d pods take %s", pods, cpu.String())
	}
	// Of another UID it is in the way, and stays.
	if err := p.inv.offloads.Delete(&api.OffloadedPod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}); err != nil {
		t.Fatal(err)
	}
	other := podObject(name, "web", "100m")
	other.Ref.UID = "another"
	if err := p.Apply(t.Context(), id, other); err == nil {
		t.Error("a pod takes the place of another")
	}
	if _, pods, err := p.Usage(t.Context(), id); err != nil || pods != 1 {
		t.Errorf("%d pods count, %v", pods, err)
	}
}
