package transit

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

var addr = netip.MustParseAddr

func TestPodsAreNamedToBothEndsIfTheySayThatTheyPeer(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		change func(a, c *v1alpha1.ForeignCluster)
		want   int
	}{
		"both say so":                {func(_, _ *v1alpha1.ForeignCluster) {}, 1},
		"the peer does not":          {func(a, _ *v1alpha1.ForeignCluster) { a.Status.Network.Direct = nil }, 0},
		"the third does not":         {func(_, c *v1alpha1.ForeignCluster) { c.Status.Network.Direct = nil }, 0},
		"the third says so of other": {func(_, c *v1alpha1.ForeignCluster) { c.Status.Network.Direct = []string{"x"} }, 0},
		"one does not agree":         {func(_, c *v1alpha1.ForeignCluster) { c.Status.Network.Through = nil }, 0},
		"this cluster does not":      {func(a, _ *v1alpha1.ForeignCluster) { a.Spec.Transit = nil }, 0},
	} {
		a, c := cluster("a", []string{"c-id"}, []string{"c-id"}), cluster("c", []string{"a-id"}, []string{"a-id"})
		a.Status.Network.Direct, c.Status.Network.Direct = []string{"c-id"}, []string{"a-id"}
		tc.change(&a, &c)
		if got := AgreedDirect(&a, []v1alpha1.ForeignCluster{a, c}); len(got) != tc.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

func TestAnEndSaysWithWhomItPeersAndOpensWithConsentOnly(t *testing.T) {
	t.Parallel()
	world := func() (home, third v1alpha1.ForeignCluster) {
		home, third = cluster("b", nil, nil), cluster("c", nil, nil)
		home.Spec.Transit.Through = []string{"c-id", "unknown"}
		home.Status.Network.Transit = []v1alpha1.TransitAddresses{{ClusterID: "c-id", Addresses: []string{"10.0.0.1"}, Namespaces: []v1alpha1.TransitNamespace{
			{Name: "shop", Addresses: []string{"10.0.0.1", "x"}, PodAddresses: []string{"10.9.0.1", "10.9.0.2"}},
		}}}
		return home, third
	}
	for what, tc := range map[string]struct {
		change        func(home, third *v1alpha1.ForeignCluster)
		direct, opens bool
	}{
		"it agrees and peers":          {func(_, _ *v1alpha1.ForeignCluster) {}, true, true},
		"it does not agree":            {func(home, _ *v1alpha1.ForeignCluster) { home.Spec.Transit = nil }, false, false},
		"the third is not trusted":     {func(_, third *v1alpha1.ForeignCluster) { third.Spec.TrustBundle = "" }, false, false},
		"the third wants no tunnel":    {func(_, third *v1alpha1.ForeignCluster) { third.Status.Network = nil }, false, true},
		"the home is denied":           {func(home, _ *v1alpha1.ForeignCluster) { home.Spec.Decision = v1alpha1.DecisionDenied }, true, false},
		"the home names no pods there": {func(home, _ *v1alpha1.ForeignCluster) { home.Status.Network.Transit[0].Namespaces = nil }, true, false},
		"the home names no network":    {func(home, _ *v1alpha1.ForeignCluster) { home.Status.Network = nil }, true, false},
	} {
		home, third := world()
		tc.change(&home, &third)
		all := []v1alpha1.ForeignCluster{home, third}
		if got := Direct(&home, all); (len(got) == 1 && got[0] == "c-id") != tc.direct {
			t.Errorf("%s: direct %v", what, got)
		}
		if got := Homes(&third, all); (len(got) == 1 && got[0].Name == "b") != tc.opens {
			t.Errorf("%s: opens for %d", what, len(got))
		}
	}
	home, _ := world()
	if got := Places(&home); len(got) != 1 || got[addr("10.0.0.1")] != (Place{"c-id", addr("10.9.0.1")}) {
		t.Errorf("places %v", got)
	}
	home.Spec.Transit.Through = []string{"d-id"}
	if got := Places(&home); len(got) != 0 {
		t.Errorf("places %v without consent", got)
	}
}

// Of random pods each namespace is named as a whole or not at all, within the limits, and only by addresses that are
// listed, each once.
func TestEachNamespaceIsNamedAsAWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		by, pods := map[string][]netip.Addr{}, map[string]map[string][]peering.TransitPod{}
		for third := range 1 + r.IntN(3) {
			id, next := fmt.Sprint("id-", third), netip.AddrFrom4([4]byte{10, byte(third)})
			pods[id] = map[string][]peering.TransitPod{}
			for ns := range r.IntN(80) {
				name := fmt.Sprint("ns-", ns)
				for range r.IntN(40) {
					next = next.Next()
					p := peering.TransitPod{Address: next, There: next}
					if r.IntN(200) == 0 {
						p.There = netip.Addr{} // not known
					}
					pods[id][name] = append(pods[id][name], p)
					by[id] = append(by[id], next)
				}
			}
		}
		list, _ := List(by, 1+r.IntN(3000))
		AddNamespaces(list, pods)
		count, seen := 0, map[string]bool{}
		for _, third := range list {
			if len(third.Namespaces) > peering.MaxDirectNamespaces {
				t.Fatalf("%d namespaces", len(third.Namespaces))
			}
			for _, ns := range third.Namespaces {
				if len(ns.Addresses) != len(pods[third.ClusterID][ns.Name]) || len(ns.Addresses) != len(ns.PodAddresses) {
					t.Fatalf("%s has %d of %d pods", ns.Name, len(ns.Addresses), len(pods[third.ClusterID][ns.Name]))
				}
				for _, a := range ns.Addresses {
					if seen[a] || !slices.Contains(third.Addresses, a) {
						t.Fatalf("%s is named twice or not listed", a)
					}
					seen[a] = true
					count++
				}
			}
		}
		if count > peering.MaxDirect {
			t.Fatalf("%d pods are named", count)
		}
		if back := FromWire(ToWire(list)); fmt.Sprint(back) != fmt.Sprint(list) {
			t.Fatalf("%v crosses as %v", list, back)
		}
	}
}

