package progress

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

const (
	// PollEvery is how often a cluster is asked how far it is that does not say when
	// something changes.
	PollEvery = 500 * time.Millisecond
	// PollFollowed is how often one is asked that does. Some of what is waited for,
	// such as Nodes, no watch tells of.
	PollFollowed = 3 * time.Second
	// PollPause is the least time between two questions, however much changes.
	PollPause = 100 * time.Millisecond
	// followAgain is how long to wait after a watch broke off.
	followAgain = 2 * time.Second
)

// Follower hears from a cluster when something changed that may be waited for.
type Follower struct {
	// changed has a value once something changed since it was last taken.
	changed chan struct{}
	// streams is how many of the watches are open.
	streams atomic.Int32
}

// Follow watches peers and events of a cluster until ctx or the connection ends.
// Without the right to watch, or where the agent cannot, it polls.
func Follow(ctx context.Context, admin ententev1.AdminServiceClient, sleep func(context.Context, time.Duration) error) *Follower {
	f := &Follower{changed: make(chan struct{}, 1)}
	go keepWatching(ctx, f, sleep, func(ctx context.Context) (grpc.ServerStreamingClient[ententev1.WatchPeersResponse], error) {
		return admin.WatchPeers(ctx, &ententev1.WatchPeersRequest{})
	})
	go keepWatching(ctx, f, sleep, func(ctx context.Context) (grpc.ServerStreamingClient[ententev1.WatchEventsResponse], error) {
		return admin.WatchEvents(ctx, &ententev1.WatchEventsRequest{})
	})
	return f
}

// keepWatching has every message of a stream count as a change, and opens the
// stream again where it broke off by something that passes.
func keepWatching[M any](ctx context.Context, f *Follower, sleep func(context.Context, time.Duration) error, open func(context.Context) (grpc.ServerStreamingClient[M], error)) {
	for {
		begun := false
		err := Drain(ctx, func(ctx context.Context) (grpc.ServerStreamingClient[M], error) {
			stream, err := open(ctx)
			if err != nil {
				return nil, err
			}
			if begun, err = Begins(stream); begun {
				f.streams.Add(1)
			}
			return stream, err
		}, func(*M) error {
			f.touch()
			return nil
		})
		if begun {
			f.streams.Add(-1)
			f.touch() // nobody tells what changes now
		}
		if ctx.Err() != nil || err != nil && !Passes(err) || sleep(ctx, followAgain) != nil {
			return
		}
	}
}

func (f *Follower) touch() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// patience is how long to wait for a change before asking all the same.
func (f *Follower) patience() time.Duration {
	if f != nil && f.streams.Load() == 2 {
		return PollFollowed
	}
	return PollEvery
}
