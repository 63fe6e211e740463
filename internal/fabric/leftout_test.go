package fabric

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// A status has limited room, and reports how much it leaves out.
func TestANodesStatusCountsWhatItLeavesOut(t *testing.T) {
	t.Parallel()
	var s tunnel.Status
	for i := range maxProblems - 2 { // what is left out makes two more
		s.Problems = append(s.Problems, plan.Problem{Text: fmt.Sprint("problem ", i)})
	}
	for i := range maxObservedGateways + 3 {
		s.Peers = append(s.Peers, tunnel.PeerStatus{
			Cluster: "peer", Node: fmt.Sprint("seen-", i), Remote: true, State: probe.PathUp, Way: tunnel.WayObserved, Endpoint: netip.MustParseAddrPort("192.0.2.1:51820"),
		})
	}
	for i := range maxDirect + 5 {
		s.Peers = append(s.Peers, tunnel.PeerStatus{Cluster: "peer", Node: fmt.Sprint("direct-", i), Remote: true, OnDemand: true})
	}
	got := NodeStatus(s, &corev1.Node{})
	if len(got.ObservedGateways) != maxObservedGateways || len(got.DirectPaths) != maxDirect || len(got.Problems) != maxProblems {
		t.Fatalf("it has %d gateways that are seen, %d direct paths and %d problems", len(got.ObservedGateways), len(got.DirectPaths), len(got.Problems))
	}
	said := strings.Join(got.Problems, "\n")
	for _, want := range []string{"the observed addresses of 3 gateways of peers are not in this status", "5 direct paths are not in this status"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	s.Problems = append(s.Problems, plan.Problem{Text: "one more"}, plan.Problem{Text: "another"})
	got = NodeStatus(s, &corev1.Node{})
	if last := got.Problems[len(got.Problems)-1]; len(got.Problems) != maxProblems || !strings.HasPrefix(last, "and 3 more problems") {
		t.Errorf("of %d problems the last in the status is %q", maxProblems+2, last)
	}
}

// A peer that has many problems hides neither those of the node nor those of other peers.
func TestNoPeerFillsTheProblemsOfANode(t *testing.T) {
	t.Parallel()
	var s tunnel.Status
	for i := range 64 {
		s.Problems = append(s.Problems, plan.Problem{Peer: "hostile", Text: fmt.Sprint("gateway ", i, " is left out")})
	}
	s.Problems = append(s.Problems, plan.Problem{Peer: "other", Text: "no handshake"}, plan.Problem{Text: "no table"}, plan.Problem{Peer: "other", Text: "no endpoint"})
	got := NodeStatus(s, &corev1.Node{}).Problems
	want := []string{"no table", "gateway 0 is left out", "no handshake", "gateway 1 is left out", "no endpoint", "gateway 2 is left out"}
	if len(got) != maxProblems || !slices.Equal(got[:len(want)], want) {
		t.Errorf("%d problems, the first are %q, want %q", len(got), got[:min(len(got), len(want))], want)
	}
	if last := got[len(got)-1]; !strings.HasPrefix(last, "and 36 more problems") {
		t.Errorf("the last is %q", last)
	}
}
