package direct

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/peering"
)

// What a provider opens to pods in another cluster is what it runs for their home, in the families of which it knows
// all sources, until the contract is over.
func TestAProviderOpensOnlyPodsThatItRunsForTheirHome(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "contract"}}
	c.Spec.NotAfter = metav1.NewTime(time.Unix(2e9, 0))
	home := &v1alpha1.ForeignCluster{Spec: v1alpha1.ForeignClusterSpec{ClusterID: "home"}}
	served := []endpoints.Served{{Addr: addr("10.0.0.9"), Protocol: "TCP", Port: 80}, {Addr: addr("fd00::9"), Protocol: "UDP", Port: 53}}
	for what, tc := range map[string]struct {
		from   map[bool][]netip.Addr
		served []endpoints.Served
		want   string
	}{
		"both families":     {map[bool][]netip.Addr{true: {addr("198.18.0.1")}, false: {addr("fd01::1")}}, served, "[{10.0.0.9 {TCP 80}} {fd00::9 {UDP 53}}]"},
		"one family":        {map[bool][]netip.Addr{true: {addr("198.18.0.1")}}, served, "[{10.0.0.9 {TCP 80}}]"},
		"no source":         {nil, served, "[]"},
		"no pod runs there": {map[bool][]netip.Addr{true: {addr("198.18.0.1")}}, nil, "[]"},
	} {
		got := exposed(c, home, tc.from, "shop", tc.served)
		if fmt.Sprint(got.To) != tc.want || len(got.From) != len(tc.from) || got.AnySource || got.Home != "home" || got.Contract != "contract" || !got.Until.After(c.Spec.NotAfter.Time) {
			t.Errorf("%s: %+v, want %s", what, got, tc.want)
		}
		open, _ := allow.Plan([]allow.Exposed{got}, nil)
		if (len(open) > 0) != (tc.want != "[]") {
			t.Errorf("%s: a tunnel opens %+v", what, open)
		}
	}
}

// pods is what runs here for one contract.
type pods struct {
	served  map[string][]endpoints.Served
	running map[string][]netip.Addr
	// known is closed once it is known what runs.
	known chan struct{}
}

func (p pods) Served(contract string, namespaces []string) (map[string][]endpoints.Served, bool) {
	if contract != "contract" {
		return nil, true
	}
	some := maps.Clone(p.served)
	maps.DeleteFunc(some, func(name string, _ []endpoints.Served) bool { return !slices.Contains(namespaces, name) })
	return some, true
}

func (p pods) Addresses(ctx context.Context, contract string) (map[string][]netip.Addr, error) {
	select {
	case <-p.known:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if contract != "contract" {
		return nil, nil
	}
	return p.running, nil
}

// contract is one with the home.
func contract(name string, role v1alpha1.ContractRole) *v1alpha1.Contract {
	c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.PeerID, c.Spec.Role, c.Spec.Network, c.Status.Phase = strings.Repeat("h", 32), role, v1alpha1.NetworkTunnel, peering.PhaseActive.String()
	return c
}

// world is a provider of home's pods, which home names to it, as it names it those of other.
func world(t *testing.T) (p *Provider, home, other *v1alpha1.ForeignCluster) {
	t.Helper()
	addr := netip.MustParseAddr
	peer := func(name string) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
		fc.Spec.ClusterID, fc.Spec.TrustBundle = strings.Repeat(name[:1], 32), "roots"
		fc.Status.Network = &v1alpha1.PeerNetwork{}
		return fc
	}
	home, other = peer("home"), peer("other")
	home.Spec.Transit = &v1alpha1.Transit{Through: []string{other.Spec.ClusterID}}
	home.Status.Network.Transit = []v1alpha1.TransitAddresses{{ClusterID: other.Spec.ClusterID, Addresses: []string{"172.20.0.3", "172.20.0.4"}, Namespaces: []v1alpha1.TransitNamespace{
		{Name: "shop", Addresses: []string{"172.20.0.3", "172.20.0.4"}, PodAddresses: []string{"10.9.0.3", "10.9.0.4"}},
	}}}
	other.Status.Network.Running = []v1alpha1.TransitAddresses{{ClusterID: home.Spec.ClusterID, Addresses: []string{"10.9.0.3", "10.9.0.4"}}}
	known := make(chan struct{})
	close(known)
	return &Provider{
		Client: peertest.Client(t, home, other, contract("contract", v1alpha1.ContractProvider), contract("consumer", v1alpha1.ContractConsumer)),
		Pods: pods{
			known: known, served: map[string][]endpoints.Served{"shop": {{Addr: addr("10.0.0.9"), Protocol: "TCP", Port: 80}}},
			running: map[string][]netip.Addr{"shop": {addr("10.0.0.9"), addr("10.0.0.8")}, "bank": {addr("10.0.0.7")}},
		},
		Named:  func(_ peering.ClusterID, there netip.Addr) (netip.Addr, bool) { return there, true },
		Unsure: func(string, bool) bool { return false },
	}, home, other
}

