package peering

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Moments of a contract's life, in order.
var (
	valid  = t0.Add(time.Minute)          // an offer lapses
	begins = t0.Add(2 * time.Minute)      // NotBefore
	ends   = t0.Add(time.Hour)            // NotAfter
	ends2  = t0.Add(2 * time.Hour)        // NotAfter of the second revision
	over   = ends.Add(ExpiryGrace)        // the end of draining after NotAfter
	over2  = ends2.Add(ExpiryGrace)       //
	soon   = begins.Add(30 * time.Minute) // an end of draining
	later  = begins.Add(50 * time.Minute) // another
)

var (
	hash1, hash1b, hash2 = Hash{1}, Hash{1, 1}, Hash{2}
	hash3                = Hash{3}
	terms1               = Terms{ContractID: "c", Revision: 1, NotBefore: begins, NotAfter: ends, Clauses: Clauses{Network: true}}
	terms1b              = Terms{ContractID: "c", Revision: 1, NotBefore: begins, NotAfter: ends2, Clauses: Clauses{Network: true}}
	terms2               = Terms{ContractID: "c", Revision: 2, Previous: hash1, NotBefore: begins, NotAfter: ends2, Clauses: Clauses{Network: true, Notice: 20 * time.Minute}}
	terms3               = Terms{ContractID: "c", Revision: 3, Previous: hash2, NotBefore: begins, NotAfter: ends, Clauses: Clauses{Network: true}}
	foreign              = Terms{ContractID: "d", Revision: 1, NotBefore: begins, NotAfter: ends, Clauses: Clauses{Network: true}}
)

// agreed is what both signed, as the side of that role sees it.
func agreed(r Role, t Terms, h Hash, now time.Time) Countersigned {
	return Countersigned{Role: r, Terms: t, Hash: h, Now: now}
}

// events is every kind of event, with every argument that makes a difference.
func events(r Role) []Event {
	list := []Event{
		Terminate{By: 7, Mode: Now, Now: t0},
		Terminate{By: r, Mode: 7, Now: t0},
	}
	for _, now := range []time.Time{t0, valid, begins, ends, over} {
		list = append(list,
			Tick{now}, Drained{now},
			agreed(r, terms1, hash1, now), agreed(r, terms1b, hash1b, now), agreed(r, terms2, hash2, now), agreed(r, terms3, hash3, now),
			agreed(r, foreign, Hash{9}, now), agreed(r.Other(), terms2, hash2, now), agreed(r, Terms{ContractID: "c"}, Hash{7}, now), agreed(7, terms1, hash1, now),
			Terminate{By: r, Mode: Drain, Now: now}, Terminate{By: r, Mode: Drain, Now: now, Grace: time.Minute}, Terminate{By: r, Mode: Now, Now: now},
			Terminate{By: r.Other(), Mode: Drain, Now: now}, Terminate{By: r.Other(), Mode: Now, Now: now},
		)
		for _, p := range []Phase{PhaseUnspecified, PhaseActive, PhaseDraining, PhaseClosed, 99} {
			list = append(list, PeerReported{Revision: 1, Phase: p, Now: now}, PeerReported{Revision: 7, Phase: p, Now: now})
			for _, until := range []time.Time{t0, soon, over2} {
				list = append(list, PeerReported{Revision: 1, Phase: p, DrainUntil: until, Now: now})
			}
		}
	}
	return list
}

func apply(t testing.TB, c Contract, list ...Event) Contract {
	t.Helper()
	for _, e := range list {
		var err error
		if c, err = c.Apply(e); err != nil {
			t.Fatalf("%T: %v", e, err)
		}
	}
	return c
}

// inState is a contract in each state.
func inState(t testing.TB, r Role) map[State]Contract {
	t.Helper()
	active := apply(t, Contract{}, agreed(r, terms1, hash1, begins))
	draining := apply(t, active, Terminate{By: r, Mode: Drain, Now: begins, Grace: 10 * time.Minute})
	return map[State]Contract{
		Nothing: {}, Active: active, Draining: draining,
		Closed: apply(t, draining, Drained{begins}),
	}
}

