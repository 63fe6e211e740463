package mdns

import (
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// idleHost is a host that published a while ago: nothing is due, and no record was
// sent within the last second.
func idleHost(t *testing.T) (*lan, *host) {
	t.Helper()
	n := newLAN(t)
	h := n.add()
	s := service(1, "office")
	s.Automatic = true
	h.publish(n.now, []discovery.Service{s})
	n.run(20 * time.Second)
	n.forget()
	return n, h
}

const stranger = "10.0.0.99:5353"

var office = join(serviceName, "office")

// reply injects a query and returns the answers, and after how long the first came.
func (n *lan) reply(h *host, b []byte) ([]sent, time.Duration) {
	before := n.now
	n.forget()
	n.inject(h, stranger, b)
	n.run(3 * time.Second)
	answers := n.since(before.Add(-1), h, responseOf)
	if len(answers) == 0 {
		return nil, 0
	}
	return answers, answers[0].at.Sub(before)
}

func TestSharedAnswersAreSpread(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	var quarters [4]int
	for range 200 {
		answers, after := n.reply(h, ask([]question{{name: serviceName, typ: dns.TypePTR}}))
		if len(answers) != 1 || after < answerMin || after > answerMax {
			t.Fatalf("%d answers after %v", len(answers), after)
		}
		quarters[min(3, (after-answerMin)*4/(answerMax-answerMin))]++
		if m := answers[0]; len(m.answers) != 1 || !has(m.additional, dns.TypeSRV, office) || !has(m.additional, dns.TypeTXT, office) ||
			!has(m.additional, dns.TypeA, domain("entente-1.local")) || !has(m.additional, dns.TypeNSEC, domain("entente-1.local")) {
			t.Fatalf("answered %+v", m.message)
		}
	}
	for i, q := range quarters {
		if q < 20 {
			t.Errorf("%d of 200 answers in quarter %d: %v", q, i, quarters)
		}
	}
}

func TestUniqueAnswersComeAtOnce(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	for name, q := range map[string]question{
		"SRV": {name: office, typ: dns.TypeSRV}, "TXT in other case": {name: join(serviceName, "OFFICE"), typ: dns.TypeTXT},
		"A": {name: domain("entente-1.LOCAL"), typ: dns.TypeA}, "ANY": {name: office, typ: dns.TypeANY},
	} {
		answers, after := n.reply(h, ask([]question{q}))
		if len(answers) != 1 || after > 10*time.Millisecond {
			t.Errorf("%s: %d answers after %v", name, len(answers), after)
		}
	}
}

func TestNegativeAnswers(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	answers, _ := n.reply(h, ask([]question{{name: domain("entente-1.local"), typ: dns.TypeAAAA}}))
	if len(answers) != 1 || len(answers[0].answers) != 1 {
		t.Fatalf("answered %+v", answers)
	}
	var m dns.Msg
	if err := m.Unpack(answers[0].data); err != nil {
		t.Fatal(err)
	}
	rr, ok := m.Answer[0].(*dns.NSEC)
	if !ok || rr.NextDomain != "entente-1.local." || len(rr.TypeBitMap) != 1 || rr.TypeBitMap[0] != dns.TypeA || rr.Hdr.Class != 1|1<<15 {
		t.Errorf("answered %v", m.Answer[0])
	}
	if answers, _ := n.reply(h, ask([]question{{name: domain("other.local"), typ: dns.TypeA}})); len(answers) != 0 {
		t.Error("it answers for a name that is not its own")
	}
}

func TestSubtypesAndTypesAreAnswered(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	for q, want := range map[name]name{automatic: office, metaName: serviceName, serviceName: office} {
		answers, _ := n.reply(h, ask([]question{{name: q, typ: dns.TypePTR}}))
		if len(answers) != 1 || answers[0].answers[0].target() != want || answers[0].answers[0].flush {
			t.Errorf("%s: %+v", q, answers)
		}
	}
}

func TestKnownAnswersAreNotGiven(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	q := []question{{name: serviceName, typ: dns.TypePTR}}
	known := ptr(serviceName, office)
	if known.ttl = ttlOther / 2; !answered(n.reply(h, ask(q))) || answered(n.reply(h, ask(q, known))) {
		t.Error("half of the TTL is known, and it is answered")
	}
	if known.ttl -= time.Second; !answered(n.reply(h, ask(q, known))) {
		t.Error("less than half of the TTL is known, and it is not answered")
	}
	if len(h.cache.sets) != 0 {
		t.Error("known answers are believed")
	}
}

func answered(answers []sent, _ time.Duration) bool { return len(answers) > 0 }

func TestMoreKnownAnswersAreAwaited(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	q := newPacker(1452)
	q.question(question{name: serviceName, typ: dns.TypePTR})
	first := q.bytes(0, bitTruncated)
	answers, after := n.reply(h, first)
	if len(answers) != 1 || after < moreMin || after > moreMax {
		t.Errorf("%d answers after %v", len(answers), after)
	}
	rest := newPacker(1452)
	rest.record(inAnswers, ptr(serviceName, office))
	for who, want := range map[string]int{stranger: 0, "10.0.0.98:5353": 1} {
		before := n.now
		n.inject(h, stranger, first)
		n.run(300 * time.Millisecond)
		n.inject(h, who, rest.bytes(0, 0))
		n.run(3 * time.Second)
		if got := len(n.since(before, h, responseOf)); got != want {
			t.Errorf("the rest is from %s: %d answers, want %d", who, got, want)
		}
	}
}

func TestARecordIsMulticastOnceASecond(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	start := n.now
	for range 100 {
		n.inject(h, stranger, ask([]question{{name: serviceName, typ: dns.TypePTR}, {name: office, typ: dns.TypeSRV}}))
		n.run(50 * time.Millisecond)
	}
	last := map[ident]time.Time{}
	count := 0
	for _, s := range n.since(start.Add(-1), h, responseOf) {
		for _, r := range append(s.answers, s.additional...) {
			if d := s.at.Sub(last[r.ident()]); d < time.Second {
				t.Errorf("%s of type %d is sent again after %v", r.name, r.typ, d)
			}
			last[r.ident()] = s.at
			count++
		}
	}
	if count < 5*3 {
		t.Errorf("only %d records in five seconds", count)
	}
}

func TestProbesAreAnsweredSooner(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	start := n.now
	p := newPacker(1452)
	p.question(question{office, dns.TypeANY, true})
	p.record(inProposed, txt(office, []string{"mine"}))
	for range 4 {
		n.inject(h, stranger, p.bytes(0, 0))
		n.run(250 * time.Millisecond)
	}
	answers := n.since(start.Add(-1), h, func(s sent) bool { return s.response && !s.to.IsValid() })
	if len(answers) != 4 {
		t.Fatalf("%d of 4 probes are answered to all", len(answers))
	}
	for i, s := range answers {
		if s.at.Sub(start) != time.Duration(i)*250*time.Millisecond {
			t.Errorf("answer %d after %v", i, s.at.Sub(start))
		}
	}
}

func TestQUIsAnsweredToTheOne(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	qu := ask([]question{{office, dns.TypeSRV, true}})
	// It was sent 15 s ago, less than a quarter of 120 s.
	answers, _ := n.reply(h, qu)
	if len(answers) != 1 || answers[0].to != netip.MustParseAddrPort(stranger) {
		t.Errorf("answered %+v", answers)
	}
	n.run(31 * time.Second)
	answers, _ = n.reply(h, qu)
	if len(answers) != 1 || answers[0].to.IsValid() {
		t.Errorf("after more than a quarter of the TTL it is answered %+v", answers)
	}
}

func TestSimpleResolversAreAnswered(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	p := newPacker(512)
	p.question(question{serviceName, dns.TypePTR, false})
	before := n.now
	h.receive(n.now, p.bytes(4711, 0), netip.MustParseAddrPort("10.0.0.99:40000"), true)
	n.run(time.Second)
	answers := n.since(before.Add(-1), h, responseOf)
	if len(answers) != 1 || answers[0].at != before || answers[0].to.Port() != 40000 {
		t.Fatalf("answered %+v", answers)
	}
	m := answers[0]
	if m.id != 4711 || len(m.questions) != 1 || m.questions[0].name != serviceName || len(m.answers) != 1 || len(m.additional) < 3 {
		t.Errorf("answered %+v", m.message)
	}
	for _, r := range append(m.answers, m.additional...) {
		if r.ttl > ttlLegacy || r.flush {
			t.Errorf("type %d has a TTL of %v, cache-flush %v", r.typ, r.ttl, r.flush)
		}
	}
}

func TestSimpleResolversAreAnsweredNotTooOften(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	p := newPacker(512)
	p.question(question{serviceName, dns.TypePTR, false})
	for i := range 150 {
		h.receive(n.now, p.bytes(uint16(i), 0), netip.MustParseAddrPort("10.0.0.99:40000"), true)
	}
	if got := len(h.packets()); got != maxUnicast {
		t.Errorf("%d packets, want %d", got, maxUnicast)
	}
}

func TestAnswersOfOthersAreNotRepeated(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ttl  time.Duration
		want int
	}{"the same TTL": {ttlOther, 0}, "less of a TTL": {ttlOther - time.Second, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, h := idleHost(t)
			before := n.now
			n.inject(h, stranger, ask([]question{{name: metaName, typ: dns.TypePTR}}))
			r := ptr(metaName, serviceName)
			r.ttl = tt.ttl
			n.run(10 * time.Millisecond)
			n.inject(h, "10.0.0.98:5353", say(r))
			n.run(2 * time.Second)
			if got := len(n.since(before, h, responseOf)); got != tt.want {
				t.Errorf("%d answers, want %d", got, tt.want)
			}
		})
	}
}

