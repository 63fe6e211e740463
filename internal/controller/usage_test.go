package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/usage"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

func amountsIn(texts ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, text := range texts {
		name, amount, _ := strings.Cut(text, "=")
		out[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return out
}

// useFor is the use of r for some time.
func useFor(r peering.Resources, d time.Duration) peering.Usage {
	m := meter.New(time.Unix(0, 0), peering.MaxStatementPeriod)
	m, _ = m.Observe(m.Since, r)
	m, _ = m.Observe(m.Since.Add(d), r)
	return m.Used
}

// cpuSeconds is how many processor-seconds all statements of a contract total, and
// the current period besides.
func cpuSeconds(t *testing.T, c *v1alpha1.Contract) string {
	t.Helper()
	sum := peering.Usage{}
	for _, s := range c.Status.Statements {
		sum = sum.Add(statementIn(t, s).Used)
	}
	current, err := peering.ParseUsage(c.Status.Usage.UnitSeconds)
	if err != nil {
		t.Fatal(err)
	}
	return sum.Add(current)["cpu"].String()
}

func statementIn(t *testing.T, s v1alpha1.Statement) peering.Statement {
	t.Helper()
	e, err := peering.ParseEnvelope([]byte(s.Envelope))
	if err != nil {
		t.Fatal(err)
	}
	out, err := peering.ParseStatement(e.Payload)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUseIsCountedOverRestartsAndPeriods(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	b := newBench(t, p.provider, p.stored(t, p.terms(t, nil), p.provider), foreign("peer", p.consumer))
	b.look(t)
	b.offloaded.used, b.offloaded.pods = amountsIn("cpu=2", "pods=1"), 1
	b.look(t) // from now on two processors are in use
	step := func(d time.Duration) *v1alpha1.Contract {
		t.Helper()
		b.clock = b.clock.Add(d)
		return b.look(t)
	}
	// Within keepEvery nothing is written.
	before := step(time.Second).ResourceVersion
	if after := step(30 * time.Second); after.ResourceVersion != before {
		t.Errorf("a meter is kept after 31 s: %+v", after.Status.Usage)
	}
	if got := step(30 * time.Second); cpuSeconds(t, got) != "122" {
		t.Errorf("after 61 s of two processors it is %s", cpuSeconds(t, got))
	}
	// A crash loses what was not kept yet, and the gap is counted once.
	step(10 * time.Second)
	b.Contracts = b.agent(p.provider)
	if got := step(50 * time.Second); cpuSeconds(t, got) != "242" {
		t.Errorf("after 121 s and a crash it is %s, want 242", cpuSeconds(t, got))
	}
	// A stop in good order keeps all.
	b.clock = b.clock.Add(9 * time.Second)
	b.look(t)
	b.Flush(t.Context())
	b.Contracts = b.agent(p.provider)
	b.offloaded.used = amountsIn("cpu=1", "pods=1")
	if got := b.look(t); cpuSeconds(t, got) != "260" {
		t.Errorf("after 130 s and a stop it is %s, want 260", cpuSeconds(t, got))
	}
	// Away for an hour, with one processor before and three after: the lesser counts.
	b.offloaded.used = amountsIn("cpu=3", "pods=1")
	got := step(time.Hour)
	if want := fmt.Sprint(260 + 3600); cpuSeconds(t, got) != want {
		t.Errorf("after an hour away it is %s, want %s", cpuSeconds(t, got), want)
	}
	// The contract's periods are five minutes and it began a minute ago: 63m10s are
	// twelve whole ones.
	if n := len(got.Status.Statements); n != 12 {
		t.Errorf("there are %d statements", n)
	}
	if first := statementIn(t, got.Status.Statements[0]); !first.From.Equal(now.Add(-time.Minute)) || !first.To.Equal(now.Add(4*time.Minute)) {
		t.Errorf("the first is of %s to %s", first.From, first.To)
	}
}

// TestUsageIsCountedOnce restarts the agent at random moments, with and without
// a stop in good order, and lets writes fail. Two processors are in use all the
// time, so what is counted is known to the second.
func TestUsageIsCountedOnce(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, func(x *peering.Terms) { x.NotAfter = x.NotAfter.Add(30 * 24 * time.Hour) })
	first := p.stored(t, terms, p.provider)
	state, _, err := store.ReadContract(first, p.provider.ID())
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t, p.provider)
		stored := first.DeepCopy()
		total := peering.Usage{}
		look := func(fails bool) {
			after := stored.DeepCopy()
			meter, err := b.measure(state, terms, after, stored, amountsIn("cpu=2"))
			if err != nil {
				rt.Fatal(err)
			}
			if fails {
				return
			}
			last := usage.Last(stored).Sequence
			for _, s := range after.Status.Statements {
				s := statementIn(t, s)
				if s.Sequence <= last {
					continue
				}
				if s.Sequence != last+1 && len(after.Status.Statements) < usage.MaxKept {
					rt.Fatalf("statement %d comes after %d", s.Sequence, last)
				}
				last, total = s.Sequence, total.Add(s.Used)
			}
			stored = after
			b.meters.Note(stored, *meter)
		}
		look(false)
		began, failed := b.clock, 0
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			b.clock = b.clock.Add(time.Duration(rapid.Int64Range(1, 8000).Draw(rt, "milliseconds"))*time.Millisecond +
				time.Duration(rapid.SampledFrom([]int64{0, 25, 55, 115, 125, 600}).Draw(rt, "seconds"))*time.Second)
			// No more periods end at once than are kept.
			if failed++; !rapid.Bool().Draw(rt, "fails") || failed > 8 {
				failed = 0
			}
			look(failed > 0)
			if rapid.Bool().Draw(rt, "dies") {
				b.Contracts = b.agent(p.provider)
			}
		}
		look(false)
		if err := store.KeepMeter(stored, b.meters.Of("c-1").Meter); err != nil {
			rt.Fatal(err)
		}
		current, err := peering.ParseUsage(stored.Status.Usage.UnitSeconds)
		if err != nil {
			rt.Fatal(err)
		}
		want := useFor(peering.Resources{"cpu": peering.Whole(2)}, b.clock.Sub(began))
		if got := total.Add(current); !got.Equal(want) {
			rt.Fatalf("counted %s processor-seconds, want %s", got["cpu"], want["cpu"])
		}
	})
}

