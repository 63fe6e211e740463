// Package heartbeat exchanges states with a peer over the two directions of a
// PeeringService.Session stream. Both ends run the same loop, whichever of them
// dialled: server and client wrap it.
//
// It owns when a state is sent and when a silent peer is given up. What is in a
// state and what follows from one belong to its callers.
//
//	send:   on start, on change (not more often than MinGap), each Interval
//	hear:   any state resets the silence; Silence without one ends the exchange
package heartbeat

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
)

// Defaults and limits of an exchange.
const (
	// DefaultInterval is the pause between two states that say the same. Some peers
	// give up whoever is silent for 6 s.
	DefaultInterval = 4 * time.Second
	// SilentIntervals is how many intervals without a word end the exchange.
	SilentIntervals = 3
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
	// Interval is the pause between two states that say the same; 0 is
	// DefaultInterval.
	Interval time.Duration
	// Current returns what this side says now, and a channel that is closed once
	// it may say something else; nil never is. The state becomes the exchange's,
	// which fills in sequence, sent_at and echo_sequence. An error ends the
	// exchange. Required.
	Current func(context.Context) (state *ententev1.PeerState, changed <-chan struct{}, err error)
	// Observe takes each state that the peer sent, checked by wire.CheckState, in
	// order and one at a time. It records and does not wait: the next state is
	// read when it returns. An error ends the exchange. Required.
	Observe func(context.Context, *ententev1.PeerState) error
}

// Run exchanges states until ctx ends, the stream ends, Observe fails, or the
// peer is silent for SilentIntervals intervals; then the error is a *wire.Error
// with the reason HEARTBEAT_LOST. It returns nil when ctx ends and io.EOF when
// the peer closed its direction in order.
//
// It returns when neither Send nor Recv is under way any more.
func Run(ctx context.Context, stream Stream, cfg Config) error {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	parent := ctx
	ctx, end := context.WithCancelCause(ctx)
	if stream.End != nil {
		defer context.AfterFunc(ctx, func() { stream.End(context.Cause(ctx)) })()
	}
	silence := time.Duration(SilentIntervals) * cfg.Interval
	timer := time.AfterFunc(silence, func() {
		end(&wire.Error{
			Reason:     wire.ReasonHeartbeatLost,
			Message:    fmt.Sprintf("the peer said nothing for %s", silence),
			RetryAfter: cfg.Interval,
		})
	})
	defer timer.Stop()
	// What ended the exchange first is why it ended: the rest follows from that.
	var echo atomic.Uint64
	heard := make(chan struct{}, 1)
	var sender sync.WaitGroup
	sender.Go(func() { end(send(ctx, stream, cfg, &echo, heard)) })
	end(receive(ctx, stream, cfg, func(sequence uint64) {
		timer.Reset(silence)
		echo.Store(sequence)
		select {
		case heard <- struct{}{}:
		default:
		}
	}))
	sender.Wait()
	// The stream's end may have ended the caller's context too, but not before.
	why := context.Cause(ctx)
	if parent.Err() != nil && errors.Is(why, context.Cause(parent)) {
		return nil
	}
	return why
}

// receive reads states and hands them over, until one of them or the stream ends it.
func receive(ctx context.Context, stream Stream, cfg Config, heard func(sequence uint64)) error {
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
			return wire.Errorf(wire.ReasonRequestInvalid, "state %d came after state %d", state.GetSequence(), last)
		}
		last = state.GetSequence()
		if err := cfg.Observe(ctx, state); err != nil {
			return fmt.Errorf("observe state: %w", err)
		}
		heard(last)
	}
}

// send sends the current state on start, on change and each interval, until ctx
// ends or that fails. One of the two sides comes to answer the other: it says its own
// when it heard something and half of its pause is over, so that each wakes up once an
// interval and not twice.
func send(ctx context.Context, stream Stream, cfg Config, echo *atomic.Uint64, heard <-chan struct{}) error {
	beat := time.NewTimer(cfg.Interval)
	defer beat.Stop()
	pause := cfg.Interval
	for sequence := uint64(1); ; sequence++ {
		state, changed, err := cfg.Current(ctx)
		if err != nil {
			return fmt.Errorf("tell own state: %w", err)
		}
		echoed := echo.Load()
		state.Sequence, state.SentAt, state.EchoSequence = sequence, timestamppb.Now(), echoed
		if err := stream.Send(state); err != nil {
			return err
		}
		sent := time.Now()
		beat.Reset(pause)
		for due := false; !due; {
			due, pause = true, cfg.Interval
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-changed:
				// What changes within the gap is one state: the last.
				if !sleep(ctx, time.Until(sent.Add(min(MinGap, cfg.Interval)))) {
					return context.Cause(ctx)
				}
			case <-heard:
				// The first word of the other side is answered at once: it waits for that to
				// know that it was heard.
				due = echoed == 0 || time.Since(sent) >= cfg.Interval/2
				pause += cfg.Interval / 8 // so that the other side goes first next time too
			case <-beat.C:
			}
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
