package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// What a peer announces takes as much of the alias pool here: what does not fit a prefix's
// share is known address by address, and stops nothing else.
func TestAPeerGetsItsShareOfTheAliasPool(t *testing.T) {
	t.Parallel()
	many := func(n int, format string) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(format, i))
		}
		return out
	}
	pool := []netip.Prefix{prefix("198.18.0.0/15"), prefix("fd01:200::/40")}
	for name, row := range map[string]struct{ prefixes, split []string }{
		"none":                               {},
		"one address":                        {prefixes: []string{"10.0.0.1/32"}},
		"half of the pool":                   {prefixes: []string{"10.0.0.0/16"}},
		"more than half":                     {prefixes: []string{"10.0.0.0/15"}, split: []string{"10.0.0.0/15"}},
		"everything":                         {prefixes: []string{"0.0.0.0/0", "10.1.0.0/24"}, split: []string{"0.0.0.0/0"}},
		"the rest has what is left":          {prefixes: []string{"10.0.0.0/16", "10.1.0.0/24"}, split: []string{"10.1.0.0/24"}},
		"sixteen /24":                        {prefixes: many(16, "10.0.%d.0/24")},
		"of IPv6 half as well":               {prefixes: []string{"fd00::/41"}},
		"and not more":                       {prefixes: []string{"fd00::/40"}, split: []string{"fd00::/40"}},
		"one family does not use up another": {prefixes: []string{"10.0.0.0/16", "fd00::/41"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := aliases.Input{Pool: pool, Now: now}
			got := planFor(in, &v1alpha1.PeerNetwork{Prefixes: row.prefixes}, nil)
			var split, whole []string
			for _, p := range got.ByAddress {
				split = append(split, p.String())
			}
			for _, a := range got.Prefixes {
				whole = append(whole, a.Prefix.String())
			}
			if !slices.Equal(split, row.split) || len(whole)+len(split) != len(row.prefixes) || len(lacksOf(got, pool)) > 0 {
				t.Errorf("%v have aliases and %v do not, want %v; %v", whole, split, row.split, lacksOf(got, pool))
			}
		})
	}
}

// The first peer with a /16 has half of the default pool, and each after it is known address
// by address; from a wider pool each has a /16.
func TestPeersWithA16ShareTheDefaultPool(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		pool  string
		whole int
	}{"the default": {"198.18.0.0/15", 1}, "a wider one": {"172.16.0.0/12", 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := aliases.Input{Pool: []netip.Prefix{prefix(row.pool)}, Now: now}
			for i := range 3 {
				got := planFor(in, &v1alpha1.PeerNetwork{Prefixes: []string{"10.0.0.0/16"}, Addresses: []string{"10.0.0.1", "10.0.7.9"}}, nil)
				_, blocks := stored.Status(got.Allocation)
				if whole := i < row.whole; len(got.Prefixes) == 1 != whole || len(blocks) == 0 != whole || len(lacksOf(got, in.Pool)) > 0 {
					t.Errorf("peer %d has %v and %v; %v", i+1, got.Prefixes, blocks, lacksOf(got, in.Pool))
				}
				in.Others = append(in.Others, got.Space())
			}
		})
	}
}

func TestPrefixesWithoutAnAliasAreReported(t *testing.T) {
	t.Parallel()
	pool := []netip.Prefix{prefix("10.240.0.0/30")}
	got := planFor(aliases.Input{Pool: pool, Now: now}, &v1alpha1.PeerNetwork{
		Prefixes: []string{"10.0.0.1/16", "nonsense", "fd00::/64"}, Addresses: []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "169.254.169.254"},
	}, nil)
	text := strings.Join(lacksOf(got, pool), "; ")
	for _, want := range []string{"10.0.0.1/16", "invalid Prefix", "169.254.169.254", "fd00::/64: network.aliasPool has no prefix of its family", "1 addresses of the peer have no alias, 10.0.0.5 among them"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not mention %q", text, want)
		}
	}
}

// Aliases are read as they were stored, and without a record there are none.
func TestStoredAliasesAreRead(t *testing.T) {
	t.Parallel()
	given := aliases.Allocation{
		Prefixes: []aliases.Alias{{Prefix: prefix("10.0.0.0/24"), Alias: prefix("198.18.0.0/24")}},
		Blocks: []aliases.Block{{Alias: prefix("198.18.1.0/30"), Slots: []aliases.Slot{
			{}, {Addr: netip.MustParseAddr("10.1.0.9")}, {Addr: netip.MustParseAddr("10.1.0.1"), Released: now.Truncate(time.Second)}, {},
		}}},
	}
	got := stored.Allocation(stored.Status(given))
	if diff := cmp.Diff(given, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateApproxTime(0)); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
	bad := stored.Allocation([]v1alpha1.PrefixAlias{{Prefix: "x"}}, []v1alpha1.AliasBlock{{Alias: "y"}, {Alias: "198.18.1.0/32", Addresses: []string{"z"}, Released: []v1alpha1.ReleasedAlias{{Index: 7}, {Index: -1}}}})
	if len(bad.Prefixes) != 0 || len(bad.Blocks) != 1 || bad.Blocks[0].Slots[0] != (aliases.Slot{}) {
		t.Errorf("read %+v", bad)
	}
}

