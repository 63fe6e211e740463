package mdns

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/peering"
)

// browser is a host that browses, and publishes nothing.
func browser(t *testing.T) (*lan, *host) {
	t.Helper()
	n := newLAN(t)
	h := n.add()
	h.browse(n.now, []name{serviceName, automatic})
	return n, h
}

// cluster is all records of an instance.
func clusterRecords(i int, ttl time.Duration) []record {
	s := service(i, fmt.Sprintf("cluster %d", i))
	n, h := join(serviceName, s.Instance), join(local, s.Host)
	list := []record{
		ptr(serviceName, n), srv(n, h, s.Port), txt(n, s.Text.Strings()),
		address(h, netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i % 250)})),
	}
	for j := range list {
		if ttl >= 0 {
			list[j].ttl = ttl
		}
	}
	return list
}

func TestQueriesBackOff(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(6 * time.Hour)
	asked := n.since(epoch, h, queryOf)
	if d := asked[0].at.Sub(epoch); d < queryMin || d > queryMax {
		t.Errorf("the first query after %v", d)
	}
	want := time.Second
	for i := 1; i < len(asked); i++ {
		if d := asked[i].at.Sub(asked[i-1].at); d != want {
			t.Errorf("query %d after %v, want %v", i, d, want)
		}
		want = min(2*want, time.Hour)
	}
	if len(asked) < 15 {
		t.Errorf("%d queries in six hours", len(asked))
	}
}

func TestQueriesListKnownAnswers(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(5 * time.Second)
	n.inject(h, stranger, say(clusterRecords(2, -1)...))
	n.forget()
	n.run(90 * time.Minute)
	for _, s := range n.since(epoch, h, queryOf) {
		age := s.at.Sub(epoch.Add(5 * time.Second))
		if s.questions[0].name != serviceName && s.questions[len(s.questions)-1].name != serviceName {
			continue
		}
		if known := has(s.answers, dns.TypePTR, serviceName); known != (age < ttlOther/2) {
			t.Errorf("after %v the answer is known: %v", age, known)
		}
		for _, r := range s.answers {
			if r.flush || r.ttl > ttlOther-age+time.Second {
				t.Errorf("known with a TTL of %v after %v, cache-flush %v", r.ttl, age, r.flush)
			}
		}
	}
}

func TestRecordsAreRefreshed(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(5 * time.Second)
	start := n.now
	n.inject(h, stranger, say(clusterRecords(2, 100*time.Second)...))
	n.forget()
	n.run(110 * time.Second)
	var at []time.Duration
	for _, s := range n.since(epoch, h, queryOf) {
		if slices.ContainsFunc(s.questions, func(q question) bool { return q.typ == dns.TypeSRV }) {
			at = append(at, s.at.Sub(start))
		}
	}
	if len(at) < 4 {
		t.Fatalf("asked again at %v", at)
	}
	for i, percent := range []int{80, 85, 90, 95} {
		low := time.Duration(percent) * time.Second
		if at[i] < low || at[i] > low+2*time.Second {
			t.Errorf("question %d after %v, want 80, 85, 90, 95 %% of 100 s and up to 2 %% more", i, at[i])
		}
	}
	if len(h.found()) != 0 {
		t.Error("it lives longer than its TTL")
	}
}

// Each of many instances has its own time of refresh; one packet asks for all that are due.
func TestRefreshesShareAPacket(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(5 * time.Second)
	const instances = 20
	for i := range instances {
		n.inject(h, fmt.Sprintf("10.0.0.%d:5353", 100+i), say(clusterRecords(i+2, 100*time.Second)...))
	}
	n.run(75 * time.Second)
	n.forget()
	n.run(30 * time.Second)
	packets, questions := 0, 0
	for _, s := range n.since(epoch, h, queryOf) {
		if c := len(slices.DeleteFunc(s.questions, func(q question) bool { return q.typ != dns.TypeSRV })); c > 0 {
			packets++
			questions += c
		}
	}
	if questions < 4*instances || packets > 4*4 {
		t.Errorf("%d questions in %d packets", questions, packets)
	}
}

