// Package heartbeat exchanges states with a peer over the two directions of a
// PeeringService.Session stream. Both ends run the same loop, whichever of them
// dialled: server and client wrap it.
//
// It decides when a state is sent and when a silent peer is given up. The content of a
// state and its consequences belong to the callers.
//
//	send:     on start, on change (not more often than minGap), and each interval
//	receive:  any state resets the timeout, after which the exchange ends
//
// The interval is Config.Interval, or longer if the timeout of the peer permits it. An idle
// exchange has one goroutine, that of Run.
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Defaults and limits of an exchange.
const (
	// defaultInterval is the interval between unchanged states to a peer that does not send
	// its timeout. Some peers give up after 6 s.
	defaultInterval = 4 * time.Second
	// MaxInterval is the longest interval: the next state repairs one that the peer lost.
	MaxInterval = 2 * time.Minute
	// missedStates is how many states that do not come end the exchange.
	missedStates = 3
	// SessionTimeout is the timeout for a peer over a session, which has a keepalive of
	// its own.
	SessionTimeout = missedStates * MaxInterval
	// minGap is the least time between two states that are sent, so that a burst of changes
	// is one message.
	minGap = 100 * time.Millisecond
)

// Stream is the stream, in terms of states. Send and Recv are required.
type Stream struct {
	// Send sends a state. It may block while the peer does not read.
	Send func(*ententev1.PeerState) error
	// Recv returns the next state, or io.EOF.
	Recv func() (*ententev1.PeerState, error)
	// End makes blocked calls of Send and Recv return. It may be called more than once and at any time. Nil means
	// that they return when the stream ends by itself.
	End func(why error)
}

// Config configures an exchange.
type Config struct {
	// Interval is the interval between unchanged states, unless the peer's timeout permits
	// a longer one. Default 4 s.
	Interval time.Duration
	// Timeout is how long a peer may be silent, and is sent to it. Default three
	// intervals, which are not sent: every peer keeps up with those.
	Timeout time.Duration
	// Current returns this side's state, which the exchange may change: it sets sequence, send_time, echo_sequence
	// and timeout. An error ends the exchange. Required.
	Current func(context.Context) (*ententev1.PeerState, error)
	// Watch calls changed whenever Current may return another state, until stop. changed does not block. Nil means
	// that the state never changes.
	Watch func(changed func()) (stop func())
	// Observe receives each state that the peer sent, checked by wire.CheckState, in order and one at a time. The
	// next state is read when it returns, so it should not block. An error ends the exchange. Required.
	Observe func(context.Context, *ententev1.PeerState) error
}

// Run exchanges states until ctx ends, the stream ends, Observe fails, or the peer is silent for too long; then the
// error is a *peering.Error with the reason HEARTBEAT_LOST. It returns nil when ctx ends and io.EOF when the peer
// closed its direction in order.
//
// No call of Send or Recv is running when it returns.
func Run(ctx context.Context, stream Stream, cfg Config) error {
	if cfg.Interval <= 0 {
		cfg.Interval = defaultInterval
	}
	silence := cfg.Timeout
	if silence <= 0 {
		silence = missedStates * cfg.Interval
	}
	parent := ctx
	ctx, end := context.WithCancelCause(ctx)
	if stream.End != nil {
		defer context.AfterFunc(ctx, func() { stream.End(context.Cause(ctx)) })()
	}
	timer := time.AfterFunc(silence, func() {
		end(&peering.Error{
			Reason:     peering.ReasonHeartbeatLost,
			Message:    fmt.Sprintf("the peer sent nothing for %s", silence),
			RetryAfter: cfg.Interval,
		})
	})
	defer timer.Stop()
	// The first cause counts: others follow from it.
	own := newSender(ctx, stream, cfg, end)
	if cfg.Watch != nil {
		defer cfg.Watch(own.changed)()
	}
	own.send()
	end(receive(ctx, stream, cfg, func(state *ententev1.PeerState) {
		timer.Reset(silence)
		own.received(state.GetSequence(), state.GetHeartbeatTimeout().AsDuration())
	}))
	own.stop()
	// The stream's end may have ended the caller's context too, but not before.
	why := context.Cause(ctx)
	if parent.Err() != nil && errors.Is(why, context.Cause(parent)) {
		return nil
	}
	return why
}

// receive reads states and passes them on until an error.
func receive(ctx context.Context, stream Stream, cfg Config, received func(*ententev1.PeerState)) error {
	// Two states an interval are always read: a peer that sends no changes is never throttled.
	limit := rate.NewLimiter(max(maxReceivedRate, 2*rate.Every(cfg.Interval)), maxReceivedBurst)
	var last uint64
	for {
		if err := limit.Wait(ctx); err != nil {
			return context.Cause(ctx)
		}
		state, err := stream.Recv()
		if err != nil {
			return err
		}
		if state, err = wire.CheckState(state); err != nil {
			return err
		}
		if state.GetSequence() <= last {
			return peering.Errorf(peering.ReasonRequestInvalid, "state %d came after state %d", state.GetSequence(), last)
		}
		last = state.GetSequence()
		if err := cfg.Observe(ctx, state); err != nil {
			return fmt.Errorf("observe state: %w", err)
		}
		received(state)
	}
}
