package mdns

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

func TestProbesBeforeAnnouncing(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	h := n.cluster("office")
	n.run(10 * time.Second)
	sentProbes := n.since(epoch, h, probeOf)
	if len(sentProbes) != 3 {
		t.Fatalf("%d probes, want 3", len(sentProbes))
	}
	if d := sentProbes[0].at.Sub(epoch); d > 250*time.Millisecond {
		t.Errorf("the first probe after %v", d)
	}
	for i, p := range sentProbes {
		if i > 0 && p.at.Sub(sentProbes[i-1].at) != 250*time.Millisecond {
			t.Errorf("probe %d after %v", i, p.at.Sub(sentProbes[i-1].at))
		}
		if len(p.questions) != 2 || p.questions[0].typ != dns.TypeANY || !p.questions[0].unicast {
			t.Errorf("the questions are %v, want one ANY with QU for each of two names", p.questions)
		}
		if len(p.proposed) != 3 || len(p.answers) != 0 {
			t.Errorf("%d records are proposed, want A, SRV and TXT", len(p.proposed))
		}
		for _, r := range p.proposed {
			if r.flush {
				t.Error("cache-flush in a query")
			}
		}
	}
	answers := n.since(epoch, h, responseOf)
	if len(answers) != 3 {
		t.Fatalf("%d announcements, want 3", len(answers))
	}
	for i, want := range []time.Duration{250 * time.Millisecond, time.Second, 2 * time.Second} {
		before := sentProbes[2].at
		if i > 0 {
			before = answers[i-1].at
		}
		if d := answers[i].at.Sub(before); d != want {
			t.Errorf("announcement %d after %v, want %v", i, d, want)
		}
	}
	m := answers[0]
	if m.id != 0 || len(m.questions) != 0 || m.data[2] != 0x84 || m.data[3] != 0 {
		t.Errorf("header % x", m.data[:12])
	}
	if len(m.answers) != 5 {
		t.Errorf("%d records are announced, want A, SRV, TXT and two PTR", len(m.answers))
	}
	for _, r := range m.answers {
		if r.flush != (r.typ != dns.TypePTR) {
			t.Errorf("cache-flush of type %d is %v", r.typ, r.flush)
		}
		want := ttlOther
		if r.typ == dns.TypeA || r.typ == dns.TypeSRV {
			want = ttlHost
		}
		if r.ttl != want {
			t.Errorf("TTL of type %d is %v", r.typ, r.ttl)
		}
	}
}

func TestNamesThatAreTakenAreChanged(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a := n.cluster("office")
	n.run(5 * time.Second)
	b := n.add()
	s := service(2, "OFFICE")
	s.Host = "entente-1"
	b.publish(n.now, []discovery.Service{s})
	n.run(5 * time.Second)
	if a.stats.Conflicts != 0 || a.claims[1].label != "office" {
		t.Errorf("the first host has %d conflicts and is %q", a.stats.Conflicts, a.claims[1].label)
	}
	if b.claims[1].label != "OFFICE (2)" || b.claims[0].label != "entente-1-2" {
		t.Errorf("the second is %q on %q", b.claims[1].label, b.claims[0].label)
	}
	if got := names(a.found()); !slices.Equal(got, []string{"OFFICE (2)"}) {
		t.Errorf("found %q", got)
	}
	if !slices.Contains(b.renames, rename{"OFFICE", "OFFICE (2)"}) {
		t.Errorf("the change is not reported: %v", b.renames)
	}
}

func TestSimultaneousProbes(t *testing.T) {
	t.Parallel()
	for seed := range 20 {
		n := newLAN(t)
		n.delay = time.Duration(seed+1) * time.Millisecond
		var all []*host
		for range 4 {
			h := n.cluster("office")
			h.claims[0].due, h.claims[1].due = n.now, n.now
			all = append(all, h)
		}
		n.run(30 * time.Second)
		var labels []string
		for _, h := range all {
			labels = append(labels, h.claims[1].label)
		}
		slices.Sort(labels)
		if len(slices.Compact(slices.Clone(labels))) != 4 || !slices.Contains(labels, "office") {
			t.Fatalf("delay %v: the names are %q", n.delay, labels)
		}
		for _, h := range all {
			if len(h.found()) != 3 {
				t.Errorf("%s finds %q", h.name, names(h.found()))
			}
		}
	}
}