func TestAnswersKeepRecordsAlive(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a, b := n.cluster("office"), n.cluster("home")
	for range 100 {
		n.run(7 * time.Minute)
		if len(a.found()) != 1 || len(b.found()) != 1 {
			t.Fatalf("after %v they find %q and %q", n.now.Sub(epoch), names(a.found()), names(b.found()))
		}
		f := a.found()[0]
		if !f.Until.After(n.now) || f.Seen.After(n.now) || f.Until.Sub(n.now) > ttlHost {
			t.Errorf("seen %v, until %v", f.Seen.Sub(n.now), f.Until.Sub(n.now))
		}
	}
	// It dies without a word.
	n.cut[b] = true
	n.run(3 * time.Minute)
	if len(a.found()) != 0 {
		t.Error("it is still there")
	}
}

func TestCacheFlush(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(time.Second)
	list := clusterRecords(2, -1)
	old := list[3]
	n.inject(h, stranger, say(list...))
	n.run(5 * time.Second)
	second := address(old.name, netip.MustParseAddr("10.1.0.200"))
	third := address(old.name, netip.MustParseAddr("10.1.0.201"))
	n.inject(h, stranger, say(second))
	n.run(500 * time.Millisecond)
	n.inject(h, stranger, say(third))
	if got := len(h.found()[0].Endpoints); got != 3 {
		t.Errorf("%d endpoints at once, want 3", got)
	}
	n.run(600 * time.Millisecond)
	if got := h.found()[0].Endpoints; !slices.Equal(got, []string{"10.1.0.200:7443", "10.1.0.201:7443"}) {
		t.Errorf("a second later there are %q: those within a second of each other belong together", got)
	}
	// Shared records are never flushed.
	n.inject(h, stranger, say(clusterRecords(3, -1)...))
	n.run(2 * time.Second)
	if got := len(h.found()); got != 2 {
		t.Errorf("found %d, want 2", got)
	}
}

// A goodbye has the cache-flush bit, too, if a host removes one address of two, as avahi does: the
// other one stays.
func TestGoodbyesFlushNothingElse(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(time.Second)
	list := clusterRecords(2, -1)
	second := address(list[3].name, netip.MustParseAddr("10.1.0.200"))
	n.inject(h, stranger, say(append(list, second)...))
	n.run(5 * time.Second)
	second.ttl = 0
	n.inject(h, stranger, say(second))
	n.run(2 * time.Second)
	if got := h.found(); len(got) != 1 || !slices.Equal(got[0].Endpoints, []string{"10.1.0.2:7443"}) {
		t.Errorf("found %+v", got)
	}
}

// A question of others without an answer (section 10.5).
func TestPassiveFailure(t *testing.T) {
	t.Parallel()
	q := []question{{name: join(serviceName, "cluster 2"), typ: dns.TypeSRV}}
	for name, tt := range map[string]struct {
		asks   int
		answer bool
		known  []record
		gone   bool
	}{
		"two without an answer":  {asks: 2, gone: true},
		"one":                    {asks: 1},
		"two and an answer":      {asks: 2, answer: true},
		"those that know it":     {asks: 2, known: clusterRecords(2, -1)},
		"many and then silence":  {asks: 5, gone: true},
		"known answers of other": {asks: 2, known: clusterRecords(3, -1), gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, h := browser(t)
			n.run(time.Second)
			n.inject(h, stranger, say(clusterRecords(2, -1)...))
			n.run(3 * time.Second)
			for range tt.asks {
				n.inject(h, "10.0.0.98:5353", ask(q, tt.known...))
				n.run(time.Second)
			}
			if tt.answer {
				n.inject(h, stranger, say(clusterRecords(2, -1)...))
			}
			if len(h.found()) != 1 {
				t.Error("it is gone before ten seconds")
			}
			n.run(11 * time.Second)
			if gone := len(h.found()) == 0; gone != tt.gone {
				t.Errorf("it is gone: %v", gone)
			}
		})
	}
}

func TestQuestionsOfOthersAreNotRepeated(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		known []record
		from  string
		qu    bool
		asks  bool
	}{
		"the same question":              {from: stranger},
		"it knows more than we do":       {from: stranger, known: clusterRecords(2, -1), asks: true},
		"one that is answered to itself": {from: stranger, qu: true, asks: true},
		"a simple resolver's":            {from: "10.0.0.99:4000", asks: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, h := browser(t)
			n.run(2900 * time.Millisecond)
			n.forget()
			n.inject(h, tt.from, ask([]question{{serviceName, dns.TypePTR, tt.qu}, {automatic, dns.TypePTR, tt.qu}}, tt.known...))
			n.run(900 * time.Millisecond)
			if got := len(n.since(epoch, h, queryOf)) > 0; got != tt.asks {
				t.Errorf("it asks: %v", got)
			}
		})
	}
}

