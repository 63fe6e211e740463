package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// row is three sites of which the one in the middle, hub, peers with both others, which do not peer.
type row struct {
	a, hub, c *site
}

func newRow() row {
	sites := make([]*site, 3)
	for i := range sites {
		s := newSite(i)
		s.id = strings.Repeat(string(rune('a'+i)), 32) // the form of an ID, by which third clusters are identified
		for j := range s.nodes {
			s.nodes[j].Spec.ClusterID, s.nodes[j].Status.OverlayAddress = s.id, plan.Overlay(s.id, s.nodes[j].Name).String()
		}
		sites[i] = s
	}
	r := row{sites[0], sites[1], sites[2]}
	for _, end := range []*site{r.a, r.c} {
		end.meet(r.hub.id)
		r.hub.meet(end.id)
		for _, l := range []*link{end.peers[r.hub.id], r.hub.peers[end.id]} {
			l.fc.Spec.TrustBundle, l.fc.Spec.Transit = "roots", &v1alpha1.Transit{}
		}
		end.peers[r.hub.id].open[pod(1)] = true // it is the hub's, which opens no flows to others here
	}
	return r
}

// settle exposes the hub's pods at each end to those at the other, and lets all sites exchange states and reconcile.
func (r row) settle(t failing) {
	sides := [][2]*site{{r.a, r.c}, {r.c, r.a}}
	for range 8 {
		for _, side := range sides {
			end, other := side[0], side[1]
			from, there := r.hub.called(end.id, pod(1))
			to, here := r.hub.called(other.id, pod(1))
			if there && here {
				r.hub.peers[end.id].passed = []allow.Exposed{{Contract: "c", Namespace: "shop", Third: other.id, From: []netip.Addr{from}, To: []allow.Destination{{Addr: to, Port: v1alpha1.DestinationPort{Protocol: "TCP", Port: 80}}}, Known: []netip.Addr{to}}}
			}
			for _, both := range [][2]*site{{end, r.hub}, {r.hub, end}} {
				s, peer := both[0], both[1]
				s.hear(t, peer)
				s.plan(peer.id)
				s.write(peer.id)
				s.store(peer.id)
			}
		}
	}
}

// passes returns whether the hub's gateway passes packets from each end to the other, by names that both have.
func (r row) passes(t failing) bool {
	l := r.hub.layouts(t)["node-0"]
	open := 0
	for _, side := range [][2]*site{{r.a, r.c}, {r.c, r.a}} {
		end, other := side[0], side[1]
		to, _ := r.hub.called(other.id, pod(1))
		name, named := end.called(r.hub.id, to)
		at := slices.IndexFunc(l.Translations, func(t plan.Translation) bool { return t.Cluster == end.id })
		mapped := at >= 0 && slices.ContainsFunc(l.Translations[at].Local, func(m plan.Mapping) bool { return m.Real.Addr() == to && m.Alias.Addr() == name })
		if named && mapped && slices.Contains(l.Transit, to) && slices.ContainsFunc(l.Inbound.Open, func(o plan.Opening) bool { return o.Addr == to && o.Port == 80 }) {
			open++
		}
	}
	if open == 1 {
		t.Fatalf("packets pass one way only: %v", l.Transit)
	}
	return open == 2
}

// Packets pass through the site in the middle once each of the three agrees, and not before; when
// one of them withdraws that the layouts of all are as they were.
func TestPacketsPassThroughAThirdClusterIfAllThreeAgree(t *testing.T) {
	t.Parallel()
	words := map[string]func(row, bool){
		"the one in the middle, of A": func(r row, yes bool) { r.hub.peers[r.a.id].fc.Spec.Transit.PassTo = said(r.c.id, yes) },
		"the one in the middle, of C": func(r row, yes bool) { r.hub.peers[r.c.id].fc.Spec.Transit.PassTo = said(r.a.id, yes) },
		"A":                           func(r row, yes bool) { r.a.peers[r.hub.id].fc.Spec.Transit.Through = said(r.c.id, yes) },
		"C":                           func(r row, yes bool) { r.c.peers[r.hub.id].fc.Spec.Transit.Through = said(r.a.id, yes) },
	}
	for last := range words {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			r := newRow()
			for who, say := range words {
				say(r, who != last)
			}
			r.settle(t)
			before := map[string]map[string]plan.Layout{}
			for _, s := range []*site{r.a, r.hub, r.c} {
				before[s.id] = s.layouts(t)
			}
			if r.passes(t) {
				t.Fatal("packets pass before all agree")
			}
			for _, end := range []*site{r.a, r.c} {
				if n := end.peers[r.hub.id].fc.Status.Network; len(n.Transit) > 0 {
					t.Fatalf("%s is sent addresses of the other: %v", end.id, n.Transit)
				}
			}
			words[last](r, true)
			r.settle(t)
			if !r.passes(t) {
				t.Fatalf("packets do not pass: %+v", r.hub.peers[r.a.id].tunnel.Spec)
			}
			for _, l := range r.hub.layouts(t) {
				if len(l.Problems) > 0 {
					t.Errorf("problems of the one in the middle: %v", l.Problems)
				}
			}
			words[last](r, false)
			r.settle(t)
			if r.passes(t) {
				t.Fatal("packets pass though one does not agree any more")
			}
			same := cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})}
			if diff := cmp.Diff(before[r.hub.id], r.hub.layouts(t), same); diff != "" {
				t.Errorf("something is left of it (-before +after):\n%s", diff)
			}
		})
	}
}

