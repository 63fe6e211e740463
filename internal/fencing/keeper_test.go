package fencing

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// stock is one fence, kept over restarts of the agent.
type stock struct {
	mu      sync.Mutex
	fence   Fence
	unknown bool
	set     atomic.Int64 // by how much the clock of the cluster was set forward
	stops   int
	notes   int
}

func (s *stock) Fences() ([]Fence, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []Fence{s.fence}, !s.unknown
}

func (s *stock) Stop(context.Context, Fence) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops++
	return 1, nil
}

func (s *stock) Note(_ context.Context, f Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence = f
	s.notes++
	return nil
}

// agentOf runs an agent that keeps to the fence of a stock until it is killed. The consumer answers as
// long as it does.
func agentOf(t *testing.T, s *stock, answers *atomic.Bool) (kill func()) {
	t.Helper()
	began := time.Now()
	k := &Keeper{Stock: s, Clock: func() Ticks { return time.Since(began) }, Wall: func() time.Time { return time.Now().Add(time.Duration(s.set.Load())) }, Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = k.Run(ctx)
	}()
	go func() {
		for ctx.Err() == nil {
			if n, ok := k.Ask("c"); ok && answers.Load() {
				k.Answered("c", n)
			}
			time.Sleep(5 * time.Second)
		}
	}()
	return func() {
		cancel()
		<-done
		time.Sleep(5 * time.Second) // until the consumer's loop has ended, too
	}
}

func TestKeeperStopsWhatASilentConsumerHasHere(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		course func(s *stock, answers *atomic.Bool, agent func() func())
		want   bool
	}{
		"not while it answers": {func(_ *stock, _ *atomic.Bool, agent func() func()) { agent(); time.Sleep(time.Hour) }, false},
		"not at once": {func(_ *stock, answers *atomic.Bool, agent func() func()) {
			agent()
			time.Sleep(time.Minute)
			answers.Store(false)
			time.Sleep(200 * time.Second)
		}, false},
		"before its end": {func(_ *stock, answers *atomic.Bool, agent func() func()) {
			agent()
			time.Sleep(time.Minute)
			answers.Store(false)
			time.Sleep(242 * time.Second)
		}, true},
		"not for an agent that is replaced": {func(_ *stock, _ *atomic.Bool, agent func() func()) {
			for range 20 {
				kill := agent()
				time.Sleep(time.Minute)
				kill()
				time.Sleep(20 * time.Second)
			}
		}, false},
		"as soon by an agent that took over": {func(_ *stock, answers *atomic.Bool, agent func() func()) {
			kill := agent()
			time.Sleep(10 * time.Minute)
			answers.Store(false)
			time.Sleep(100 * time.Second)
			kill()
			time.Sleep(20 * time.Second)
			agent()
			time.Sleep(122 * time.Second)
		}, true},
		"at once after a long time without an agent": {func(_ *stock, answers *atomic.Bool, agent func() func()) {
			kill := agent()
			time.Sleep(time.Minute)
			kill()
			answers.Store(false)
			time.Sleep(time.Hour)
			agent()
			time.Sleep(3 * time.Second)
		}, true},
		"at once when nothing is known": {func(s *stock, answers *atomic.Bool, agent func() func()) {
			s.fence.LastSeen = time.Time{}
			answers.Store(false)
			agent()
			time.Sleep(3 * time.Second)
		}, true},
		"at once when the clock went back by a day": {func(s *stock, answers *atomic.Bool, agent func() func()) {
			s.fence.LastSeen = time.Now().Add(24 * time.Hour)
			answers.Store(false)
			agent()
			time.Sleep(3 * time.Second)
		}, true},
		"as soon when the clock is set back meanwhile": {func(s *stock, answers *atomic.Bool, agent func() func()) {
			agent()
			time.Sleep(time.Minute)
			answers.Store(false)
			s.set.Store(-int64(4 * time.Minute))
			time.Sleep(242 * time.Second)
		}, true},
		"not by an agent that took over after the clock was set back": {func(s *stock, answers *atomic.Bool, agent func() func()) {
			s.set.Store(int64(time.Hour))
			s.fence.LastSeen = time.Now().Add(time.Hour)
			kill := agent()
			time.Sleep(time.Minute)
			s.set.Store(0)
			time.Sleep(10 * time.Second)
			kill()
			answers.Store(false)
			agent()
			time.Sleep(10 * time.Second)
			answers.Store(true)
			time.Sleep(time.Minute)
		}, false},
		"not before it is known what is here": {func(s *stock, answers *atomic.Bool, agent func() func()) {
			s.unknown, s.fence.LastSeen = true, time.Time{}
			answers.Store(false)
			agent()
			time.Sleep(time.Hour)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &stock{fence: Fence{Namespace: "n", Contract: "c", Length: 5 * time.Minute, LastSeen: time.Now()}}
				var answers atomic.Bool
				answers.Store(true)
				var kills []func()
				test.course(s, &answers, func() func() {
					kill := agentOf(t, s, &answers)
					kills = append(kills, kill)
					return kill
				})
				for _, kill := range kills {
					kill()
				}
				synctest.Wait()
				if got := s.stops > 0; got != test.want {
					t.Errorf("what runs was stopped %d times", s.stops)
				}
				if s.notes > 0 && s.notes > 80 {
					t.Errorf("%d notes were written", s.notes)
				}
			})
		})
	}
}
