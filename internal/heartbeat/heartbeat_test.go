package heartbeat

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// pipe is one end of a stream in memory whose other end is a pipe too. Sends
// block once the buffer is full, as under flow control.
type pipe struct {
	ctx context.Context
	end context.CancelFunc
	out chan<- *ententev1.PeerState
	in  <-chan *ententev1.PeerState
}

func newPipe(ctx context.Context, out chan<- *ententev1.PeerState, in <-chan *ententev1.PeerState) *pipe {
	ctx, end := context.WithCancel(ctx)
	return &pipe{ctx, end, out, in}
}

func pipes(ctx context.Context, buffer int) (*pipe, *pipe) {
	ab, ba := make(chan *ententev1.PeerState, buffer), make(chan *ententev1.PeerState, buffer)
	return newPipe(ctx, ab, ba), newPipe(ctx, ba, ab)
}

func (p *pipe) send(s *ententev1.PeerState) error {
	select {
	case p.out <- s:
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

func (p *pipe) recv() (*ententev1.PeerState, error) {
	select {
	case s, ok := <-p.in:
		if !ok {
			return nil, io.EOF
		}
		return s, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

func (p *pipe) stream() Stream {
	return Stream{Send: p.send, Recv: p.recv, End: func(error) { p.end() }}
}

// side is one cluster of a test.
type side struct {
	mu      sync.Mutex
	state   *ententev1.PeerState
	changed []func()
	seen    []*ententev1.PeerState
}

func newSide(protocol uint32) *side {
	return &side{state: &ententev1.PeerState{Protocol: protocol}}
}

func (s *side) set(protocol uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.Protocol = protocol
	for _, changed := range s.changed {
		changed()
	}
}

func (s *side) current(context.Context) (*ententev1.PeerState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.CloneOf(s.state), nil
}

func (s *side) watch(changed func()) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = append(s.changed, changed)
	return func() {}
}

func (s *side) observe(_ context.Context, state *ententev1.PeerState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, state)
	return nil
}

func (s *side) config() Config { return Config{Current: s.current, Watch: s.watch, Observe: s.observe} }

func (s *side) last() *ententev1.PeerState {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 {
		return &ententev1.PeerState{}
	}
	return s.seen[len(s.seen)-1]
}

func TestBothSidesExchangeStatesForHours(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b := pipes(ctx, 1)
		one, two := newSide(1), newSide(2)
		done := make(chan error, 2)
		go func() { done <- Run(ctx, a.stream(), one.config()) }()
		go func() { done <- Run(ctx, b.stream(), two.config()) }()

		time.Sleep(2 * time.Hour)
		for name, got := range map[string]*ententev1.PeerState{"two": one.last(), "one": two.last()} {
			if got.Sequence < 1750 || got.Sequence > 1850 {
				t.Errorf("side %s sent %d states in two hours, want about 1800", name, got.Sequence)
			}
			if got.EchoSequence == 0 || got.EchoSequence+2 < got.Sequence {
				t.Errorf("side %s echoed %d at its state %d", name, got.EchoSequence, got.Sequence)
			}
		}
		cancel()
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("Run returned %v after its context ended, want nil", err)
			}
		}
	})
}

// Each side knows soon that the other received its state: until then neither may conclude from
// what it receives that they cannot work together.
func TestTheFirstStateIsEchoedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b := pipes(ctx, 1)
		one, two := newSide(1), newSide(2)
		go func() { _ = Run(ctx, a.stream(), one.config()) }()
		time.Sleep(time.Millisecond)
		go func() { _ = Run(ctx, b.stream(), two.config()) }()
		time.Sleep(time.Millisecond)
		if one.last().EchoSequence == 0 || two.last().EchoSequence == 0 {
			t.Errorf("echoed %d and %d", one.last().EchoSequence, two.last().EchoSequence)
		}
		if n := one.last().Sequence + two.last().Sequence; n > 4 {
			t.Errorf("it took %d states", n)
		}
		cancel()
		synctest.Wait()
	})
}

