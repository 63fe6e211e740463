package agent

import (
	"context"
	"log/slog"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// speech is what this cluster says to its peers over sessions, and what it does
// with what they say. It serves both directions of the exchange.
type speech struct {
	states *controller.States
	log    *slog.Logger

	mu      sync.Mutex
	changed map[peering.ClusterID]chan struct{}
}

// State returns the word to a peer and a channel that is closed when that may be
// another one.
func (s *speech) State(ctx context.Context, peer peering.ClusterID) (*ententev1.PeerState, <-chan struct{}, error) {
	s.mu.Lock()
	if s.changed == nil {
		s.changed = map[peering.ClusterID]chan struct{}{}
	}
	changed, ok := s.changed[peer]
	if !ok {
		changed = make(chan struct{})
		s.changed[peer] = changed
	}
	s.mu.Unlock()
	state, err := s.states.State(ctx, peer)
	if err != nil {
		return nil, nil, err
	}
	return wire.StateTo(state), changed, nil
}

// Observe records a peer's word.
func (s *speech) Observe(ctx context.Context, peer peering.ClusterID, state *ententev1.PeerState) error {
	said, err := wire.StateFrom(state)
	if err != nil {
		return err
	}
	// What this cluster cannot record now it hears again with the next heartbeat:
	// its own API server's troubles are no reason to hang up on a peer.
	if err := s.states.Observe(ctx, peer, said); err != nil && ctx.Err() == nil {
		s.log.Warn("cannot record what a peer says", "peer", peer, "err", err)
	}
	return nil
}

// spoken makes the word to a peer be looked at again.
func (s *speech) spoken(peer peering.ClusterID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if changed, ok := s.changed[peer]; ok {
		close(changed)
		delete(s.changed, peer)
	}
}

// waker turns names into requests for a reconciler, without ever blocking: a
// name that does not fit is looked at by the reconciler's own requeue.
type waker chan event.GenericEvent

func (w waker) wake(object client.Object) {
	select {
	case w <- event.GenericEvent{Object: object}:
	default:
	}
}

func foreignClusterNamed(name string) client.Object {
	fc := &v1alpha1.ForeignCluster{}
	fc.Name = name
	return fc
}

func contractNamed(name string) client.Object {
	c := &v1alpha1.Contract{}
	c.Name = name
	return c
}
