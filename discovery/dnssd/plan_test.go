package dnssd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

func rrs(t testing.TB, lines ...string) (list []dns.RR) {
	t.Helper()
	for _, l := range lines {
		rr, err := dns.NewRR(l)
		if err != nil || rr == nil {
			t.Fatalf("%s: %v", l, err)
		}
		list = append(list, rr)
	}
	return list
}

// world answers like a recursive resolver that knows these records.
type world struct {
	records []dns.RR
	ad      bool
	// extra are added to answers for PTR records.
	extra []dns.RR
}

func (w *world) reply(q question) Reply {
	m := &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, AuthenticatedData: w.ad}}
	for _, rr := range w.records {
		if canonical(rr.Header().Name) == q.name && rr.Header().Rrtype == q.qtype {
			m.Answer = append(m.Answer, rr)
		}
	}
	if q.qtype == dns.TypePTR {
		m.Extra = w.extra
	}
	if len(m.Answer) == 0 {
		m.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "example.com.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 60}, Minttl: 60}}
	}
	return Reply{Msg: m}
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testPlan(domains ...string) *plan {
	r := rand.New(rand.NewPCG(1, 2))
	p := newPlan(7, r.Float64)
	for _, d := range domains {
		p.add(d, start)
	}
	return p
}

// answerAll answers all questions that are due, and returns them.
func answerAll(t testing.TB, p *plan, w *world, now time.Time) (asked []question) {
	t.Helper()
	for {
		a, ok := p.take(now)
		if !ok {
			return asked
		}
		asked = append(asked, a.question)
		got, err := read(a.question, w.reply(a.question), a.domain)
		if err != nil {
			p.failed(a, err, now)
		} else {
			p.answered(a, got, now)
		}
		if len(asked) > 10_000 {
			t.Fatal("it does not end")
		}
	}
}

func service(name string, more ...string) []string {
	i := name + "._entente._tcp.example.com."
	return append([]string{
		"_entente._tcp.example.com. 60 PTR " + i,
		i + " 60 SRV 0 0 7443 " + name + ".example.com.",
		i + ` 60 TXT "txtvers=1" "id=` + string(idA) + `" "name=` + name + `"`,
		name + ".example.com. 60 A 10.1.0.1",
	}, more...)
}

func TestAnInstanceIsFoundByItsRecords(t *testing.T) {
	t.Parallel()
	w := &world{records: rrs(t, service("office",
		"_automatic._sub._entente._tcp.example.com. 60 PTR Office._entente._tcp.example.com.",
		"office.example.com. 60 AAAA fd12::1")...)}
	p := testPlan("example.com.")
	answerAll(t, p, w, start)
	d, _ := p.snapshot("example.com.", start)
	if len(d.Found) != 1 || len(d.Problems) != 0 || d.Err != "" || d.Authenticated {
		t.Fatalf("got %+v", d)
	}
	f := d.Found[0]
	if f.Until.Before(start.Add(time.Minute)) || f.Until.After(start.Add(66*time.Second+grace)) {
		t.Errorf("until %s", f.Until)
	}
	f.Until = time.Time{}
	want := discovery.Found{
		Instance: "office", Text: discovery.Text{ID: idA, Name: "office"}, Automatic: true,
		Endpoints: []string{"[fd12::1]:7443", "10.1.0.1:7443"}, Where: "example.com", Seen: start,
	}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Error(diff)
	}
}