// The side that sends second follows from then on: each side wakes up once an interval.
func TestOneSideFollowsTheOther(t *testing.T) {
	for _, late := range []time.Duration{0, 300 * time.Millisecond, time.Second, 2 * time.Second, 3900 * time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				a, b := pipes(ctx, 1)
				one, two := newSide(1), newSide(2)
				go func() { _ = Run(ctx, a.stream(), one.config()) }()
				go func() {
					time.Sleep(late)
					_ = Run(ctx, b.stream(), two.config())
				}()
				time.Sleep(time.Minute + 1300*time.Millisecond) // amid an interval
				cancel()
				synctest.Wait()
				mine, theirs := two.last().SendTime.AsTime(), one.last().SendTime.AsTime()
				if apart := mine.Sub(theirs).Abs(); apart != 0 {
					t.Errorf("the last states were sent %s apart", apart)
				}
				if n := one.last().Sequence; n < 14 || n > 18 {
					t.Errorf("%d states in a minute", n)
				}
			})
		})
	}
}

// A peer that sends each 2 s and gives up after 6 s is content with less.
func TestAPeerThatSendsMoreOftenIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b := pipes(ctx, 1)
		fast, now := newSide(1), newSide(2)
		cfg := fast.config()
		cfg.Interval = 2 * time.Second
		done := make(chan error, 2)
		go func() { done <- Run(ctx, a.stream(), cfg) }()
		go func() { done <- Run(ctx, b.stream(), now.config()) }()
		select {
		case err := <-done:
			t.Errorf("an exchange ended: %v", err)
		case <-time.After(2 * time.Hour):
		}
		cancel()
		synctest.Wait()
	})
}

func TestTheIntervalFollowsThePatience(t *testing.T) {
	for _, tc := range []struct{ interval, timeout, want time.Duration }{
		{defaultInterval, 0, defaultInterval},
		{defaultInterval, 12 * time.Second, defaultInterval},
		{defaultInterval, time.Nanosecond, defaultInterval}, // no peer causes more than that
		{defaultInterval, 30 * time.Second, 10 * time.Second},
		{defaultInterval, SessionTimeout, MaxInterval},
		{defaultInterval, 1 << 62, MaxInterval},
		{3 * time.Minute, SessionTimeout, 3 * time.Minute},
	} {
		if got := intervalFor(tc.interval, tc.timeout); got != tc.want {
			t.Errorf("each %s to one with the timeout %s: %s, want %s", tc.interval, tc.timeout, got, tc.want)
		}
	}
}

// A peer's timeout may become shorter: it is sent the state as soon as it has to be.
func TestAShorterPatienceIsHonoured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b := pipes(ctx, 8)
		cfg := newSide(1).config()
		cfg.Timeout = SessionTimeout
		go func() { _ = Run(ctx, a.stream(), cfg) }()
		said := func() uint64 {
			n := uint64(0)
			for {
				select {
				case <-b.in:
					n++
				default:
					return n
				}
			}
		}
		time.Sleep(time.Second)
		if err := b.send(&ententev1.PeerState{Sequence: 1, HeartbeatTimeout: durationpb.New(SessionTimeout)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultInterval / 4) // so soon after its last state it does not echo
		said()
		if err := b.send(&ententev1.PeerState{Sequence: 2}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultInterval + time.Second)
		if n := said(); n == 0 {
			t.Error("it is sent nothing in time")
		}
		cancel()
		synctest.Wait()
	})
}

// A patient peer receives changes at once, and an unchanged state each two minutes.
func TestPatientPeersGetChangesAtOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		one, two    time.Duration // their timeout
		most, least uint64        // states in an hour from one to two
	}{
		"both are patient": {SessionTimeout, SessionTimeout, 40, 25},
		"one is not":       {0, SessionTimeout, 65, 25}, // it receives many, and echoes some
		"two is not":       {SessionTimeout, 0, 920, 800},
		"neither is":       {0, 0, 920, 800},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				a, b := pipes(ctx, 1)
				one, two := newSide(1), newSide(2)
				mine, theirs := one.config(), two.config()
				mine.Timeout, theirs.Timeout = tc.one, tc.two
				done := make(chan error, 2)
				go func() { done <- Run(ctx, a.stream(), mine) }()
				go func() { done <- Run(ctx, b.stream(), theirs) }()
				time.Sleep(time.Hour)
				if n := two.last().Sequence; n > tc.most || n < tc.least {
					t.Errorf("%d states in an hour, want %d to %d", n, tc.least, tc.most)
				}
				if got := two.last().GetHeartbeatTimeout().AsDuration(); got != tc.one {
					t.Errorf("two receives the timeout %s, want %s", got, tc.one)
				}
				one.set(7)
				time.Sleep(minGap)
				synctest.Wait()
				if got := two.last().Protocol; got != 7 {
					t.Errorf("two knows of %d, want the change to 7", got)
				}
				select {
				case err := <-done:
					t.Errorf("an exchange ended: %v", err)
				default:
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

func TestAChangeIsSentAtOnceAndABurstOfChangesIsOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a, b := pipes(ctx, 1)
		one, two := newSide(1), newSide(2)
		go func() { _ = Run(ctx, a.stream(), one.config()) }()
		go func() { _ = Run(ctx, b.stream(), two.config()) }()
		time.Sleep(time.Second)
		before := two.last().Sequence
		for i := range uint32(100) {
			one.set(10 + i)
		}
		time.Sleep(2 * minGap)
		if got := two.last(); got.Protocol != 109 || got.Sequence > before+2 {
			t.Errorf("after 100 changes the peer has protocol %d in state %d, want 109 in state %d or so", got.Protocol, got.Sequence, before+1)
		}
		cancel()
		synctest.Wait()
	})
}