// In a link of two families, what was received in one of them was not received in the other.
func TestAnswersGoToBothFamilies(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	h.families = ipv4Family | ipv6Family
	for _, tt := range []struct {
		from []string
		want int
	}{{[]string{"10.0.0.98:5353"}, 1}, {[]string{"10.0.0.98:5353", "[fe80::1%eth1]:5353"}, 0}} {
		before := n.now
		n.inject(h, stranger, ask([]question{{name: metaName, typ: dns.TypePTR}}))
		for _, from := range tt.from {
			n.inject(h, from, say(ptr(metaName, serviceName)))
		}
		n.run(5 * time.Second)
		if got := len(n.since(before, h, responseOf)); got != tt.want {
			t.Errorf("from %q: %d answers, want %d", tt.from, got, tt.want)
		}
	}
}

func TestAnswersAreAggregated(t *testing.T) {
	t.Parallel()
	n, h := idleHost(t)
	before := n.now
	n.inject(h, stranger, ask([]question{{name: metaName, typ: dns.TypePTR}}))
	n.inject(h, "10.0.0.98:5353", ask([]question{{name: automatic, typ: dns.TypePTR}}))
	n.inject(h, "10.0.0.97:5353", ask([]question{{name: serviceName, typ: dns.TypePTR}}))
	n.run(3 * time.Second)
	if answers := n.since(before, h, responseOf); len(answers) != 1 || len(answers[0].answers) != 3 {
		t.Errorf("%d packets, the first with %d answers", len(answers), len(answers[0].answers))
	}
}

