package heartbeat

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// sender sends this side's state: on start, on change, and when the interval is over. One of the two sides also
// sends when it receives a state and half of its interval is over, so that each side wakes up once an interval and
// not twice. It has a goroutine only while it sends.
type sender struct {
	ctx    context.Context //nolint:containedctx // that of Run, which stop ends
	stream Stream
	cfg    Config
	fail   func(error)
	// under counts the goroutine that sends.
	under sync.WaitGroup

	mu    sync.Mutex
	timer *time.Timer // sends when it fires
	dueAt time.Time   // when it does
	// sending: a goroutine sends. next is how long after that the next state is due if a change came meanwhile, and
	// negative otherwise.
	sending, stopped bool
	next             time.Duration
	sequence         uint64
	sentAt           time.Time
	interval         time.Duration
	// echo is the sequence of the newest state received, echoed the last that was sent back.
	echo, echoed uint64
}

// newSender returns a sender that has not sent yet. fail is called with the error that
// ends it.
func newSender(ctx context.Context, stream Stream, cfg Config, fail func(error)) *sender {
	s := &sender{ctx: ctx, stream: stream, cfg: cfg, fail: fail, interval: cfg.Interval}
	s.timer = time.AfterFunc(cfg.Interval, s.tick)
	return s
}

// intervalFor returns the interval between unchanged states for a peer of that timeout, 0
// if it sent none.
func intervalFor(interval, timeout time.Duration) time.Duration {
	return max(interval, min(timeout/missedStates, MaxInterval))
}

// gap is the least time between two states.
func (s *sender) gap() time.Duration { return min(minGap, s.cfg.Interval) }

// changed sends the state again, as it may have changed. Changes within the gap are one
// state, the last.
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

// received records a state of the peer.
func (s *sender) received(sequence uint64, timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.echo, s.interval = sequence, intervalFor(s.cfg.Interval, timeout)
	switch {
	case s.sending:
	case s.owesEcho():
		s.begin()
	case time.Since(s.sentAt) >= s.interval/2:
		s.begin()
		s.next = s.interval + s.interval/8 // so that the other side sends first next time, too
	case time.Until(s.dueAt) > s.interval: // its timeout became shorter
		s.set(time.Until(s.sentAt.Add(s.interval)))
	}
}

// owesEcho reports whether the first state of the other side has to be echoed at once, so that it knows that it was
// received. The caller holds the lock.
func (s *sender) owesEcho() bool { return s.echoed == 0 && s.echo > 0 }

// send sends the state now.
func (s *sender) send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begin()
}

// begin sends the state, unless that is under way. The caller holds the lock.
func (s *sender) begin() {
	if s.stopped || s.sending {
		return
	}
	s.sending, s.next = true, -1
	s.under.Go(func() {
		if err := s.sendOne(); err != nil {
			s.fail(err) // sending stays true: nothing is sent after it
		}
	})
}

// sendOne sends the state, and sets the timer for the next.
func (s *sender) sendOne() error {
	state, err := s.cfg.Current(s.ctx)
	if err != nil {
		return fmt.Errorf("read own state: %w", err)
	}
	s.mu.Lock()
	s.sequence++
	s.echoed = s.echo
	state.Sequence, state.SendTime, state.EchoSequence = s.sequence, timestamppb.Now(), s.echoed
	s.mu.Unlock()
	if s.cfg.Timeout > 0 {
		state.HeartbeatTimeout = durationpb.New(s.cfg.Timeout)
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
	case s.owesEcho():
		s.set(0)
	case s.next >= 0:
		s.set(s.next)
	default:
		s.set(s.interval)
	}
	return nil
}

// set sets the timer. The caller holds the lock.
func (s *sender) set(wait time.Duration) {
	s.dueAt = time.Now().Add(wait)
	s.timer.Reset(wait)
}

// tick sends the state when it is due: not if the timer was reset after it fired.
func (s *sender) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !time.Now().Before(s.dueAt) {
		s.begin()
	}
}

// stop ends the sender. It returns when nothing is being sent.
func (s *sender) stop() {
	s.mu.Lock()
	s.stopped = true
	s.timer.Stop()
	s.mu.Unlock()
	s.under.Wait()
}
