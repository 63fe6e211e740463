package fencing

import "time"

// A fence is an agreement that a provider stops, by itself, what it runs for a consumer that has
// been silent for a time, so that the consumer may run it elsewhere after that time and nothing
// runs twice. Neither side knows the other's clock, and a message may be on its way for as long as
// it likes. So the provider asks, the consumer answers, and both count from what they know of that
// exchange by clocks of their own that only go forward: the provider from when it asked, which was
// before the answer, and the consumer from when it answered. Whatever the provider makes of the
// last answer, it stops before the consumer goes on.
//
//	provider   asks 17 ────────────────────────────── begins to stop ── has stopped
//	             │ ╲                                  asked+fence-stop   asked+fence
//	consumer     │   answers 17 ───────────────────────────────────────────── goes on
//	                                                           answered+fence+margin

const (
	// stopsEarly is how long before the end of a fence a provider starts to stop what it runs: Grace for the
	// containers to end, and the rest for another of its agents to take over.
	stopsEarly = time.Minute
	// Grace is how long the containers of a fenced pod have to end.
	Grace = 30 * time.Second
	// maxAsked is how many unanswered pings a provider remembers.
	maxAsked = 8
	// margin and drift are how much longer a consumer waits: clocks of two machines drift apart by less than one
	// part in drift.
	margin = 5 * time.Second
	drift  = 100
)

// Ticks is a time, since its start, on a clock of one side that only goes forward.
type Ticks = time.Duration

// Ask is a provider's half of the fences with one consumer. Its zero value has no answer yet.
type Ask struct {
	last  uint64
	asked []ping
	// alive is a time at which the consumer was there: when the ping that it answered last was asked.
	alive Ticks
	known bool
}

type ping struct {
	number uint64
	at     Ticks
}

// Ask returns the number of a ping that is asked now.
func (f *Ask) Ask(now Ticks) uint64 {
	f.last++
	f.asked = append(f.asked, ping{f.last, now})
	if len(f.asked) > maxAsked {
		f.asked = f.asked[1:]
	}
	return f.last
}

// Answered records the answer to a ping. It ignores answers to pings that were not asked, or answered
// before.
func (f *Ask) Answered(number uint64) {
	for i, q := range f.asked {
		if q.number == number {
			f.asked = f.asked[i+1:]
			f.Was(q.at)
			return
		}
	}
}

// Was records that the consumer was there at a time, as an earlier agent recorded.
func (f *Ask) Was(at Ticks) {
	if !f.known || at > f.alive {
		f.alive, f.known = at, true
	}
}

// Alive returns when the consumer is last known to have been there; false if that is not known.
func (f *Ask) Alive() (Ticks, bool) { return f.alive, f.known }

// Stops reports whether pods under a fence have to stop now, and none may start. A consumer of which nothing is
// known counts as silent.
func (f *Ask) Stops(now, fence Ticks) bool {
	return !f.known || now >= f.alive+fence-stopsEarly
}

// Wait is a consumer's half of the fences with one provider. Its zero value belongs to a process whose clock begins
// now: earlier processes answered before that.
type Wait struct {
	answered Ticks
}

// Answers records that a ping is about to be answered. It comes before the answer is sent.
func (f *Wait) Answers(now Ticks) { f.answered = max(f.answered, now) }

// Over returns when the provider has stopped all that it ran under a fence.
func (f *Wait) Over(fence Ticks) Ticks {
	return f.answered + fence + fence/drift + margin
}

// Term is the length of a fence that the consumer may count on: what it asked the provider for, and what the
// provider has agreed to. 0 means no fence.
type Term struct {
	asked Ticks
	// agreed is the longest one that the provider may keep to besides: the one that it agreed to last, or one that
	// it was asked for since and may have accepted. 0 means that it never agreed.
	agreed Ticks
}

// NewTerm returns the term that an earlier process had agreed on.
func NewTerm(agreed Ticks) Term { return Term{asked: agreed, agreed: agreed} }

// Ask records that another fence is about to be asked for.
func (f *Term) Ask(fence Ticks) {
	if f.agreed > 0 {
		f.agreed = max(f.agreed, f.asked)
	}
	f.asked = fence
	if fence == 0 {
		f.agreed = 0
	}
}

// Agree records that the provider agreed to what it was asked for last.
func (f *Term) Agree() { f.agreed = f.asked }

// Counts returns the fence that the provider keeps to, whichever of the two it knows: the longer one; false without
// an agreement.
func (f *Term) Counts() (fence Ticks, ok bool) {
	if f.asked == 0 || f.agreed == 0 {
		return 0, false
	}
	return max(f.asked, f.agreed), true
}