// TestAllStatesAndEvents is the table of the package comment, whole.
func TestAllStatesAndEvents(t *testing.T) {
	const (
		stay   = "stay"
		refuse = "refuse "
	)
	now := begins.Add(time.Minute)
	rows := []struct {
		name  string
		event Event
		// The result for a contract that is Nothing, Active, Draining, Closed.
		want [4]string
	}{
		{"both signed", agreed(Consumer, terms1, hash1, now), [4]string{"Active", stay, stay, refuse + "CONTRACT_CLOSED"}},
		{"both signed other terms", agreed(Consumer, terms1b, hash1b, now), [4]string{"Active", refuse + "REVISION_STALE", refuse + "REVISION_STALE", refuse + "CONTRACT_CLOSED"}},
		{"both signed the next revision", agreed(Consumer, terms2, hash2, now), [4]string{"Active", "revision 2", "revision 2", refuse + "CONTRACT_CLOSED"}},
		{"both signed what follows another first revision", agreed(Consumer, Terms{ContractID: "c", Revision: 2, Previous: hash1b, NotBefore: begins, NotAfter: ends2}, Hash{8}, now), [4]string{"Active", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_CLOSED"}},
		{"both signed a revision that skips one", agreed(Consumer, terms3, hash3, now), [4]string{"Active", "revision 3", "revision 3", refuse + "CONTRACT_CLOSED"}},
		{"both signed a later revision of a contract that the provider forgot", agreed(Provider, terms2, hash2, now), [4]string{refuse + "CONTRACT_CLOSED", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH"}},
		{"both signed revision 0", agreed(Consumer, Terms{ContractID: "c", Revision: 0}, Hash{8}, now), [4]string{refuse + "REVISION_STALE", refuse + "REVISION_STALE", refuse + "REVISION_STALE", refuse + "CONTRACT_CLOSED"}},
		{"both signed another contract", agreed(Consumer, foreign, Hash{9}, now), [4]string{"Active", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH"}},
		{"both signed, in the other role", agreed(Provider, terms1, hash1, now), [4]string{"Active", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH"}},
		{"both signed, in no role", agreed(0, terms1, hash1, now), [4]string{refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH"}},
		{"both signed, without an ID", agreed(Consumer, Terms{Revision: 1}, hash1, now), [4]string{refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH"}},
		{"both signed a contract that has ended", agreed(Consumer, terms1, hash1, ends), [4]string{"Draining", stay, stay, refuse + "CONTRACT_CLOSED"}},
		{"both signed what begins later", agreed(Consumer, terms1, hash1, t0), [4]string{"Active", stay, stay, refuse + "CONTRACT_CLOSED"}},
		{"time passes", Tick{t0}, [4]string{stay, stay, stay, stay}},
		{"draining takes too long", Tick{begins.Add(10 * time.Minute)}, [4]string{stay, stay, "Closed", stay}},
		{"the contract ends", Tick{ends}, [4]string{stay, "Draining", "Closed", stay}},
		{"long after the end", Tick{over2}, [4]string{stay, "Closed", "Closed", stay}},
		{"this side drains", Terminate{By: Consumer, Mode: Drain, Now: now}, [4]string{refuse + "CONTRACT_MISMATCH", "Draining", stay, stay}},
		{"this side ends it at once", Terminate{By: Consumer, Mode: Now, Now: now}, [4]string{refuse + "CONTRACT_MISMATCH", "Closed", "Closed", stay}},
		{"the peer drains", Terminate{By: Provider, Mode: Drain, Now: now}, [4]string{refuse + "CONTRACT_MISMATCH", "Draining", stay, stay}},
		{"the peer ends it at once", Terminate{By: Provider, Mode: Now, Now: now}, [4]string{refuse + "CONTRACT_MISMATCH", "Closed", "Closed", stay}},
		{"a termination that makes no sense", Terminate{}, [4]string{refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH"}},
		{"the peer reports no phase", PeerReported{Now: now}, [4]string{stay, stay, stay, stay}},
		{"the peer reports that it is active", PeerReported{Revision: 1, Phase: PhaseActive, Now: now}, [4]string{stay, stay, stay, stay}},
		{"the peer reports that it drains", PeerReported{Revision: 1, Phase: PhaseDraining, Now: now}, [4]string{stay, "Draining", stay, stay}},
		{"the peer reports until when it drains", PeerReported{Revision: 1, Phase: PhaseDraining, DrainUntil: soon, Now: now}, [4]string{stay, "Draining", stay, stay}},
		{"the peer reports that it drains until earlier", PeerReported{Revision: 1, Phase: PhaseDraining, DrainUntil: begins.Add(5 * time.Minute), Now: now}, [4]string{stay, "Draining", "drains until earlier", stay}},
		{"the peer reported long ago that it is closed", PeerReported{Phase: PhaseClosed, Now: now}, [4]string{stay, "Closed", "Closed", stay}},
		{"nothing runs any more", Drained{now}, [4]string{refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", "Closed", stay}},
		{"no event", nil, [4]string{refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH", refuse + "CONTRACT_MISMATCH"}},
	}
	states := inState(t, Consumer)
	for _, row := range rows {
		for s := Nothing; s <= Closed; s++ {
			t.Run(row.name+" to "+s.String(), func(t *testing.T) {
				c := states[s]
				got, err := c.Apply(row.event)
				var r *Error
				what := got.State.String()
				switch {
				case errors.As(err, &r):
					what = refuse + string(r.Reason)
					if got != c {
						t.Errorf("a refusal changed the contract to %+v", got)
					}
				case err != nil:
					t.Errorf("an error of another kind: %v", err)
				case got == c:
					what = stay
				case got.State == s && got.Revision != c.Revision:
					what = fmt.Sprintf("revision %d", got.Revision)
				case s == Draining && got.State == s && got.DrainUntil.Before(c.DrainUntil):
					what = "drains until earlier"
				case got.State == s:
					what = fmt.Sprintf("%s, changed to %+v", got.State, got)
				}
				if what != row.want[s] {
					t.Errorf("%s, want %s", what, row.want[s])
				}
			})
		}
	}
}

// TestEveryReachableContractIsValid walks all values that any sequence of events leads to.
func TestEveryReachableContractIsValid(t *testing.T) {
	for _, role := range []Role{Consumer, Provider} {
		all := events(role)
		seen := map[Contract]bool{{}: true}
		todo := []Contract{{}}
		for len(todo) > 0 {
			c := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			checkValue(t, c)
			if (c.State >= Draining) == (c.Reason == NotEnded) {
				t.Fatalf("%s without a reason, or a reason too many: %+v", c.State, c)
			}
			for _, e := range all {
				next, err := c.Apply(e)
				checkStep(t, c, e, next, err)
				if !seen[next] {
					seen[next] = true
					todo = append(todo, next)
				}
			}
		}
		if len(seen) < 50 || len(seen) > 20000 {
			t.Errorf("%s: %d values: the walk is not what it was meant to be", role, len(seen))
		}
		t.Logf("%s: %d values, %d events", role, len(seen), len(all))
	}
}

func checkStep(t testing.TB, c Contract, e Event, next Contract, err error) {
	t.Helper()
	var r *Error
	if err != nil && (!errors.As(err, &r) || next != c) {
		t.Fatalf("%+v, %T%+v: %+v, %v", c, e, e, next, err)
	}
	again, err2 := next.Apply(e)
	if again != next || err == nil && err2 != nil && next.State != Closed {
		t.Fatalf("%+v, %T%+v, again: %+v, then %+v, %v", c, e, e, next, again, err2)
	}
	if c.State == Closed && next != c {
		t.Fatalf("closed %+v became %+v by %T%+v", c, next, e, e)
	}
	if next.State < c.State {
		t.Fatalf("%T%+v took it back from %s to %s", e, e, c.State, next.State)
	}
	if _, signed := e.(Countersigned); c.State == Nothing && next.State != Nothing && !signed {
		t.Fatalf("it began by %T", e)
	}
	if c.State == Draining && next.State == Draining && !c.DrainUntil.IsZero() && next.DrainUntil.After(c.DrainUntil) {
		t.Fatalf("%T%+v made draining longer: %+v became %+v", e, e, c, next)
	}
	if next.Revision < c.Revision || c.State != Nothing && (next.ID != c.ID || next.Role != c.Role) {
		t.Fatalf("%+v became %+v", c, next)
	}
}

func checkValue(t testing.TB, c Contract) {
	t.Helper()
	w := c.Desired()
	if w.Node && c.Role != Consumer || w.Capacity && c.Role != Provider {
		t.Fatalf("a %s wants %+v", c.Role, w)
	}
	if w.AcceptNew && c.State != Active {
		t.Fatalf("%s accepts new work", c.State)
	}
	if (w.Capacity || w.Node || w.Tunnel) && (c.State != Active && c.State != Draining) {
		t.Fatalf("%s wants %+v", c.State, w)
	}
	if inForce := c.State == Active || c.State == Draining; (w != Desired{}) != inForce {
		t.Fatalf("%s, and wants %+v", c.State, w)
	}
	if (c.State == Closed) == c.ClosedAt.IsZero() {
		t.Fatalf("%+v", c)
	}
	// In every state, its deadlines lead to the end, and no deadline is missed.
	end, now := c, time.Time{}
	for range 10 {
		at := end.Deadline(now)
		if at.IsZero() {
			break
		}
		just := at.Add(-time.Second)
		before, err := end.Apply(Tick{just})
		if err != nil || before.State != end.State || before.Evicts(just) != end.Evicts(now) {
			t.Fatalf("%+v changed before its deadline to %+v", end, before)
		}
		after, err := end.Apply(Tick{at})
		if err != nil || after == end && after.Evicts(at) == end.Evicts(now) {
			t.Fatalf("%+v did nothing at its deadline", end)
		}
		if end.State == Draining && after.State == Closed && end.Evicts(just) != (c.Role == Consumer) {
			t.Fatalf("%+v ended what ran without asking it to leave, or asked at a provider", end)
		}
		end, now = after, at
	}
	if end.State != Closed && end.State != Nothing {
		t.Fatalf("%+v ended as %+v", c, end)
	}
}

func TestExpiredContractDrains(t *testing.T) {
	c := inState(t, Provider)[Active]
	c = apply(t, c, Tick{ends})
	if c.State != Draining || c.Reason != EndedByExpiry || c.Deadline(ends) != over {
		t.Errorf("%+v", c)
	}
	if c = apply(t, c, Tick{over}); c.State != Closed || c.ClosedAt != over {
		t.Errorf("%+v", c)
	}
}

// Whose clock is ahead signs what begins later by the other's. Both use it at once.
func TestAContractIsInForceOnceBothSigned(t *testing.T) {
	c := apply(t, Contract{}, agreed(Consumer, terms1, hash1, t0))
	if w := c.Desired(); !w.Node || !w.AcceptNew || !w.Tunnel || c.Evicts(t0) || c.Deadline(t0) != ends {
		t.Errorf("%+v, deadline %s", w, c.Deadline(t0))
	}
}

func TestDrainingHasAnEnd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		grace time.Duration
		now   time.Time
		want  time.Time
	}{
		{"as asked for", time.Minute, begins, begins.Add(time.Minute)},
		{"not asked for", 0, begins, begins.Add(DefaultDrain)},
		{"longer than allowed, and than the contract", 1000 * time.Hour, begins, over},
		{"close to the contract's end", 30 * time.Minute, ends.Add(-time.Minute), over},
	} {
		c := apply(t, inState(t, Consumer)[Active], Terminate{By: Consumer, Mode: Drain, Now: tt.now, Grace: tt.grace})
		if c.DrainUntil != tt.want {
			t.Errorf("%s: until %s, want %s", tt.name, c.DrainUntil, tt.want)
		}
	}
}

func TestNoticeIsGiven(t *testing.T) {
	with := func(notice time.Duration) Contract {
		c := inState(t, Consumer)[Active]
		c.Notice, c.NotAfter = notice, t0.Add(100*24*time.Hour)
		return c
	}
	for _, tt := range []struct {
		name          string
		notice, grace time.Duration
		by            Role
		want          time.Duration
	}{
		{"the provider's, no grace named", 2 * time.Hour, 0, Provider, 2 * time.Hour},
		{"the provider's, less grace than notice", 2 * time.Hour, time.Minute, Provider, 2 * time.Hour},
		{"the provider's, more grace than notice", 2 * time.Hour, 3 * time.Hour, Provider, 3 * time.Hour},
		{"the provider's, notice beyond every drain", 10 * 24 * time.Hour, time.Minute, Provider, 10 * 24 * time.Hour},
		{"the provider's, no notice", 0, time.Minute, Provider, time.Minute},
		{"the consumer's", 2 * time.Hour, time.Minute, Consumer, time.Minute},
		{"the consumer's, endless", 10 * 24 * time.Hour, 1000 * time.Hour, Consumer, MaxDrain},
	} {
		c := apply(t, with(tt.notice), Terminate{By: tt.by, Mode: Drain, Now: begins, Grace: tt.grace})
		if got := c.DrainUntil.Sub(begins); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		// The other side, once it was reported, stops at the same time.
		other := with(tt.notice)
		other.Role = Provider
		other = apply(t, other, PeerReported{Phase: PhaseDraining, DrainUntil: c.DrainUntil, Now: begins.Add(time.Minute)})
		if !other.DrainUntil.Equal(c.DrainUntil) {
			t.Errorf("%s: one side until %s, the other until %s", tt.name, c.DrainUntil, other.DrainUntil)
		}
	}
	// Now is now, whatever the notice.
	if c := apply(t, with(time.Hour), Terminate{By: Provider, Mode: Now, Now: begins}); c.State != Closed {
		t.Errorf("%+v", c)
	}
}

func TestConsumersEvictAsTheReasonOfTheEndAllows(t *testing.T) {
	until, never := begins.Add(time.Hour), time.Time{}
	for _, tt := range []struct {
		name   string
		role   Role
		state  State
		reason EndReason
		notice time.Duration
		// last is the last second without eviction, of which the next is the deadline; never
		// is that it evicts whatever the time.
		last, deadline time.Time
	}{
		{"this side ended it: at once", Consumer, Draining, EndedHere, time.Hour, never, until},
		{"it reached its end: at once", Consumer, Draining, EndedByExpiry, time.Hour, never, until},
		{"the provider ended it without notice: at once", Consumer, Draining, EndedByPeer, 0, never, until},
		{"the provider ended it with notice: after half of it", Consumer, Draining, EndedByPeer, time.Hour, begins.Add(30*time.Minute - time.Second), begins.Add(30 * time.Minute)},
		{"it drains for longer than the notice: in its last half", Consumer, Draining, EndedByPeer, 20 * time.Minute, begins.Add(50*time.Minute - time.Second), begins.Add(50 * time.Minute)},
		{"it drains for less than half of the notice: at once", Consumer, Draining, EndedByPeer, 4 * time.Hour, begins.Add(-time.Hour - time.Second), begins.Add(-time.Hour)},
		{"the consumer ended it, as the provider sees it: not there", Provider, Draining, EndedByPeer, time.Hour, until, until},
		{"the provider ended it, as it sees that itself: not there", Provider, Draining, EndedHere, time.Hour, until, until},
		{"it is in force", Consumer, Active, NotEnded, time.Hour, until, ends},
		{"it has ended", Consumer, Closed, EndedByPeer, time.Hour, until, never},
	} {
		c := Contract{Role: tt.role, State: tt.state, Reason: tt.reason, Notice: tt.notice, NotAfter: ends, DrainUntil: until}
		if got := c.Evicts(tt.last); got != tt.last.IsZero() {
			t.Errorf("%s: evicts at %s: %t", tt.name, tt.last, got)
		}
		if got, want := c.Evicts(tt.last.Add(time.Second)), tt.role == Consumer && tt.state == Draining; got != want {
			t.Errorf("%s: evicts a second after %s: %t", tt.name, tt.last, got)
		}
		if got := c.Deadline(tt.last); got != tt.deadline {
			t.Errorf("%s: deadline %s, want %s", tt.name, got, tt.deadline)
		}
	}
}

// For any notice, and whenever the consumer receives the end, pods run undisturbed for half of it
// and can leave in the other half, and a restart in between changes nothing.
func TestNoticeIsHalfUndisturbed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seconds := func(name string, most time.Duration) time.Duration {
			return time.Duration(rapid.IntRange(1, int(most/time.Second)).Draw(rt, name)) * time.Second
		}
		terms := terms1
		terms.Notice, terms.NotAfter = seconds("notice", MaxNotice), begins.Add(2*MaxNotice)
		now := begins.Add(seconds("after", time.Hour))
		provider := apply(t, Contract{}, agreed(Provider, terms, hash1, begins), Terminate{By: Provider, Mode: Drain, Now: now, Grace: seconds("grace", MaxDrain)})
		received := now.Add(seconds("received", terms.Notice))
		consumer := apply(t, Contract{}, agreed(Consumer, terms, hash1, begins), PeerReported{Phase: PhaseDraining, DrainUntil: provider.DrainUntil, Now: received})
		if rapid.Bool().Draw(rt, "restarts") {
			consumer = Restore(terms, hash1, Consumer, stored(consumer))
		}
		at := now.Add(seconds("asked", provider.DrainUntil.Sub(now)))
		half := provider.DrainUntil.Add(-terms.Notice / 2)
		if got := consumer.Evicts(at); got != !at.Before(half) || half.Before(now.Add(terms.Notice/2)) {
			rt.Errorf("notice of %s from %s, until %s: evicts at %s: %t", terms.Notice, now, provider.DrainUntil, at, got)
		}
	})
}

func TestPeersDrainLimitIsBounded(t *testing.T) {
	c := inState(t, Provider)[Active]
	c.NotAfter = t0.Add(1000 * time.Hour)
	for _, tt := range []struct {
		name     string
		reported time.Time
		want     time.Time
	}{
		{"not reported", time.Time{}, begins.Add(MaxDrain)},
		{"soon", soon, soon},
		{"in a year", begins.Add(8760 * time.Hour), begins.Add(MaxDrain)},
		{"it has ended", t0, t0},
	} {
		got := apply(t, c, PeerReported{Phase: PhaseDraining, DrainUntil: tt.reported, Now: begins})
		if !got.DrainUntil.Equal(tt.want) {
			t.Errorf("%s: until %s, want %s", tt.name, got.DrainUntil, tt.want)
		}
	}
}

func TestBothDrainUntilTheEarlier(t *testing.T) {
	active := inState(t, Consumer)[Active]
	consumer := apply(t, active, Terminate{By: Consumer, Mode: Drain, Now: begins, Grace: later.Sub(begins)})
	active.Role = Provider
	provider := apply(t, active, Terminate{By: Provider, Mode: Drain, Now: begins, Grace: soon.Sub(begins)})
	report := PeerReported{Phase: PhaseDraining, DrainUntil: consumer.DrainUntil, Now: begins}
	consumer = apply(t, consumer, PeerReported{Phase: PhaseDraining, DrainUntil: provider.DrainUntil, Now: begins})
	provider = apply(t, provider, report)
	if !consumer.DrainUntil.Equal(soon) || !provider.DrainUntil.Equal(soon) {
		t.Errorf("until %s and %s", consumer.DrainUntil, provider.DrainUntil)
	}
}

// A peer whose clock is ahead ends a contract that ends in a moment anyway.
func TestAClockAheadIsNotATermination(t *testing.T) {
	c := inState(t, Consumer)[Active]
	for _, tt := range []struct {
		now  time.Time
		want EndReason
	}{
		{ends.Add(-ExpirySkew - time.Second), EndedByPeer},
		{ends.Add(-ExpirySkew), EndedByExpiry},
		{ends.Add(-time.Second), EndedByExpiry},
	} {
		for _, p := range []Phase{PhaseDraining, PhaseClosed} {
			if got := apply(t, c, PeerReported{Phase: p, DrainUntil: over, Now: tt.now}); got.Reason != tt.want {
				t.Errorf("%s before the end, %s: %s", ends.Sub(tt.now), p, got.Reason.Name())
			}
		}
	}
	short := c
	short.NotBefore, short.NotAfter = ends.Add(-time.Minute), ends
	if got := apply(t, short, PeerReported{Phase: PhaseClosed, Now: ends.Add(-20 * time.Second)}); got.Reason != EndedByPeer {
		t.Errorf("a contract of a minute, 20 s before its end: %s", got.Reason.Name())
	}
}

func TestRestoredContractGoesOn(t *testing.T) {
	states := inState(t, Provider)
	for _, tt := range []struct {
		phase string
		now   time.Time
		want  State
	}{
		{"Active", begins, Active},
		{"", begins, Active},
		{"Active", ends, Draining},
		{"Active", over, Closed},
		{"Draining", begins, Draining},
		{"Draining", over, Closed},
		{"Closed", begins, Closed},
	} {
		c := apply(t, Restore(terms1, hash1, Provider, Stored{Phase: ParsePhase(tt.phase), ClosedAt: begins}), Tick{tt.now})
		if c.State != tt.want {
			t.Errorf("%q at %s: %s, want %s", tt.phase, tt.now, c.State, tt.want)
		}
		if c.State == Draining && c.Deadline(tt.now).IsZero() {
			t.Errorf("%q: draining without end", tt.phase)
		}
	}
	// What is stored is all that there is to keep.
	for s := Active; s <= Closed; s++ {
		want := states[s]
		got := Restore(terms1, hash1, Provider, stored(want))
		if got != want {
			t.Errorf("%s: %+v, want %+v", s, got, want)
		}
	}
	// A later revision may begin by the other side's clock: what runs goes on.
	if c := Restore(terms2, hash2, Consumer, Stored{Phase: PhaseActive}); !c.Desired().Node {
		t.Errorf("%+v", c)
	}
}

func TestReasonsSurviveText(t *testing.T) {
	for _, r := range []EndReason{NotEnded, EndedByExpiry, EndedHere, EndedByPeer} {
		if ParseEndReason(r.Name()) != r {
			t.Errorf("%q", r.Name())
		}
	}
	if ParseEndReason("Bored") != NotEnded || EndReason(9).Name() != "" {
		t.Error("an unknown reason has a text")
	}
}

func TestRejectionsHaveAReason(t *testing.T) {
	_, err := inState(t, Consumer)[Closed].Apply(agreed(Consumer, terms1, hash1, t0))
	if ReasonOf(err) != ReasonContractClosed || !strings.Contains(err.Error(), "contract c, Closed") {
		t.Errorf("got %v", err)
	}
	for r := NotEnded; r <= EndedByPeer; r++ {
		if (r == NotEnded) != (r.String() == "") {
			t.Errorf("the text of %s is %q", r.Name(), r)
		}
	}
}

func TestRenewAt(t *testing.T) {
	for _, tt := range []struct{ term, want time.Duration }{
		{24 * time.Hour, 18 * time.Hour},
		{4 * time.Minute, 3 * time.Minute},
		{2 * time.Minute, 90 * time.Second},
		{90 * time.Second, time.Minute},
		{time.Minute, 30 * time.Second},
		{40 * time.Second, 20 * time.Second},
		{time.Second, 500 * time.Millisecond},
	} {
		c := Contract{State: Active, NotBefore: t0, NotAfter: t0.Add(tt.term)}
		if got := RenewAt(c).Sub(t0); got != tt.want {
			t.Errorf("of %s: after %s, want %s", tt.term, got, tt.want)
		}
	}
	for s, c := range inState(t, Consumer) {
		if (s == Active) == RenewAt(c).IsZero() {
			t.Errorf("%s: %s", s, RenewAt(c))
		}
	}
}

func TestPhasesSurviveText(t *testing.T) {
	for _, p := range []Phase{PhaseUnspecified, PhaseActive, PhaseDraining, PhaseClosed} {
		if ParsePhase(p.String()) != p {
			t.Errorf("%q", p)
		}
	}
	if ParsePhase("Opening") != PhaseUnspecified || Phase(9).String() != "" {
		t.Error("an unknown phase has a text")
	}
}

// stored is what is kept of a contract that both signed.
func stored(c Contract) Stored {
	return Stored{Phase: c.Phase(), Reason: c.Reason, DrainUntil: c.DrainUntil, ClosedAt: c.ClosedAt}
}
