package peering

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Moments of a contract's life, in order.
var (
	valid   = t0.Add(time.Minute)     // the offer lapses
	begins  = t0.Add(2 * time.Minute) // NotBefore
	ends    = t0.Add(time.Hour)       // NotAfter
	ends2   = t0.Add(2 * time.Hour)   // NotAfter of the second revision
	over    = ends.Add(ExpiryGrace)   // the end of draining after NotAfter
	over2   = ends2.Add(ExpiryGrace)  //
	moments = []time.Time{t0, valid, begins, t0.Add(10 * time.Minute), ends, over, ends2, over2}
)

var (
	hash1, hash1b, hash2 = Hash{1}, Hash{1, 1}, Hash{2}
	terms1               = Terms{ContractID: "c", Revision: 1, NotBefore: begins, NotAfter: ends, Network: true}
	terms1b              = Terms{ContractID: "c", Revision: 1, NotBefore: begins, NotAfter: ends2, Network: true}
	terms2               = Terms{ContractID: "c", Revision: 2, Previous: hash1, NotBefore: begins, NotAfter: ends2, Network: true}
	foreign              = Terms{ContractID: "d", Revision: 1, NotBefore: begins, NotAfter: ends, Network: true}
)

func offer(r Role) Offer {
	return Offer{ContractID: "c", Role: r, ValidUntil: valid, Network: true}
}

