package paced

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/peering"
)

// requests limits the rate of requests to the API server for peers. The budget of bytes does not
// count reads and failed writes.
type requests struct {
	mu    sync.Mutex
	peers map[peering.ClusterID]*rate.Limiter
}

type peerKey struct{}

// For returns a context in which requests to the API server are made for a peer.
func For(ctx context.Context, peer peering.ClusterID) context.Context {
	return context.WithValue(ctx, peerKey{}, peer)
}

// PeerOf returns the peer for which requests in a context are made; false for requests of the
// agent itself, as those of reconcilers.
func PeerOf(ctx context.Context) (peering.ClusterID, bool) {
	peer, ok := ctx.Value(peerKey{}).(peering.ClusterID)
	return peer, ok
}

// wait waits until the rate of the peer in ctx allows a request.
func (a *requests) wait(ctx context.Context) error {
	peer, ok := PeerOf(ctx)
	if !ok {
		return nil
	}
	if err := a.of(peer).Wait(ctx); err != nil {
		return fmt.Errorf("wait for the turn of peer %s: %w", peer, err)
	}
	return nil
}

func (a *requests) of(peer peering.ClusterID) *rate.Limiter {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.peers[peer]
	if l == nil {
		maps.DeleteFunc(a.peers, func(_ peering.ClusterID, l *rate.Limiter) bool { return l.Tokens() >= maxRequestsBurst })
		l = rate.NewLimiter(maxRequests, maxRequestsBurst)
		a.peers[peer] = l
	}
	return l
}