// The one in the middle names where its pods are while both ends say that they peer, and each end then opens its own.
func TestPodsAreNamedWhereTheyAreWhileTheEndsPeer(t *testing.T) {
	t.Parallel()
	r := newRow()
	r.hub.peers[r.a.id].fc.Spec.Transit.PassTo, r.hub.peers[r.c.id].fc.Spec.Transit.PassTo = said(r.c.id, true), said(r.a.id, true)
	r.a.peers[r.hub.id].fc.Spec.Transit.Through, r.c.peers[r.hub.id].fc.Spec.Transit.Through = said(r.c.id, true), said(r.a.id, true)
	named := func(end, other *site) string {
		return fmt.Sprint(transit.NamespacesIn(end.peers[r.hub.id].fc, other.id))
	}
	r.settle(t)
	if got := named(r.a, r.c) + named(r.c, r.a); got != "[][]" {
		t.Errorf("pods are named before the ends peer: %s", got)
	}
	r.a.meet(r.c.id)
	r.c.meet(r.a.id)
	for _, side := range [][2]*site{{r.a, r.c}, {r.c, r.a}} {
		side[0].peers[side[1].id].fc.Spec.TrustBundle = "roots"
		side[0].hear(t, side[1])
	}
	r.settle(t)
	for _, side := range [][2]*site{{r.a, r.c}, {r.c, r.a}} {
		end, other := side[0], side[1]
		address, _ := r.hub.called(other.id, pod(1))
		if got, want := named(end, other), fmt.Sprint([]v1alpha1.TransitNamespace{{Name: "shop", Addresses: []string{address.String()}, PodAddresses: []string{pod(1).String()}}}); got != want {
			t.Errorf("%s is told %s, want %s", end.id, got, want)
		}
	}
	r.c.peers[r.a.id].fc.Spec.TrustBundle = ""
	r.settle(t)
	if got := named(r.a, r.c) + named(r.c, r.a); got != "[][]" {
		t.Errorf("pods are named after one does not peer any more: %s", got)
	}
}

func said(id string, yes bool) []string {
	if yes {
		return []string{id}
	}
	return nil
}

// A peer that names addresses of third clusters to one that does not agree gets no alias for any.
func TestAddressesOfThirdClustersGetNoAliasWithoutConsent(t *testing.T) {
	t.Parallel()
	r := newRow()
	r.settle(t)
	network := r.a.peers[r.hub.id].fc.Status.Network
	network.Transit = []v1alpha1.TransitAddresses{{ClusterID: r.c.id, Addresses: []string{"198.18.9.9"}}}
	for _, through := range [][]string{nil, {r.hub.id}, {r.c.id}} {
		r.a.peers[r.hub.id].fc.Spec.Transit.Through = through
		r.a.plan(r.hub.id)
		r.a.store(r.hub.id)
		got, named := r.a.called(r.hub.id, netip.MustParseAddr("198.18.9.9"))
		if want := slices.Contains(through, r.c.id); named != want {
			t.Errorf("through %v: named %v %v, want %v", through, got, named, want)
		}
	}
}