func TestUselessRecordsAreSkippedAndReported(t *testing.T) {
	t.Parallel()
	inst := "office._entente._tcp.example.com."
	for name, tt := range map[string]struct {
		records []string
		found   int
		problem string
		leftOut int
	}{
		"an address that must not be dialled": {records: append(service("office")[:3], "office.example.com. 60 A 169.254.169.254"), problem: "169.254.169.254 is link-local"},
		"one good address of two":             {records: service("office", "office.example.com. 60 AAAA ::ffff:127.0.0.1"), found: 1, problem: "127.0.0.1"},
		"no TXT":                              {records: slices.Delete(service("office"), 2, 3), problem: "no TXT"},
		"an empty TXT":                        {records: append(slices.Delete(service("office"), 2, 3), inst+` 60 TXT ""`), problem: "cluster ID"},
		"no SRV":                              {records: slices.Delete(service("office"), 1, 2), problem: "no SRV"},
		"a service that is not there":         {records: append(slices.Delete(service("office"), 1, 2), inst+" 60 SRV 0 0 7443 ."), problem: "no SRV"},
		"port 0":                              {records: append(slices.Delete(service("office"), 1, 2), inst+" 60 SRV 0 0 0 office.example.com."), problem: "no SRV"},
		"no address":                          {records: service("office")[:3], problem: "no address"},
		"a host that does not exist":          {records: append(slices.Delete(service("office"), 1, 2), inst+" 60 SRV 0 0 1 nowhere.test."), problem: "no address"},
		"a PTR to another service":            {records: service("office", "_entente._tcp.example.com. 60 PTR x._http._tcp.example.com."), found: 1, problem: "malformed instance name"},
		"a PTR to itself":                     {records: []string{"_entente._tcp.example.com. 60 PTR _entente._tcp.example.com."}, problem: "malformed instance name"},
		"more hosts than are taken": {records: service("office", inst+" 60 SRV 1 0 1 a.test.", inst+" 60 SRV 1 0 1 b.test.",
			inst+" 60 SRV 1 0 1 c.test.", inst+" 60 SRV 1 0 1 d.test."), found: 1, leftOut: 1, problem: "no address"},
		"more addresses than are taken": {records: service("office", "office.example.com. 60 A 10.1.0.2", "office.example.com. 60 A 10.1.0.3",
			"office.example.com. 60 A 10.1.0.4", "office.example.com. 60 A 10.1.0.5", "office.example.com. 60 A 10.1.0.6"), found: 1, leftOut: 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testPlan("example.com.")
			answerAll(t, p, &world{records: rrs(t, tt.records...)}, start)
			d, _ := p.snapshot("example.com.", start)
			if len(d.Found) != tt.found || d.LeftOut != tt.leftOut || !strings.Contains(strings.Join(d.Problems, "\n"), tt.problem) || (tt.problem == "") != (len(d.Problems) == 0) {
				t.Errorf("got %+v", d)
			}
		})
	}
}

func TestKnownInstancesAreNotEvicted(t *testing.T) {
	t.Parallel()
	w := &world{records: rrs(t, service("office")...)}
	p := testPlan("example.com.")
	answerAll(t, p, w, start)
	for i := range 300 {
		w.records = append(w.records, rrs(t, service(fmt.Sprintf("a%03d", i))...)...)
	}
	now := start.Add(2 * time.Minute)
	answerAll(t, p, w, now)
	d, _ := p.snapshot("example.com.", now)
	if len(d.Found) != MaxInstances || d.LeftOut != 301-MaxInstances {
		t.Fatalf("%d found, %d left out", len(d.Found), d.LeftOut)
	}
	if !slices.ContainsFunc(d.Found, func(f discovery.Found) bool { return f.Instance == "office" }) {
		t.Error("the one that was known is gone")
	}
}

