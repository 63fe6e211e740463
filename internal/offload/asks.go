package offload

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/peering"
)

// asks bounds how often peers have the API server asked. What is only read, and what
// is tried and not made, no budget of bytes counts.
type asks struct {
	mu    sync.Mutex
	rate  rate.Limit
	burst int
	peers map[peering.ClusterID]*rate.Limiter
}

func newAsks() *asks {
	return &asks{rate: maxAsks, burst: maxAsksBurst, peers: make(map[peering.ClusterID]*rate.Limiter)}
}

type askedByKey struct{}

// forPeer returns a context in which it is a peer that has the API server asked.
func forPeer(ctx context.Context, peer peering.ClusterID) context.Context {
	return context.WithValue(ctx, askedByKey{}, peer)
}

// wait waits until it is the turn of the peer that ctx names.
func (a *asks) wait(ctx context.Context) error {
	peer, ok := ctx.Value(askedByKey{}).(peering.ClusterID)
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
		maps.DeleteFunc(a.peers, func(_ peering.ClusterID, l *rate.Limiter) bool { return l.Tokens() >= float64(a.burst) })
		l = rate.NewLimiter(a.rate, a.burst)
		a.peers[peer] = l
	}
	return l
}

// asking is a client that waits when a peer asks too often.
type asking struct {
	client.WithWatch
	asks *asks
}

func (a asking) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if err := a.asks.wait(ctx); err != nil {
		return err
	}
	return a.WithWatch.Get(ctx, key, o, opts...) //nolint:wrapcheck // it is the client
}

func (a asking) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := a.asks.wait(ctx); err != nil {
		return err
	}
	return a.WithWatch.List(ctx, list, opts...) //nolint:wrapcheck // it is the client
}

func (a asking) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := a.asks.wait(ctx); err != nil {
		return err
	}
	return a.WithWatch.Create(ctx, o, opts...) //nolint:wrapcheck // it is the client
}

// eachPage lists page by page, so that a long list is never in memory as a whole.
func eachPage[L client.ObjectList](ctx context.Context, c client.Reader, newList func() L, f func(L) error, opts ...client.ListOption) error {
	next := ""
	for {
		list := newList()
		if err := c.List(ctx, list, append([]client.ListOption{client.Limit(pageSize), client.Continue(next)}, opts...)...); err != nil {
			return err //nolint:wrapcheck // the caller says what it lists
		}
		if err := f(list); err != nil {
			return err
		}
		if next = list.GetContinue(); next == "" {
			return nil
		}
	}
}