// A peer has to know the addresses that it may reach and those of nodes, but
// for what it has aliases for. Where there are too many, those that it knows stay.
func TestAddressesThatAPeerHasToKnow(t *testing.T) {
	t.Parallel()
	var nodes []v1alpha1.FabricNode
	for i := range 3 {
		n := v1alpha1.FabricNode{}
		n.Status.PodNetworkAddresses = []string{fmt.Sprintf("10.0.%d.1", i), fmt.Sprintf("fd00:%d::1", i+1)}
		nodes = append(nodes, n)
	}
	open := func(addrs ...string) []v1alpha1.Exposure {
		return []v1alpha1.Exposure{{To: []v1alpha1.Destination{{Addresses: addrs}}}}
	}
	network := &v1alpha1.PeerNetwork{Aliases: []v1alpha1.PrefixAlias{{Prefix: "fd00:2::/64", Alias: "fd99::/64"}}}
	got, left := ownAddresses(open("10.0.1.7", "10.0.1.7", "fd00:2::9", "127.0.0.1", "x"), nodes, network)
	if want := "[10.0.0.1 10.0.1.1 10.0.1.7 10.0.2.1 fd00:1::1 fd00:3::1]"; fmt.Sprint(got) != want || left != 0 {
		t.Errorf("%v and %d more, want %s", got, left, want)
	}
	var many []string
	for i := range peering.MaxAddresses + 10 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250+1))
	}
	last := many[len(many)-1]
	network.AliasBlocks = []v1alpha1.AliasBlock{{Alias: "198.18.0.0/32", Addresses: []string{last}}}
	got, left = ownAddresses(open(many...), nodes, network)
	if len(got) != peering.MaxAddresses || left != 10+5 || !slices.Contains(got, netip.MustParseAddr(last)) || !slices.Contains(got, netip.MustParseAddr("fd00:1::1")) {
		t.Errorf("%d addresses, and %d more", len(got), left)
	}
	if !slices.IsSortedFunc(got, netip.Addr.Compare) {
		t.Error("they are not in order")
	}
}

func TestAliasesAvoidTheNetworksOfNodes(t *testing.T) {
	t.Parallel()
	var addrs []netip.Prefix
	for _, a := range []string{"198.18.0.4/32", "198.18.3.9/32", "203.0.113.7/32", "fd02::1/128"} {
		addrs = append(addrs, prefix(a))
	}
	got := planFor(aliases.Input{Pool: []netip.Prefix{prefix("198.18.0.0/15")}, Taken: nodeNetworks(addrs[:2]), Now: now}, &v1alpha1.PeerNetwork{Prefixes: []string{"10.0.0.0/24"}}, nil)
	if len(got.Prefixes) != 1 || got.Prefixes[0].Alias.Overlaps(prefix("198.18.0.0/22")) {
		t.Errorf("%+v: that is where the nodes are", got)
	}
	for _, p := range nodeNetworks(addrs) {
		if p.Addr().Is4() && p.Bits() < nodeNetMost4 || p.Addr().Is6() && p.Bits() < nodeNetMost6 {
			t.Errorf("%v is more than the network of nodes", p)
		}
	}
}

// The prefixes of Services are read from the API server, and without them no alias is
// assigned: it could be one of theirs.
func TestAliasesAvoidTheNetworksOfServices(t *testing.T) {
	t.Parallel()
	pt := newPeersTest(t)
	pt.AliasPool = []netip.Prefix{prefix("10.98.0.0/15")}
	var services []netip.Prefix
	err := errors.New("the API server is away")
	pt.Reserved = func(context.Context) ([]netip.Prefix, error) { return services, err }
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{UID: "office"}}
	fc.Status.Network = &v1alpha1.PeerNetwork{Prefixes: []string{"10.0.0.0/24"}}
	if _, err := pt.planAliases(t.Context(), fc, nil); err == nil || len(fc.Status.Aliases) != 0 {
		t.Errorf("got %v, %v, want an error", fc.Status.Aliases, err)
	}
	err = nil
	for _, services = range [][]netip.Prefix{{prefix("10.98.0.0/16")}, {prefix("10.99.0.0/16")}, {prefix("10.98.0.0/16")}} {
		waits, err := pt.planAliases(t.Context(), fc, nil)
		if err != nil || waits != "" || len(fc.Status.Aliases) != 1 || prefix(fc.Status.Aliases[0].Alias).Overlaps(services[0]) {
			t.Errorf("with Services in %v: aliases %v, %q, %v", services, fc.Status.Aliases, waits, err)
		}
	}
}

func TestPeerThatAnnouncesNoNetworkHasNone(t *testing.T) {
	if out := networkFromWire(nil, nil, time.Time{}); out != nil {
		t.Errorf("got %v", out)
	}
}

