package controller

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func TestATunnelSaysWhenItsContractsAreOver(t *testing.T) {
	t.Parallel()
	end := time.Unix(2e9, 0).UTC()
	contract := func(name string, edit func(*v1alpha1.Contract)) v1alpha1.Contract {
		c := v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.Spec.NotAfter, c.Spec.Network, c.Status.Phase = metav1.NewTime(end), v1alpha1.NetworkTunnel, peering.PhaseActive.String()
		edit(&c)
		return c
	}
	draining := func(until time.Time) func(*v1alpha1.Contract) {
		return func(c *v1alpha1.Contract) {
			c.Status.Phase, c.Status.DrainUntil = peering.PhaseDraining.String(), &metav1.Time{Time: until}
		}
	}
	got, _ := contractEnds([]v1alpha1.Contract{
		contract("e", draining(end.Add(time.Hour))), // none drains for longer than that
		contract("d", draining(end.Add(-time.Hour))),
		contract("c", func(*v1alpha1.Contract) {}),
		contract("b", func(c *v1alpha1.Contract) { c.Spec.Network = v1alpha1.NetworkNone }),
		contract("a", func(c *v1alpha1.Contract) { c.Status.Phase = peering.PhaseClosed.String() }),
	})
	at := func(contract string, at time.Time) v1alpha1.ContractEnd {
		return v1alpha1.ContractEnd{Contract: contract, Time: metav1.NewTime(at)}
	}
	want := []v1alpha1.ContractEnd{at("c", end.Add(peering.ExpiryGrace)), at("d", end.Add(-time.Hour)), at("e", end.Add(peering.ExpiryGrace))}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
}

// TestOmittedContractsAndGatewaysAreCounted: of more contracts, and gateways that are seen, than there is room for, it is said
// how many are left out, and a tunnel lasts as long as the contract that ends last.
func TestOmittedContractsAndGatewaysAreCounted(t *testing.T) {
	t.Parallel()
	s := &PeerSnapshot{Peer: &v1alpha1.ForeignCluster{}}
	s.Peer.Spec.ClusterID = "peer"
	first := time.Unix(2e9, 0).UTC()
	for i := range peering.MaxContracts + 3 {
		c := v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%03d", 900-i)}}
		c.Spec.NotAfter, c.Spec.Network, c.Status.Phase = metav1.NewTime(first.Add(time.Duration(i)*time.Hour)), v1alpha1.NetworkTunnel, peering.PhaseActive.String()
		s.Contracts = append(s.Contracts, c)
	}
	node := v1alpha1.FabricNode{}
	for i := range peering.MaxObservations + 2 {
		key := [32]byte{byte(i), 1}
		node.Status.ObservedGateways = append(node.Status.ObservedGateways, v1alpha1.ObservedGateway{PeerID: "peer", PublicKey: base64.StdEncoding.EncodeToString(key[:]), Endpoint: fmt.Sprintf("203.0.113.%d:51820", i+1)})
	}
	s.FabricNodes = []v1alpha1.FabricNode{node}
	ends, left := contractEnds(s.Contracts)
	last := s.Contracts[len(s.Contracts)-1]
	if len(ends) != peering.MaxContracts || left != 3 || !slices.ContainsFunc(ends, func(e v1alpha1.ContractEnd) bool { return e.Contract == last.Name }) {
		t.Errorf("%d ends are listed and %d are not, the last one among them or not", len(ends), left)
	}
	text := strings.Join(omitted(s, left), "; ")
	for _, want := range []string{"3 more close when the agent closes them", "3 contracts are not reported to the peer", "where 2 of the peer's gateways are seen"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not contain %q", text, want)
		}
	}
	s.Contracts, node.Status.ObservedGateways = s.Contracts[:peering.MaxContracts], node.Status.ObservedGateways[:peering.MaxObservations]
	s.FabricNodes = []v1alpha1.FabricNode{node}
	if _, left := contractEnds(s.Contracts); left > 0 || len(omitted(s, left)) > 0 {
		t.Errorf("nothing is left out, and the text is %q", omitted(s, left))
	}
}
