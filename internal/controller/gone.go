package controller

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// recordGone records which pods a peer no longer runs for others, of a state that is refused because the peer is over
// its budget: the peer may have given their addresses to somebody else's pods, which reach what they did until that is
// recorded. The write is charged and waits for closePause at most. There are no more of them than pods, until more are
// recorded, within the budget. It returns when to record the state again.
func (s *States) recordGone(ctx context.Context, recorded *v1alpha1.ForeignCluster, announced *peering.Network, refused error) error {
	wait, over := store.Later(refused)
	if !over || recorded.Status.Network == nil {
		return refused
	}
	fc := recorded.DeepCopy()
	fc.Status.Network.Running = nil
	if announced != nil {
		fc.Status.Network.Running = transit.Common(recorded.Status.Network.Running, transit.FromWire(announced.Running))
	}
	if equality.Semantic.DeepEqual(recorded.Status, fc.Status) {
		return refused
	}
	peer := peering.ClusterID(fc.Spec.ClusterID)
	if pause := s.pauseGone(peer); pause > 0 {
		return &store.LaterError{After: min(pause, wait)}
	}
	if err := s.Budget.Charge(peer, fc); err != nil {
		return err
	}
	if err := store.PatchStatus(ctx, s.Client, recorded, fc); err != nil {
		return err
	}
	return refused
}

// pauseGone returns how long recordGone has to wait; if it need not, it has to wait for closePause the next time.
func (s *States) pauseGone(peer peering.ClusterID) time.Duration {
	now := s.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, known := s.gone[peer]; known && now.Sub(last) < closePause {
		return closePause - now.Sub(last)
	}
	if s.gone == nil {
		s.gone = map[peering.ClusterID]time.Time{}
	}
	maps.DeleteFunc(s.gone, func(_ peering.ClusterID, at time.Time) bool { return now.Sub(at) >= closePause })
	s.gone[peer] = now
	return 0
}