// asksForInstances returns when a host asked for all instances.
func (n *lan) asksForInstances(h *host, after time.Time) []time.Time {
	var out []time.Time
	for _, s := range n.since(after, h, queryOf) {
		if slices.ContainsFunc(s.questions, func(q question) bool { return q.name == serviceName && q.typ == dns.TypePTR }) {
			out = append(out, s.at)
		}
	}
	return out
}

// Nobody knows how long an instance that is lost will be away: it is asked for as if for the
// first time, though the gap between questions had grown to an hour.
func TestALostInstanceIsAskedForAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(n *lan, h *host){
		"its TTL ends": func(n *lan, _ *host) { n.run(time.Minute) },
		"it sends a goodbye": func(n *lan, h *host) {
			n.inject(h, stranger, say(clusterRecords(2, 0)...))
		},
		"others ask for it in vain": func(n *lan, h *host) {
			for range poofCount {
				n.inject(h, "10.0.0.98:5353", ask([]question{{name: serviceName, typ: dns.TypePTR}}))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, h := browser(t)
			n.run(5 * time.Hour)
			n.inject(h, stranger, say(clusterRecords(2, time.Minute)...))
			lose(n, h)
			for len(h.cache.sets[key{serviceName, dns.TypePTR}]) > 0 {
				n.run(time.Millisecond)
			}
			lost := n.now
			n.run(8 * time.Second)
			at := n.asksForInstances(h, lost.Add(-10*time.Millisecond))
			if len(at) < 4 || at[3].Sub(lost) > 7*time.Second+queryMax {
				t.Errorf("lost after %v, asked at %v", lost.Sub(epoch), at)
			}
		})
	}
}

// However often instances are lost, it begins again every half a minute at most.
func TestInstancesThatAreLostOftenMakeFewQuestions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lose  []byte
		every time.Duration
	}{
		"goodbyes":  {say(clusterRecords(2, 0)...), 3 * time.Second},
		"questions": {ask([]question{{name: serviceName, typ: dns.TypePTR}}), poofWindow + 2*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, h := browser(t)
			n.run(time.Minute)
			began := n.now
			const halfMinutes = 20
			for n.now.Sub(began) < halfMinutes*30*time.Second {
				n.inject(h, stranger, say(clusterRecords(2, -1)...))
				n.run(time.Second)
				n.inject(h, "10.0.0.98:5353", tt.lose)
				n.inject(h, "10.0.0.98:5353", tt.lose)
				n.run(tt.every - time.Second)
				if len(h.found()) != 0 {
					t.Fatal("nothing is lost")
				}
			}
			at := n.asksForInstances(h, began)
			// After 0, 1, 3, 7 and 15 s, and once more for the questions of others without an answer.
			if most := (5 + 3) * (halfMinutes + 1); len(at) > most {
				t.Errorf("it asks %d times, more than %d", len(at), most)
			}
			for i := 1; i < len(at); i++ {
				if d := at[i].Sub(at[i-1]); d < queryGap {
					t.Errorf("it asks again after %v", d)
				}
			}
		})
	}
}

func TestOneFloodDoesNotStarveOthers(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(time.Second)
	n.inject(h, "10.0.0.50:5353", say(clusterRecords(1, -1)...))
	for i := range 2000 {
		n.inject(h, stranger, say(clusterRecords(i+10, -1)...))
		n.run(10 * time.Millisecond)
	}
	n.inject(h, "10.0.0.51:5353", say(clusterRecords(2, -1)...))
	got := names(h.found())
	if !slices.Contains(got, "cluster 1") || !slices.Contains(got, "cluster 2") || len(got) != 2+maxSourceInstances {
		t.Errorf("found %d", len(got))
	}
	if h.stats.Refused == 0 {
		t.Error("nothing is counted")
	}
}