// events is every kind of event, with every argument that makes a difference.
func events(r Role) []Event {
	list := []Event{
		offer(r),
		offer(r.Other()),
		Offer{ContractID: "d", Role: r, ValidUntil: valid, Network: true},
		Offer{ContractID: "c", Role: r, ValidUntil: begins, Network: true},
		Offer{ContractID: "", Role: r, ValidUntil: valid},
		Terminate{By: 7, Mode: Now, Now: t0},
		Terminate{By: r, Mode: 7, Now: t0},
	}
	for _, now := range []time.Time{t0, valid, begins, ends, over} {
		list = append(list,
			Tick{now}, Drained{now},
			Sign{terms1, hash1, now}, Sign{terms1b, hash1b, now}, Sign{terms2, hash2, now}, Sign{foreign, Hash{9}, now},
			Countersigned{terms1, hash1, now}, Countersigned{terms1b, hash1b, now}, Countersigned{terms2, hash2, now}, Countersigned{foreign, Hash{9}, now},
			Terminate{By: r, Mode: Drain, Now: now}, Terminate{By: r, Mode: Drain, Now: now, Grace: time.Minute}, Terminate{By: r, Mode: Now, Now: now},
			Terminate{By: r.Other(), Mode: Drain, Now: now}, Terminate{By: r.Other(), Mode: Now, Now: now},
		)
		for _, p := range []Phase{PhaseUnspecified, PhaseActive, PhaseDraining, PhaseClosed, 99} {
			list = append(list, PeerSaid{Revision: 1, Phase: p, Now: now}, PeerSaid{Revision: 7, Phase: p, Now: now})
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
	offered := apply(t, Contract{}, offer(r))
	signed := apply(t, offered, Sign{terms1, hash1, t0})
	active := apply(t, signed, Countersigned{terms1, hash1, begins})
	draining := apply(t, active, Terminate{By: r, Mode: Drain, Now: begins, Grace: 10 * time.Minute})
	return map[State]Contract{
		Nothing: {}, Offered: offered, Signed: signed, Active: active, Draining: draining,
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
		// What becomes of a contract that is Nothing, Offered, Signed, Active,
		// Draining, Closed.
		want [6]string
	}{
		{"the offer", offer(Consumer), [6]string{"Offered", stay, stay, stay, stay, refuse + "closed"}},
		{"another offer under the same ID", Offer{ContractID: "c", Role: Consumer, ValidUntil: ends, Network: true}, [6]string{"Offered", refuse + "mismatch", stay, stay, stay, refuse + "closed"}},
		{"an offer of another contract", Offer{ContractID: "d", Role: Consumer, ValidUntil: valid}, [6]string{"Offered", refuse + "mismatch", refuse + "mismatch", refuse + "mismatch", refuse + "mismatch", refuse + "mismatch"}},
		{"an offer that makes no sense", Offer{}, [6]string{refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event"}},
		{"the consumer signs in time", Sign{terms1, hash1, t0}, [6]string{refuse + "state", "Signed", stay, stay, stay, refuse + "closed"}},
		{"the consumer signs too late", Sign{terms1, hash1, valid}, [6]string{refuse + "state", refuse + "offer lapsed", stay, stay, stay, refuse + "closed"}},
		{"the consumer signs other terms", Sign{terms1b, hash1b, t0}, [6]string{refuse + "state", "Signed", refuse + "stale revision", refuse + "stale revision", refuse + "stale revision", refuse + "closed"}},
		{"the consumer signs a second revision", Sign{terms2, hash2, t0}, [6]string{refuse + "state", refuse + "stale revision", refuse + "stale revision", refuse + "stale revision", refuse + "stale revision", refuse + "closed"}},
		{"the consumer signs another contract", Sign{foreign, Hash{9}, t0}, [6]string{refuse + "state", refuse + "mismatch", refuse + "mismatch", refuse + "mismatch", refuse + "mismatch", refuse + "closed"}},
		{"both signed", Countersigned{terms1, hash1, now}, [6]string{refuse + "state", refuse + "state", "Active", stay, stay, refuse + "closed"}},
		{"both signed other terms", Countersigned{terms1b, hash1b, now}, [6]string{refuse + "state", refuse + "state", refuse + "mismatch", refuse + "stale revision", refuse + "stale revision", refuse + "closed"}},
		{"both signed the next revision", Countersigned{terms2, hash2, now}, [6]string{refuse + "state", refuse + "state", refuse + "mismatch", "Active", refuse + "state", refuse + "closed"}},
		{"both signed what follows another first revision", Countersigned{Terms{ContractID: "c", Revision: 2, Previous: hash1b, NotBefore: begins, NotAfter: ends2}, Hash{8}, now}, [6]string{refuse + "state", refuse + "state", refuse + "mismatch", refuse + "stale revision", refuse + "stale revision", refuse + "closed"}},
		{"both signed a revision that skips one", Countersigned{Terms{ContractID: "c", Revision: 3, Previous: hash1, NotBefore: begins, NotAfter: ends2}, Hash{8}, now}, [6]string{refuse + "state", refuse + "state", refuse + "mismatch", refuse + "stale revision", refuse + "stale revision", refuse + "closed"}},
		{"both signed another contract", Countersigned{foreign, Hash{9}, now}, [6]string{refuse + "state", refuse + "state", refuse + "mismatch", refuse + "mismatch", refuse + "mismatch", refuse + "closed"}},
		{"time passes", Tick{t0}, [6]string{stay, stay, stay, stay, stay, stay}},
		{"the offer lapses", Tick{valid}, [6]string{stay, "Closed", "Closed", stay, stay, stay}},
		{"draining takes too long", Tick{begins.Add(10 * time.Minute)}, [6]string{stay, "Closed", "Closed", stay, "Closed", stay}},
		{"the contract ends", Tick{ends}, [6]string{stay, "Closed", "Closed", "Draining", "Closed", stay}},
		{"long after the end", Tick{over2}, [6]string{stay, "Closed", "Closed", "Closed", "Closed", stay}},
		{"this side drains", Terminate{By: Consumer, Mode: Drain, Now: now}, [6]string{refuse + "state", "Closed", "Closed", "Draining", stay, stay}},
		{"this side ends it at once", Terminate{By: Consumer, Mode: Now, Now: now}, [6]string{refuse + "state", "Closed", "Closed", "Closed", "Closed", stay}},
		{"the peer drains", Terminate{By: Provider, Mode: Drain, Now: now}, [6]string{refuse + "state", "Closed", "Closed", "Draining", stay, stay}},
		{"the peer ends it at once", Terminate{By: Provider, Mode: Now, Now: now}, [6]string{refuse + "state", "Closed", "Closed", "Closed", "Closed", stay}},
		{"a termination that makes no sense", Terminate{}, [6]string{refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event"}},
		{"the peer says nothing", PeerSaid{Now: now}, [6]string{stay, stay, stay, stay, stay, stay}},
		{"the peer says it is active", PeerSaid{Revision: 1, Phase: PhaseActive, Now: now}, [6]string{stay, stay, stay, stay, stay, stay}},
		{"the peer says it drains", PeerSaid{Revision: 1, Phase: PhaseDraining, Now: now}, [6]string{stay, "Closed", "Closed", "Draining", stay, stay}},
		{"the peer said long ago that it is closed", PeerSaid{Phase: PhaseClosed, Now: now}, [6]string{stay, "Closed", "Closed", "Closed", "Closed", stay}},
		{"nothing runs any more", Drained{now}, [6]string{refuse + "state", refuse + "state", refuse + "state", refuse + "state", "Closed", stay}},
		{"no event", nil, [6]string{refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event", refuse + "invalid event"}},
	}
	states := inState(t, Consumer)
	for _, row := range rows {
		for s := Nothing; s <= Closed; s++ {
			t.Run(row.name+" to "+s.String(), func(t *testing.T) {
				c := states[s]
				got, err := c.Apply(row.event)
				var r *RejectedError
				what := got.State.String()
				switch {
				case errors.As(err, &r):
					what = refuse + string(r.Why)
					if got != c {
						t.Errorf("a refusal changed the contract to %+v", got)
					}
				case err != nil:
					t.Errorf("an error of another kind: %v", err)
				case got == c:
					what = stay
				case s == Active && got.State == Active && got.Revision == 2:
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

// TestEveryReachableValue walks all values that any sequence of events leads to.
func TestEveryReachableValue(t *testing.T) {
	for _, role := range []Role{Consumer, Provider} {
		all := events(role)
		seen := map[Contract]bool{{}: true}
		todo := []Contract{{}}
		for len(todo) > 0 {
			c := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			checkValue(t, c)
			if (c.State >= Draining) == (c.Reason == NoReason) {
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
	var r *RejectedError
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
	if next.State == Active && c.State != Active && c.State != Signed {
		t.Fatalf("active without the consumer's signature, from %s", c.State)
	}
	if next.Revision < c.Revision || c.State != Nothing && (next.ID != c.ID || next.Role != c.Role) {
		t.Fatalf("%+v became %+v", c, next)
	}
}

func checkValue(t testing.TB, c Contract) {
	t.Helper()
	w := c.Wants()
	if (w.Node || w.Evict || w.Countersign) && c.Role != Consumer || (w.Capacity || w.Quota) && c.Role != Provider {
		t.Fatalf("a %s wants %+v", c.Role, w)
	}
	if w.AcceptNew && (c.State != Active || !c.Begun) {
		t.Fatalf("%s accepts new work", c.State)
	}
	if (w.Quota || w.Node || w.Tunnel) && (c.State != Active && c.State != Draining) {
		t.Fatalf("%s wants %+v", c.State, w)
	}
	if w.Quota && !w.Capacity {
		t.Fatalf("a quota without the capacity: %+v", c)
	}
	if c.State == Closed && (w != Wants{Tell: true}) {
		t.Fatalf("closed, and wants %+v", w)
	}
	if (c.State == Closed) == c.ClosedAt.IsZero() {
		t.Fatalf("%+v", c)
	}
	// Whatever it is, its deadlines lead to the end, and none is missed.
	end := c
	for range 10 {
		at := end.Deadline()
		if at.IsZero() {
			break
		}
		before, err := end.Apply(Tick{at.Add(-time.Second)})
		if err != nil || before.State != end.State {
			t.Fatalf("%+v changed before its deadline to %+v", end, before)
		}
		after, err := end.Apply(Tick{at})
		if err != nil || after == end {
			t.Fatalf("%+v did nothing at its deadline", end)
		}
		end = after
	}
	if end.State != Closed && end.State != Nothing {
		t.Fatalf("%+v ended as %+v", c, end)
	}
}

func TestExpiredContractDrains(t *testing.T) {
	c := inState(t, Provider)[Active]
	c = apply(t, c, Tick{ends})
	if c.State != Draining || c.Reason != ReasonExpired || c.Deadline() != over {
		t.Errorf("%+v", c)
	}
	if c = apply(t, c, Tick{over}); c.State != Closed || c.ClosedAt != over || c.Drained {
		t.Errorf("%+v", c)
	}
}

func TestNothingBeginsBeforeItsTime(t *testing.T) {
	c := apply(t, inState(t, Consumer)[Signed], Countersigned{terms1, hash1, t0})
	if w := c.Wants(); w.Node || w.AcceptNew || c.Deadline() != begins {
		t.Errorf("%+v, deadline %s", w, c.Deadline())
	}
	if w := apply(t, c, Tick{begins}).Wants(); !w.Node || !w.AcceptNew || !w.Tunnel || w.Evict {
		t.Errorf("%+v", w)
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
		c := apply(t, Restore(terms1, hash1, Provider, ParsePhase(tt.phase), begins), Tick{tt.now})
		if c.State != tt.want {
			t.Errorf("%q at %s: %s, want %s", tt.phase, tt.now, c.State, tt.want)
		}
		if c.State == Draining && c.Deadline().IsZero() {
			t.Errorf("%q: draining without end", tt.phase)
		}
	}
	again := apply(t, Restore(terms1, hash1, Provider, PhaseActive, time.Time{}), Tick{begins})
	want := states[Active]
	want.ValidUntil = time.Time{}
	if again != want {
		t.Errorf("%+v, want %+v", again, want)
	}
}

func TestPhasesSurviveText(t *testing.T) {
	for _, p := range []Phase{PhaseUnspecified, PhaseActive, PhaseDraining, PhaseClosed} {
		if ParsePhase(p.String()) != p {
			t.Errorf("%q", p)
		}
	}
	if ParsePhase("Opening") != PhaseUnspecified || Phase(9).String() != "" {
		t.Error("an unknown phase says something")
	}
}

// pair is two sides of one contract, and what is under way between them.
type pair struct {
	side [2]Contract // 0 consumer, 1 provider
	// inbox of each side; a message stays until it is dropped or replaced.
	inbox [2][]message
	now   time.Time
	// granted is what the provider ever countersigned.
	granted map[Hash]bool
	closed  [2]bool
}

// message is one of the protocol's: a signature, both, or a state.
type message struct {
	kind  string
	hash  Hash
	terms Terms
	rev   uint64
	phase Phase
}

func newPair(t testing.TB) *pair {
	t.Helper()
	return &pair{
		side:    [2]Contract{apply(t, Contract{}, offer(Consumer)), apply(t, Contract{}, offer(Provider))},
		now:     t0,
		granted: map[Hash]bool{},
	}
}

func (p *pair) clone() *pair {
	c := *p
	c.inbox = [2][]message{slices.Clone(p.inbox[0]), slices.Clone(p.inbox[1])}
	c.granted = map[Hash]bool{}
	for h := range p.granted {
		c.granted[h] = true
	}
	return &c
}

// send puts a message under way, keeping a bound on how many there are.
func (p *pair) send(to int, m message) {
	if !slices.ContainsFunc(p.inbox[to], func(o message) bool {
		return o.kind == m.kind && o.hash == m.hash && o.phase == m.phase && o.rev == m.rev
	}) {
		p.inbox[to] = append(p.inbox[to], m)
	}
}

// tell does what each side does again and again: what Wants says.
func (p *pair) tell(i int) {
	c := p.side[i]
	w := c.Wants()
	if w.Countersign {
		p.send(1, message{kind: "sign", hash: c.Hash, terms: terms1})
	}
	if w.Tell {
		p.send(1-i, message{kind: "state", rev: c.Revision, phase: c.Phase()})
	}
}

func (p *pair) do(t testing.TB, i int, e Event) {
	t.Helper()
	before := p.side[i]
	next, err := before.Apply(e)
	checkStep(t, before, e, next, err)
	p.side[i] = next
	p.check(t)
}

// deliver hands side i a message; the message may come again.
func (p *pair) deliver(t testing.TB, i int, m message) {
	t.Helper()
	switch m.kind {
	case "sign": // the provider's SignContract
		p.do(t, 1, Sign{m.terms, m.hash, p.now})
		if c := p.side[1]; c.State == Signed && c.Hash == m.hash {
			p.granted[m.hash] = true
			p.do(t, 1, Countersigned{m.terms, m.hash, p.now})
		}
		if c := p.side[1]; c.Hash == m.hash && c.State == Active {
			p.send(0, message{kind: "both", hash: m.hash, terms: m.terms})
		}
	case "renew": // the provider takes the next revision
		if c := p.side[1]; c.State == Active && c.Hash == m.terms.Previous {
			p.granted[m.hash] = true
			p.do(t, 1, Countersigned{m.terms, m.hash, p.now})
		}
		if c := p.side[1]; c.Hash == m.hash && c.State == Active {
			p.send(0, message{kind: "both", hash: m.hash, terms: m.terms})
		}
	case "both":
		p.do(t, 0, Countersigned{m.terms, m.hash, p.now})
	case "state":
		p.do(t, i, PeerSaid{Revision: m.rev, Phase: m.phase, Now: p.now})
	}
}

func (p *pair) check(t testing.TB) {
	t.Helper()
	consumer, provider := p.side[0], p.side[1]
	for i, c := range p.side {
		if p.closed[i] && c.State != Closed {
			t.Fatalf("%s opened again", c.Role)
		}
		p.closed[i] = c.State == Closed
		checkValue(t, c)
	}
	// The consumer never believes that it has what the provider did not grant.
	if w := consumer.Wants(); (w.Node || w.AcceptNew) && !p.granted[consumer.Hash] {
		t.Fatalf("the consumer uses what was not granted: %+v", consumer)
	}
	// The provider gives its capacity away only once it is sure to take nothing more.
	if w := provider.Wants(); w.Quota && !w.Capacity {
		t.Fatalf("the provider lends what it does not hold: %+v", provider)
	}
}

// local is what each side may do of its own accord.
func (p *pair) local(t testing.TB, i, what int) {
	t.Helper()
	switch what {
	case 0:
		p.do(t, i, Tick{p.now})
	case 1:
		p.do(t, i, Terminate{By: p.side[i].Role, Mode: Drain, Now: p.now})
	case 2:
		p.do(t, i, Terminate{By: p.side[i].Role, Mode: Now, Now: p.now})
	case 3:
		p.do(t, i, Drained{p.now})
	case 4:
		if i == 0 {
			p.do(t, 0, Sign{terms1, hash1, p.now})
		}
	case 5: // a restart: what is stored comes back
		if c := p.side[i]; c.State >= Active {
			terms := terms1
			if c.Hash == hash2 {
				terms = terms2
			}
			p.side[i] = apply(t, Restore(terms, c.Hash, c.Role, c.Phase(), c.ClosedAt), Tick{p.now})
			p.check(t)
		}
	case 6:
		if c := p.side[0]; i == 0 && c.State == Active && c.Hash == hash1 {
			p.send(1, message{kind: "renew", hash: hash2, terms: terms2})
		}
	}
}

const locals = 7

// settle ends the faults: messages arrive, and time goes on where it has to.
func (p *pair) settle(t testing.TB) {
	t.Helper()
	round := func() {
		for i := range 2 {
			p.do(t, i, Tick{p.now})
			p.tell(i)
		}
		for i := range 2 {
			list := p.inbox[i]
			p.inbox[i] = nil
			for _, m := range list {
				p.deliver(t, i, m)
			}
		}
	}
	for range 6 {
		round()
	}
	a, b := p.side[0], p.side[1]
	inForce := func(c Contract) bool { return c.State == Active }
	if inForce(a) != inForce(b) && a.State != Draining && b.State != Draining {
		// One offered side may still wait for its offer to lapse.
		if !(a.State == Closed && b.State == Offered || b.State == Closed && a.State == Offered) {
			t.Fatalf("did not converge: consumer %s, provider %s", a.State, b.State)
		}
	}
	// In the end all is over, on both sides.
	for _, at := range moments {
		if at.After(p.now) {
			p.now = at
			round()
		}
	}
	p.now = over2.Add(MaxDrain)
	round()
	for _, c := range p.side {
		if c.State != Closed {
			t.Fatalf("at the end of time %s is %s", c.Role, c.State)
		}
	}
}

// TestPairsConvergeOverABadChannel drops, repeats and reorders at random.
func TestPairsConvergeOverABadChannel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := newPair(t)
		for range rapid.IntRange(0, 60).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1, 2, 3, 4:
				i := rapid.IntRange(0, 1).Draw(rt, "to")
				if n := len(p.inbox[i]); n > 0 {
					k := rapid.IntRange(0, n-1).Draw(rt, "which") // out of order
					p.deliver(t, i, p.inbox[i][k])
					if rapid.Bool().Draw(rt, "forget") { // or it comes again
						p.inbox[i] = slices.Delete(p.inbox[i], k, k+1)
					}
				}
			case 5:
				i := rapid.IntRange(0, 1).Draw(rt, "to")
				p.inbox[i] = nil // the connection broke
			case 6:
				p.local(t, rapid.IntRange(0, 1).Draw(rt, "who"), rapid.IntRange(0, locals-1).Draw(rt, "what"))
			case 7, 8:
				p.tell(rapid.IntRange(0, 1).Draw(rt, "who"))
			case 9:
				if i := slices.Index(moments, p.now); i >= 0 && i+1 < len(moments) && rapid.Bool().Draw(rt, "later") {
					p.now = moments[i+1]
				}
			}
		}
		p.settle(t)
	})
}

// TestAllInterleavingsToASmallDepth tries every order of everything.
func TestAllInterleavingsToASmallDepth(t *testing.T) {
	depth := 4
	if testing.Short() {
		depth = 3
	}
	pairs := 0
	seen := map[string]bool{}
	var walk func(p *pair, left int)
	walk = func(p *pair, left int) {
		key := fmt.Sprintf("%v %v %v %v %d", p.side, p.inbox, p.now, p.granted, left)
		if seen[key] {
			return
		}
		seen[key] = true
		pairs++
		p.clone().settle(t)
		if left == 0 {
			return
		}
		for i := range 2 {
			for what := range locals {
				next := p.clone()
				next.local(t, i, what)
				walk(next, left-1)
			}
			next := p.clone()
			next.tell(i)
			walk(next, left-1)
			for k := range p.inbox[i] {
				next := p.clone()
				next.deliver(t, i, next.inbox[i][k]) // and may come again
				walk(next, left-1)
				lost := p.clone()
				lost.inbox[i] = slices.Delete(lost.inbox[i], k, k+1)
				walk(lost, left-1)
			}
		}
		if i := slices.Index(moments, p.now); i+1 < len(moments) {
			next := p.clone()
			next.now = moments[i+1]
			walk(next, left-1)
		}
	}
	walk(newPair(t), depth)
	// From the middle of its life too.
	p := newPair(t)
	p.local(t, 0, 4)
	p.tell(0)
	p.deliver(t, 1, p.inbox[1][0])
	p.deliver(t, 0, p.inbox[0][0])
	p.now = begins
	walk(p, depth)
	t.Logf("%d pairs", pairs)
}
