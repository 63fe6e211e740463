package fencing

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

func TestAskCountsFromTheQuestionAtTheProvider(t *testing.T) {
	t.Parallel()
	const fence = 5 * time.Minute
	at := func(s int) Ticks { return Ticks(s) * time.Second }
	for name, test := range map[string]struct {
		do   func(*Ask)
		now  Ticks
		want bool
	}{
		"one that is not known is stopped":    {func(*Ask) {}, 0, true},
		"one that answered is not":            {func(f *Ask) { f.Answered(f.Ask(0)) }, at(239), false},
		"one that is silent is":               {func(f *Ask) { f.Answered(f.Ask(0)) }, at(240), true},
		"a ping is not an answer":             {func(f *Ask) { f.Answered(f.Ask(0)); f.Ask(at(200)) }, at(240), true},
		"a later answer counts":               {func(f *Ask) { f.Answered(f.Ask(0)); f.Answered(f.Ask(at(200))) }, at(300), false},
		"an answer counts from its ping":      {func(f *Ask) { n := f.Ask(0); f.Ask(at(200)); f.Answered(n) }, at(240), true},
		"an answer without a ping is ignored": {func(f *Ask) { f.Answered(f.Ask(0)); f.Answered(17) }, at(240), true},
		"a repeated answer is ignored":        {func(f *Ask) { n := f.Ask(0); f.Answered(n); f.Ask(at(100)); f.Answered(n) }, at(240), true},
		"an older answer changes nothing":     {func(f *Ask) { f.Ask(0); f.Answered(f.Ask(at(100))); f.Answered(1) }, at(339), false},
		"what an earlier agent knew counts":   {func(f *Ask) { f.Was(at(-100)) }, at(139), false},
		"and no longer":                       {func(f *Ask) { f.Was(at(-100)) }, at(140), true},
		"pings are not kept without end": {func(f *Ask) {
			for range 100 {
				f.Ask(0)
			}
			f.Answered(1)
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f Ask
			test.do(&f)
			if got := f.Stops(test.now, fence); got != test.want {
				t.Errorf("at %s it stops: %v", test.now, got)
			}
		})
	}
}

func TestTermIsTheLongerOfWhatWasAskedAndAgreed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do   func(*Term)
		want Ticks
	}{
		"nothing was asked":                   {func(*Term) {}, 0},
		"it was asked, and not agreed":        {func(f *Term) { f.Ask(300) }, 0},
		"it was agreed":                       {func(f *Term) { f.Ask(300); f.Agree() }, 300},
		"a longer one is asked":               {func(f *Term) { f.Ask(300); f.Agree(); f.Ask(600) }, 600},
		"a shorter one is asked":              {func(f *Term) { f.Ask(600); f.Agree(); f.Ask(300) }, 600},
		"a shorter one is agreed":             {func(f *Term) { f.Ask(600); f.Agree(); f.Ask(300); f.Agree() }, 300},
		"a longer one and the first again":    {func(f *Term) { f.Ask(300); f.Agree(); f.Ask(600); f.Ask(300) }, 600},
		"which is agreed":                     {func(f *Term) { f.Ask(300); f.Agree(); f.Ask(600); f.Ask(300); f.Agree() }, 300},
		"none is wanted any more":             {func(f *Term) { f.Ask(600); f.Agree(); f.Ask(0) }, 0},
		"none was wanted for a while":         {func(f *Term) { f.Ask(600); f.Agree(); f.Ask(0); f.Ask(600) }, 0},
		"a process before this one had it":    {func(f *Term) { *f = NewTerm(600) }, 600},
		"and this one wants none":             {func(f *Term) { *f = NewTerm(600); f.Ask(0) }, 0},
		"and this one wants a longer one yet": {func(f *Term) { *f = NewTerm(600); f.Ask(900) }, 900},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f Term
			test.do(&f)
			if got, _ := f.Counts(); got != test.want {
				t.Errorf("it counts on %d, want %d", got, test.want)
			}
		})
	}
}

// world is a consumer and a provider with a fence, a network between them, and one pod. It
// uses real time, which neither side knows: each has a clock that drifts, and begins anywhere.
type world struct {
	r     *rand.Rand
	now   time.Duration
	fence Ticks

	cut      bool
	toHome   []message
	toAbroad []message

	// At the provider. noted is what an agent leaves to the next one, as the time that it was.
	abroad      clock
	ask         Ask
	agentUp     bool
	agentBack   time.Duration
	noted       Ticks
	stopping    bool
	stoppedFrom time.Duration

	// At home.
	home      clock
	wait      Wait
	homeUp    bool
	homeBack  time.Duration
	elsewhere bool
}

