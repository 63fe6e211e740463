package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// What a peer announces takes as much of the alias pool here: a peer gets its share
// and no more, whatever it announces, and what it gets is of use.
func TestAPeerGetsItsShareOfTheAliasPool(t *testing.T) {
	t.Parallel()
	many := func(n int, format string) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprintf(format, i))
		}
		return out
	}
	pool := []netip.Prefix{prefix("198.18.0.0/15"), prefix("fd01:200::/40")}
	for name, row := range map[string]struct{ prefixes, refused []string }{
		"none":                               {},
		"one address":                        {prefixes: []string{"10.0.0.1/32"}},
		"half of the pool":                   {prefixes: []string{"10.0.0.0/16"}},
		"more than half":                     {prefixes: []string{"10.0.0.0/15"}, refused: []string{"10.0.0.0/15"}},
		"everything":                         {prefixes: []string{"0.0.0.0/0", "10.1.0.0/24"}, refused: []string{"0.0.0.0/0"}},
		"the rest has what is left":          {prefixes: []string{"10.0.0.0/16", "10.1.0.0/24"}, refused: []string{"10.1.0.0/24"}},
		"sixteen /24":                        {prefixes: many(16, "10.0.%d.0/24")},
		"sixteen /20 fill it":                {prefixes: many(16, "10.0.%d.0/24")},
		"of IPv6 half as well":               {prefixes: []string{"fd00::/41"}},
		"and no more":                        {prefixes: []string{"fd00::/40"}, refused: []string{"fd00::/40"}},
		"one family does not use up another": {prefixes: []string{"10.0.0.0/16", "fd00::/41"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &Peers{AliasPool: pool, Allocate: plan.Allocate}
			got, err := PlanAliases(nil, row.prefixes, pool, nil, r.allocate)
			var have, want []string
			for _, a := range got {
				have = append(have, a.Prefix)
			}
			for _, p := range row.prefixes {
				if !slices.Contains(row.refused, p) {
					want = append(want, p)
				}
			}
			slices.Sort(want)
			if !slices.Equal(have, want) || (err != nil) != (len(row.refused) > 0) {
				t.Errorf("aliases for %v, want %v; %v", have, want, err)
			}
			// What it has it keeps, and gets no more by asking again.
			if again, _ := PlanAliases(got, row.prefixes, pool, nil, r.allocate); !slices.Equal(again, got) {
				t.Errorf("then it has %v, and had %v", again, got)
			}
		})
	}
}

// TestTwoPeersCanFillTheDefaultPool: that is the most that a share of the pool bounds. A
// third is told what to do, and gets its alias from a wider pool.
func TestTwoPeersCanFillTheDefaultPool(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		pool string
		fit  int
	}{"the default": {"198.18.0.0/15", 2}, "a wider one": {"172.16.0.0/12", 3}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := []netip.Prefix{prefix(row.pool)}
			r := &Peers{AliasPool: pool, Allocate: plan.Allocate}
			var taken []netip.Prefix
			for i := range 3 {
				got, err := PlanAliases(nil, []string{"10.0.0.0/16"}, pool, taken, r.allocate)
				if fits := i < row.fit; (err == nil) != fits || (len(got) == 1) != fits {
					t.Errorf("peer %d gets %v, %v", i+1, got, err)
				}
				for _, a := range got {
					taken = append(taken, prefix(a.Alias))
				}
			}
		})
	}
}

func TestAliasesAvoidTheNetworksOfNodes(t *testing.T) {
	t.Parallel()
	var addrs []netip.Prefix
	for _, a := range []string{"198.18.0.4/32", "198.18.3.9/32", "203.0.113.7/32", "fd02::1/128"} {
		addrs = append(addrs, prefix(a))
	}
	r := &Peers{AliasPool: []netip.Prefix{prefix("198.18.0.0/15")}, Allocate: plan.Allocate}
	got, err := PlanAliases(nil, []string{"10.0.0.0/24"}, r.AliasPool, nodeNetworks(addrs[:2]), r.allocate)
	if err != nil || prefix(got[0].Alias).Overlaps(prefix("198.18.0.0/22")) {
		t.Errorf("alias %v, %v: that is where the nodes are", got, err)
	}
	for _, p := range nodeNetworks(addrs) {
		if p.Addr().Is4() && p.Bits() < nodeNetMost4 || p.Addr().Is6() && p.Bits() < nodeNetMost6 {
			t.Errorf("%v is more than the network of nodes", p)
		}
	}
}

// The prefixes of Services are as the API server says now, and without them no alias is
// given: it could be one of theirs.
func TestAliasesAvoidTheNetworksOfServices(t *testing.T) {
	t.Parallel()
	pt := newPeersTest(t)
	pt.AliasPool, pt.Allocate = []netip.Prefix{prefix("10.98.0.0/15")}, plan.Allocate
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
	if out := networkFromWire(nil); out != nil {
		t.Errorf("got %v", out)
	}
}

// Whatever a peer announces, its state is kept and the session goes on.
func TestNoPrefixEndsASession(t *testing.T) {
	t.Parallel()
	in := &peering.Network{Prefixes: []netip.Prefix{prefix("0.0.0.0/0"), prefix("10.0.0.0/24")}}
	if out := networkFromWire(in); !slices.Equal(out.Prefixes, []string{"0.0.0.0/0", "10.0.0.0/24"}) {
		t.Errorf("kept %v", out)
	}
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan))
	if err := pt.States.Observe(t.Context(), milan.ID, peering.PeerState{Network: in}); err != nil {
		t.Errorf("a prefix ends the session: %v", err)
	}
}

// As many nodes as there may be, each with prefixes of its own, are told in a state
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
		Half: func(peering.ClusterID, uint64) peering.PresharedHalf { return peering.PresharedHalf{1} }, Now: time.Now,
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