// The probe with the later records wins; the other host waits a second.
func TestTheLoserOfATieWaits(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	h := n.cluster("office")
	n.run(300 * time.Millisecond)
	tie := func(data string) []byte {
		theirs := txt(join(serviceName, "office"), []string{data})
		p := newPacker(1452)
		p.question(question{theirs.name, dns.TypeANY, true})
		p.record(inProposed, theirs)
		return p.bytes(0, 0)
	}
	c := h.claims[1]
	due := c.due
	n.inject(h, "10.0.0.99:5353", tie("a"))
	if !c.due.Equal(due) || c.sent == 0 {
		t.Error("it gives in to earlier records")
	}
	n.inject(h, "10.0.0.99:5353", tie(strings.Repeat("z", 200)))
	if got := c.due.Sub(n.now); got != time.Second || c.sent != 0 {
		t.Errorf("the next probe in %v", got)
	}
	if h.claims[0].sent == 0 {
		t.Error("the host's name waits, too")
	}
	n.run(5 * time.Second)
	if c.label != "office" || c.phase == probing {
		t.Error("it gave the name up to one that never had it")
	}
}

func TestCompareSets(t *testing.T) {
	t.Parallel()
	n := domain("x.local")
	a := func(s string) record { return record{name: n, typ: dns.TypeA, data: s} }
	for name, tt := range map[string]struct {
		a, b []record
		want int
	}{
		"the example of section 8.2":  {[]record{a("\xa9\xfe\x63\xc8")}, []record{a("\xa9\xfe\xc8\x32")}, -1},
		"equal":                       {[]record{a("1234")}, []record{a("1234")}, 0},
		"one more is later":           {[]record{a("1234"), a("1235")}, []record{a("1234")}, 1},
		"order does not matter":       {[]record{a("2"), a("1")}, []record{a("1"), a("2")}, 0},
		"the type comes before data":  {[]record{a("9")}, []record{{name: n, typ: dns.TypeTXT, data: "1"}}, -1},
		"bytes are without sign":      {[]record{a("\x80")}, []record{a("\x7f")}, 1},
		"cache-flush does not matter": {[]record{{name: n, typ: 1, flush: true, data: "1"}}, []record{{name: n, typ: 1, data: "1"}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := compareSets(tt.a, tt.b); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if got := compareSets(tt.b, tt.a); got != -tt.want {
				t.Errorf("the other way round %d, want %d", got, -tt.want)
			}
		})
	}
}

func TestManyConflictsSlowDown(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	h := n.cluster("office")
	// Another host answers for every name that is probed.
	tries := 0
	for n.now.Before(epoch.Add(2 * time.Minute)) {
		n.run(10 * time.Millisecond)
		for _, p := range n.since(epoch, h, probeOf) {
			n.forget()
			tries++
			var list []record
			for _, q := range p.questions {
				list = append(list, txt(q.name, []string{"mine"}))
			}
			n.inject(h, "10.0.0.99:5353", say(list...))
		}
	}
	// 15 in the first seconds, then one in 5 s.
	if tries < 20 || tries > 80 {
		t.Errorf("%d tries in two minutes", tries)
	}
	if len(h.conflicts) > conflictCount {
		t.Errorf("%d conflicts are remembered", len(h.conflicts))
	}
}

func TestConflictAfterAnnouncing(t *testing.T) {
	t.Parallel()
	for seed := range 10 {
		n := newLAN(t)
		n.rand.Uint64()
		a, b := n.cluster("office"), n.cluster("office")
		n.cut[a] = true
		n.run(time.Duration(20+seed) * time.Second)
		if a.claims[1].label != "office" || b.claims[1].label != "office" {
			t.Fatal("they received packets of each other")
		}
		// Two networks become one: the next answer shows it.
		delete(n.cut, a)
		n.inject(b, "10.0.0.99:5353", ask([]question{{name: join(serviceName, "office"), typ: dns.TypeSRV}}))
		n.run(20 * time.Second)
		la, lb := a.claims[1].label, b.claims[1].label
		if la == lb || la != "office" && lb != "office" {
			t.Errorf("they are %q and %q", la, lb)
		}
		if len(a.found()) != 1 || len(b.found()) != 1 {
			t.Errorf("they find %q and %q", names(a.found()), names(b.found()))
		}
	}
}

