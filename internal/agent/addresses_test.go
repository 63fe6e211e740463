package agent

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/peering"
)

// The alias of an address that a peer names no longer is kept for a while: pods are still known by it, and
// Services do not lead there.
func TestAnAddressThatIsNamedNoLongerIsKnownAndLeadsNowhere(t *testing.T) {
	t.Parallel()
	var fc v1alpha1.ForeignCluster
	fc.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.1.0.0/24", Alias: "198.18.0.0/24"}}
	fc.Status.AliasBlocks = []v1alpha1.AliasBlock{{
		Alias: "198.19.0.0/30", Addresses: []string{"10.2.0.1", "10.2.0.2", "10.1.0.7", ""},
		Released: []v1alpha1.ReleasedAlias{{Index: 1, Time: metav1.Now()}, {Index: 2, Time: metav1.Now()}, {Index: 9, Time: metav1.Now()}},
	}}
	table := tableOf(&fc)
	for addr, want := range map[string]struct{ home, named string }{
		"10.1.0.5": {"198.18.0.5", "198.18.0.5"},
		"10.2.0.1": {"198.19.0.0", "198.19.0.0"},
		"10.2.0.2": {"198.19.0.1", "invalid IP"},
		"10.1.0.7": {"198.18.0.7", "198.18.0.7"}, // of a prefix now
		"10.2.0.9": {"invalid IP", "invalid IP"},
	} {
		home, is := table.home(netip.MustParseAddr(addr))
		named, leads := table.named(netip.MustParseAddr(addr))
		if home.String() != want.home || named.String() != want.named || is != home.IsValid() || leads != named.IsValid() {
			t.Errorf("%s is known as %v and named as %v, want %v", addr, home, named, want)
		}
	}
}

// Endpoints of a peer's Services that are its pods in a third cluster lead there directly while all that takes is there,
// and otherwise through the peer.
func TestEndpointsLeadDirectlyWhileTheThirdClusterHasOpenedThem(t *testing.T) {
	t.Parallel()
	const home, third = peering.ClusterID("bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"), peering.ClusterID("cccccccccccccccccccccccccccccccc")
	type world struct{ home, third v1alpha1.ForeignCluster }
	for what, tc := range map[string]struct {
		change             func(*world)
		want               string
		mayReach, mayEnter int
	}{
		"all is there":                     {func(*world) {}, "198.19.0.9", 1, 1},
		"this cluster does not agree":      {func(w *world) { w.home.Spec.Transit = nil }, "198.18.7.1", 0, 0},
		"the path is down":                 {func(w *world) { w.third.Status.Conditions[0].Status = metav1.ConditionFalse }, "198.18.7.1", 1, 1},
		"the third is not trusted":         {func(w *world) { w.third.Spec.TrustBundle = "" }, "198.18.7.1", 1, 1},
		"the third opened another pod":     {func(w *world) { w.third.Status.Network.Opened[0].Addresses = []string{"10.0.0.8"} }, "198.18.7.1", 0, 1},
		"the third opened it for another":  {func(w *world) { w.third.Status.Network.Opened[0].ClusterID = string(third) }, "198.18.7.1", 0, 1},
		"the third has no network":         {func(w *world) { w.third.Status.Network = nil }, "198.18.7.1", 0, 1},
		"its address has no alias":         {func(w *world) { w.third.Status.Aliases = nil }, "198.18.7.1", 0, 0},
		"the home names another pod":       {func(w *world) { w.home.Status.Network.Transit[0].Namespaces[0].PodAddresses[0] = "10.0.0.1" }, "198.18.7.1", 0, 1},
		"the home names no pods":           {func(w *world) { w.home.Status.Network.Transit[0].Namespaces = nil }, "198.18.7.1", 0, 0},
		"the home has no alias of its own": {func(w *world) { w.home.Status.AliasBlocks = nil }, "198.19.0.9", 1, 1},
	} {
		w := world{}
		w.home.Name, w.home.Spec.ClusterID, w.home.Spec.TrustBundle = "home", string(home), "roots"
		w.home.Spec.Transit = &v1alpha1.Transit{Through: []string{string(third)}}
		w.home.Status.AliasBlocks = []v1alpha1.AliasBlock{{Alias: "198.18.7.1/32", Addresses: []string{"172.20.0.3"}}}
		w.home.Status.Network = &v1alpha1.PeerNetwork{Transit: []v1alpha1.TransitAddresses{{ClusterID: string(third), Addresses: []string{"172.20.0.3"}, Namespaces: []v1alpha1.TransitNamespace{{Name: "shop", Addresses: []string{"172.20.0.3"}, PodAddresses: []string{"10.0.0.9"}}}}}}
		w.third.Name, w.third.Spec.ClusterID, w.third.Spec.TrustBundle = "third", string(third), "roots"
		w.third.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.0.0.0/24", Alias: "198.19.0.0/24"}}
		w.third.Status.Network = &v1alpha1.PeerNetwork{Opened: []v1alpha1.TransitAddresses{{ClusterID: string(home), Addresses: []string{"10.0.0.9"}}}}
		w.third.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionNetwork, Status: metav1.ConditionTrue}}
		tc.change(&w)
		a := &addresses{tables: map[peering.ClusterID]*table{}, client: indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(&w.home, &w.third))}
		if got, _ := a.endpoint(home, netip.MustParseAddr("172.20.0.3")); got.String() != tc.want {
			t.Errorf("%s: the endpoint is %v, want %s", what, got, tc.want)
		}
		if open, named := a.places(home); len(open) != tc.mayReach || len(named) != tc.mayEnter {
			t.Errorf("%s: policies know %v and %v", what, open, named)
		}
		if there, ok := a.there(third, netip.MustParseAddr("198.19.0.9")); ok != (len(w.third.Status.Aliases) > 0) || ok && there != netip.MustParseAddr("10.0.0.9") {
			t.Errorf("%s: the pod's own address is %v", what, there)
		}
	}
}

// hesitant is a cache with one ForeignCluster, of which the first read takes long: while it lasts a newer one is there.
type hesitant struct {
	client.Reader
	versions chan string
	// slow is called by the first read, after it has read.
	slow func()
}

func (h *hesitant) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	fc := v1alpha1.ForeignCluster{}
	fc.Spec.ClusterID, fc.ResourceVersion = strings.Repeat("b", 32), <-h.versions
	list.(*v1alpha1.ForeignClusterList).Items = []v1alpha1.ForeignCluster{fc}
	if fc.ResourceVersion == "1" {
		h.slow()
	}
	return nil
}

// What a peer opens would else be taken for closed and opened again.
func TestAnOlderForeignClusterDoesNotFollowANewerOne(t *testing.T) {
	t.Parallel()
	peer, newer := peering.ClusterID(strings.Repeat("b", 32)), make(chan struct{})
	h := &hesitant{versions: make(chan string, 2)}
	h.versions <- "1"
	h.versions <- "2"
	a := &addresses{client: h}
	h.slow = func() {
		go func() {
			a.table(peer)
			close(newer)
		}()
		select {
		case <-newer:
		case <-time.After(100 * time.Millisecond):
		}
	}
	a.table(peer)
	<-newer
	if got := a.tables[peer].version; got != "2" {
		t.Errorf("the table is of version %s", got)
	}
}
