package offload

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// A pod that asks for the API of its home is refused unless the policy allows that.
func TestThePolicyDecidesWhetherTheAPIOfHomeIsCarried(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	id, name := c.fresh("cpu=1,pods=10")
	p, _ := c.start(t)
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	asks := thing(peering.KindPod, name, "operator", "uid-operator",
		`{"metadata":{"annotations":{"`+api.AnnotationHomeAPI+`":"true"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	refused(t, p.Apply(t.Context(), id, asks), peering.RefusedInvalid, true, "homeAPI: Allowed")

	k, _ := c.contract(id)
	k.HomeAPI = &podspec.HomeAPI{}
	c.set(id, &k)
	apply(t, p, id, asks)
	remote := name + "-" + peerA.Short()
	eventually(t, "its pod is made", func() bool { return c.get(t, remote, "operator", &corev1.Pod{}) })

	// A pod that is there already is not ended by a policy that changes: its connections are.
	k.HomeAPI = nil
	c.set(id, &k)
	again := asks
	again.JSON = []byte(strings.Replace(string(asks.JSON), `"i"`, `"j"`, 1))
	apply(t, p, id, again)
}

// The consumer of a pod is known by the pod's address alone.
func TestAPodIsKnownByItsAddressIfItIsTheOnlyOne(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	id, name := c.fresh("cpu=1,pods=10")
	p, _ := c.start(t)
	apply(t, p, id, namespaceObject(name, "Suffixed"), podObject(name, "one", "1m"), podObject(name, "two", "1m"))
	remote := name + "-" + peerA.Short()
	at := func(address string) string {
		of, ok := p.PodAt(netip.MustParseAddr(address))
		if ok != (of.OriginUID != "") {
			t.Errorf("PodAt returns %v of %+v", ok, of)
		}
		return of.OriginName
	}
	if who := at("10.2.0.7"); who != "" {
		t.Errorf("an address that no pod has is %s's", who)
	}
	c.setPhase(t, remote, "one", corev1.PodRunning, "10.2.0.7")
	eventually(t, "it is the pod's", func() bool { return at("10.2.0.7") == "one" })
	c.setPhase(t, remote, "two", corev1.PodRunning, "10.2.0.7")
	eventually(t, "it has no consumer while two have it", func() bool { return at("10.2.0.7") == "" })
	c.setPhase(t, remote, "one", corev1.PodSucceeded, "10.2.0.7")
	eventually(t, "it is the other's when one ended", func() bool { return at("10.2.0.7") == "two" })
	// An IPv6 address has many spellings and is one.
	c.setPhase(t, remote, "two", corev1.PodRunning, "fd00:0:0::7")
	eventually(t, "it is known by another spelling", func() bool { return at("fd00::7") == "two" })
	c.setPhase(t, remote, "two", corev1.PodRunning, "10.2.0.9")
	eventually(t, "it is known as a socket of both families says it", func() bool { return at("::ffff:10.2.0.9") == "two" })
}