// Of random pods the list has those of whole namespaces that the home names, within the limit, of which each home has its
// share, and what crosses is what was said.
func TestWhatRunsIsSaidOfWholeNamespacesWithinTheLimit(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	third := cluster("c", nil, nil)
	for range 60 {
		all, running := []v1alpha1.ForeignCluster{third}, map[string]map[string][]netip.Addr{}
		next := addr("10.0.0.0")
		for n := range r.IntN(peering.MaxTransit + 3) {
			home := cluster(fmt.Sprint("home-", n), nil, nil)
			id := home.Spec.ClusterID
			home.Spec.Transit.Through = []string{"c-id"}
			named := v1alpha1.TransitAddresses{ClusterID: "c-id", Addresses: []string{"x"}}
			running[id] = map[string][]netip.Addr{"not-named": {addr("10.255.0.1")}}
			for i := range r.IntN(8) {
				name := fmt.Sprint("ns-", i)
				named.Namespaces = append(named.Namespaces, v1alpha1.TransitNamespace{Name: name})
				for range r.IntN(200) {
					next = next.Next()
					running[id][name] = append(running[id][name], next)
				}
			}
			home.Status.Network.Transit = []v1alpha1.TransitAddresses{named}
			all = append(all, home)
		}
		got, _ := Running(&third, all, nil, time.Unix(2e9, 0), func(home *v1alpha1.ForeignCluster) map[string][]netip.Addr { return running[home.Spec.ClusterID] })
		total := 0
		for _, said := range got {
			total += len(said.Addresses)
			has := map[netip.Addr]bool{}
			for _, a := range said.Addresses {
				has[a] = true
			}
			for name, addrs := range running[string(said.Cluster)] {
				in := 0
				for _, a := range addrs {
					if has[a] {
						in++
						delete(has, a)
					}
				}
				if in > 0 && (in < len(addrs) || name == "not-named") {
					t.Fatalf("of %s %d of %d pods are said", name, in, len(addrs))
				}
			}
			if len(has) > 0 {
				t.Fatalf("%d pods are said that do not run", len(has))
			}
		}
		if total > peering.MaxDirect || len(got) > peering.MaxTransit {
			t.Fatalf("%d pods of %d homes", total, len(got))
		}
		var fc v1alpha1.ForeignCluster
		fc.Status.Network = &v1alpha1.PeerNetwork{Running: FromWire(got)}
		for _, said := range got {
			if runs := RunsFor(&fc, string(said.Cluster)); !runs[said.Addresses[0]] {
				t.Fatalf("%v does not run for %s", said.Addresses[0], said.Cluster)
			}
			if runs := RunsFor(&fc, "another"); runs[said.Addresses[0]] {
				t.Fatalf("%v runs for another, too", said.Addresses[0])
			}
		}
	}
	home, thief := cluster("home", nil, nil), cluster("thief", nil, nil)
	for _, fc := range []*v1alpha1.ForeignCluster{&home, &thief} {
		fc.Spec.Transit.Through = []string{"c-id"}
		fc.Status.Network.Transit = []v1alpha1.TransitAddresses{{ClusterID: "c-id", Namespaces: []v1alpha1.TransitNamespace{{Name: "shop"}}}}
	}
	got, _ := Running(&third, []v1alpha1.ForeignCluster{third, thief, home}, nil, time.Unix(2e9, 0), func(*v1alpha1.ForeignCluster) map[string][]netip.Addr {
		return map[string][]netip.Addr{"shop": {addr("10.0.0.1")}}
	})
	if want := "[{home-id [10.0.0.1] []}]"; fmt.Sprint(got) != want {
		t.Errorf("an address of two is said as %v, want %s: no peer accepts it twice", got, want)
	}
}

