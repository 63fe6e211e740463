package controller

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

func planned(name string, endpoints ...string) []peering.PlannedGateway {
	return []peering.PlannedGateway{{Name: name, Endpoints: endpoints}}
}

func TestPlanNetworkNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	prefixes := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	theirs := []v1alpha1.Gateway{{Name: "p1", PublicKey: "k", OverlayAddress: "fd00::1", Endpoints: []string{"198.51.100.7:51820"}}}
	told := &v1alpha1.PeerNetwork{
		Gateways: theirs, Prefixes: []string{"10.200.0.0/16"}, Aliases: []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "198.19.0.0/16"}},
	}
	base := func() networkInput {
		return networkInput{
			peer: &v1alpha1.ForeignCluster{}, local: prefixes("10.200.0.0/16"), own: planned("gw1", "192.0.2.1:51820"),
			aliases: aliases.Input{Pool: prefixes("198.18.0.0/15"), Now: now},
		}
	}
	for name, test := range map[string]struct {
		change func(*networkInput)
		remote []peering.PlannedAlias
		local  string
		// refused and warnings are parts of the texts, in their order.
		refused, warnings []string
	}{
		"a cluster of which nothing is known": {change: func(*networkInput) {}, warnings: []string{"--prefix"}},
		"prefixes that are assumed": {
			change: func(in *networkInput) { in.assumed = []string{"10.200.0.0/16"} },
			remote: []peering.PlannedAlias{{Prefix: "10.200.0.0/16", Alias: "198.18.0.0/16"}},
		},
		"a peer that announced everything": {
			change: func(in *networkInput) {
				in.peer.Status.Network = told.DeepCopy()
				in.aliases.Have.Prefixes = []aliases.Alias{{Prefix: prefix("10.200.0.0/16"), Alias: prefix("198.18.0.0/16")}}
			},
			remote: []peering.PlannedAlias{{Prefix: "10.200.0.0/16", Alias: "198.18.0.0/16", Stands: true}}, local: "198.19.0.0/16",
		},
		"a pool of which others have what it needs": {
			change: func(in *networkInput) {
				in.assumed, in.aliases.Others = []string{"10.200.0.0/16"}, []aliases.Space{{Prefixes: prefixes("198.18.0.0/16")}}
			},
			remote: []peering.PlannedAlias{{Prefix: "10.200.0.0/16", ByAddress: true}},
		},
		"addresses of both sides that have an alias each": {
			change: func(in *networkInput) {
				n := told.DeepCopy()
				n.Addresses, n.Aliases, n.AliasBlocks = []string{"10.200.0.1", "10.200.7.9", "192.168.5.1"}, nil, []v1alpha1.AliasBlock{{Alias: "198.19.4.0/31", Addresses: []string{"10.200.3.1", "10.200.3.9"}}}
				in.peer.Status.Network = n
				in.aliases.Others = []aliases.Space{{Prefixes: prefixes("198.18.0.0/16")}}
				in.nodes = []v1alpha1.FabricNode{{Status: v1alpha1.FabricNodeStatus{PodNetworkAddresses: []string{"10.200.3.1"}}}}
			},
			remote: []peering.PlannedAlias{{Prefix: "10.200.0.0/16", ByAddress: true, Addresses: 2}}, local: "1 of them",
		},
		"more than a peer's share, and a family without a pool": {
			change: func(in *networkInput) { in.assumed = []string{"10.0.0.0/12", "fd00::/48"} },
			remote: []peering.PlannedAlias{{Prefix: "10.0.0.0/12", ByAddress: true}, {Prefix: "fd00::/48", ByAddress: true}}, refused: []string{"fd00::/48"},
		},
		"a pool inside a network of this cluster": {
			change: func(in *networkInput) {
				in.assumed, in.aliases.Taken = []string{"10.200.0.0/16"}, prefixes("198.0.0.0/8")
			},
			remote:   []peering.PlannedAlias{{Prefix: "10.200.0.0/16", ByAddress: true}},
			warnings: []string{"198.18.0.0/15: it lies in 198.0.0.0/8"},
		},
		"no gateway and no pods": {
			change: func(in *networkInput) { in.own, in.local, in.assumed = nil, nil, []string{"10.1.0.0/16"} },
			remote: []peering.PlannedAlias{{Prefix: "10.1.0.0/16", Alias: "198.18.0.0/16"}}, refused: []string{"no pod prefixes", "no node is a gateway"},
		},
		"endpoints that were configured in vain, and more prefixes than a peer is sent": {
			change: func(in *networkInput) {
				in.own[0].Problems, in.omitted, in.assumed = []string{"two keys"}, 3, []string{"10.1.0.0/16"}
			},
			remote: []peering.PlannedAlias{{Prefix: "10.1.0.0/16", Alias: "198.18.0.0/16"}}, warnings: []string{"3 pod prefixes", "two keys"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := base()
			test.change(&in)
			before := in.peer.DeepCopy()
			got := planNetwork(in)
			if diff := cmp.Diff(test.remote, got.Remote); diff != "" {
				t.Errorf("the peer's prefixes (-want +got):\n%s", diff)
			}
			if len(got.Local) > 0 {
				local := got.Local[0].Alias
				if got.Local[0].ByAddress {
					local = fmt.Sprintf("%d of them", got.Local[0].Addresses)
				}
				if local != test.local {
					t.Errorf("ours would be %q there, want %q", local, test.local)
				}
			}
			if diff := cmp.Diff(before, in.peer); diff != "" {
				t.Errorf("planning changed the peer (-want +got):\n%s", diff)
			}
			for what, texts := range map[string][2][]string{"refused": {test.refused, got.Refused}, "warnings": {test.warnings, got.Warnings}} {
				if len(texts[0]) != len(texts[1]) {
					t.Errorf("%s: %q, want %d", what, texts[1], len(texts[0]))
					continue
				}
				for i, part := range texts[0] {
					if !strings.Contains(texts[1][i], part) {
						t.Errorf("%s: %q does not mention %q", what, texts[1][i], part)
					}
				}
			}
		})
	}
}