type message struct {
	number uint64
	at     time.Duration
}

// clock is one that drifts by up to one in 500.
type clock struct {
	offset time.Duration
	rate   float64
}

func (c clock) read(now time.Duration) Ticks {
	return c.offset + time.Duration(float64(now)*c.rate)
}

func newClock(r *rand.Rand) clock {
	return clock{time.Duration(r.Int64N(int64(1000 * time.Hour))), 1 + (r.Float64()-0.5)/250}
}

// chance is true once in n.
func (w *world) chance(n int) bool { return w.r.IntN(n) == 0 }

func (w *world) step(every time.Duration) {
	w.now += every
	if w.chance(40) {
		w.cut = !w.cut
	}
	w.provider()
	w.consumer()
}

// deliver takes messages that arrived. Those that were on their way may come after a cut, in order.
func (w *world) deliver(queue *[]message, to func(uint64)) {
	for !w.cut && len(*queue) > 0 && (*queue)[0].at <= w.now {
		to((*queue)[0].number)
		*queue = (*queue)[1:]
	}
}

func (w *world) send(queue *[]message, number uint64) {
	if w.chance(10) {
		return // lost
	}
	delay := time.Duration(w.r.Int64N(int64(2 * time.Second)))
	if w.chance(20) {
		delay = time.Duration(w.r.Int64N(int64(20 * time.Minute)))
	}
	*queue = append(*queue, message{number, w.now + delay})
}

func (w *world) provider() {
	now := w.abroad.read(w.now)
	if !w.agentUp {
		if w.now < w.agentBack {
			return
		}
		w.agentUp, w.ask = true, Ask{}
		w.ask.Was(w.noted)
	}
	if w.chance(60) { // it is killed, and another one takes over
		w.agentUp, w.agentBack = false, w.now+time.Duration(w.r.Int64N(int64(stopsEarly-Grace-time.Second)))
		w.toHome = nil
		return
	}
	w.deliver(&w.toAbroad, w.ask.Answered)
	if alive, ok := w.ask.Alive(); ok && w.chance(5) {
		w.noted = alive // seldom, and late
	}
	if !w.cut {
		w.send(&w.toHome, w.ask.Ask(now))
	}
	if !w.stopping && w.ask.Stops(now, w.fence) {
		w.stopping = true
		w.stoppedFrom = w.now + Grace
	}
}

func (w *world) consumer() {
	now := w.home.read(w.now)
	if !w.homeUp {
		if w.now < w.homeBack {
			return
		}
		w.homeUp, w.wait = true, Wait{answered: now}
	}
	if w.chance(60) {
		w.homeUp, w.homeBack = false, w.now+time.Duration(w.r.Int64N(int64(30*time.Minute)))
		return
	}
	w.deliver(&w.toHome, func(number uint64) {
		w.wait.Answers(now)
		w.send(&w.toAbroad, number)
	})
	if now >= w.wait.Over(w.fence) {
		w.elsewhere = true
	}
}

// Whatever is cut, healed, delayed, lost, killed and restarted, and however the clocks go, a pod
// is never begun elsewhere while it runs at the provider, and it ends elsewhere or goes on.
func TestNothingRunsTwiceUnderAFence(t *testing.T) {
	t.Parallel()
	stopped, moved, early := 0, 0, 0
	for seed := range uint64(4000) {
		r := rand.New(rand.NewPCG(seed, 38))
		w := &world{
			r: r, fence: peering.MinFence + time.Duration(r.Int64N(int64(20*time.Minute))),
			abroad: newClock(r), home: newClock(r), agentUp: true, homeUp: true,
		}
		w.noted = w.abroad.read(0)
		w.ask.Was(w.noted)
		w.wait = Wait{answered: w.home.read(0)}
		var before world
		for range 2000 {
			w.step(time.Duration(r.Int64N(int64(10 * time.Second))))
			runs := !w.stopping || w.now < w.stoppedFrom
			if w.elsewhere {
				if runs {
					t.Fatalf("seed %d: after %s, with a fence of %s, the pod is begun elsewhere while it runs; before: cut %v, provider's agent up %v, home up %v, stopping %v",
						seed, w.now, w.fence, before.cut, before.agentUp, before.homeUp, before.stopping)
				}
				moved++
				break
			}
			before = *w
		}
		if w.stopping {
			stopped++
			if !w.elsewhere {
				early++
			}
		}
	}
	t.Logf("in 4000 courses the provider stopped the pod in %d, and home began it elsewhere in %d", stopped, moved)
	if stopped < 500 || moved < 200 {
		t.Errorf("the pod was stopped %d times and begun elsewhere %d times: the courses show nothing", stopped, moved)
	}
}