func TestTheLastPeriodIsStatedTooWhenAContractEnds(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	b := newBench(t, p.provider, p.stored(t, p.terms(t, nil), p.provider), foreign("peer", p.consumer))
	b.offloaded.used, b.offloaded.pods = amountsIn("cpu=2"), 1
	b.look(t)
	b.clock = now.Add(30 * time.Second)
	b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Closed"})
	got := b.look(t)
	if got == nil {
		t.Fatal("it is buried with its last statement")
	}
	if n := len(got.Status.Statements); n != 1 {
		t.Fatalf("there are %d statements", n)
	}
	s := statementIn(t, got.Status.Statements[0])
	if s.Used["cpu"].String() != "60" || s.Amount.String() != "EUR 0.001666667" || !s.To.Equal(b.clock) {
		t.Errorf("it states %s for %s until %s", s.Used["cpu"], s.Amount, s.To)
	}
	if again := b.look(t); len(again.Status.Statements) != 1 {
		t.Error("it is stated twice")
	}
	b.clock = b.clock.Add(statementGrace)
	if got := b.look(t); got == nil || !store.Released(got) || len(got.Status.Statements) != 1 {
		t.Errorf("when both sides had the time to learn of it, it is %+v", got)
	}
}

// statementsOf makes a provider's statements for a contract.
func (p parties) statementsOf(t *testing.T, terms peering.Terms, n int, change func(i int, s *peering.Statement)) []peering.Envelope {
	t.Helper()
	var out []peering.Envelope
	previous := peering.Hash{}
	for i := range n {
		used, err := peering.ParseUsage(map[string]string{"cpu": "300"})
		if err != nil {
			t.Fatal(err)
		}
		from := terms.NotBefore.Add(time.Duration(i) * terms.StatementPeriod)
		s := peering.Statement{
			ContractID: terms.ContractID, Revision: terms.Revision, Consumer: terms.Consumer.ID, Provider: terms.Provider.ID,
			Sequence: uint64(i + 1), Previous: previous, From: from, To: from.Add(terms.StatementPeriod), Used: used, Price: terms.Price,
		}
		if change != nil {
			change(i, &s)
		}
		if s.Amount, err = s.Price.Cost(s.Used); err != nil {
			t.Fatal(err)
		}
		e, err := peering.NewStatementEnvelope(s)
		if err != nil {
			t.Fatal(err)
		}
		previous = e.Hash()
		if e, err = e.Sign(nil, p.provider.ID(), p.provider.Signer()); err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

func TestInvalidStatementsAreRefused(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	stranger := newParties(t).provider
	terms := p.terms(t, nil)
	good := p.statementsOf(t, terms, 3, nil)
	one := func(change func(*peering.Statement)) func(*testing.T) []peering.Envelope {
		return func(t *testing.T) []peering.Envelope {
			return p.statementsOf(t, terms, 1, func(_ int, s *peering.Statement) { change(s) })
		}
	}
	these := func(e ...peering.Envelope) func(*testing.T) []peering.Envelope {
		return func(*testing.T) []peering.Envelope { return e }
	}
	for name, tc := range map[string]struct {
		answer func(t *testing.T) []peering.Envelope
		kept   int
		reason string // of StatementsValid=False; empty for True
	}{
		"three in a row":     {answer: these(good...), kept: 3},
		"the same twice":     {these(good[0], good[0]), 1, "SequenceMismatch"},
		"in the wrong order": {these(good[1], good[0]), 1, "SequenceMismatch"},
		"the first missing":  {these(good[1], good[2]), 2, "StatementsMissing"},
		"signed by a stranger": {func(t *testing.T) []peering.Envelope {
			e := good[0]
			e.Signatures = nil
			e, err := e.Sign(nil, stranger.ID(), stranger.Signer())
			if err != nil {
				t.Fatal(err)
			}
			return []peering.Envelope{e}
		}, 0, "SignatureInvalid"},
		"signed by a stranger in the provider's name": {func(t *testing.T) []peering.Envelope {
			e := good[0]
			e.Signatures = nil
			e, err := e.Sign(nil, p.provider.ID(), stranger.Signer())
			if err != nil {
				t.Fatal(err)
			}
			return []peering.Envelope{e}
		}, 0, "SignatureInvalid"},
		"not signed": {func(*testing.T) []peering.Envelope {
			e := good[0]
			e.Signatures = nil
			return []peering.Envelope{e}
		}, 0, "SignatureInvalid"},
		"a contract in its place":        {func(t *testing.T) []peering.Envelope { return []peering.Envelope{p.signed(t, terms)} }, 0, "SignatureInvalid"},
		"an empty payload":               {these(peering.Envelope{Payload: []byte("{}"), PayloadType: peering.StatementPayloadType}), 0, "SignatureInvalid"},
		"another contract's":             {one(func(s *peering.Statement) { s.ContractID = "c-2" }), 0, "ContractMismatch"},
		"another consumer's":             {one(func(s *peering.Statement) { s.Consumer = stranger.ID() }), 0, "ContractMismatch"},
		"at another price":               {one(func(s *peering.Statement) { s.Price = eur(t, "cpu", "0.2") }), 0, "PriceMismatch"},
		"at the price of something else": {one(func(s *peering.Statement) { s.Price = eur(t, "memory", "0.1") }), 0, "PriceMismatch"},
		"in another currency":            {one(func(s *peering.Statement) { s.Price.Currency = "USD" }), 0, "PriceMismatch"},
		"of a revision never signed":     {one(func(s *peering.Statement) { s.Revision = 2 }), 0, "RevisionMismatch"},
		"from before the contract":       {one(func(s *peering.Statement) { s.From = s.From.Add(-time.Second); s.To = s.To.Add(-time.Second) }), 0, "PeriodMismatch"},
		"of a longer period":             {one(func(s *peering.Statement) { s.To = s.To.Add(time.Second) }), 0, "PeriodMismatch"},
		"of a shorter period":            {one(func(s *peering.Statement) { s.To = s.To.Add(-time.Second) }), 0, "PeriodMismatch"},
		"of time to come": {func(t *testing.T) []peering.Envelope {
			return p.statementsOf(t, terms, 20, nil)
		}, 13, "PeriodMismatch"}, // until ten minutes from now, which clocks may differ by
		"a second that leaves out a minute": {func(t *testing.T) []peering.Envelope {
			return p.statementsOf(t, terms, 2, func(i int, s *peering.Statement) {
				if i == 1 {
					s.From, s.To = s.From.Add(time.Minute), s.To.Add(time.Minute)
				}
			})
		}, 1, "PeriodMismatch"},
		"a second that follows something else": {func(t *testing.T) []peering.Envelope {
			return p.statementsOf(t, terms, 2, func(i int, s *peering.Statement) {
				if i == 1 {
					s.Previous = peering.Hash{1}
				}
			})
		}, 2, "ChainBroken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, p.consumer, p.stored(t, terms, p.consumer), foreign("peer", p.provider))
			b.clock = now.Add(time.Hour - 2*time.Minute)
			answer := tc.answer(t)
			b.peer.statements = func(after uint64) ([]peering.Envelope, error) {
				if after > 0 {
					return nil, nil
				}
				return answer, nil
			}
			b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Active", StatementSequence: 3})
			got := b.look(t)
			if len(got.Status.Statements) != tc.kept {
				t.Errorf("%d are kept, want %d", len(got.Status.Statements), tc.kept)
			}
			valid := meta.FindStatusCondition(got.Status.Conditions, ConditionStatementsValid)
			if valid == nil || (valid.Status == metav1.ConditionTrue) != (tc.reason == "") || tc.reason != "" && valid.Reason != tc.reason {
				t.Errorf("the condition is %+v, want reason %q", valid, tc.reason)
			}
			if b.peer.calls > 1 {
				t.Errorf("the provider was asked %d times in a moment", b.peer.calls)
			}
		})
	}
}

func TestStatementAtThePreviousPriceIsAccepted(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	first := p.terms(t, nil)
	second := next(first, p.signed(t, first), func(x *peering.Terms) { x.Price = eur(t, "cpu", "0.2") })
	b := newBench(t, p.consumer, p.stored(t, first, p.consumer), foreign("peer", p.provider))
	b.look(t)
	b.peer.contract = func() (peering.Envelope, error) { return p.signed(t, second), nil }
	// The statement was made just before the revision, and arrives just after.
	statement := p.statementsOf(t, first, 1, nil)
	b.peer.statements = func(uint64) ([]peering.Envelope, error) { return statement, nil }
	b.clock = now.Add(10 * time.Minute)
	b.says(t, v1alpha1.PeerContract{Revision: 2, Phase: "Active", StatementSequence: 1})
	got := b.look(t)
	if got.Spec.Revision != 2 || len(got.Status.Statements) != 1 || !meta.IsStatusConditionTrue(got.Status.Conditions, ConditionStatementsValid) {
		t.Errorf("revision %d, %d statements, %+v", got.Spec.Revision, len(got.Status.Statements), got.Status.Conditions)
	}
}

func TestAgreementComparesTheTwoCounts(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	free := func(x *peering.Terms) { x.Price = peering.PriceList{} }
	for name, tc := range map[string]struct {
		terms     func(*peering.Terms)
		said, own string // processor-seconds
		since     time.Duration
		known     bool
		agreed    bool
	}{
		"the same":                             {said: "300", own: "300", known: true, agreed: true},
		"a little less":                        {said: "300", own: "298", known: true, agreed: true},
		"a tenth more":                         {said: "330", own: "300", known: true},
		"a tenth less":                         {said: "270", own: "300", known: true},
		"one percent is not more than one":     {said: "1000", own: "990", known: true, agreed: true},
		"a pod of a second seen a moment late": {said: "3", own: "1", known: true, agreed: true},
		"nothing and something":                {said: "300", own: "", known: true},
		"nothing on both sides":                {said: "", own: "", known: true, agreed: true},
		"another period":                       {said: "300", own: "300", since: time.Second},
		"free of charge, the same":             {terms: free, said: "300", own: "300", known: true, agreed: true},
		"free of charge, a tenth more":         {terms: free, said: "330", own: "300", known: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			terms := p.terms(t, tc.terms)
			use := func(text string) map[string]string {
				if text == "" {
					return nil
				}
				return map[string]string{"cpu": text}
			}
			e := p.statementsOf(t, terms, 1, func(_ int, s *peering.Statement) {
				var err error
				if s.Used, err = peering.ParseUsage(use(tc.said)); err != nil {
					t.Fatal(err)
				}
			})[0]
			text, err := e.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			c := p.stored(t, terms, p.consumer)
			c.Status.Statements = []v1alpha1.Statement{{Sequence: 1, Envelope: string(text)}}
			c.Status.Usage = &v1alpha1.Usage{Sequence: 1, Periods: []v1alpha1.UsagePeriod{{
				Since: metav1.NewMicroTime(terms.NotBefore.Add(tc.since)), Until: metav1.NewMicroTime(terms.NotBefore.Add(terms.StatementPeriod)), UnitSeconds: use(tc.own),
			}}}
			agreed, reason, message, known := usage.Agreement(terms, c)
			if agreed != tc.agreed || known != tc.known {
				t.Errorf("agreed %t, known %t: %s: %s", agreed, known, reason, message)
			}
			if known && !agreed && !strings.Contains(message, "%") {
				t.Errorf("the message is %q", message)
			}
		})
	}
}