func TestPlanRefusesGatewaysThatCannotReachEachOther(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		own, theirs      []peering.PlannedGateway
		refused, warning string
	}{
		"either can be dialled":            {own: planned("a", "192.0.2.1:1"), theirs: planned("b", "198.51.100.1:1")},
		"one can":                          {own: planned("a", "10.0.0.1:1"), theirs: planned("b", "198.51.100.1:1")},
		"a name may be anything":           {own: planned("a", "10.0.0.1:1"), theirs: planned("b", "gw.example.com:1")},
		"no gateway is known there":        {own: planned("a", "192.0.2.1:1")},
		"no gateway is known, and private": {own: planned("a", "10.0.0.1:1", "[fd00::1]:1"), warning: "private addresses only"},
		"no gateway is known, and none":    {own: planned("a"), warning: "no endpoint"},
		"both private":                     {own: planned("a", "10.0.0.1:1"), theirs: planned("b", "100.64.0.1:1"), warning: "works in one network"},
		"neither has one":                  {own: planned("a"), theirs: planned("b"), refused: "neither side"},
		"each of another family":           {own: planned("a", "192.0.2.1:1"), theirs: planned("b", "[2001:db8::1]:1"), refused: "IPv6 ones only"},
		"one has both families":            {own: planned("a", "192.0.2.1:1", "[2001:db8::2]:1"), theirs: planned("b", "[2001:db8::1]:1")},
		"no gateway here":                  {theirs: planned("b", "198.51.100.1:1"), refused: "no node is a gateway"},
		"one side has none, other does":    {own: planned("a"), theirs: planned("b", "198.51.100.1:1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused, warning := dialling(test.own, test.theirs)
			if !strings.Contains(refused, test.refused) || (refused != "") != (test.refused != "") || !strings.Contains(warning, test.warning) || (warning != "") != (test.warning != "") {
				t.Errorf("refused %q, warning %q", refused, warning)
			}
		})
	}
}

