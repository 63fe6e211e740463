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
	"fmt"
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

// Stream is the stream, in terms of states. Both are required.
type Stream struct {
	// Send sends a state. It may block while the peer does not read.
	Send func(*ententev1.PeerState) error
	// Recv returns the next state, or io.EOF.
	Recv func() (*ententev1.PeerState, error)
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
// A call that blocks in the stream outlives Run until the stream's own context
// ends; the caller ends that right after.
func Run(ctx context.Context, stream Stream, cfg Config) error {
	if cfg.Interval <= 0 {
		cfg.Interval = DefaultInterval
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	heard := make(chan uint64, 1)
	failed := make(chan error, 2)
	go func() { failed <- receive(ctx, stream, cfg, heard) }()
	echo := make(chan uint64, 1)
	go func() { failed <- send(ctx, stream, cfg, echo) }()

	silence := time.Duration(SilentIntervals) * cfg.Interval
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return err
		case <-timer.C:
			return &wire.Error{
				Reason:     wire.ReasonHeartbeatLost,
				Message:    fmt.Sprintf("the peer said nothing for %s", silence),
				RetryAfter: cfg.Interval,
			}
		case seq := <-heard:
			timer.Reset(silence)
			latest(echo, seq)
		}
	}
}

// receive reads states and hands them over.
func receive(ctx context.Context, stream Stream, cfg Config, heard chan<- uint64) error {
	// Two an interval are always read: a peer that only beats is never throttled.
	limit := rate.NewLimiter(max(MaxReceivedRate, 2*rate.Every(cfg.Interval)), MaxReceivedBurst)
	var last uint64
	for {
		if err := limit.Wait(ctx); err != nil {
			return nil //nolint:nilerr // only ctx ends it
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
		select {
		case heard <- last:
		case <-ctx.Done():
			return nil
		}
	}
}

// send sends the current state on start, on change and each interval.
func send(ctx context.Context, stream Stream, cfg Config, echo <-chan uint64) error {
	var sequence, echoed uint64
	beat := time.NewTicker(cfg.Interval)
	defer beat.Stop()
	for {
		state, changed, err := cfg.Current(ctx)
		if err != nil {
			return fmt.Errorf("tell own state: %w", err)
		}
		select {
		case echoed = <-echo:
		default:
		}
		sequence++
		state.Sequence, state.SentAt, state.EchoSequence = sequence, timestamppb.Now(), echoed
		if err := stream.Send(state); err != nil {
			return err
		}
		// A change within the gap is not lost: its channel is closed when the gap
		// is over.
		if !sleep(ctx, min(MinGap, cfg.Interval)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-beat.C:
		}
	}
}

// latest puts v into a channel of one slot, in place of what is in it.
func latest(c chan uint64, v uint64) {
	select {
	case <-c:
	default:
	}
	c <- v
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
