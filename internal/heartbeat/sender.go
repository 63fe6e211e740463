package heartbeat

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// sender says this side's state: on start, on change, and when a pause is over. It
// has a goroutine only while it does. One of the two sides comes to answer the other:
// it says its own when it heard something and half of its pause is over, so that each
// wakes up once a pause and not twice.
type sender struct {
	ctx    context.Context //nolint:containedctx // that of Run, which stop ends
	stream Stream
	cfg    Config
	fail   func(error)
	// under counts the goroutine that sends.
	under sync.WaitGroup

	mu    sync.Mutex
	timer *time.Timer // sends when it fires
	dueAt time.Time   // is when that is
	// sending says that a goroutine sends, and next how long after that it is due again,
	// less than 0 if nothing came up.
	sending, stopped bool
	next             time.Duration
	sequence         uint64
	sentAt           time.Time
	// pause is that before a state that says the same.
	pause time.Duration
	// echo is the newest state that was heard, echoed the one that was said to be.
	echo, echoed uint64
}

// newSender returns a sender that says nothing yet. fail is called with why it
// cannot go on.
func newSender(ctx context.Context, stream Stream, cfg Config, fail func(error)) *sender {
	s := &sender{ctx: ctx, stream: stream, cfg: cfg, fail: fail, pause: cfg.Interval}
	s.timer = time.AfterFunc(cfg.Interval, s.tick)
	return s
}

// pauseFor returns the pause between two states that say the same, for a peer of
// that patience, 0 if it said nothing of it.
func pauseFor(interval, patience time.Duration) time.Duration {
	return max(interval, min(patience/SilentIntervals, MaxInterval))
}

// gap is the least time between two states.
func (s *sender) gap() time.Duration { return min(MinGap, s.cfg.Interval) }

// changed says that there may be something to say. What changes within the gap is one
// state: the last.
func (s *sender) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch wait := time.Until(s.sentAt.Add(s.gap())); {
	case s.sending:
		s.next = s.gap()
	case wait > 0:
		s.set(wait)
	default:
		s.begin()
	}
}

// heard takes what the peer said of what it heard and wants.
func (s *sender) heard(sequence uint64, patience time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.echo, s.pause = sequence, pauseFor(s.cfg.Interval, patience)
	switch {
	case s.sending:
	case s.unanswered():
		s.begin()
	case time.Since(s.sentAt) >= s.pause/2:
		s.begin()
		s.next = s.pause + s.pause/8 // so that the other side goes first next time too
	case time.Until(s.dueAt) > s.pause: // it has less patience than before
		s.set(time.Until(s.sentAt.Add(s.pause)))
	}
}

// unanswered says that the first word of the other side is to be answered, at once:
// it waits for that to know that it was heard. The lock is held.
func (s *sender) unanswered() bool { return s.echoed == 0 && s.echo > 0 }

// send says the state now.
func (s *sender) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
}

// begin has the state said, unless that is under way. The lock is held.
func (s *sender) begin() {
	if s.stopped || s.sending {
		return
	}
	s.sending, s.next = true, -1
	s.under.Go(func() {
		if err := s.say(); err != nil {
			s.fail(err) // and it goes on sending, as far as others are to know
		}
	})
}

// say says the state, and sets the timer for the next.
func (s *sender) say() error {
	state, err := s.cfg.Current(s.ctx)
	if err != nil {
		return fmt.Errorf("tell own state: %w", err)
	}
	s.mu.Lock()
	s.sequence++
	s.echoed = s.echo
	state.Sequence, state.SentAt, state.EchoSequence = s.sequence, timestamppb.Now(), s.echoed
	s.mu.Unlock()
	if s.cfg.Patience > 0 {
		state.Patience = durationpb.New(s.cfg.Patience)
	}
	if err := s.stream.Send(state); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sending, s.sentAt = false, time.Now()
	if s.stopped {
		return nil
	}
	switch {
	case s.unanswered():
		s.set(0)
	case s.next >= 0:
		s.set(s.next)
	default:
		s.set(s.pause)
	}
	return nil
}

// set sets the timer. The lock is held.
func (s *sender) set(wait time.Duration) {
	s.dueAt = time.Now().Add(wait)
	s.timer.Reset(wait)
}

// tick says the state when its time has come: not if the timer was set anew after it
// fired.
func (s *sender) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !time.Now().Before(s.dueAt) {
		s.begin()
	}
}

// stop returns when nothing is sent any more, and nothing will be.
func (s *sender) stop() {
	s.mu.Lock()
	s.stopped = true
	s.timer.Stop()
	s.mu.Unlock()
	s.under.Wait()
}