// Whatever a peer announces, its state is kept and the session goes on.
func TestNoPrefixEndsASession(t *testing.T) {
	t.Parallel()
	in := &peering.Network{Prefixes: []netip.Prefix{prefix("0.0.0.0/0"), prefix("10.0.0.0/24")}}
	if out := networkFromWire(in, nil, time.Time{}); !slices.Equal(out.Prefixes, []string{"0.0.0.0/0", "10.0.0.0/24"}) {
		t.Errorf("kept %v", out)
	}
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan))
	if err := pt.States.Observe(t.Context(), milan.ID, peering.PeerState{Network: in}); err != nil {
		t.Errorf("a prefix ends the session: %v", err)
	}
}

// As many nodes as there may be, each with prefixes of its own, fit into a state
// that the peer takes, and have a way to it.
func TestStateHoldsThePrefixesOfManyNodes(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	contract := peertest.ContractWith(milan, "c-1", v1alpha1.ContractProvider)
	objects := []client.Object{fc, contract}
	for i := range 300 {
		objects = append(objects, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i)},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 244+i/256, i%256), fmt.Sprintf("fd00:1:0:%x::/64", i)}},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.%d.%d", i/200, 1+i%200)}}},
		})
	}
	c := peertest.Client(t, objects...)
	states := &States{
		Client: c, Self: peertest.OwnID, Aggregate: plan.Aggregate, Endpoints: func() []string { return nil }, Reserved: func(context.Context) ([]netip.Prefix, error) { return []netip.Prefix{prefix("10.96.0.0/12")}, nil },
		KeyShare: func(peering.ClusterID, uint64) peering.PresharedKeyShare { return peering.PresharedKeyShare{1} }, Now: time.Now,
	}
	state, err := states.State(t.Context(), milan.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wire.CheckState(wire.StateTo(state)); err != nil {
		t.Errorf("the peer would refuse it: %v", err)
	}
	var nodes corev1.NodeList
	if err := c.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for i := range nodes.Items {
		for _, cidr := range nodes.Items[i].Spec.PodCIDRs {
			if !slices.ContainsFunc(state.Network.Prefixes, prefix(cidr).Overlaps) {
				t.Errorf("%s of %s is not among %v", cidr, nodes.Items[i].Name, state.Network.Prefixes)
			}
		}
	}
}

// What is learnt is announced besides the prefixes of nodes, and many of one do not widen the other.
func TestLearntPrefixesAreAnnouncedBesidesThoseOfNodes(t *testing.T) {
	t.Parallel()
	objects := []client.Object{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "office.entente.dev", Labels: map[string]string{v1alpha1.LabelVirtualNode: "true"}}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.99.0.0/24"}}}}
	for i := range 40 {
		objects = append(objects, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}, Spec: corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.244.%d.0/24", 16*(i%16)+i/16)}}})
	}
	var learnt LearntPods
	var fails error
	s := &States{Client: peertest.Client(t, objects...), Aggregate: plan.Aggregate, Learn: func(context.Context) (LearntPods, error) { return learnt, fails }}
	for name, tc := range map[string]struct {
		learnt []netip.Prefix
		want   func(out []netip.Prefix) bool
	}{
		"nothing":               {nil, func(out []netip.Prefix) bool { return len(out) == 16 }},
		"a pool elsewhere":      {[]netip.Prefix{prefix("192.168.0.0/16")}, func(out []netip.Prefix) bool { return len(out) <= 16 && slices.Contains(out, prefix("192.168.0.0/16")) }},
		"one with all of nodes": {[]netip.Prefix{prefix("10.244.0.0/16")}, func(out []netip.Prefix) bool { return slices.Equal(out, []netip.Prefix{prefix("10.244.0.0/16")}) }},
	} {
		learnt = LearntPods{Prefixes: tc.learnt, Sources: []string{"a"}, LeftOut: []string{"b"}, Advice: "c"}
		got, err := s.PodPrefixes(t.Context())
		if err != nil || got.Omitted != 0 || !tc.want(got.Prefixes) || len(got.Sources) != 1 || len(got.LeftOut) != 1 || got.Advice != "c" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		for i := range 40 {
			own := prefix(fmt.Sprintf("10.244.%d.0/24", 16*(i%16)+i/16))
			if !slices.ContainsFunc(got.Prefixes, func(p netip.Prefix) bool { return p.Overlaps(own) && p.Bits() <= own.Bits() }) {
				t.Errorf("%s: %v is not announced", name, own)
			}
		}
	}
	fails = errors.New("no response yet")
	if _, err := s.PodPrefixes(t.Context()); !errors.Is(err, fails) {
		t.Errorf("before the cluster is known: %v", err)
	}
	s.PodCIDRs = []netip.Prefix{prefix("10.7.0.0/16")}
	if got, err := s.PodPrefixes(t.Context()); err != nil || !slices.Equal(got.Prefixes, s.PodCIDRs) || !slices.Equal(got.Sources, []string{FromValues}) {
		t.Errorf("with the value set: %+v, %v", got, err)
	}
}