// TestBothSidesCountTheSame runs both sides on the same clock over the same pods,
// reconciled at different moments, and compares their counts.
func TestBothSidesCountTheSame(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, nil)
	request := &v1alpha1.PeeringRequest{ObjectMeta: metav1.ObjectMeta{Name: "request", UID: "uid"}}
	home := newBench(t, p.consumer, p.stored(t, terms, p.consumer), request, foreign("peer", p.provider))
	abroad := newBench(t, p.provider, p.stored(t, terms, p.provider), foreign("peer", p.consumer))
	home.peer.statements = func(after uint64) ([]peering.Envelope, error) {
		var out []peering.Envelope
		for _, s := range abroad.look(t).Status.Statements {
			if e, err := peering.ParseEnvelope([]byte(s.Envelope)); uint64(s.Sequence) > after && err == nil {
				out = append(out, e)
			}
		}
		return out, nil
	}
	both := func(d time.Duration) {
		t.Helper()
		abroad.clock = abroad.clock.Add(d)
		home.clock = abroad.clock.Add(300 * time.Millisecond)
		last := int64(0)
		if list := abroad.look(t).Status.Statements; len(list) > 0 {
			last = list[len(list)-1].Sequence
		}
		home.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Active", StatementSequence: last})
		home.look(t)
	}
	both(0)
	both(10 * time.Second)
	for _, o := range onNodeOf("request"+v1alpha1.VirtualNodeSuffix, "a", "b") {
		pod := o.(*corev1.Pod)
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: amountsIn("cpu=1", "memory=1Gi")}}}
		if err := home.client.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	abroad.offloaded.used, abroad.offloaded.pods = amountsIn("cpu=2", "memory=2Gi", "pods=2"), 2
	for range 50 {
		both(15 * time.Second)
	}
	got := home.look(t)
	if len(got.Status.Statements) != 2 || len(got.Status.Usage.Periods) != 2 {
		t.Fatalf("%d statements, %d own periods", len(got.Status.Statements), len(got.Status.Usage.Periods))
	}
	agrees := meta.FindStatusCondition(got.Status.Conditions, ConditionUsageAgrees)
	if agrees == nil || agrees.Status != metav1.ConditionTrue || !meta.IsStatusConditionTrue(got.Status.Conditions, ConditionStatementsValid) {
		t.Errorf("the conditions are %+v", got.Status.Conditions)
	}
	t.Logf("the provider states %v, the consumer counted %v", statementIn(t, got.Status.Statements[1]).Used.Strings(), got.Status.Usage.Periods[1].UnitSeconds)
}