func TestAdditionalRecordsSpareQuestions(t *testing.T) {
	t.Parallel()
	const inst = "office._entente._tcp.example.com."
	full := rrs(t, service("office")...)
	for name, tt := range map[string]struct {
		extra []string
		ad    bool
		// asked are questions that have to be asked in spite of the additional records,
		// spared are those that need not.
		asked, spared []question
		endpoint      string
	}{
		"in the domain, save questions": {
			extra: service("office")[1:], endpoint: "10.1.0.1:7443",
			spared: []question{{inst, dns.TypeSRV}, {inst, dns.TypeTXT}, {"office.example.com.", dns.TypeA}},
			asked:  []question{{"office.example.com.", dns.TypeAAAA}},
		},
		"not authenticated in an authenticated answer": {
			extra: append(service("office")[1:3], "office.example.com. 60 A 10.6.6.6"), ad: true, endpoint: "10.1.0.1:7443",
			asked: []question{{inst, dns.TypeSRV}, {"office.example.com.", dns.TypeA}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{records: full, extra: rrs(t, tt.extra...), ad: tt.ad}
			p := testPlan("example.com.")
			asked := answerAll(t, p, w, start)
			for _, q := range tt.asked {
				if !slices.Contains(asked, q) {
					t.Errorf("%s is not asked", q)
				}
			}
			for _, q := range tt.spared {
				if slices.Contains(asked, q) {
					t.Errorf("%s is asked", q)
				}
			}
			d, _ := p.snapshot("example.com.", start)
			if len(d.Found) != 1 || !slices.Equal(d.Found[0].Endpoints, []string{tt.endpoint}) || d.Authenticated != tt.ad {
				t.Errorf("got %+v", d)
			}
		})
	}
}

// Additional records of a later answer never replace the answer to a question, and are ignored for
// names outside of the domain.
func TestAdditionalRecordsCannotReplaceAnswers(t *testing.T) {
	t.Parallel()
	w := &world{records: rrs(t, append(slices.Delete(service("office"), 1, 2),
		"office._entente._tcp.example.com. 3600 SRV 0 0 7443 host.elsewhere.test.",
		"office._entente._tcp.example.com. 3600 SRV 1 0 7443 office.example.com.",
		"host.elsewhere.test. 60 A 10.2.0.1")...)}
	for _, rr := range w.records {
		if rr.Header().Rrtype != dns.TypePTR {
			rr.Header().Ttl = 3600
		}
	}
	p := testPlan("example.com.")
	answerAll(t, p, w, start)
	w.extra = rrs(t, "office.example.com. 60 A 10.6.6.6", "host.elsewhere.test. 60 A 10.6.6.6",
		`office._entente._tcp.example.com. 60 TXT "id=`+string(idB)+`"`)
	now := start.Add(2 * time.Minute)
	if asked := answerAll(t, p, w, now); len(asked) == 0 {
		t.Fatal("nothing was asked")
	}
	d, _ := p.snapshot("example.com.", now)
	if len(d.Found) != 1 || d.Found[0].ID != idA || !slices.Equal(d.Found[0].Endpoints, []string{"10.2.0.1:7443", "10.1.0.1:7443"}) {
		t.Errorf("got %+v", d)
	}
	// Before there is an answer of its own, names outside of the domain are asked for, too,
	// though additional records lead there.
	w.extra = append(w.extra[:2:2], rrs(t, "office._entente._tcp.example.com. 60 SRV 0 0 7443 host.elsewhere.test.", `office._entente._tcp.example.com. 60 TXT "id=`+string(idA)+`"`)...)
	p = testPlan("example.com.")
	answerAll(t, p, w, start)
	if d, _ := p.snapshot("example.com.", start); d.Found[0].Endpoints[0] != "10.2.0.1:7443" {
		t.Errorf("got %+v", d)
	}
}