// Whatever fewer than 32 addresses announce, and go on answering for, they leave room for an
// address with one cluster, and known clusters stay.
func TestFewAddressesLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	const addresses = maxInstances/2/maxCrowded - 1
	long := strings.Split(strings.Repeat(strings.Repeat("x", 255)+" ", 8), " ")[:8]
	i := 0
	instances := func(of name) []record {
		var list []record
		for range 80 {
			i++
			list = append(list, ptr(of, join(serviceName, fmt.Sprint("x", i))))
		}
		return list
	}
	kinds := map[string]func() []record{
		"instances":           func() []record { return instances(serviceName) },
		"automatic instances": func() []record { return instances(automatic) },
		"many records": func() []record {
			i++
			list := clusterRecords(1000+i, -1)
			for j := range maxSet {
				list = append(list,
					srv(list[1].name, list[3].name, uint16(1000+j)), txt(list[1].name, []string{fmt.Sprint(j)}),
					address(list[3].name, netip.AddrFrom4([4]byte{10, 2, byte(i), byte(j)})))
			}
			return list
		},
		"many bytes": func() []record {
			i++
			list := clusterRecords(1000+i, -1)
			for j := range 3 {
				list = append(list, txt(list[1].name, append([]string{fmt.Sprint(j)}, long...)))
			}
			return list
		},
	}
	test := func(t *testing.T, r *rand.Rand, kind func(r *rand.Rand) []record, from func(step, steps int) int) {
		t.Helper()
		n, h := browser(t)
		n.run(time.Second)
		n.inject(h, "10.0.0.50:5353", say(clusterRecords(1, -1)...))
		const steps = 10 * addresses
		for step := range steps {
			// No tick: no instance loses its place for lack of an answer.
			n.now = n.now.Add(25 * time.Millisecond)
			at := from(step, steps)
			h.receive(n.now, say(kind(r)...), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, 0, byte(at)}), port), true)
			h.packets()
		}
		n.now = n.now.Add(time.Second)
		refused := h.stats.Refused
		newcomer := clusterRecords(2, -1)
		n.inject(h, "10.0.0.51:5353", say(append(newcomer, ptr(automatic, newcomer[1].name))...))
		found := h.found()
		for _, who := range []string{"cluster 1", "cluster 2"} {
			if !slices.Contains(names(found), who) {
				t.Errorf("%s is not found", who)
			}
		}
		if h.stats.Refused != refused {
			t.Errorf("%d of its records are refused, beside %d instances, %d records and %d bytes", h.stats.Refused-refused,
				len(h.cache.sets[key{serviceName, dns.TypePTR}]), h.cache.entries, h.cache.bytes)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		kind := func(*rand.Rand) []record { return kinds[name]() }
		t.Run(name+" of each in turn", func(t *testing.T) {
			test(t, nil, kind, func(step, _ int) int { return step % addresses })
		})
		t.Run(name+" of one after the other", func(t *testing.T) {
			test(t, nil, kind, func(step, steps int) int { return step * addresses / steps })
		})
	}
	for seed := range uint64(5) {
		t.Run(fmt.Sprint("anything, seed ", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			all := slices.Sorted(maps.Keys(kinds))
			some := all[:1+r.IntN(len(all))]
			test(t, r, func(r *rand.Rand) []record { return kinds[some[r.IntN(len(some))]]() }, func(int, int) int { return r.IntN(addresses) })
		})
	}
}

func TestTheCacheIsBounded(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(time.Second)
	n.inject(h, "10.0.0.50:5353", say(clusterRecords(1, -1)...))
	for i := range 3000 {
		list := clusterRecords(i+10, (1<<31-1)*time.Second)
		for j := range 40 {
			list = append(list, address(list[3].name, netip.AddrFrom4([4]byte{10, 2, byte(i), byte(j)})))
		}
		list[2].data = txt("", []string{string(make([]byte, 255)), string(make([]byte, 255)), fmt.Sprint(i)}).data
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, byte(i / 250), byte(i % 250)}), port)
		h.receive(n.now, say(list...), from, true)
		h.packets()
		n.now = n.now.Add(2 * time.Millisecond)
		if h.cache.entries > maxEntries || h.cache.bytes > maxBytes || len(h.cache.sources) > maxEntries || len(h.queries) > 4*maxInstances+2 {
			t.Fatalf("%d entries, %d bytes, %d queries", h.cache.entries, h.cache.bytes, len(h.queries))
		}
	}
	if got := len(h.cache.sets[key{serviceName, dns.TypePTR}]); got > maxInstances || h.cache.entries != maxEntries {
		t.Errorf("%d instances, %d records: the flood was too small", got, h.cache.entries)
	}
	if got := names(h.found()); !slices.Contains(got, "cluster 1") {
		t.Errorf("the one that was known is not among %q", got)
	}
	// A record that is not received again expires, whatever its TTL was, and leaves nothing.
	n.log = nil
	h.browse(n.now, nil)
	if h.cache.entries != 0 || h.cache.bytes != 0 || len(h.cache.sources) != 0 || len(h.cache.sets) != 0 {
		t.Errorf("%d entries of %d bytes from %d are left", h.cache.entries, h.cache.bytes, len(h.cache.sources))
	}
}

