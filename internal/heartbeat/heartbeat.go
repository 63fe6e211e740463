// Package heartbeat exchanges states with a peer over the two directions of a
// PeeringService.Session stream. Both ends run the same loop, whichever of them
// dialled: server and client wrap it.
//
// It owns when a state is sent and when a silent peer is given up. What is in a
// state and what follows from one belong to its callers.
//
//	send:   on start, on change (not more often than MinGap), each pause
//	hear:   any state resets the silence; too long a one ends the exchange
//
// The pause is Interval, or longer where the peer has the patience for it. An exchange
// that rests has one goroutine, that of Run.
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
	// DefaultInterval is the pause between two states that say the same, to a peer that
	// says nothing of its patience. Some give up whoever is silent for 6 s.
	DefaultInterval = 4 * time.Second
	// MaxInterval is the longest pause: a state that got lost in the peer, which nothing
	// else would tell of, is made good by the next.
	MaxInterval = 2 * time.Minute
	// SilentIntervals is how many states that do not come end the exchange.
	SilentIntervals = 3
	// SessionPatience is the patience with a peer whose session notices by itself when
	// it is gone.
	SessionPatience = SilentIntervals * MaxInterval
	// MinGap is the least time between two states sent, so that a burst of
	// changes is one message.
	MinGap = 100 * time.Millisecond
)

// Stream is the stream, in terms of states. Send and Recv are required.
type Stream struct {
	// Send sends a state. It may block while the peer does not read.
	Send func(*ententev1.PeerState) error
	// Recv returns the next state, or io.EOF.
	Recv func() (*ententev1.PeerState, error)
	// End makes a Send and a Recv that wait return, and says why. It may be called
	// more than once and at any time. Nil: they return when the stream ends by itself.
	End func(why error)
}

// Config configures an exchange.
type Config struct {
	// Interval is the pause between two states that say the same, unless the peer has
	// the patience for a longer one; 0 is DefaultInterval.
	Interval time.Duration
	// Patience is how long a peer may be silent, which it is told; 0 is
	// SilentIntervals intervals, of which it is not: those are what all keep up.
	Patience time.Duration
	// Current returns what this side says now. The state becomes the exchange's,
	// which fills in sequence, sent_at, echo_sequence and patience. An error ends the
	// exchange. Required.
	Current func(context.Context) (*ententev1.PeerState, error)
	// Watch has changed called whenever Current may say something else, until stop.
	// changed does not wait. Nil: that is never.
	Watch func(changed func()) (stop func())
	// Observe takes each state that the peer sent, checked by wire.CheckState, in
	// order and one at a time. It records and does not wait: the next state is
	// read when it returns. An error ends the exchange. Required.
	Observe func(context.Context, *ententev1.PeerState) error
}

// Run exchanges states until ctx ends, the stream ends, Observe fails, or the
// peer is silent for too long; then the error is a *peering.Error with the reason
// HEARTBEAT_LOST. It returns nil when ctx ends and io.EOF when the peer closed its
// direction in order.
//
// It returns when neither Send nor Recv is under way any more.
func Run(ctx context.Context, stream Stream, cfg Config) error {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	silence := cfg.Patience
	if silence <= 0 {
		silence = SilentIntervals * cfg.Interval
	}
	parent := ctx
	ctx, end := context.WithCancelCause(ctx)
	if stream.End != nil {
		defer context.AfterFunc(ctx, func() { stream.End(context.Cause(ctx)) })()
	}
	timer := time.AfterFunc(silence, func() {
		end(&peering.Error{
			Reason:     peering.ReasonHeartbeatLost,
			Message:    fmt.Sprintf("the peer said nothing for %s", silence),
			RetryAfter: cfg.Interval,
		})
	})
	defer timer.Stop()
	// What ended the exchange first is why it ended: the rest follows from that.
	own := newSender(ctx, stream, cfg, end)
	if cfg.Watch != nil {
		defer cfg.Watch(own.changed)()
	}
	own.send()
	end(receive(ctx, stream, cfg, func(state *ententev1.PeerState) {
		timer.Reset(silence)
		own.heard(state.GetSequence(), state.GetPatience().AsDuration())
	}))
	own.stop()
	// The stream's end may have ended the caller's context too, but not before.
	why := context.Cause(ctx)
	if parent.Err() != nil && errors.Is(why, context.Cause(parent)) {
		return nil
	}
	return why
}

// receive reads states and hands them over, until one of them or the stream ends it.
func receive(ctx context.Context, stream Stream, cfg Config, heard func(*ententev1.PeerState)) error {
	// Two an interval are always read: a peer that only beats is never throttled.
	limit := rate.NewLimiter(max(MaxReceivedRate, 2*rate.Every(cfg.Interval)), MaxReceivedBurst)
	var last uint64
	for {
		if err := limit.Wait(ctx); err != nil {
			return context.Cause(ctx) // only its end ends a wait
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
		heard(state)
	}
}