func TestSilentResolversMakeResultsEndAfterTheGrace(t *testing.T) {
	t.Parallel()
	w := &world{records: rrs(t, service("office")...)}
	p := testPlan("example.com.")
	answerAll(t, p, w, start)
	d, _ := p.snapshot("example.com.", start)
	until := d.Found[0].Until
	if !d.Answered.Equal(start) || !d.Since.IsZero() || d.Unlisted {
		t.Errorf("while all is answered it is %+v", d)
	}
	asks := 0
	var noticed time.Time
	var failing time.Time
	now := p.next()
	for ; now.Before(until.Add(time.Hour)); now = p.next() {
		a, ok := p.take(now)
		if !ok {
			t.Fatal("nothing is due when next returned")
		}
		asks++
		if failing.IsZero() && a.question == (question{serviceName("example.com."), dns.TypePTR}) {
			failing = now
		}
		p.failed(a, errors.New("no answer in time\x1b[2J"), now)
		d, _ = p.snapshot("example.com.", now)
		if got := len(d.Found) == 1; got != now.Before(until) {
			t.Fatalf("found at %s: %v; kept until %s", now.Sub(start), got, until.Sub(start))
		}
		if noticed.IsZero() && len(d.Found) == 0 {
			noticed = now
		}
	}
	if !strings.HasPrefix(d.Err, "no answer in time") || strings.Contains(d.Err, "\x1b") {
		t.Errorf("error %q", d.Err)
	}
	if !d.Since.Equal(failing) || !d.Answered.Equal(start) || !d.Unlisted {
		t.Errorf("it fails since %s, reported since %s, and the last answer is of %s, reported of %s", failing, d.Since, start, d.Answered)
	}
	if !noticed.Equal(until) {
		t.Errorf("that its time is over is noticed %s late", noticed.Sub(until))
	}
	if asks > 150 {
		t.Errorf("%d questions in an hour of silence", asks)
	}
	// And come back.
	answerAll(t, p, w, now.Add(retryMax))
	if d, _ := p.snapshot("example.com.", now.Add(retryMax)); len(d.Found) != 1 || d.Err != "" || !d.Since.IsZero() || d.Unlisted || !d.Answered.Equal(now.Add(retryMax)) {
		t.Errorf("got %+v", d)
	}
}

// An instance may name hosts that do not resolve: the state shows that the domain itself answers.
func TestAHostThatFailsDoesNotFailItsDomain(t *testing.T) {
	t.Parallel()
	w := &world{records: rrs(t, service("office")...)}
	p := testPlan("example.com.")
	for {
		a, ok := p.take(start)
		if !ok {
			break
		}
		if a.qtype == dns.TypeAAAA {
			p.failed(a, errors.New("SERVFAIL"), start)
			continue
		}
		got, err := read(a.question, w.reply(a.question), a.domain)
		if err != nil {
			t.Fatal(err)
		}
		p.answered(a, got, start)
	}
	if d, _ := p.snapshot("example.com.", start); d.Err != "SERVFAIL" || d.Unlisted || !d.Since.Equal(start) || !d.Answered.Equal(start) {
		t.Errorf("got %+v", d)
	}
}

func TestWithdrawnInstancesGoWithTheNextAnswer(t *testing.T) {
	t.Parallel()
	w := &world{records: rrs(t, service("office")...)}
	p := testPlan("example.com.")
	answerAll(t, p, w, start)
	w.records = nil
	now := start.Add(70 * time.Second)
	answerAll(t, p, w, now)
	if d, _ := p.snapshot("example.com.", now); len(d.Found) != 0 || d.Err != "" {
		t.Errorf("got %+v", d)
	}
	if n := len(p.domains["example.com."].entries); n != 2 {
		t.Errorf("%d questions are left", n)
	}
}

