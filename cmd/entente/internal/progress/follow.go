package progress

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

const (
	// PollEvery is the interval at which a cluster that does not report changes is polled.
	PollEvery = 500 * time.Millisecond
	// PollFollowed is the interval for one that does: no watch reports some changes, such as
	// those of Nodes.
	PollFollowed = 3 * time.Second
	// PollPause is the minimum time between two polls, however much changes.
	PollPause = 100 * time.Millisecond
	// followAgain is how long to wait after a watch broke off.
	followAgain = 2 * time.Second
)

// Follower watches a cluster for changes that a command may wait for.
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

// keepWatching counts every message of a stream as a change, and opens the stream again
// after a transient error.
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
			f.touch() // changes are not reported at the moment
		}
		if ctx.Err() != nil || err != nil && !Transient(err) || sleep(ctx, followAgain) != nil {
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

// patience is how long to wait for a change before polling anyway.
func (f *Follower) patience() time.Duration {
	if f != nil && f.streams.Load() == 2 {
		return PollFollowed
	}
	return PollEvery
}
