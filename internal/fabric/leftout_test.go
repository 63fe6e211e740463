package fabric

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/preflight"
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

// The problems of in-band relays come first, and the number of those that have no room stays.
func TestAStatusSaysHowManyProblemsHaveNoRoom(t *testing.T) {
	t.Parallel()
	objects := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithStatusSubresource(&v1alpha1.FabricNode{}).
		WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}).Build()
	status := reporting(51820)
	for i := range maxProblems + 8 {
		status.Problems = append(status.Problems, plan.Problem{Text: fmt.Sprint("problem ", i)})
	}
	relays := idleRelays(t)
	relays.failed = map[netip.AddrPort]listenFailure{netip.MustParseAddrPort("10.0.0.1:7448"): {err: errors.New("address already in use")}}
	n := &node{
		cfg:    Config{Node: "a", Log: slog.New(slog.DiscardHandler)},
		fabric: &reports{status: status}, inBand: relays, client: objects,
		checks: checks{observe: func(preflight.Fabric) preflight.Observed { return preflight.Observed{} }},
	}
	var last v1alpha1.FabricNodeStatus
	if err := n.writeStatus(t.Context(), &last, true); err != nil {
		t.Fatal(err)
	}
	if len(last.Problems) != maxProblems || !strings.Contains(last.Problems[0], "cannot listen on TCP 10.0.0.1:7448") {
		t.Errorf("%d problems, the first is %q", len(last.Problems), last.Problems[0])
	}
	// 31 are listed, of 40 and that of the relay.
	if end := last.Problems[maxProblems-1]; !strings.HasPrefix(end, "and 10 more problems") {
		t.Errorf("the last is %q", end)
	}
}