// TestRestoredProvidersStatementsStayInDoubt restores a provider from a backup that lacks its last three statements.
// In two of their periods more was in use than at the backup: it states these two otherwise.
func TestRestoredProvidersStatementsStayInDoubt(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, func(x *peering.Terms) { x.NotAfter = x.NotAfter.Add(24 * time.Hour) })
	home := newBench(t, p.consumer, p.stored(t, terms, p.consumer), foreign("peer", p.provider))
	abroad := newBench(t, p.provider, p.stored(t, terms, p.provider), foreign("peer", p.consumer))
	home.peer.statements = func(after uint64) ([]peering.Envelope, error) {
		calls := ContractCalls{Reader: abroad.client, Now: abroad.Now}
		return calls.Statements(t.Context(), p.consumer.ID(), "c-1", after)
	}
	pass := func(periods int) (mine, theirs *v1alpha1.Contract) {
		t.Helper()
		for range periods {
			abroad.clock = abroad.clock.Add(terms.StatementPeriod)
			home.clock = abroad.clock
			theirs = abroad.look(t)
			home.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Active", StatementSequence: int64(usage.Last(theirs).Sequence)})
			mine = home.look(t)
		}
		return mine, theirs
	}
	valid := func(c *v1alpha1.Contract) metav1.Condition {
		t.Helper()
		v := meta.FindStatusCondition(c.Status.Conditions, ConditionStatementsValid)
		if v == nil {
			t.Fatalf("the conditions are %+v", c.Status.Conditions)
		}
		return *v
	}
	abroad.offloaded.used = amountsIn("cpu=1")
	abroad.look(t)
	_, backup := pass(2)
	abroad.offloaded.used = amountsIn("cpu=3")
	mine, theirs := pass(3)
	if v := valid(mine); v.Status != metav1.ConditionTrue || len(mine.Status.Statements) != 5 {
		t.Fatalf("before the backup is restored there are %d statements: %+v", len(mine.Status.Statements), v)
	}
	restore := func() {
		t.Helper()
		theirs.Status = backup.Status
		if err := abroad.client.Status().Update(t.Context(), theirs); err != nil {
			t.Fatal(err)
		}
		abroad.Contracts = abroad.agent(p.provider)
	}
	restore()
	for _, periods := range []int{1, usage.MaxKept + 8} {
		mine, theirs = pass(periods)
		if v := valid(mine); v.Status != metav1.ConditionFalse || v.Reason != "ChainBroken" || !strings.Contains(v.Message, "2 periods") || !strings.Contains(v.Message, "4 to 5") {
			t.Errorf("%d periods later the condition is %+v", periods, v)
		}
		if got, want := usage.Last(mine), usage.Last(theirs); got.Hash != want.Hash || got.Sequence != want.Sequence {
			t.Errorf("%d periods later the consumer has statement %d, the provider %d", periods, got.Sequence, want.Sequence)
		}
	}
	// What was kept at the second time is counted once.
	_, backup = pass(1)
	abroad.offloaded.used = amountsIn("cpu=5")
	_, theirs = pass(3)
	restore()
	if mine, _ = pass(1); !strings.Contains(valid(mine).Message, "4 periods") {
		t.Errorf("after another time the condition is %+v", valid(mine))
	}
}

