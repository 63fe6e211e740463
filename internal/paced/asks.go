package paced

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/peering"
)

// asks bounds how often peers have the API server asked. What is only read, and what
// is tried and not made, no budget of bytes counts.
type asks struct {
	mu    sync.Mutex
	peers map[peering.ClusterID]*rate.Limiter
}

type askedByKey struct{}

// For returns a context in which it is a peer that has the API server asked.
func For(ctx context.Context, peer peering.ClusterID) context.Context {
	return context.WithValue(ctx, askedByKey{}, peer)
}

// AskedBy returns the peer that has the API server asked in a context; false is for nobody, as
// the reconcilers ask.
func AskedBy(ctx context.Context) (peering.ClusterID, bool) {
	peer, ok := ctx.Value(askedByKey{}).(peering.ClusterID)
	return peer, ok
}

// wait waits until it is the turn of the peer that ctx names.
func (a *asks) wait(ctx context.Context) error {
	peer, ok := AskedBy(ctx)
	if !ok {
		return nil
	}
	if err := a.of(peer).Wait(ctx); err != nil {
		return fmt.Errorf("wait for the turn of peer %s: %w", peer, err)
	}
	return nil
}

func (a *asks) of(peer peering.ClusterID) *rate.Limiter {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.peers[peer]
	if l == nil {
		maps.DeleteFunc(a.peers, func(_ peering.ClusterID, l *rate.Limiter) bool { return l.Tokens() >= maxAsksBurst })
		l = rate.NewLimiter(maxAsks, maxAsksBurst)
		a.peers[peer] = l
	}
	return l
}