func TestPacketsOfASecondAreBounded(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	b := say(clusterRecords(1, -1)...)
	for range 1000 {
		n.inject(h, stranger, b)
	}
	if got := h.stats.Dropped; got != 1000-maxSourcePackets {
		t.Errorf("%d of 1000 packets are dropped", got)
	}
	n.now = n.now.Add(time.Second)
	for i := range 2000 {
		h.receive(n.now, b, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, byte(i / 250), byte(i % 250)}), port), true)
	}
	if h.received.packets != maxPackets || len(h.counted) > maxPackets {
		t.Errorf("%d packets of %d sources are read", h.received.packets, len(h.counted))
	}
	// A few large ones cost as much as many small ones.
	n.now = n.now.Add(time.Second)
	p := newPacker(maxPacket - headersIP)
	for range maxRecords - 1 {
		p.record(inAnswers, address(local, netip.MustParseAddr("10.1.1.1")))
	}
	large := p.bytes(0, bitResponse)
	for range 20 {
		n.inject(h, stranger, large)
	}
	if got := h.received; got.packets != maxSourceRecords/(maxRecords-1) {
		t.Errorf("%d large packets of one are read", got.packets)
	}
	for i := range 100 {
		h.receive(n.now, large, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, 0, byte(i)}), port), true)
	}
	if got := h.received; got.records > maxRecordsRead || got.records < maxRecordsRead-maxRecords {
		t.Errorf("%d records are read", got.records)
	}
}

func TestOnlyWhatIsAskedForIsKept(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(time.Second)
	printer := join(domain("_ipp._tcp.local"), "printer")
	n.inject(h, stranger, say(ptr(domain("_ipp._tcp.local"), printer), srv(printer, domain("p.local"), 631), address(domain("p.local"), netip.MustParseAddr("10.1.1.1"))))
	if h.cache.entries != 0 {
		t.Errorf("%d records of others' services are kept", h.cache.entries)
	}
}

func TestResponsesAreOfThePort(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(time.Second)
	n.inject(h, "10.0.0.99:40000", say(clusterRecords(1, -1)...))
	if h.cache.entries != 0 {
		t.Error("a response from another port is believed")
	}
}

func TestOtherServicesAreNotFound(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func([]record){
		"a TXT record of another kind": func(l []record) { l[2].data = txt("", []string{"txtvers=1"}).data },
		"a later version":              func(l []record) { l[2].data = txt("", []string{"txtvers=9", "id=" + string(id(2))}).data },
		"no TXT record":                func(l []record) { l[2] = l[0] },
		"a loopback address":           func(l []record) { l[3].data = "\x7f\x00\x00\x01" },
		"a multicast address":          func(l []record) { l[3].data = "\xe0\x00\x00\xfb" },
		"port 0":                       func(l []record) { l[1].data = srv("", l[3].name, 0).data },
		"a name of controls": func(l []record) {
			rename := join(serviceName, "a\x1b[2J")
			l[0].data = string(rename)
			l[1].name, l[2].name = rename, rename
		},
		"an instance of another type": func(l []record) {
			other := join(domain("_ssh._tcp.local"), "x")
			l[0].data = string(other)
			l[1].name, l[2].name = other, other
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, h := browser(t)
			n.run(time.Second)
			list := clusterRecords(2, -1)
			spoil(list)
			n.inject(h, stranger, say(list...))
			if got := h.found(); len(got) != 0 {
				t.Errorf("found %+v", got)
			}
		})
	}
}