// TestMissingStatementsStayInDoubt has the provider drop statements before the consumer fetched them.
func TestMissingStatementsStayInDoubt(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, nil)
	all := p.statementsOf(t, terms, 8, nil)
	b := newBench(t, p.consumer, p.stored(t, terms, p.consumer), foreign("peer", p.provider))
	b.clock = now.Add(time.Hour - 2*time.Minute)
	b.peer.statements = func(after uint64) ([]peering.Envelope, error) { return all[max(after, 3):min(after+5, 8)], nil }
	for _, sequence := range []int64{5, 8} {
		b.clock = b.clock.Add(fetchAgain)
		b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Active", StatementSequence: sequence})
		got := b.look(t)
		v := meta.FindStatusCondition(got.Status.Conditions, ConditionStatementsValid)
		if v == nil || v.Status != metav1.ConditionFalse || v.Reason != "StatementsMissing" || !strings.Contains(v.Message, "3 periods") || !strings.Contains(v.Message, "1 to 3") {
			t.Errorf("with %d statements the condition is %+v", usage.Last(got).Sequence, v)
		}
	}
}

func TestNewestStatementsAreKept(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, func(x *peering.Terms) { x.StatementPeriod, x.NotAfter = time.Minute, x.NotAfter.Add(24*time.Hour) })
	b := newBench(t, p.provider, p.stored(t, terms, p.provider), foreign("peer", p.consumer))
	b.look(t)
	b.clock = now.Add(2 * time.Hour)
	got := b.look(t)
	if n := len(got.Status.Statements); n != usage.MaxKept || got.Status.Statements[n-1].Sequence != 121 {
		t.Errorf("%d are kept, the last is %d", n, got.Status.Statements[n-1].Sequence)
	}
	previous := peering.Hash{}
	for i, s := range got.Status.Statements {
		e, err := peering.ParseEnvelope([]byte(s.Envelope))
		if err != nil {
			t.Fatal(err)
		}
		if statement, err := e.VerifyStatement(p.provider.Party()); err != nil || i > 0 && statement.Previous != previous {
			t.Errorf("statement %d: %v, after %s", s.Sequence, err, statement.Previous)
		}
		previous = e.Hash()
	}
}

