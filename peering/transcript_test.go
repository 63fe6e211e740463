package peering

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestTranscripts plays the scripts in testdata/transcripts: a consumer and a provider,
// each with its own copy of the contract, keys and clock, and what happens, line by
// line. Their decisions are those of this package. To rewrite them with the current results:
//
//	go test ./peering -run Transcripts -rewrite
//
// Commands, each with its arguments as key=value:
//
//	policy   [cpu=N] [for=D] [notice=D] [accept=Never]   what the provider offers
//	ask      [cpu=N] [for=D]                             the consumer asks, for its contract's next revision once it has one
//	deliver  [to=consumer|provider] [n=N]                what is under way arrives, in order; answers are under way then
//	drop, repeat [to=…] [n=N]                            it is lost, or arrives and is under way still
//	delay    [to=…] [n=N]                                it arrives after all else that is under way
//	wait     for=D                                       time goes by, on both clocks
//	skew     by=D                                        the consumer's clock is so far ahead
//	state    of=consumer|provider                        it reports its state
//	end      of=…                                        it ends the contract at once
//	drain    of=… [grace=D]                              it ends the contract once its pods are gone
//	left     of=…                                        nothing runs any more
//	restart  of=…                                        it forgets what is not stored
//	forge    of=…                                        the next message from it is changed on the way
//	wants                                                what should exist because of the contract, and whether what runs is evicted
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/transcripts", func(t *testing.T, path string) {
		s := newStage(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.lines = nil
			s.play(t, d)
			if len(s.lines) == 0 {
				return "nothing changes"
			}
			return strings.NewReplacer(
				string(s.consumer.cluster.party.ID), "the consumer", string(s.provider.cluster.party.ID), "the provider",
			).Replace(strings.Join(s.lines, "\n"))
		})
	})
}

// side is one of the two agents.
type side struct {
	cluster  cluster
	contract Contract
	terms    Terms
	// envelope is the newest revision that both signed.
	envelope Envelope
	skew     time.Duration
}

// letter is a message under way.
type letter struct {
	from Role
	name string
	// take is what the other side does with it.
	take func()
}

// stage is the two agents, and what is under way between them.
type stage struct {
	t                  *testing.T
	now                time.Time
	consumer, provider side
	policy             Policy
	// offer is what the provider reserves for the consumer until validUntil.
	offer      *Terms
	validUntil time.Time
	contracts  int
	letters    []letter
	forge      Role
	lines      []string
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, now: t0, policy: Policy{
		Name: "default", Accept: Automatic, Ceilings: Resources{"cpu": Whole(8)}, PercentOfFree: 100, TotalPercent: 100, OvercommitPercent: 100, Duration: time.Hour, Network: true, Renewable: true,
	}}
	s.consumer.cluster, s.provider.cluster = newCluster(t), newCluster(t)
	return s
}

