package peering

import (
	"cmp"
	"hash/maphash"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The whole protocol in small: a consumer and a provider, each with its own copy
// of one contract, that offer, sign, countersign, amend, renew and end it over a channel that
// drops, repeats and reorders; and a second consumer, which takes what the provider has left.
// They do what package peering decides: Apply, Desired, Decide, Restore. The test is that this is
// enough. As in the agent, an offer is in the provider's memory alone, and is gone when it
// restarts.

// hours is the clock of the model: of every moment that makes a difference one.
var hours = []time.Time{t0, valid, begins, begins.Add(10 * time.Minute), ends, over, ends2, over2}

const (
	capacity  = 8 // cores that the provider has
	firstAsk  = 3 // cores of the first revision
	otherAsk  = 2 // cores that the other consumer asks for at a time
	revisions = 3 // the most that are made
	// endFirst and endLater are the ends of contracts, as indexes of hours.
	endFirst, endLater = 4, 6
	notice             = 20 * time.Minute
)

// history is a payload's hash that encodes all of its revisions: how many, and of each its cores
// and its end.
func history(revs ...[2]byte) Hash {
	var h Hash
	h[0] = byte(len(revs))
	for i, r := range revs {
		h[1+2*i], h[2+2*i] = r[0], r[1]
	}
	return h
}

func before(h Hash) Hash {
	n := h[0]
	if n <= 1 {
		return Hash{}
	}
	h[0], h[2*n-1], h[2*n] = n-1, 0, 0
	return h
}

func after(h Hash, cores, end byte) Hash {
	n := h[0]
	h[0], h[2*n+1], h[2*n+2] = n+1, cores, end
	return h
}

func coresOf(h Hash) int {
	if h[0] == 0 {
		return 0
	}
	return int(h[2*h[0]-1])
}

func termsOf(h Hash) Terms {
	return Terms{
		ContractID: "c", Revision: uint64(h[0]), Previous: before(h), NotBefore: begins, NotAfter: hours[h[2*h[0]]],
		Clauses: Clauses{
			Network: true, Notice: notice,
		},
	}
}

// follows reports whether b is a or a later revision of it.
func follows(b, a Hash) bool {
	for b[0] > a[0] {
		b = before(b)
	}
	return a == b
}

type kind uint8

const (
	none kind = iota
	asks
	offers
	signs
	both
	states
	fetches
)

// message is one of the protocol's.
type message struct {
	kind kind
	// hash is of what is offered, signed or fetched.
	hash Hash
	// cores and end are asked for.
	cores, end byte
	// revision, phase and until are a state.
	revision uint64
	phase    Phase
	until    time.Time
}

func order(a, b message) int {
	return cmp.Or(
		cmp.Compare(b.kind, a.kind), slices.Compare(a.hash[:8], b.hash[:8]), cmp.Compare(a.cores, b.cores), cmp.Compare(a.end, b.end),
		cmp.Compare(a.revision, b.revision), cmp.Compare(a.phase, b.phase), a.until.Compare(b.until),
	)
}

// world is everything. It is comparable, and a copy of it is another world.
type world struct {
	side [2]Contract // 0 consumer, 1 provider
	// inbox is what is under way to each side, in order, at most six messages: one
	// more pushes another out, which is a loss.
	inbox [2][6]message
	hour  int
	// standing is the revision that the provider offered, and until when.
	standing Hash
	until    time.Time
	// other is what the other consumer has.
	other  int
	closed [2]bool
	fault  string
}

// role is that of a side.
func role(i int) Role { return []Role{Consumer, Provider}[i] }

// asked is a world in which the consumer asked for its first contract.
func asked() world {
	w := world{}
	w.send(1, message{kind: asks, cores: firstAsk, end: endFirst})
	return w
}

// sign applies that both signed a payload.
func (w *world) sign(i int, h Hash) { w.do(i, Countersigned{role(i), termsOf(h), h, w.now()}) }

func (w *world) now() time.Time { return hours[w.hour] }

func (w *world) fail(why string) {
	if w.fault == "" {
		w.fault = why
	}
}

func (w *world) send(to int, m message) {
	box := &w.inbox[to]
	if slices.Contains(box[:], m) {
		return
	}
	box[len(box)-1] = m
	slices.SortFunc(box[:], order)
}

// take removes a message.
func (w *world) take(from, i int) {
	box := &w.inbox[from]
	box[i] = message{}
	slices.SortFunc(box[:], order)
}

// do applies an event, and checks what is true of every event.
func (w *world) do(i int, e Event) {
	c := w.side[i]
	next, err := c.Apply(e)
	if err != nil && next != c {
		w.fail("a refusal changed the contract")
	}
	if again, _ := next.Apply(e); again != next {
		w.fail("an event counted twice")
	}
	if next.State < c.State || c.State == Closed && next != c || next.Revision < c.Revision {
		w.fail("it went back")
	}
	w.side[i] = next
	w.check()
}

// reserved is what the provider reserves: for the contract, and for the offer beyond it.
func (w *world) reserved() (contract, offered int) {
	if p := w.side[1]; p.Desired().Capacity {
		contract = coresOf(p.Hash)
	}
	return contract, max(coresOf(w.standing)-contract, 0)
}

func (w *world) check() {
	consumer, provider := w.side[0], w.side[1]
	for i, c := range w.side {
		if w.closed[i] && c.State != Closed {
			w.fail("it opened again")
		}
		w.closed[i] = c.State == Closed
	}
	if contract, offered := w.reserved(); contract+offered+w.other > capacity {
		w.fail("over-granted")
	}
	if wants := consumer.Desired(); (wants.Node || wants.AcceptNew || wants.Tunnel) && !follows(provider.Hash, consumer.Hash) {
		w.fail("the consumer uses what was not granted")
	}
	// The provider's notice is known to it; the consumer may know of an earlier end of the contract.
	if half := earlier(provider.DrainUntil, over).Add(-notice / 2); consumer.Reason == EndedByPeer && provider.Reason == EndedHere &&
		consumer.Evicts(w.now()) && w.now().Before(half) {
		w.fail("the consumer evicts in the first half of the notice")
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (w *world) capacity(own int) Capacity {
	contract, offered := w.reserved()
	reserved := Resources{"cpu": Whole(int64(contract + offered + w.other))}
	return Capacity{Free: Resources{"cpu": Whole(capacity), Pods: Whole(capacity)}, Reserved: reserved, ReservedByPolicy: reserved, ReservedForPeer: Resources{"cpu": Whole(int64(own))}}
}

func (w *world) decides(cores int, have Capacity) bool {
	_, err := Decide(Ask{RequestID: "r", Resources: Resources{"cpu": Whole(int64(cores))}}, Policy{
		Accept: Automatic, PercentOfFree: 100, TotalPercent: 100, OvercommitPercent: 100, Duration: time.Hour,
	}, have)
	return err == nil
}

// deliver hands a side a message.
func (w *world) deliver(i int, m message) {
	c := w.side[i]
	switch m.kind {
	case asks: // RequestPeering
		if c.State != Active && c.State != Nothing || c.Revision >= revisions {
			return
		}
		if next := after(c.Hash, m.cores, m.end); w.standing != next {
			w.standing = Hash{} // it asks for something else now
			contract, _ := w.reserved()
			if !w.decides(int(m.cores), w.capacity(contract).Without(Resources{"cpu": Whole(int64(contract))})) {
				return
			}
			w.standing, w.until = next, w.now().Add(time.Minute)
			w.check()
		}
		w.send(0, message{kind: offers, hash: w.standing})
	case offers:
		if c.State <= Active && before(m.hash) == c.Hash {
			w.send(1, message{kind: signs, hash: m.hash})
		}
	case signs: // SignContract
		if c.State <= Active && m.hash == w.standing && w.now().Before(w.until) {
			w.standing = Hash{}
			w.sign(1, m.hash)
		}
		if c := w.side[1]; c.Hash == m.hash && (c.State == Active || c.State == Draining) {
			w.send(0, message{kind: both, hash: m.hash})
		}
	case both:
		w.sign(i, m.hash)
	case states:
		w.do(i, PeerReported{Revision: m.revision, Phase: m.phase, DrainUntil: m.until, Now: w.now()})
		if c := w.side[i]; m.revision > c.Revision && c.State != Closed {
			w.send(1-i, message{kind: fetches})
		}
	case fetches: // GetContract
		if c.State == Active || c.State == Draining {
			w.send(1-i, message{kind: both, hash: c.Hash})
		}
	case none:
	}
}

// report does what each side does again and again: it reports its state.
func (w *world) report(i int) {
	c := w.side[i]
	if c.State == Nothing {
		return
	}
	m := message{kind: states, revision: c.Revision, phase: c.Phase()}
	if c.State == Draining {
		m.until = c.DrainUntil
	}
	w.send(1-i, m)
}

// step is what may happen next, besides messages.
type step func(*world)

func locals() (going, ending []step) {
	for i := range 2 {
		going = append(going,
			func(w *world) { w.report(i) },
			func(w *world) { w.do(i, Tick{w.now()}) },
			func(w *world) { w.restart(i) },
			func(w *world) { w.inbox[i] = [6]message{} }, // the connection broke
		)
		ending = append(ending,
			func(w *world) {
				w.do(i, Terminate{By: w.side[i].Role, Mode: Drain, Now: w.now(), Grace: 5 * time.Minute})
			},
			func(w *world) { w.do(i, Terminate{By: w.side[i].Role, Mode: Now, Now: w.now()}) },
			func(w *world) { w.do(i, Drained{w.now()}) },
		)
	}
	ask := func(cores, end byte) step {
		return func(w *world) {
			if c := w.side[0]; c.State <= Active {
				w.send(1, message{kind: asks, cores: cores, end: end})
			}
		}
	}
	going = append(going,
		ask(6, endFirst),        // more
		ask(1, endFirst),        // less
		ask(firstAsk, endLater), // longer
		ask(5, endLater),        // both
		func(w *world) {
			if w.decides(otherAsk, w.capacity(w.other)) {
				w.other += otherAsk
				w.check()
			}
		},
		func(w *world) { w.other = 0 },
		func(w *world) { w.lapse() },
	)
	return going, append(ending, func(w *world) { w.hour = min(w.hour+1, len(hours)-1) })
}

func everything() []step {
	going, ending := locals()
	return append(going, ending...)
}

func (w *world) lapse() {
	if w.standing != (Hash{}) && !w.now().Before(w.until) {
		w.standing, w.until = Hash{}, time.Time{}
	}
}

// restart leaves what is stored: contracts that both signed, and no offers.
func (w *world) restart(i int) {
	if i == 1 {
		w.standing, w.until = Hash{}, time.Time{}
	}
	if c := w.side[i]; c.State != Nothing {
		w.side[i] = Restore(termsOf(c.Hash), c.Hash, c.Role, stored(c))
	}
	w.check()
}

// round is one of a fair channel: everything arrives.
func (w *world) round() {
	w.lapse()
	for i := range 2 {
		w.do(i, Tick{w.now()})
		w.report(i)
	}
	for i := range 2 {
		box := w.inbox[i]
		w.inbox[i] = [6]message{}
		for _, m := range box {
			if m.kind != asks { // no side asks for more
				w.deliver(i, m)
			}
		}
	}
}

// settle ends the faults: messages arrive, and then time goes on to the end.
func (w world) settle() string {
	for i := 0; ; i++ {
		before := w.side
		w.round()
		// Answers take two rounds to come back, and to fetch takes three.
		if i >= 5 && w.side == before {
			break
		}
		if i > 20 {
			return "it never comes to rest"
		}
	}
	if w.fault != "" {
		return w.fault
	}
	a, b := w.side[0], w.side[1]
	inForce := func(c Contract) bool { return c.State == Active || c.State == Draining }
	switch {
	case inForce(a) != inForce(b), inForce(a) && a.State != b.State:
		return "did not converge: consumer " + a.State.String() + ", provider " + b.State.String()
	case inForce(a) && (a.Hash != b.Hash || a.NotAfter != b.NotAfter):
		return "did not converge to one revision"
	case a.State == Draining && !a.DrainUntil.Equal(b.DrainUntil):
		return "did not converge to one end of draining: " + a.DrainUntil.String() + " and " + b.DrainUntil.String()
	case (a.State == Closed) != (b.State == Closed) && a.State != Nothing:
		return "did not converge: consumer " + a.State.String() + ", provider " + b.State.String()
	}
	for w.hour < len(hours)-1 {
		w.hour++
		w.round()
		w.round()
	}
	for _, c := range w.side {
		if c.State != Closed && c.State != Nothing {
			return "at the end of time it is " + c.State.String()
		}
	}
	return w.fault
}

// begun is a world in the middle of its life: revision 1 in force on both sides.
func begun() world {
	w := asked()
	first := history([2]byte{firstAsk, endFirst})
	w.deliver(1, message{kind: asks, cores: firstAsk, end: endFirst})
	w.deliver(1, message{kind: signs, hash: first})
	w.sign(0, first)
	w.hour = 2
	// What arrived may come again, but the ask.
	w.inbox[1] = [6]message{}
	w.send(1, message{kind: signs, hash: first})
	for i := range 2 {
		w.do(i, Tick{w.now()})
	}
	return w
}

// starts is where the walk begins: asked for, in force, with an amendment
// under way that the provider took or not, and with an end of which one side knows.
func starts() map[string]world {
	amending := begun()
	amending.deliver(1, message{kind: asks, cores: 6, end: endFirst})
	signed := amending
	signed.deliver(0, message{kind: offers, hash: signed.standing})
	taken := signed
	taken.deliver(1, message{kind: signs, hash: taken.standing})
	taken.inbox = [2][6]message{} // and the answer was lost
	ending := taken
	ending.do(0, Terminate{By: Consumer, Mode: Drain, Now: ending.now(), Grace: 5 * time.Minute})
	giving := taken
	giving.do(1, Terminate{By: Provider, Mode: Drain, Now: giving.now(), Grace: time.Minute})
	late := taken
	late.hour = 4
	return map[string]world{
		"asked for": asked(), "in force": begun(), "offered more": amending, "signed more": signed, "has more, unknown": taken,
		"has more, unknown, and the consumer ends it": ending, "has more, unknown, and the provider ends it": giving,
		"has more, unknown, at the end": late,
	}
}

// TestAllInterleavingsToASmallDepth tries everything that may happen, in every
// order, so many steps deep from each of eight worlds. After each step the channel
// becomes fair, and both sides have to agree.
func TestAllInterleavingsToASmallDepth(t *testing.T) {
	depth := 5
	if testing.Short() {
		depth = 3
	}
	seed := maphash.MakeSeed()
	seen := map[uint64]bool{}
	all := everything()
	for name, start := range starts() {
		if start.fault != "" {
			t.Fatalf("%s: %s", name, start.fault)
		}
		todo := []world{start}
		for left := depth - 1; len(todo) > 0; left-- {
			var next []world
			visit := func(w world) {
				if w.fault != "" {
					t.Fatalf("%s: %s: %+v", name, w.fault, w)
				}
				if key := maphash.Comparable(seed, w); !seen[key] {
					seen[key] = true
					if why := w.settle(); why != "" {
						t.Fatalf("%s: %s, from %+v", name, why, w)
					}
					if left > 0 {
						next = append(next, w)
					}
				}
			}
			for i := range todo {
				for _, s := range all {
					w := todo[i]
					s(&w)
					visit(w)
				}
				for side := range 2 {
					for k, m := range todo[i].inbox[side] {
						if m.kind == none {
							break
						}
						w := todo[i]
						w.deliver(side, m) // and it may come again
						visit(w)
						w = todo[i]
						w.take(side, k) // or never
						visit(w)
					}
				}
			}
			todo = next
		}
	}
	if len(seen) < 10_000 && !testing.Short() {
		t.Errorf("%d worlds: the walk is not what it was meant to be", len(seen))
	}
	t.Logf("%d worlds, %d steps deep", len(seen), depth)
}

// TestPairsConvergeOverABadChannel goes deep at random.
func TestPairsConvergeOverABadChannel(t *testing.T) {
	going, ending := locals()
	revised := 0
	rapid.Check(t, func(rt *rapid.T) {
		w := asked()
		if rapid.Bool().Draw(rt, "begun") {
			w = begun()
		}
		for range rapid.IntRange(0, 150).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "side")
			switch what := rapid.IntRange(0, 59).Draw(rt, "what"); {
			case what < 30: // messages arrive, most of the time
				n := slices.IndexFunc(w.inbox[i][:], func(m message) bool { return m.kind == none })
				if n < 0 {
					n = len(w.inbox[i])
				}
				if n > 0 {
					k := rapid.IntRange(0, n-1).Draw(rt, "which")
					m := w.inbox[i][k]
					if rapid.Bool().Draw(rt, "once") {
						w.take(i, k)
					}
					w.deliver(i, m)
				}
			case what < 40:
				w.report(i)
			case what < 59:
				going[rapid.IntRange(0, len(going)-1).Draw(rt, "step")](&w)
			default:
				ending[rapid.IntRange(0, len(ending)-1).Draw(rt, "end")](&w)
			}
			if w.fault != "" {
				rt.Fatalf("%s: %+v", w.fault, w)
			}
		}
		if w.side[0].Revision > 1 {
			revised++
		}
		if why := w.settle(); why != "" {
			rt.Fatalf("%s, from %+v", why, w)
		}
	})
	if revised == 0 && !testing.Short() {
		t.Error("no contract was ever revised: the walk is not what it was meant to be")
	}
}