// Time is virtual: minutes of a thousand domains. No question is asked before the TTL
// of its last answer has ended, within the bounds.
func TestNoQuestionIsAskedMoreOftenThanItsTTL(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ttl     uint32
		every   time.Duration
		domains int
	}{
		"a minute":                         {60, time.Minute, 1000},
		"none at all: the lower bound":     {0, minTTL, 20},
		"a day: the upper bound":           {86400, maxTTL, 20},
		"the highest bit counts as no TTL": {1 << 31, minTTL, 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var names []string
			records := map[string]*world{}
			for i := range tt.domains {
				d := fmt.Sprintf("d%d.test.", i)
				names = append(names, d)
				w := &world{}
				for _, l := range service("office") {
					rr := rrs(t, strings.ReplaceAll(l, "example.com.", d))[0]
					rr.Header().Ttl = tt.ttl
					w.records = append(w.records, rr)
				}
				records[d] = w
			}
			p := testPlan(names...)
			last := map[ask]time.Time{}
			asked := 0
			const span = 5 * time.Minute
			for now := start; now.Before(start.Add(span)); now = p.next() {
				a, ok := p.take(now)
				if !ok {
					t.Fatal("nothing is due when next returned")
				}
				r := records[a.domain].reply(a.question)
				every := tt.every
				if len(r.Msg.Answer) == 0 {
					every = time.Minute // what the SOA says
				}
				if before, ok := last[a]; ok && now.Sub(before) < every {
					t.Fatalf("%v is asked after %s", a.question, now.Sub(before))
				}
				last[a] = now
				asked++
				got, err := read(a.question, r, a.domain)
				if err != nil {
					t.Fatal(err)
				}
				p.answered(a, got, now)
			}
			// Six questions a domain, two of them with negative answers, for a minute.
			most := tt.domains * (4*(int(span/tt.every)+1) + 2*(int(span/time.Minute)+1))
			if asked > most || asked < most/2 {
				t.Errorf("%d questions, want at most %d and at least half of it", asked, most)
			}
			for _, n := range names {
				if d, _ := p.snapshot(n, start.Add(span)); len(d.Found) != 1 {
					t.Fatalf("%s has %+v", n, d)
				}
			}
		})
	}
}

func TestHostsAreOrderedByPriorityAndDrawnByWeight(t *testing.T) {
	t.Parallel()
	list := rrs(t, "i. SRV 0 30 1 a.test.", "i. SRV 0 10 1 b.test.", "i. SRV 0 0 1 c.test.", "i. SRV 1 65535 1 d.test.")
	first := map[string]int{}
	const n = 4000
	for seed := range uint64(n) {
		p := newPlan(seed, nil)
		got, _ := p.targets(list)
		if got[3].Target != "d.test." {
			t.Fatal("a worse priority is not last")
		}
		first[got[0].Target]++
		if again, _ := p.targets(list); !slices.Equal(got, again) {
			t.Fatal("the order changes by itself")
		}
	}
	if a := first["a.test."]; a < n*70/100 || a > n*80/100 || first["c.test."] > n/50 {
		t.Errorf("drawn first: %v of %d", first, n)
	}
}