func TestASilentPeerIsGivenUpAfterThreeStates(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		0: missedStates * defaultInterval, SessionTimeout: missedStates * MaxInterval,
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			// Nothing reads or writes at the other end, and the buffer fills: Run has to
			// end although its own sends block.
			a, _ := pipes(ctx, 0)
			start, cfg := time.Now(), newSide(1).config()
			cfg.Timeout = timeout
			err := Run(a.ctx, a.stream(), cfg)
			if got := wire.ReasonOf(err); got != peering.ReasonHeartbeatLost {
				t.Errorf("Run returned %v (reason %s), want HEARTBEAT_LOST", err, got)
			}
			if took := time.Since(start); took != want {
				t.Errorf("gave up after %s, want %s", took, want)
			}
		})
	}
}

func TestAFloodOfStatesIsReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a, b := pipes(ctx, 0)
		one := newSide(1)
		done := make(chan error, 1)
		go func() { done <- Run(ctx, a.stream(), one.config()) }()
		go func() {
			for i := uint64(1); ; i++ {
				if b.send(&ententev1.PeerState{Sequence: i}) != nil {
					return
				}
			}
		}()
		go func() {
			for {
				if _, err := b.recv(); err != nil {
					return
				}
			}
		}()
		time.Sleep(10 * time.Second)
		if got, most := one.last().Sequence, uint64(10*maxReceivedRate+maxReceivedBurst); got > most {
			t.Errorf("read %d states in ten seconds, want at most %d", got, most)
		}
		cancel()
		<-done
	})
}

func TestErrorsEndTheExchange(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		send    []*ententev1.PeerState
		close   bool
		observe error
		want    error
		reason  peering.Reason
	}{
		"the peer closing its direction is the end of the stream": {close: true, want: io.EOF},
		"an error of the observer is returned":                    {send: []*ententev1.PeerState{{Sequence: 1}}, observe: boom, want: boom},
		"a state that repeats a sequence breaks the protocol":     {send: []*ententev1.PeerState{{Sequence: 4}, {Sequence: 4}}, reason: peering.ReasonRequestInvalid},
		"a state without a sequence breaks the protocol":          {send: []*ententev1.PeerState{{}}, reason: peering.ReasonRequestInvalid},
		"a state that breaks a limit of the wire ends it":         {send: []*ententev1.PeerState{{Sequence: 1, Endpoints: []string{"no port"}}}, reason: peering.ReasonRequestInvalid},
		"a state that goes back in sequence breaks the protocol":  {send: []*ententev1.PeerState{{Sequence: 9}, {Sequence: 3}}, reason: peering.ReasonRequestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				in := make(chan *ententev1.PeerState, len(tc.send))
				for _, s := range tc.send {
					in <- s
				}
				if tc.close {
					close(in)
				}
				cfg := newSide(1).config()
				cfg.Observe = func(context.Context, *ententev1.PeerState) error { return tc.observe }
				err := Run(ctx, newPipe(ctx, make(chan *ententev1.PeerState, 10), in).stream(), cfg)
				if tc.want != nil && !errors.Is(err, tc.want) {
					t.Errorf("Run returned %v, want %v", err, tc.want)
				}
				if tc.reason != "" && wire.ReasonOf(err) != tc.reason {
					t.Errorf("Run returned %v (%s), want reason %s", err, wire.ReasonOf(err), tc.reason)
				}
			})
		})
	}
}
