package controller

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestProbedNodesAreKnownByTheirAliases(t *testing.T) {
	t.Parallel()
	fc := &v1alpha1.ForeignCluster{}
	fc.Status.Network = &v1alpha1.PeerNetwork{
		Gateways: []v1alpha1.Gateway{
			{Name: "gw", ProbeAddresses: []string{"10.200.1.1", "fd12::1"}}, {Name: "old"}, {Name: "elsewhere", ProbeAddresses: []string{"192.0.2.1", "nonsense"}},
		},
		Nodes: []v1alpha1.Gateway{{Name: "gw", ProbeAddresses: []string{"10.200.9.1"}}, {Name: "worker", ProbeAddresses: []string{"10.200.2.1"}}},
	}
	fc.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.240.0.0/16"}}
	fc.Status.AliasBlocks = []v1alpha1.AliasBlock{{Alias: "fdd7::4/126", Addresses: []string{"", "fd12::1", "", ""}}}
	want := []v1alpha1.ProbedNode{{Node: "gw", Addresses: []string{"10.240.1.1", "fdd7::5"}}, {Node: "worker", Addresses: []string{"10.240.2.1"}}}
	if diff := cmp.Diff(want, probed(fc)); diff != "" {
		t.Error(diff)
	}
}

func TestStateHasTheNodesThatAnswerProbes(t *testing.T) {
	t.Parallel()
	nodes := newSite(1).nodes[:1]
	fc := &v1alpha1.ForeignCluster{}
	told := func(heard time.Time) []string {
		nodes[0].Status.ObservedAt = metav1.NewTime(heard)
		told := networkOf(fc, []netip.Prefix{prefix("10.200.0.0/16")}, nodes, v1alpha1.TunnelSpec{}, now)
		if len(told.Gateways) != 1 {
			t.Fatalf("%+v", told)
		}
		return wire.Texts(told.Gateways[0].Sources)
	}
	nodes[0].Status.PodNetworkAddresses = []string{"10.200.0.1", "10.200.0.2", "fd77:1::1"}
	if got := told(now); got != nil {
		t.Errorf("of a fabric that answers none they are sent %v", got)
	}
	nodes[0].Status.ProbesEnabled = true
	if diff := cmp.Diff([]string{"10.200.0.1", "fd77:1::1"}, told(now)); diff != "" {
		t.Errorf("want one of each family: %s", diff)
	}
	if got := told(now.Add(-time.Hour)); got != nil {
		t.Errorf("of a node that is silent they are sent %v", got)
	}
}

func TestLostPacketsOfPodsAreNamed(t *testing.T) {
	t.Parallel()
	node := func(name, state string, heard time.Time) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{}
		n.Name, n.Status.ObservedAt.Time = name, heard
		n.Status.EndToEnd = []v1alpha1.FabricEndToEnd{{PeerID: "another", State: "Down"}, {PeerID: "peer", State: state, Message: "packets to " + name + "-far are lost"}}
		return n
	}
	large, down, blocked := node("n1", "LargePacketsLost", now), node("n2", "Down", now), node("n3", "Blocked", now)
	for name, tt := range map[string]struct {
		nodes []v1alpha1.FabricNode
		want  string
	}{
		"nothing is lost":       {[]v1alpha1.FabricNode{node("n1", "Up", now), node("n2", "Unknown", now), {}}, ""},
		"a node that is silent": {[]v1alpha1.FabricNode{node("n1", "Down", now.Add(-time.Hour))}, ""},
		"a node that is not Ready, whose probes peers do not answer": {[]v1alpha1.FabricNode{node("off", "Down", now)}, ""},
		"a node whose fabric is gone":                                {[]v1alpha1.FabricNode{node("gone", "Down", now), large}, "by the probes of node n1, packets to n1-far are lost"},
		"large packets":                                              {[]v1alpha1.FabricNode{large}, "by the probes of node n1, packets to n1-far are lost"},
		"the worst comes first":                                      {[]v1alpha1.FabricNode{large, down, blocked}, "by the probes of node n2, packets to n2-far are lost; the same on 2 more nodes of this cluster"},
		"pods are not forwarded":                                     {[]v1alpha1.FabricNode{blocked}, "by the probes of node n3, packets to n3-far are lost"},
	} {
		nodes := gateways.Nodes{Fabric: tt.nodes, Now: now, Health: func(name string) gateways.Health {
			return gateways.Health{NotReady: name == "off", Absent: name == "gone"}
		}}
		if got := nodes.LostEnds("peer"); got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestStateLeavesOutNodesThatAreNotReady(t *testing.T) {
	t.Parallel()
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	at := []netip.Addr{netip.MustParseAddr("10.200.0.1")}
	network := &peering.Network{
		Gateways: []peering.Gateway{{Name: "ready", Sources: at}, {Name: "off", Sources: at}}, Nodes: []peering.Gateway{{Name: "unknown", Sources: at}, {Name: "new", Sources: at}},
	}
	s := &States{Client: fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(node("ready", corev1.ConditionTrue), node("off", corev1.ConditionFalse), node("unknown", corev1.ConditionUnknown), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new"}}).Build()}
	if err := s.dropUnreadyProbes(t.Context(), network); err != nil {
		t.Fatal(err)
	}
	for _, g := range append(network.Gateways, network.Nodes...) {
		if want := g.Name == "ready" || g.Name == "new"; (len(g.Sources) > 0) != want {
			t.Errorf("%s has sources %v, want %v", g.Name, g.Sources, want)
		}
	}
}