// While an agent that has just started does not know all that a contract exposes, what is open of third
// clusters stays, and goes at once where one does not agree any more.
func TestTransitStaysWhileNotAllIsKnown(t *testing.T) {
	t.Parallel()
	third := strings.Repeat("c", 32)
	in := tunnelInput{
		exists: true, exposed: []allow.Exposed{{Contract: "c", Unknown: true}}, agreed: []string{third},
		current: v1alpha1.TunnelSpec{
			Transit: []v1alpha1.TransitAddresses{{ClusterID: third, Addresses: []string{"198.18.9.9"}}},
			Allow:   []v1alpha1.Exposure{{Contract: "c", Namespace: "shop", DestinationPeerID: third, From: []string{"198.18.1.1"}, To: []v1alpha1.Destination{{Addresses: []string{"198.18.9.9"}, AnyPort: true}}}},
		},
	}
	for _, agreed := range [][]string{{third}, nil} {
		in.agreed = agreed
		passed, _ := in.passed(10)
		open, _ := allow.Plan(in.exposed, in.openTo(in.current.Allow))
		if len(passed) != len(agreed) || len(open) != len(agreed) {
			t.Errorf("agreed %v: %v, open %v", agreed, passed, open)
		}
	}
	in.agreed, in.direct = []string{third}, []string{third}
	in.there = func(peering.ClusterID, netip.Addr) (netip.Addr, bool) { return netip.MustParseAddr("10.0.0.1"), true }
	in.current.Transit[0].Namespaces = []v1alpha1.TransitNamespace{{Name: "shop", Addresses: []string{"198.18.9.9"}, PodAddresses: []string{"10.0.0.9"}}}
	if passed, _ := in.passed(10); len(passed) != 1 || len(passed[0].Namespaces) != 1 || passed[0].Namespaces[0].PodAddresses[0] != "10.0.0.9" {
		t.Errorf("where pods are does not stay: %v", passed)
	}
	in.exposed = []allow.Exposed{{Contract: "c", Third: third, Known: []netip.Addr{netip.MustParseAddr("198.18.9.1"), netip.MustParseAddr("198.18.9.2"), netip.MustParseAddr("198.18.9.3")}}}
	if passed, left := in.passed(2); len(passed) != 1 || len(passed[0].Addresses) != 2 || !strings.Contains(left, "1 addresses of third clusters") {
		t.Errorf("with room for two: %v, %q", passed, left)
	}
}

// The plan of a network shows what passes, what has an alias, and what is missing.
func TestANetworkPlanShowsWhatPasses(t *testing.T) {
	t.Parallel()
	r := newRow()
	r.hub.peers[r.a.id].fc.Spec.Transit.PassTo, r.hub.peers[r.c.id].fc.Spec.Transit.PassTo = said(r.c.id, true), said(r.a.id, true)
	r.a.peers[r.hub.id].fc.Spec.Transit.Through = said(r.c.id, true)
	show := func(s *site, id string) string {
		r.settle(t)
		var all []v1alpha1.ForeignCluster
		for _, key := range slices.Sorted(maps.Keys(s.peers)) {
			all = append(all, *s.peers[key].fc)
		}
		return fmt.Sprint(plannedTransit(networkInput{peer: s.peers[id].fc, current: &s.peers[id].tunnel.Spec, transit: transit.States(s.peers[id].fc, all)}))
	}
	if got := show(r.hub, r.a.id); !strings.Contains(got, "does not agree") {
		t.Errorf("C did not agree, and the plan is %s", got)
	}
	r.c.peers[r.hub.id].fc.Spec.Transit.Through = said(r.a.id, true)
	if got, want := show(r.hub, r.a.id), "[{"+r.c.id+" false 1 1 }]"; got != want {
		t.Errorf("the plan of the one in the middle is %s, want %s", got, want)
	}
	if got, want := show(r.a, r.hub.id), "[{"+r.c.id+" true 1 1 }]"; got != want {
		t.Errorf("the plan of an end is %s, want %s", got, want)
	}
}

// Which pods run here for others is part of the state for a peer, and of what is recorded of it; while it cannot be read,
// no state says that none do.
func TestWhichPodsRunForOthersIsSentAndRecorded(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan), peertest.ContractWith(milan, "c-1", v1alpha1.ContractProvider))
	pt.States.Endpoints = func() []string { return nil }
	pt.States.KeyShare = func(peering.ClusterID, uint64) peering.PresharedKeyShare { return peering.PresharedKeyShare{1} }
	running := []peering.TransitAddresses{{Cluster: peering.ClusterID(strings.Repeat("e", 32)), Addresses: []netip.Addr{pod(1), pod(2)}}}
	var fails error
	pt.States.Running = func(_ context.Context, peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) ([]peering.TransitAddresses, error) {
		if peer.Name != "milan" || len(all) != 1 {
			t.Errorf("asked for %s of %d peers", peer.Name, len(all))
		}
		return running, fails
	}
	state, err := pt.States.State(t.Context(), milan.ID)
	if err != nil || !cmp.Equal(state.Network.Running, running, cmpopts.EquateComparable(netip.Addr{})) {
		t.Fatalf("the state has %v, %v", state.Network, err)
	}
	state.Network.PresharedKeyShare = peering.PresharedKeyShare{}
	if err := pt.States.Observe(t.Context(), milan.ID, state); err != nil {
		t.Fatal(err)
	}
	want := []v1alpha1.TransitAddresses{{ClusterID: strings.Repeat("e", 32), Addresses: []string{pod(1).String(), pod(2).String()}}}
	if diff := cmp.Diff(want, peertest.PeerCalled(t, pt.Client, "milan").Status.Network.Running); diff != "" {
		t.Errorf("recorded (-want +got):\n%s", diff)
	}
	fails = errors.New("no response")
	if _, err := pt.States.State(t.Context(), milan.ID); !errors.Is(err, fails) {
		t.Errorf("a state without them is sent: %v", err)
	}
}