func TestPlanNetworkSaysWhichPodsDoNotReachEachOther(t *testing.T) {
	t.Parallel()
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: "office-id"}}
	gap := transit.Gap{Third: "branch", ThirdID: "branch-id", Namespaces: []string{"bank", "mail", "news", "shop"}}
	plan := planNetwork(networkInput{peer: fc, own: planned("gw1", "192.0.2.1:1"), gaps: []transit.Gap{gap}})
	const want = "pods of bank, mail, news and 1 more that run at office and at branch do not reach each other: transit through this cluster is off between the two; " +
		"to turn it on, add branch-id to spec.transit.passTo of ForeignCluster office and office-id to that of branch, and have both add the other to spec.transit.through of the ForeignCluster that this cluster is there"
	if !slices.Contains(plan.Warnings, want) {
		t.Errorf("got %q, want %q", plan.Warnings, want)
	}
}

// The plan for a peer that announced everything equals the Tunnel that is then written.
func TestPlanNetworkAgreesWithTheTunnel(t *testing.T) {
	t.Parallel()
	pool := []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("fdd7:585b:e300::/40")}
	for i := range 50 {
		told := []string{fmt.Sprintf("10.%d.0.0/%d", i, 16+i%8), fmt.Sprintf("fd00:%x::/%d", i+1, 48+i%16)}
		fc := &v1alpha1.ForeignCluster{}
		fc.Status.Network = &v1alpha1.PeerNetwork{Prefixes: told, Gateways: []v1alpha1.Gateway{{Name: "g"}}}
		taken := []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), 0}), 24)}
		in := aliases.Input{Pool: pool, Taken: taken, Now: now}
		plan := planNetwork(networkInput{peer: fc, aliases: in, local: taken, own: planned("gw1", "192.0.2.1:1")})
		result := planFor(in, fc.Status.Network, nil)
		if lacks := lacksOf(result, pool); !slices.Equal(lacks, plan.Refused) {
			t.Fatalf("refused %q, done with %v", plan.Refused, lacks)
		}
		done, _ := stored.Status(result.Allocation)
		for _, a := range done {
			if !slices.ContainsFunc(plan.Remote, func(p peering.PlannedAlias) bool { return p.Prefix == a.Prefix && p.Alias == a.Alias }) {
				t.Fatalf("%+v was not planned: %+v", a, plan.Remote)
			}
		}
	}
}

