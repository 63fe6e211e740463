package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// What a peer reports of contracts and whether it can be asked are written separately, in
// either order: after both it has to be reconciled.
func TestOrphansAreCheckedWhenContractsChange(t *testing.T) {
	t.Parallel()
	type peer struct {
		connected, trusted bool
		contracts          []string
	}
	of := func(p peer) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{Spec: v1alpha1.ForeignClusterSpec{TrustBundle: "a"}}
		for _, id := range p.contracts {
			fc.Status.Contracts = append(fc.Status.Contracts, v1alpha1.PeerContract{ID: id})
		}
		set := func(kind string, ok bool) {
			status := metav1.ConditionFalse
			if ok {
				status = metav1.ConditionTrue
			}
			meta.SetStatusCondition(&fc.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Test"})
		}
		set(v1alpha1.ConditionConnected, p.connected)
		set(v1alpha1.ConditionTrusted, p.trusted)
		return fc
	}
	one := []string{"c-1"}
	for name, tc := range map[string]struct {
		before, after peer
		want          bool
	}{
		"it speaks of a contract":                  {peer{connected: true, trusted: true}, peer{true, true, one}, true},
		"it speaks of none any more":               {peer{true, true, one}, peer{connected: true, trusted: true}, true},
		"it spoke of one before it was connected":  {peer{false, true, one}, peer{true, true, one}, true},
		"it is trusted while it is connected":      {peer{true, false, one}, peer{true, true, one}, true},
		"it is trusted before it is connected":     {peer{false, false, one}, peer{false, true, one}, false},
		"its session ends":                         {peer{true, true, one}, peer{false, true, one}, false},
		"something else of it changes":             {peer{true, true, one}, peer{true, true, one}, false},
		"something of one that is away changes":    {peer{false, true, one}, peer{false, true, one}, false},
		"it is away and speaks of another by then": {peer{false, true, one}, peer{false, true, []string{"c-2"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := orphansDiffer(of(tc.before), of(tc.after)); got != tc.want {
				t.Errorf("got %t, want %t", got, tc.want)
			}
		})
	}
}

func TestContractUnknownToItsProviderEnds(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	unknown := peering.Errorf(peering.ReasonContractUnknown, "there is no contract c-1 with this cluster")
	for name, tc := range map[string]struct {
		answer error // nil: it has the contract
		change func(*v1alpha1.Contract, *v1alpha1.ForeignCluster)
		asked  bool
		ends   bool
	}{
		"it does not know it":             {answer: unknown, asked: true, ends: true},
		"it is over there":                {answer: peering.Errorf(peering.ReasonContractClosed, "contract c-1 is over"), asked: true, ends: true},
		"it has it and did not report it": {asked: true},
		"it does not respond":             {answer: context.DeadlineExceeded, asked: true},
		"it could not read it":            {answer: errors.New("etcd is slow"), asked: true},
		"it cannot be reached":            {answer: &peering.Error{Reason: peering.ReasonUnavailable}, asked: true},
		"it does not trust us":            {answer: peering.Errorf(peering.ReasonPeerNotTrusted, "join first"), asked: true},
		"it reports that it is in force": {answer: unknown, change: func(_ *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) {
			fc.Status.Contracts = []v1alpha1.PeerContract{{ID: "c-1", Revision: 1, Phase: peering.PhaseActive.String()}}
		}},
		"there is no session": {answer: unknown, change: func(_ *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) {
			meta.RemoveStatusCondition(&fc.Status.Conditions, v1alpha1.ConditionConnected)
		}},
		"it was signed only a moment ago": {answer: unknown, change: func(c *v1alpha1.Contract, _ *v1alpha1.ForeignCluster) {
			c.CreationTimestamp = metav1.NewTime(now.Add(time.Second - orphanAge))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc, stored := foreign("peer", p.provider), p.stored(t, p.terms(t, nil), p.consumer)
			stored.CreationTimestamp = metav1.NewTime(now.Add(-orphanAge))
			if tc.change != nil {
				tc.change(stored, fc)
			}
			b := newBench(t, p.consumer, fc, stored)
			b.peer.contract = func() (peering.Envelope, error) { return p.signed(t, p.terms(t, nil)), tc.answer }
			c := b.look(t)
			if ends := c == nil || c.Status.Phase == peering.PhaseClosed.String(); ends != tc.ends {
				t.Errorf("it ends: %t, %+v", ends, c)
			}
			if c != nil && tc.ends && c.Status.Reason != peering.EndedByPeer.Name() {
				t.Errorf("it ended because of %q", c.Status.Reason)
			}
			if (b.peer.calls > 0) != tc.asked {
				t.Errorf("the provider was asked %d times", b.peer.calls)
			}
		})
	}
}

func TestProviderKeepsContractsThatItsConsumerLeavesOut(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	stored := p.stored(t, p.terms(t, nil), p.provider)
	stored.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	b := newBench(t, p.provider, foreign("peer", p.consumer), stored)
	b.peer.contract = func() (peering.Envelope, error) {
		return peering.Envelope{}, peering.Errorf(peering.ReasonContractUnknown, "there is no contract c-1 with this cluster")
	}
	if c := b.look(t); c == nil || c.Status.Phase != peering.PhaseActive.String() || b.peer.calls > 0 {
		t.Errorf("it is %+v, asked %d times", c, b.peer.calls)
	}
}