func TestUnreadableMeterStartsAgain(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	b := newBench(t, p.provider, p.stored(t, p.terms(t, nil), p.provider), foreign("peer", p.consumer))
	b.offloaded.used = amountsIn("cpu=2")
	b.look(t)
	b.clock = now.Add(10 * time.Minute)
	got := b.look(t)
	n := len(got.Status.Statements)
	got.Status.Usage.UnitSeconds = map[string]string{"cpu": "-1"}
	if err := b.client.Status().Update(t.Context(), got); err != nil {
		t.Fatal(err)
	}
	b.Contracts = b.agent(p.provider)
	for range 30 {
		b.clock = b.clock.Add(20 * time.Second)
		got = b.look(t)
	}
	if len(got.Status.Statements) <= n {
		t.Error("it states nothing any more")
	}
	last := uint64(0)
	for _, s := range got.Status.Statements {
		if s := statementIn(t, s); s.Sequence != last+1 {
			t.Errorf("statement %d comes after %d", s.Sequence, last)
		} else {
			last = s.Sequence
		}
	}
}

func TestPeerIsAskedAgainAfterAPause(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	b := newBench(t, p.consumer, p.stored(t, p.terms(t, nil), p.consumer), foreign("peer", p.provider))
	b.peer.statements = func(uint64) ([]peering.Envelope, error) { return nil, errors.New("not now") }
	b.says(t, v1alpha1.PeerContract{Revision: 7, Phase: "Active", StatementSequence: 9})
	for range 60 {
		b.clock = b.clock.Add(time.Second)
		b.look(t)
	}
	if most := 2 * (60/int(fetchAgain.Seconds()) + 1); b.peer.calls > most {
		t.Errorf("it was asked %d times in a minute, want at most %d", b.peer.calls, most)
	}
}