// A home that is away does not notice that one of its pods at another provider is gone. That provider says so, and what
// gets the pod's address reaches nothing here.
func TestOnlyPodsThatTheOtherProviderRunsForTheirHomeReachThoseHere(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		change func(home, other *v1alpha1.ForeignCluster)
		want   string
	}{
		"both say so":                {func(_, _ *v1alpha1.ForeignCluster) {}, "[10.9.0.3 10.9.0.4]"},
		"one pod is gone there":      {func(_, o *v1alpha1.ForeignCluster) { o.Status.Network.Running[0].Addresses = []string{"10.9.0.4"} }, "[10.9.0.4]"},
		"all are":                    {func(_, o *v1alpha1.ForeignCluster) { o.Status.Network.Running = nil }, "[]"},
		"they run for somebody else": {func(_, o *v1alpha1.ForeignCluster) { o.Status.Network.Running[0].ClusterID = o.Spec.ClusterID }, "[]"},
		"the other has more": {func(_, o *v1alpha1.ForeignCluster) {
			o.Status.Network.Running[0].Addresses = []string{"10.9.0.3", "10.9.0.5"}
		}, "[10.9.0.3]"},
		"what it says is malformed":           {func(_, o *v1alpha1.ForeignCluster) { o.Status.Network.Running[0].Addresses = []string{"x", "10.9.0.3"} }, "[10.9.0.3]"},
		"the other has an older version":      {func(_, o *v1alpha1.ForeignCluster) { o.Status.Network = &v1alpha1.PeerNetwork{} }, "[]"},
		"the other has said nothing":          {func(_, o *v1alpha1.ForeignCluster) { o.Status.Network = nil }, "[]"},
		"the home names none of its pods":     {func(h, _ *v1alpha1.ForeignCluster) { h.Status.Network.Transit[0].Namespaces = nil }, "[]"},
		"this cluster does not agree anymore": {func(h, _ *v1alpha1.ForeignCluster) { h.Spec.Transit = nil }, "[]"},
	} {
		p, home, other := world(t)
		tc.change(home, other)
		p.Client = peertest.Client(t, home, other, contract("contract", v1alpha1.ContractProvider), contract("consumer", v1alpha1.ContractConsumer))
		got, err := p.Exposed(t.Context(), other)
		if err != nil {
			t.Fatal(err)
		}
		open, _ := allow.Plan(got, nil)
		from := []string{}
		for _, x := range open {
			from = append(from, x.From...)
		}
		if fmt.Sprint(from) != tc.want {
			t.Errorf("%s: open to %v, want %s", what, from, tc.want)
		}
	}
}

// A provider says which pods it runs for a home to those whose pods of the same namespaces the home named to it, and to
// nobody else.
func TestAProviderSaysWhichPodsItRunsWhereTheirHomeNamedItOthers(t *testing.T) {
	t.Parallel()
	p, home, other := world(t)
	says := func(peer *v1alpha1.ForeignCluster) string {
		t.Helper()
		list, err := p.Running(t.Context(), peer, []v1alpha1.ForeignCluster{*home, *other})
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, r := range list {
			out += fmt.Sprint(r.Cluster[:1], r.Addresses)
		}
		return out
	}
	if got, want := says(other), "h[10.0.0.8 10.0.0.9]"; got != want {
		t.Errorf("it says %s, want %s", got, want)
	}
	if got := says(home); got != "" {
		t.Errorf("it says %s to the home", got)
	}
	home.Status.Network.Transit[0].Namespaces = nil
	if got := says(other); got == "" {
		t.Error("it says nothing once the home names no pods for a moment")
	}
	p.named = nil
	if got := says(other); got != "" {
		t.Errorf("it says %s though the home names no pods", got)
	}
	home.Status.Network.Transit[0].Namespaces = []v1alpha1.TransitNamespace{{Name: "shop"}}
	says(other)
	if _, err := p.Running(t.Context(), home, nil); err != nil || len(p.named) > 0 {
		t.Errorf("of peers that are gone it knows %v (%v)", p.named, err)
	}
}

// Right after a start a state with no pods would close what is open to them.
func TestAStateWaitsUntilItIsKnownWhichPodsRun(t *testing.T) {
	t.Parallel()
	p, home, other := world(t)
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{startWait / 2, time.Hour} {
			known := make(chan struct{})
			p.Pods = pods{known: known, running: p.Pods.(pods).running}
			time.AfterFunc(after, func() { close(known) })
			begin := time.Now()
			list, err := p.Running(t.Context(), other, []v1alpha1.ForeignCluster{*home, *other})
			if took, want := time.Since(begin), min(after, startWait); err != nil || took != want || (len(list) == 1) != (after < startWait) {
				t.Errorf("known after %s, it says %v after %s (%v)", after, list, took, err)
			}
		}
		time.Sleep(2 * time.Hour)
	})
}