// Another host sends a record of ours with a goodbye, or with a lower TTL (section 6.6, 10.1).
func TestOurRecordsAreRescued(t *testing.T) {
	t.Parallel()
	for _, ttl := range []time.Duration{0, ttlOther/2 - time.Second} {
		n, h := idleHost(t)
		r := ptr(serviceName, office)
		r.ttl = ttl
		before := n.now
		n.inject(h, stranger, say(r))
		n.run(time.Second)
		if answers := n.since(before.Add(-1), h, responseOf); len(answers) != 1 || !has(answers[0].answers, dns.TypePTR, serviceName) {
			t.Errorf("a TTL of %v: %d answers", ttl, len(answers))
		}
	}
}

func TestASetIsFlushedAsAWhole(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	h := n.add()
	h.setAddresses(n.now, addrs("10.0.0.1", "10.0.0.2", "fd00::1"))
	h.publish(n.now, []discovery.Service{service(1, "office")})
	n.run(20 * time.Second)
	first := domain("entente-1.local")
	answers, _ := n.reply(h, ask([]question{{name: first, typ: dns.TypeA}}, address(first, netip.MustParseAddr("10.0.0.1"))))
	if len(answers) != 1 || len(answers[0].answers) != 2 {
		t.Errorf("answered %+v", answers)
	}
}

func TestUnprobedNamesAreNotAnswered(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	h := n.cluster("office")
	n.run(300 * time.Millisecond)
	n.inject(h, stranger, ask([]question{{name: office, typ: dns.TypeSRV}, {name: serviceName, typ: dns.TypePTR}}))
	n.run(200 * time.Millisecond)
	if answers := n.since(epoch, h, responseOf); len(answers) != 0 {
		t.Errorf("answered %+v", answers)
	}
}

func TestLargeAnswersAreSplit(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	h := n.add()
	h.payload = 500
	var list []discovery.Service
	for i := range 20 {
		list = append(list, service(i+1, string(rune('a'+i))+" rather long name of an instance"))
	}
	h.publish(n.now, list)
	n.run(10 * time.Second)
	for _, s := range n.log {
		if len(s.data) > 500 {
			t.Errorf("a packet of %d bytes", len(s.data))
		}
	}
	other := n.add()
	other.browse(n.now, []name{serviceName})
	n.run(10 * time.Second)
	if got := len(other.found()); got != 20 {
		t.Errorf("found %d of 20", got)
	}
}