func TestBrowserReportsWhatItFinds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{records: rrs(t, service("office")...)}
		var mu sync.Mutex
		inFlight, most, asked := 0, 0, 0
		var reports []Domain
		domains := []string{"example.com"}
		for i := range 100 {
			domains = append(domains, fmt.Sprintf("d%d.test", i))
		}
		b, err := NewBrowser(Config{
			Domains: domains,
			Exchange: func(ctx context.Context, q dns.Question) (Reply, error) {
				mu.Lock()
				inFlight++
				asked++
				most = max(most, inFlight)
				mu.Unlock()
				select {
				case <-time.After(10 * time.Millisecond):
				case <-ctx.Done():
				}
				mu.Lock()
				defer mu.Unlock()
				inFlight--
				return w.reply(question{canonical(q.Name), q.Qtype}), nil
			},
			Changed: func(d Domain) {
				if d.Name == "example.com" && len(d.Found) > 0 {
					reports = append(reports, d)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- b.Run(ctx) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(reports) < 5 || most > maxConcurrent || most < maxConcurrent/2 {
			t.Errorf("%d reports, %d questions at once", len(reports), most)
		}
		if limit := (101*2 + 4) * 11; asked > limit {
			t.Errorf("%d questions in ten minutes, more than %d", asked, limit)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestBrowserRefusesDomainsBeyondTheLimit(t *testing.T) {
	t.Parallel()
	if _, err := NewBrowser(Config{Domains: make([]string, MaxDomains+1)}); err == nil || !strings.Contains(err.Error(), "the limit is 1024") {
		t.Errorf("got %v", err)
	}
	if _, err := NewBrowser(Config{Domains: []string{"no domain"}}); err == nil {
		t.Error("anything is a domain")
	}
}

// A domain with many names that no server answers for does not delay another.
func TestOneDomainTakesAShareOfTheQuestionsOnly(t *testing.T) {
	t.Parallel()
	w := &world{}
	for i := range MaxInstances {
		w.records = append(w.records, rrs(t, service(fmt.Sprintf("a%03d", i))...)...)
	}
	p := testPlan("example.com.")
	// The list is answered, all else hangs.
	for range 2 {
		a, _ := p.take(start)
		got, err := read(a.question, w.reply(a.question), a.domain)
		if err != nil {
			t.Fatal(err)
		}
		p.answered(a, got, start)
	}
	var hanging []ask
	for a, ok := p.take(start); ok; a, ok = p.take(start) {
		hanging = append(hanging, a)
	}
	if len(hanging) != maxPerDomain {
		t.Fatalf("%d questions of one domain at once", len(hanging))
	}
	p.add("other.test.", start)
	if a, ok := p.take(start); !ok || a.domain != "other.test." {
		t.Errorf("another domain's question is not asked: %v", a)
	} else {
		p.failed(a, errors.New("no answer"), start)
	}
	// Each that ends lets another one go, until all are answered.
	for _, a := range hanging {
		p.failed(a, errors.New("no answer"), start)
	}
	answerAll(t, p, w, start)
	now := start.Add(retryMax)
	answerAll(t, p, w, now)
	d, _ := p.snapshot("example.com.", now)
	if len(d.Found) != MaxInstances || len(p.domains["example.com."].waiting) != 0 || p.domains["example.com."].asking != 0 {
		t.Errorf("%d found, %s", len(d.Found), d.Err)
	}
}

// BenchmarkThousandDomains is one minute of a thousand domains with a TTL of a minute: all
// but the network, reading answers from their bytes included. No question is asked again
// before its answer has ended.
func BenchmarkThousandDomains(b *testing.B) {
	var names []string
	answers := map[question][]byte{}
	records := map[string]*world{}
	for i := range 1000 {
		d := fmt.Sprintf("d%d.test.", i)
		names = append(names, d)
		w := &world{}
		for _, l := range service("office") {
			w.records = append(w.records, rrs(b, strings.ReplaceAll(l, "example.com.", d))...)
		}
		records[d] = w
	}
	answer := func(a ask) Reply {
		if answers[a.question] == nil {
			m := records[a.domain].reply(a.question).Msg
			if len(m.Answer) == 0 {
				m.Ns = rrs(b, "test. 60 SOA ns.test. hostmaster.test. 1 3600 600 86400 60")
			}
			raw, err := m.Pack()
			if err != nil {
				b.Fatal(err)
			}
			answers[a.question] = raw
		}
		m, leftOut, err := parse(answers[a.question])
		if err != nil {
			b.Fatal(err)
		}
		return Reply{Msg: m, LeftOut: leftOut}
	}
	p := testPlan(names...)
	now, asked, last := start, 0, map[question]time.Time{}
	b.ReportAllocs()
	for b.Loop() {
		for end := now.Add(time.Minute); now.Before(end); now = p.next() {
			a, ok := p.take(now)
			if !ok {
				b.Fatal("nothing is due")
			}
			if at, again := last[a.question]; again && now.Sub(at) < time.Minute {
				b.Fatalf("%v is asked again after %v", a.question, now.Sub(at))
			}
			last[a.question] = now
			asked++
			got, err := read(a.question, answer(a), a.domain)
			if err != nil {
				b.Fatal(err)
			}
			p.answered(a, got, now)
			p.snapshot(a.domain, now)
		}
	}
	core := b.Elapsed().Seconds() / (float64(b.N) * 60) * 100
	b.ReportMetric(float64(asked)/float64(b.N), "queries/min")
	b.ReportMetric(core, "%core")
	b.Logf("a thousand domains: %.2f %% of a core; bar: 2 %%", core)
	if core > 2 {
		b.Error("the bar is missed")
	}
}
