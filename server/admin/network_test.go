package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestNetworkStatusListsWorstFirstAndNotAll(t *testing.T) {
	t.Parallel()
	fresh := metav1.NewTime(epoch)
	peer := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: "o"}}
	gateway := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}, Spec: v1alpha1.FabricNodeSpec{ClusterID: "me", Gateway: true, Endpoints: []string{"gw1.example.com:51820"}}}
	gateway.Status = v1alpha1.FabricNodeStatus{ObservedAt: fresh, Endpoints: []string{"10.0.0.1:51820"}, Paths: []v1alpha1.FabricPath{
		{PeerID: "o", Node: "p1", State: "Up", Endpoint: "192.0.2.1:1", RoundTripMicroseconds: 900, MTU: 1400}, {PeerID: "gone", Node: "x", State: "Up"},
	}}
	gateway.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPeerGateways, Status: metav1.ConditionTrue, Reason: "R", Message: "M", LastTransitionTime: fresh}}
	silent := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "w1"}, Spec: v1alpha1.FabricNodeSpec{ClusterID: "me"}}
	silent.Status = v1alpha1.FabricNodeStatus{Conditions: gateway.Status.Conditions, ObservedAt: metav1.NewTime(epoch.Add(-time.Hour)), Paths: []v1alpha1.FabricPath{{PeerID: "me", Node: "gw1", State: "Up", RoundTripMicroseconds: 5}}}
	got := networkStatus([]v1alpha1.FabricNode{gateway, silent}, []v1alpha1.ForeignCluster{peer}, "", epoch)
	if n := got.GetNodes(); len(n) != 2 || n[0].GetName() != "w1" || len(n[0].GetProblems()) != 1 || n[1].GetAnnouncedEndpoints()[0] != "gw1.example.com:51820" {
		t.Errorf("nodes are %v", n)
	} else if c := n[1].GetConditions(); len(c) != 1 || c[0].GetType() != v1alpha1.ConditionPeerGateways || c[0].GetStatus() != "True" || len(n[0].GetConditions()) != 0 {
		t.Errorf("the conditions of the node that reports are %v, and of the one that is silent %v", c, n[0].GetConditions())
	}
	p := got.GetPaths()
	if len(p) != 3 || p[0].GetPeer() != "" || p[0].GetGateway() != "x" || p[1].GetState() != "Unknown" || p[1].GetRoundTrip() != nil ||
		p[2].GetPeer() != "peers/office" || p[2].GetRoundTrip().AsDuration() != 900*time.Microsecond || p[2].GetMtu() != 1400 {
		t.Errorf("paths are %v", p)
	}
	if one := networkStatus([]v1alpha1.FabricNode{gateway, silent}, []v1alpha1.ForeignCluster{peer}, "o", epoch); len(one.GetPaths()) != 1 || len(one.GetNodes()) != 2 {
		t.Errorf("of one peer: %v", one)
	}
	var many []v1alpha1.FabricNode
	for i := range MaxNetworkNodes + 7 {
		n := *gateway.DeepCopy()
		n.Name, n.Status.Paths = fmt.Sprintf("n%04d", i), nil
		for range 5 {
			n.Status.Paths = append(n.Status.Paths, v1alpha1.FabricPath{PeerID: "o", State: "Up"})
		}
		many = append(many, n)
	}
	many[MaxNetworkNodes+6].Status.Paths[0].State = "Down"
	got = networkStatus(many, nil, "", epoch)
	if len(got.GetNodes()) != MaxNetworkNodes || len(got.GetPaths()) != MaxNetworkPaths || got.GetOmitted() != 7+5*(MaxNetworkNodes+7)-MaxNetworkPaths {
		t.Errorf("%d nodes and %d paths, and %d left out", len(got.GetNodes()), len(got.GetPaths()), got.GetOmitted())
	}
	down := false
	for _, p := range got.GetPaths() {
		down = down || p.GetState() == "Down"
	}
	if !down {
		t.Error("the path that is down is left out")
	}
}