// Who is known by its ID, not by its address: another process on this host has that.
func TestOurselvesAreNotFound(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a, b := n.add(), n.add()
	b.addr = a.addr
	b.setAddresses(n.now, []netip.Addr{a.addr})
	two := service(2, "two")
	two.Port = 7444
	a.publish(n.now, []discovery.Service{service(1, "one")})
	b.publish(n.now, []discovery.Service{two})
	for _, h := range []*host{a, b} {
		h.browse(n.now, []name{serviceName, automatic})
	}
	n.run(10 * time.Second)
	if got := a.found(); len(got) != 1 || got[0].Endpoints[0] != "10.0.0.2:7444" {
		t.Errorf("the first finds %+v", got)
	}
	if got := b.found(); len(got) != 1 || got[0].Instance != "one" {
		t.Errorf("the second finds %+v", got)
	}
	if a.stats.Conflicts+b.stats.Conflicts != 0 {
		t.Error("they think that they are the same")
	}
}

// Two interfaces of one process on the same network.
func TestTwoInterfacesOnOneNetwork(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a, b, c := n.add(), n.add(), n.cluster("home")
	b.sent = a.sent
	for _, h := range []*host{a, b} {
		h.publish(n.now, []discovery.Service{service(1, "office")})
		h.browse(n.now, []name{serviceName})
	}
	n.run(30 * time.Second)
	if a.stats.Conflicts+b.stats.Conflicts != 0 || a.claims[1].label != "office" || b.claims[1].label != "office" {
		t.Error("a host is in conflict with itself")
	}
	if len(c.found()) != 1 || len(a.found()) != 1 || len(b.found()) != 1 {
		t.Errorf("they find %q, %q and %q", names(a.found()), names(b.found()), names(c.found()))
	}
}

const restInstances = 40

func TestALANAtRest(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	n.delay = 2 * time.Millisecond
	for i := range restInstances {
		n.cluster(fmt.Sprintf("cluster %d", i))
	}
	n.run(2 * time.Minute)
	t.Logf("the first two minutes: %d packets", len(n.log))
	n.forget()
	const minutes = 5
	n.run(minutes * time.Minute)
	for _, h := range n.hosts {
		if len(h.found()) != restInstances-1 {
			t.Fatalf("%s finds %d of 99", h.name, len(h.found()))
		}
	}
	bytes := 0
	for _, s := range n.log {
		bytes += len(s.data)
	}
	perMinute := len(n.log) / minutes
	t.Logf("%d instances at rest: %d packets and %d bytes a minute", restInstances, perMinute, bytes/minutes)
	if perMinute > 400 {
		t.Errorf("%d packets a minute", perMinute)
	}
}

// A sender of more addresses of a host than are found displaces none that the host sends itself,
// and a sender of another's record takes nothing from it.
func TestAddressesOfOthersLeaveAHostsOwn(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.cluster("home")
	n.run(5 * time.Second)
	host := domain("entente-2.local")
	own := addrs("10.0.0.3")[0]
	var list []record
	for i := range 2 * peering.MaxEndpoints {
		r := address(host, netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)}))
		r.data, r.flush = string(netip.AddrFrom4([4]byte{9, 0, 0, byte(i)}).AsSlice()), false
		list = append(list, r)
	}
	repeated := address(host, own)
	repeated.flush = false
	n.inject(h, "10.0.0.99:5353", say(append(list, repeated)...))
	found := h.found()
	if len(found) != 1 || len(found[0].Endpoints) != peering.MaxEndpoints || !slices.Contains(found[0].Endpoints, "10.0.0.3:7443") {
		t.Errorf("found %+v", found)
	}
	if want := []netip.Addr{own}; !slices.Equal(found[0].From, want) {
		t.Errorf("its senders are %v, want %v", found[0].From, want)
	}
	where := slices.DeleteFunc(clusterRecords(2, -1), func(r record) bool { return r.typ != dns.TypeSRV })
	where[0] = srv(join(serviceName, "home"), host, 7443)
	for i := range 2 * maxSenders {
		n.inject(h, fmt.Sprintf("10.0.0.%d:5353", 200+i), say(where...))
	}
	if got := h.found()[0].From; len(got) != maxSenders || !slices.Contains(got, own) {
		t.Errorf("then its senders are %v", got)
	}
}