func TestNetworkConditionNamesWhatANodeFound(t *testing.T) {
	t.Parallel()
	contract := v1alpha1.Contract{Spec: v1alpha1.ContractSpec{Network: v1alpha1.NetworkTunnel}}
	contract.Status.Phase = peering.PhaseActive.String()
	node := v1alpha1.FabricNode{Spec: v1alpha1.FabricNodeSpec{Gateway: true}}
	node.Name, node.Status.ObservedAt.Time = "gw1", now
	node.Status.Paths = []v1alpha1.FabricPath{{PeerID: "peer", State: "Down", Message: "probes were lost"}}
	node.Status.Preflight = &v1alpha1.FabricPreflight{Findings: []v1alpha1.FabricFinding{
		{Reason: "Slow", Severity: "Warning"}, {Reason: "ForwardDropped", Severity: "Error", Message: "the firewall drops it", Remedy: "allow it"},
	}}
	s := PeerSnapshot{
		Peer: &v1alpha1.ForeignCluster{Spec: v1alpha1.ForeignClusterSpec{ClusterID: "peer"}}, Now: now,
		Contracts: []v1alpha1.Contract{contract}, FabricNodes: []v1alpha1.FabricNode{node},
	}
	const finding = "node gw1: the firewall drops it (ForwardDropped): allow it; see `entente doctor network`"
	if c := network(s); c.Reason != "ProbesLost" || c.Message != finding+"; probes were lost" {
		t.Errorf("while it is down: %s: %s", c.Reason, c.Message)
	}
	s.FabricNodes[0].Status.Paths[0].State = "Up"
	if c := network(s); c.Status != metav1.ConditionFalse || c.Reason != "NodeBlocked" || !strings.HasPrefix(c.Message, finding) {
		t.Errorf("while probes of a node that stops its pods' packets are answered: %s: %s", c.Reason, c.Message)
	}
	s.FabricNodes[0].Status.Preflight.Findings[1].Reason = "PortTaken"
	if c := network(s); c.Reason != "ProbesAnswered" || strings.Contains(c.Message, "firewall") {
		t.Errorf("while probes are answered, with a finding that stops nothing: %s: %s", c.Reason, c.Message)
	}
	s.FabricNodes[0].Status.Paths[0].LargePacketsLost = true
	if c := network(s); c.Status != metav1.ConditionFalse || c.Reason != "LargePacketsLost" {
		t.Errorf("while only small packets pass: %s: %s", c.Reason, c.Message)
	}
	s.FabricNodes[0].Status.Paths[0].LargePacketsLost = false
	worker := *s.FabricNodes[0].DeepCopy()
	worker.Name, worker.Spec.Gateway, worker.Status.Preflight.Findings[1].Reason = "worker", false, "ForwardingDisabled"
	s.FabricNodes = append(s.FabricNodes, worker)
	s.PodsOutside = "pods are outside"
	if c := network(s); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonPodsOutsidePrefixes || !strings.HasPrefix(c.Message, "pods are outside; probes") {
		t.Errorf("while pods are outside of the prefixes: %s %s: %s", c.Status, c.Reason, c.Message)
	}
	s.FabricNodes[1].Status.EndToEnd = []v1alpha1.FabricEndToEnd{{PeerID: "peer", State: "Down", Message: "packets to far are lost"}}
	if c := network(s); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonPodsUnreachable || !store.TunnelPasses(&c) ||
		c.Message != "probes through the tunnel of node gw1 are answered; by the probes of node worker, packets to far are lost" {
		t.Errorf("while packets of pods to a node of the peer are lost: %s %s: %s", c.Status, c.Reason, c.Message)
	}
	s.CutOff = cutOff(s)
	if c := network(s); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonNodesCutOff || !store.TunnelPasses(&c) ||
		!strings.HasPrefix(c.Message, "probes through the tunnel of node gw1 are answered; pods on worker are cut off: the firewall drops it (ForwardingDisabled): allow it") {
		t.Errorf("while another node stops its pods' packets: %s %s: %s", c.Status, c.Reason, c.Message)
	}
}

func TestPodsOutsidePrefixesAreFoundByTheAgentsOwn(t *testing.T) {
	t.Parallel()
	node := v1alpha1.FabricNode{Status: v1alpha1.FabricNodeStatus{Endpoints: []string{"192.0.2.7:51820"}}}
	for name, tc := range map[string]struct {
		own  string
		want bool
	}{
		"in a prefix":                  {own: "10.244.3.4"},
		"in none":                      {own: "10.0.3.4", want: true},
		"it has the address of a node": {own: "192.0.2.7"},
	} {
		got := gateways.PodsOutside(netip.MustParseAddr(tc.own), []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, []v1alpha1.FabricNode{node})
		if (got != "") != tc.want || tc.want && !strings.Contains(got, "at 10.0.3.4, are outside of its pod prefixes (10.244.0.0/16)") {
			t.Errorf("%s: %q", name, got)
		}
	}
	node.Spec.ClusterPodCIDRAdvice = "set the CIDRs of the subnets"
	if got := gateways.PodsOutside(netip.MustParseAddr("10.0.3.4"), []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, []v1alpha1.FabricNode{node}); !strings.HasSuffix(got, "no peer reaches them: set the CIDRs of the subnets") {
		t.Errorf("in a cloud it says %q", got)
	}
	if got := gateways.PodsOutside(netip.Addr{}, nil, nil); got != "" {
		t.Errorf("nothing is known, and the text is %q", got)
	}
}

// cutOff is the nodes whose pods do not reach the peer, however long that has been so.
func cutOff(s PeerSnapshot) []gateways.Cut {
	nodes := s.nodes()
	carrier, _, _ := nodes.Carrier(s.Peer.Spec.ClusterID)
	return nodes.Cuts(s.Peer.Spec.ClusterID, carrier)
}