func TestLossAndReordering(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	n.loss, n.delay = 0.3, 80*time.Millisecond
	hosts := []*host{n.cluster("office"), n.cluster("office"), n.cluster("home")}
	n.run(2 * time.Minute)
	for _, h := range hosts {
		if len(h.found()) != 2 {
			t.Errorf("%s, %q, finds %q", h.name, h.claims[1].label, names(h.found()))
		}
	}
}

func TestGoodbyeKeepsARecordForOneSecond(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a, b := n.cluster("office"), n.cluster("home")
	n.run(10 * time.Second)
	if len(a.found()) != 1 {
		t.Fatal("nothing is found")
	}
	n.forget()
	b.publish(n.now, nil)
	n.run(500 * time.Millisecond)
	answers := n.since(epoch, b, responseOf)
	if len(answers) != 1 {
		t.Fatalf("%d packets with goodbyes", len(answers))
	}
	for _, r := range answers[0].answers {
		if r.ttl != 0 || r.name == metaName {
			t.Errorf("%s has a TTL of %v", r.name, r.ttl)
		}
	}
	if len(a.found()) != 1 {
		t.Error("it is forgotten at once")
	}
	n.run(600 * time.Millisecond)
	if got := names(a.found()); len(got) != 0 {
		t.Errorf("a second later there is %q", got)
	}
}

func TestChangesAreAnnounced(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a, b := n.cluster("office"), n.cluster("home")
	n.run(10 * time.Second)
	n.forget()
	s := service(2, "home")
	s.Text.Name, s.Automatic, s.Port = "my home", true, 7444
	b.publish(n.now, []discovery.Service{s})
	n.run(2 * time.Second)
	if got := n.since(epoch, b, probeOf); len(got) != 0 {
		t.Error("it probes for a name that it has")
	}
	if got := a.found(); len(got) != 1 || got[0].Name != "my home" || !got[0].Automatic || got[0].Endpoints[0] != "10.0.0.3:7444" {
		t.Errorf("found %+v", got)
	}
	s.Automatic = false
	b.publish(n.now, []discovery.Service{s})
	n.run(2 * time.Second)
	if got := a.found(); len(got) != 1 || got[0].Automatic {
		t.Errorf("found %+v", got)
	}
	b.setAddresses(n.now, addrs("10.0.0.77"))
	n.run(2 * time.Second)
	if got := a.found(); len(got) != 1 || !slices.Equal(got[0].Endpoints, []string{"10.0.0.77:7444"}) {
		t.Errorf("found %+v", got)
	}
	n.forget()
	b.publish(n.now, []discovery.Service{s})
	n.run(10 * time.Second)
	if got := n.since(epoch, b, responseOf); len(got) > 2 {
		t.Errorf("an unchanged record is announced %d times", len(got))
	}
}

func TestLinkUpStartsAgain(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a, b := n.cluster("office"), n.cluster("home")
	n.run(10 * time.Second)
	n.forget()
	a.restart(n.now)
	if len(a.found()) != 0 {
		t.Error("a record of another network is still there")
	}
	n.run(5 * time.Second)
	if len(n.since(epoch, a, probeOf)) != 3 || len(a.found()) != 1 || len(b.found()) != 1 {
		t.Errorf("%d probes; they find %q and %q", len(n.since(epoch, a, probeOf)), names(a.found()), names(b.found()))
	}
}

func TestSeveralServicesOnOneHost(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a, b := n.cluster("office"), n.add()
	one, two, three := service(2, "one"), service(3, "two"), service(4, "one")
	two.Host, three.Host, two.Port = one.Host, one.Host, 7444
	b.publish(n.now, []discovery.Service{one, two, three})
	n.run(5 * time.Second)
	if got := names(a.found()); !slices.Equal(got, []string{"one", "one (2)", "two"}) {
		t.Errorf("found %q", got)
	}
	b.publish(n.now, []discovery.Service{two})
	n.run(2 * time.Second)
	if got := a.found(); len(got) != 1 || got[0].Endpoints[0] != "10.0.0.3:7444" {
		t.Errorf("found %+v", got)
	}
}