func TestBlockedNodesAreOneProblem(t *testing.T) {
	t.Parallel()
	with := func(findings ...v1alpha1.FabricFinding) v1alpha1.FabricNode {
		return v1alpha1.FabricNode{Status: v1alpha1.FabricNodeStatus{Preflight: &v1alpha1.FabricPreflight{Findings: findings}}}
	}
	drop, port, warn := v1alpha1.FabricFinding{Reason: "Drop", Severity: "Error"}, v1alpha1.FabricFinding{Reason: "Port", Severity: "Error"}, v1alpha1.FabricFinding{Reason: "Warn", Severity: "Warning"}
	if got := blockedNodes([]v1alpha1.FabricNode{{}, with(warn), with()}); got != "" {
		t.Errorf("without errors: %q", got)
	}
	want := "nodes on which packets of tunnels do not pass: 2 (Drop, Port): see `entente doctor network`"
	if got := blockedNodes([]v1alpha1.FabricNode{with(port, drop), with(drop, warn), with(warn)}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNetworksArePlanned(t *testing.T) {
	a := newAdminTest(t, peerObject("office", strings.Repeat("a", 32)), peerObject("lab", strings.Repeat("b", 32)))
	c := a.alice(t)
	resp, err := c.PlanNetwork(t.Context(), &ententev1.PlanNetworkRequest{Peer: "peers/-", Prefixes: []string{"10.0.0.0/16", "fd00:0::/48", "fd00::/48"}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range resp.GetPlans() {
		got = append(got, fmt.Sprint(p.GetPeer(), len(p.GetRemote()), p.GetOwnGateways()[0].GetEndpoints(), p.GetErrors()))
	}
	if diff := cmp.Diff([]string{"peers/lab2 [192.0.2.1:51820] []", "peers/office2 [192.0.2.1:51820] [it cannot]"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if resp, err := c.PlanNetwork(t.Context(), &ententev1.PlanNetworkRequest{Prefixes: []string{"10.0.0.0/16"}}); err != nil || len(resp.GetPlans()) != 1 || resp.GetPlans()[0].GetPeer() != "" {
		t.Errorf("a cluster that is not a peer: %v, %v", resp, err)
	}
	for name, tc := range map[string]struct {
		req  *ententev1.PlanNetworkRequest
		want peering.Reason
	}{
		"an unknown peer":         {&ententev1.PlanNetworkRequest{Peer: "peers/nobody"}, peering.ReasonPeerUnknown},
		"no prefix":               {&ententev1.PlanNetworkRequest{Prefixes: []string{"hello"}}, peering.ReasonRequestInvalid},
		"an address in a network": {&ententev1.PlanNetworkRequest{Prefixes: []string{"10.0.0.1/8"}}, peering.ReasonRequestInvalid},
		"too many":                {&ententev1.PlanNetworkRequest{Prefixes: slices.Repeat([]string{"10.0.0.0/16"}, 17)}, peering.ReasonRequestInvalid},
	} {
		if _, err := c.PlanNetwork(t.Context(), tc.req); wire.ReasonOf(err) != tc.want {
			t.Errorf("%s: got %v, want %s", name, err, tc.want)
		}
	}
	if _, err := c.GetNetworkStatus(t.Context(), &ententev1.GetNetworkStatusRequest{Peer: "peers/nobody"}); wire.ReasonOf(err) != peering.ReasonPeerUnknown {
		t.Errorf("the status of an unknown peer: %v", err)
	}
	if _, err := c.GetNetworkStatus(t.Context(), &ententev1.GetNetworkStatusRequest{Peer: "peers/office"}); err != nil {
		t.Error(err)
	}
}

func TestNetworkStatusNamesTheCarrierOfRelayedPaths(t *testing.T) {
	t.Parallel()
	peer := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: "o"}}
	peer.Status.Session = &v1alpha1.PeerSession{Through: "genoa"}
	node := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "gw1"}, Spec: v1alpha1.FabricNodeSpec{ClusterID: "me", Gateway: true}}
	node.Status = v1alpha1.FabricNodeStatus{ObservedAt: metav1.NewTime(epoch), Paths: []v1alpha1.FabricPath{
		{PeerID: "o", Node: "p1", State: "Up", ConnectionType: "Observed"}, {PeerID: "o", Node: "p2", State: "Up", ConnectionType: "Relayed"}, {PeerID: "other", Node: "p3", State: "Up", ConnectionType: "Relayed"},
	}}
	want := map[string]string{"p1": "", "p2": "genoa", "p3": ""}
	for _, p := range networkStatus([]v1alpha1.FabricNode{node}, []v1alpha1.ForeignCluster{peer}, "", epoch).GetPaths() {
		if through, ok := want[p.GetGateway()]; !ok || p.GetThrough() != through {
			t.Errorf("the path to %s is through %q", p.GetGateway(), p.GetThrough())
		}
		delete(want, p.GetGateway())
	}
	if len(want) > 0 {
		t.Errorf("paths to %v are left out", want)
	}
}