func (s *stage) print(format string, args ...any) {
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// name returns a role as the scripts have it.
func name(r Role) string { return strings.ToLower(r.String()) }

func (s *stage) of(r Role) *side {
	if r == Consumer {
		return &s.consumer
	}
	return &s.provider
}

func (s *stage) clock(r Role) time.Time { return s.now.Add(s.of(r).skew) }

// send puts a message under way.
func (s *stage) send(from Role, take func(), format string, args ...any) {
	l := letter{from, fmt.Sprintf(format, args...), take}
	s.print("%s → %s: %s", name(from), name(from.Other()), l.name)
	s.letters = append(s.letters, l)
}

// at writes a moment as time since the beginning.
func at(t time.Time) string { return "+" + t.Sub(t0).String() }

// apply applies an event to a side's contract, and writes the result.
func (s *stage) apply(r Role, e Event) bool {
	side := s.of(r)
	before := side.contract
	after, err := before.Apply(e)
	if err != nil {
		s.print("%s refuses: %v", name(r), err)
		return false
	}
	side.contract = after
	if after == before {
		return true
	}
	text := fmt.Sprintf("%s: %s", name(r), after.State)
	if before.State != after.State {
		text = fmt.Sprintf("%s: %s → %s", name(r), before.State, after.State)
	}
	if after.Revision != before.Revision {
		text += fmt.Sprintf(", revision %d until %s", after.Revision, at(after.NotAfter))
	}
	if after.State == Draining {
		text += ", until " + at(after.DrainUntil)
	}
	if after.Reason != before.Reason {
		text += ", " + after.Reason.String()
	}
	s.print("%s", text)
	return true
}

// play does one command.
func (s *stage) play(t *testing.T, d *datadriven.TestData) {
	var role Role
	if d.HasArg("of") {
		role = s.role(t, d, "of")
	}
	length := func(key string) (out time.Duration) {
		if d.HasArg(key) {
			var text string
			d.ScanArgs(t, key, &text)
			var err error
			if out, err = time.ParseDuration(text); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		return out
	}
	cores := func() (out Resources) {
		if d.HasArg("cpu") {
			var n int64
			d.ScanArgs(t, "cpu", &n)
			out = Resources{"cpu": Whole(n)}
		}
		return out
	}
	switch d.Cmd {
	case "policy":
		if s.policy.Accept = Automatic; d.HasArg("accept") {
			s.policy.Accept = Never
		}
		s.policy.Ceilings, s.policy.Notice = cores(), length("notice")
		if l := length("for"); l > 0 {
			s.policy.Duration = l
		}
	case "ask":
		s.ask(Ask{RequestID: "r", Resources: cores(), Duration: length("for"), Network: true, ContractID: s.consumer.inForce()})
	case "deliver", "drop", "repeat", "delay":
		s.deliver(t, d)
	case "wait":
		s.now = s.now.Add(length("for"))
		for _, r := range []Role{Consumer, Provider} {
			s.apply(r, Tick{s.clock(r)})
		}
		if s.offer != nil && !s.clock(Provider).Before(s.validUntil) {
			s.offer = nil
			s.print("provider: the offer expired, and what it reserved is free")
		}
	case "skew":
		s.consumer.skew = length("by")
	case "state":
		s.state(role)
	case "end":
		s.apply(role, Terminate{By: role, Mode: Now, Now: s.clock(role)})
	case "drain":
		s.apply(role, Terminate{By: role, Mode: Drain, Now: s.clock(role), Grace: length("grace")})
	case "left":
		s.apply(role, Drained{s.clock(role)})
	case "restart":
		if role == Provider && s.offer != nil {
			s.offer = nil
			s.print("provider: its offer is forgotten")
		}
		if side := s.of(role); side.contract.State != Nothing {
			side.contract = Restore(side.terms, side.envelope.Hash(), role, stored(side.contract))
			s.print("%s: %s, revision %d, as it was stored", name(role), side.contract.State, side.contract.Revision)
		}
	case "forge":
		s.forge = role
	case "wants":
		for _, r := range []Role{Consumer, Provider} {
			c := s.of(r).contract
			s.print("%s, %s: %s", name(r), c.State, wanted(c, s.clock(r)))
		}
	default:
		d.Fatalf(t, "there is no command %s", d.Cmd)
	}
}

// wanted names what is wanted.
func wanted(c Contract, now time.Time) string {
	var out []string
	for field, value := range reflect.ValueOf(c.Desired()).Fields() {
		if value.Bool() {
			out = append(out, field.Name)
		}
	}
	if c.Evicts(now) {
		out = append(out, "Evict")
	}
	return cmp.Or(strings.Join(out, ", "), "nothing")
}

func (s *stage) role(t *testing.T, d *datadriven.TestData, key string) Role {
	var text string
	d.ScanArgs(t, key, &text)
	for _, r := range []Role{Consumer, Provider} {
		if name(r) == text {
			return r
		}
	}
	d.Fatalf(t, "%s=%s: want consumer or provider", key, text)
	return 0
}

// deliver lets messages arrive, be lost, be late, or arrive and come again.
func (s *stage) deliver(t *testing.T, d *datadriven.TestData) {
	var to Role
	if d.HasArg("to") {
		to = s.role(t, d, "to")
	}
	n := len(s.letters)
	if d.HasArg("n") {
		d.ScanArgs(t, "n", &n)
	}
	var now []letter
	s.letters = slices.DeleteFunc(s.letters, func(l letter) bool {
		takes := len(now) < n && l.from != to
		if takes {
			now = append(now, l)
		}
		return takes && d.Cmd != "repeat"
	})
	if d.Cmd == "delay" {
		s.letters = append(s.letters, now...)
		return
	}
	for _, l := range now {
		if d.Cmd == "drop" {
			s.print("lost: %s", l.name)
			continue
		}
		l.take()
	}
}

// inForce is the ID of a side's contract, if it is in force.
func (s *side) inForce() string {
	if s.contract.State != Active {
		return ""
	}
	return s.contract.ID
}

func (s *stage) ask(ask Ask) {
	s.send(Consumer, func() { s.decide(ask) }, "RequestPeering %s", askText(ask))
}

func askText(a Ask) string {
	text := "as much as there is"
	if cpu, ok := a.Resources["cpu"]; ok {
		text = "cpu=" + cpu.String()
	}
	if a.Duration > 0 {
		text += " for " + a.Duration.String()
	}
	if a.ContractID != "" {
		text += ", instead of what " + a.ContractID + " says"
	}
	return text
}

// decide is the provider's answer to an ask.
func (s *stage) decide(ask Ask) {
	have := Capacity{Free: Resources{"cpu": Whole(8), Pods: Whole(110)}}
	if c := s.provider.contract; c.Desired().Capacity && ask.ContractID != c.ID {
		have.Reserved = s.provider.terms.Resources
		have.ReservedByPolicy, have.ReservedForPeer = have.Reserved, have.Reserved
	}
	grant, err := Decide(ask, s.policy, have)
	if err != nil {
		s.send(Provider, func() {}, "no: %v", err)
		return
	}
	terms := Terms{
		ContractID: ask.ContractID, RequestID: ask.RequestID, Revision: 1, NotAfter: time.Time{}.Add(grant.Duration),
		Clauses: Clauses{
			Resources: grant.Resources, Network: grant.Network, PodSecurity: PodSecurityBaseline, Renewable: grant.Renewable, Notice: grant.Notice, Exposure: grant.Exposure,
		},
	}
	if c := s.provider.contract; ask.ContractID != "" {
		if c.State != Active || c.ID != ask.ContractID {
			s.send(Provider, func() {}, "no: contract %s has ended", ask.ContractID)
			return
		}
		terms.Revision, terms.Previous = c.Revision+1, c.Hash
	} else {
		s.contracts++
		terms.ContractID = fmt.Sprint("c-", s.contracts)
	}
	s.offer, s.validUntil = &terms, s.clock(Provider).Add(time.Minute)
	s.send(Provider, func() { s.sign(terms) }, "Advertisement %s revision %d: cpu=%s for %s, valid for 1m", terms.ContractID, terms.Revision, grant.Resources["cpu"], grant.Duration)
}

// sign is the consumer's answer to an offer.
func (s *stage) sign(t Terms) {
	t.Consumer, t.Provider = s.consumer.cluster.party, s.provider.cluster.party
	t.NotBefore = s.clock(Consumer).Add(-time.Minute)
	t.NotAfter = t.NotBefore.Add(t.NotAfter.Sub(time.Time{}))
	e := s.consumer.cluster.sign(s.t, envelope(s.t, t))
	s.send(Consumer, func() { s.countersign(e) }, "SignContract %s revision %d, signed by the consumer", t.ContractID, t.Revision)
}

// changed is an envelope as it arrives, if it is forged on the way.
func (s *stage) changed(from Role, e Envelope) Envelope {
	if s.forge != from {
		return e
	}
	s.forge = 0
	e.Payload = []byte(strings.Replace(string(e.Payload), `"network":true`, `"network":false`, 1))
	return e
}

// countersign is what the provider does with a consumer's signature.
func (s *stage) countersign(e Envelope) {
	terms, err := s.changed(Consumer, e).VerifyConsumer()
	if err != nil {
		s.print("provider refuses: %v", err)
		return
	}
	p := &s.provider
	if c := p.contract; c.State == Active && c.ID == terms.ContractID && c.Revision == terms.Revision {
		s.answer() // it was signed before, and the answer lost
		return
	}
	if s.offer == nil || s.offer.ContractID != terms.ContractID || s.offer.Revision != terms.Revision {
		s.send(Provider, func() {}, "no: there is no advertisement of revision %d", terms.Revision)
		return
	}
	signed := p.cluster.sign(s.t, e)
	if s.apply(Provider, Countersigned{Provider, terms, signed.Hash(), s.clock(Provider)}) {
		p.terms, p.envelope, s.offer = terms, signed, nil
		s.answer()
	}
}

// answer sends the revision that the provider has.
func (s *stage) answer() {
	e := s.provider.envelope
	s.send(Provider, func() { s.adopt(Consumer, e) }, "%s revision %d, signed by both", s.provider.contract.ID, s.provider.contract.Revision)
}

// adopt applies what both signed.
func (s *stage) adopt(r Role, e Envelope) {
	terms, err := s.changed(r.Other(), e).Verify()
	if err != nil {
		s.print("%s refuses: %v", name(r), err)
		return
	}
	if side := s.of(r); s.apply(r, Countersigned{r, terms, e.Hash(), s.clock(r)}) {
		side.terms, side.envelope = terms, e
	}
}

// state sends a side's state.
func (s *stage) state(r Role) {
	c := s.of(r).contract
	if c.State == Nothing {
		s.print("%s has no contract to report", name(r))
		return
	}
	text := fmt.Sprintf("state: %s revision %d %s", c.ID, c.Revision, c.Phase())
	e := PeerReported{Revision: c.Revision, Phase: c.Phase()}
	if c.State == Draining {
		// The other side reckons with the difference of the clocks.
		e.DrainUntil = c.DrainUntil.Add(s.of(r.Other()).skew - s.of(r).skew)
		text += " until " + at(c.DrainUntil)
	}
	s.send(r, func() { s.receive(r.Other(), e) }, "%s", text)
}

// receive is what a side does with the other's state: it fetches what it missed.
func (s *stage) receive(r Role, e PeerReported) {
	e.Now = s.clock(r)
	s.apply(r, e)
	if c := s.of(r).contract; e.Revision > c.Revision && c.State != Closed {
		from := s.of(r.Other())
		envelope := from.envelope
		s.send(r, func() {
			s.send(r.Other(), func() { s.adopt(r, envelope) }, "%s revision %d, signed by both", from.contract.ID, from.contract.Revision)
		}, "GetContract %s", from.contract.ID)
	}
}
