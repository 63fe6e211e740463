package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/session"
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

// trust makes bundles and sessions fit the ForeignClusters. It implements
// controller.Trust.
type trust struct {
	self     peering.ClusterID
	bundles  *identity.Bundles
	sessions *session.Manager
}

// Set implements controller.Trust. A bundle that cannot be read trusts nobody
// and keeps no other from being trusted.
func (t *trust) Set(peers []controller.TrustedPeer) error {
	wanted := map[peering.ClusterID]bool{}
	var dial []session.Peer
	var errs []error
	for _, p := range peers {
		if p.ID == t.self {
			continue
		}
		roots, err := identity.ParseBundlePEM(p.ID, []byte(p.Bundle))
		if err == nil {
			err = t.bundles.Set(p.ID, roots)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		wanted[p.ID] = true
		dial = append(dial, session.Peer{ID: p.ID, Endpoints: p.Endpoints})
	}
	for _, id := range t.bundles.IDs() {
		if !wanted[id] {
			t.bundles.Remove(id) // which cuts its sessions
		}
	}
	t.sessions.SetPeers(dial)
	return errors.Join(errs...)
}

// Connected implements controller.Trust.
func (t *trust) Connected(id peering.ClusterID) (bool, string) {
	status := t.sessions.Status(id)
	switch {
	case status.Session != nil:
		return true, ""
	case status.Err != nil:
		return false, fmt.Sprintf("no session with the peer's agent: %v", status.Err)
	}
	return false, "no session with the peer's agent yet: it has no endpoint that could be dialled, or has not dialled"
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