func TestAFamilyOpensOnlyIfAllPodsHaveAnAddressHere(t *testing.T) {
	t.Parallel()
	ns := v1alpha1.TransitNamespace{Name: "shop", Addresses: []string{"10.0.0.1", "10.0.0.2", "fd00::1"}, PodAddresses: []string{"10.9.0.1", "10.8.0.1", "fd09::1"}}
	runs := map[netip.Addr]bool{addr("10.9.0.1"): true, addr("10.8.0.1"): true, addr("fd09::1"): true}
	known := func(prefixes ...string) func(netip.Addr) (netip.Addr, bool) {
		return func(a netip.Addr) (netip.Addr, bool) {
			return a, slices.ContainsFunc(prefixes, func(p string) bool { return netip.MustParsePrefix(p).Contains(a) })
		}
	}
	for want, in := range map[string][]string{
		"map[false:[fd09::1]]":          {"10.9.0.0/16", "fd09::/64"},
		"map[true:[10.9.0.1 10.8.0.1]]": {"10.0.0.0/8"},
		"map[]":                         nil,
		"map[false:[fd09::1] true:[10.9.0.1 10.8.0.1]]": {"10.0.0.0/8", "fd09::/64"},
	} {
		if got := fmt.Sprint(Sources(ns, runs, known(in...))); got != want {
			t.Errorf("with %v: %s, want %s", in, got, want)
		}
	}
	delete(runs, addr("10.8.0.1")) // it is gone there, so the others may have the family
	if got, want := fmt.Sprint(Sources(ns, runs, known("10.9.0.0/16"))), "map[true:[10.9.0.1]]"; got != want {
		t.Errorf("without one: %s, want %s", got, want)
	}
}

func TestOnlyWhatIsOpenForPodsOfOthersIsSaidToBeOpen(t *testing.T) {
	t.Parallel()
	to := func(addrs ...string) []v1alpha1.Destination { return []v1alpha1.Destination{{Addresses: addrs}} }
	got := Opened([]v1alpha1.Exposure{
		{Contract: "c", Namespace: "shop", To: to("10.0.0.9")},
		{Contract: "d", Namespace: "shop", HomePeerID: "b", To: to("10.0.0.2", "10.0.0.1", "x")},
		{Contract: "d", Namespace: "bank", HomePeerID: "b", To: to("10.0.0.2")},
		{Contract: "e", Namespace: "shop", HomePeerID: "f", To: to("10.0.0.1", "10.0.0.3")},
	})
	if want := "[{b [10.0.0.1 10.0.0.2] []} {f [10.0.0.3] []}]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestAHomeWithManyPodsLeavesOthersTheirShare(t *testing.T) {
	t.Parallel()
	many := func(n int, first string) (out []string) {
		for a := addr(first); len(out) < n; a = a.Next() {
			out = append(out, a.String())
		}
		return out
	}
	count := func(open ...v1alpha1.Exposure) string {
		by := map[peering.ClusterID]int{}
		for _, t := range Opened(open) {
			by[t.Cluster] += len(t.Addresses)
		}
		return fmt.Sprint(by)
	}
	all := v1alpha1.Exposure{HomePeerID: "b", To: []v1alpha1.Destination{{Addresses: many(2*peering.MaxDirect, "10.0.0.0")}}}
	few := v1alpha1.Exposure{HomePeerID: "c", To: []v1alpha1.Destination{{Addresses: many(3, "10.1.0.0")}}}
	more := v1alpha1.Exposure{HomePeerID: "a", To: []v1alpha1.Destination{{Addresses: many(peering.MaxDirect, "10.2.0.0")}}}
	if got, want := count(all, few), "map[b:1021 c:3]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := count(all, few, more), "map[a:510 b:511 c:3]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestAPathPassesOnlyWhileItsConditionSaysSo(t *testing.T) {
	t.Parallel()
	for status, want := range map[metav1.ConditionStatus]bool{metav1.ConditionTrue: true, metav1.ConditionFalse: false, metav1.ConditionUnknown: false, "": false} {
		fc := cluster("c", nil, nil)
		if status != "" {
			fc.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionNetwork, Status: status}}
		}
		if Passes(&fc) != want {
			t.Errorf("condition %q: passes %v", status, !want)
		}
	}
}
