package dnssd

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/internal/namedtest"
)

// fakeServer answers over UDP and TCP of loopback.
type fakeServer struct {
	addr netip.AddrPort
	// udp and tcp count queries.
	udp, tcp atomic.Int32
	mu       sync.Mutex
	ids      map[uint16]bool
	ports    map[string]bool
}

func serve(t *testing.T, handle func(w dns.ResponseWriter, q *dns.Msg, overTCP bool)) *fakeServer {
	t.Helper()
	port := namedtest.FreePort(t)
	f := &fakeServer{addr: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), ids: map[uint16]bool{}, ports: map[string]bool{}}
	for _, network := range []string{"udp", "tcp"} {
		started := make(chan struct{})
		s := &dns.Server{Addr: f.addr.String(), Net: network, NotifyStartedFunc: func() { close(started) }}
		s.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			f.mu.Lock()
			f.ids[q.Id], f.ports[w.RemoteAddr().String()] = true, true
			f.mu.Unlock()
			if network == "udp" {
				f.udp.Add(1)
			} else {
				f.tcp.Add(1)
			}
			handle(w, q, network == "tcp")
		})
		done := make(chan error, 1)
		go func() { done <- s.ListenAndServe() }()
		select {
		case <-started:
		case err := <-done:
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Shutdown(); <-done })
	}
	return f
}

func replyWith(rcode int, lines ...string) func(dns.ResponseWriter, *dns.Msg, bool) {
	return func(w dns.ResponseWriter, q *dns.Msg, _ bool) {
		m := new(dns.Msg)
		m.SetRcode(q, rcode)
		for _, l := range lines {
			rr, err := dns.NewRR(l)
			if err != nil {
				panic(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		w.WriteMsg(m)
	}
}

func silent(dns.ResponseWriter, *dns.Msg, bool) {}

const goodA = "host.example.com. 60 A 10.1.0.1"

var hostA = question{"host.example.com.", dns.TypeA}

func TestResolversMoveOnToTheOneThatAnswers(t *testing.T) {
	t.Parallel()
	good := replyWith(dns.RcodeSuccess, goodA)
	strange := func(change func(*dns.Msg)) func(dns.ResponseWriter, *dns.Msg, bool) {
		return func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
			m := new(dns.Msg)
			m.SetReply(q)
			m.Answer = rrs(t, "host.example.com. 60 A 10.6.6.6")
			change(m)
			w.WriteMsg(m)
			if !tcp {
				good(w, q, tcp)
			}
		}
	}
	for name, tt := range map[string]struct {
		first func(dns.ResponseWriter, *dns.Msg, bool)
		// second means that the second resolver has to be asked.
		second bool
	}{
		"it is good":                     {first: good},
		"SERVFAIL":                       {first: replyWith(dns.RcodeServerFailure), second: true},
		"REFUSED":                        {first: replyWith(dns.RcodeRefused), second: true},
		"NOTIMP":                         {first: replyWith(dns.RcodeNotImplemented), second: true},
		"silent":                         {first: silent, second: true},
		"another ID, then the answer":    {first: strange(func(m *dns.Msg) { m.Id++ })},
		"another name, then the answer":  {first: strange(func(m *dns.Msg) { m.Question[0].Name = "evil.example.com." })},
		"another type, then the answer":  {first: strange(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA })},
		"a query, then the answer":       {first: strange(func(m *dns.Msg) { m.Response = false })},
		"two questions, then the answer": {first: strange(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })},
		"late":                           {first: func(w dns.ResponseWriter, q *dns.Msg, tcp bool) { time.Sleep(200 * time.Millisecond); good(w, q, tcp) }},
		"truncated over UDP": {first: func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
			if !tcp {
				m := new(dns.Msg)
				m.SetReply(q)
				m.Truncated = true
				m.Answer = rrs(t, "host.example.com. 60 A 10.6.6.6")
				w.WriteMsg(m)
				return
			}
			good(w, q, tcp)
		}},
		"truncated over TCP, too": {first: func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
			m := new(dns.Msg)
			m.SetReply(q)
			m.Truncated = true
			w.WriteMsg(m)
		}, second: true},
		"cut within a record": {first: func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
			if tcp {
				good(w, q, tcp)
				return
			}
			m := new(dns.Msg)
			m.SetReply(q)
			m.Truncated = true
			m.Answer = rrs(t, "host.example.com. 60 A 10.6.6.6")
			raw, _ := m.Pack()
			w.Write(raw[:len(raw)-3])
		}},
		"many guesses: over TCP": {first: func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
			for range maxUnrelated {
				if !tcp {
					m := new(dns.Msg)
					m.SetReply(q)
					m.Id++
					w.WriteMsg(m)
				}
			}
			good(w, q, tcp)
		}},
		"too old for EDNS": {first: func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
			if q.IsEdns0() != nil {
				w.WriteMsg(&dns.Msg{MsgHdr: dns.MsgHdr{Id: q.Id, Response: true, Rcode: dns.RcodeFormatError}})
				return
			}
			good(w, q, tcp)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := serve(t, tt.first), serve(t, good)
			r, err := NewResolvers(a.addr, b.addr)
			if err != nil {
				t.Fatal(err)
			}
			got, err := lookup(t.Context(), r.Exchange, hostA, "example.com.")
			if err != nil {
				t.Fatal(err)
			}
			if len(got.records) != 1 || key(got.records[0]) != "10.1.0.1" {
				t.Errorf("got %v", got.records)
			}
			if asked := b.udp.Load() > 0; asked != tt.second {
				t.Errorf("the second resolver was asked: %v", asked)
			}
		})
	}
}

func TestResolverFailuresAreReported(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handle func(dns.ResponseWriter, *dns.Msg, bool)
		err    string
	}{
		"SERVFAIL":          {handle: replyWith(dns.RcodeServerFailure), err: "A: SERVFAIL"},
		"a loop of aliases": {handle: replyWith(dns.RcodeSuccess, "host.example.com. 60 CNAME a.test.", "a.test. 60 CNAME host.example.com."), err: "a loop"},
		"aliases without end": {handle: func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
			replyWith(dns.RcodeSuccess, q.Question[0].Name+" 60 CNAME x."+q.Question[0].Name)(w, q, tcp)
		}, err: "more than 8 aliases"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tt.handle)
			r, err := NewResolvers(s.addr)
			if err != nil {
				t.Fatal(err)
			}
			_, err = lookup(t.Context(), r.Exchange, hostA, "example.com.")
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %v, want %q", err, tt.err)
			}
			if n := s.udp.Load(); n > maxAliases {
				t.Errorf("%d queries", n)
			}
		})
	}
}

func TestANameThatDoesNotExistIsAnAnswer(t *testing.T) {
	t.Parallel()
	a, b := serve(t, replyWith(dns.RcodeNameError)), serve(t, replyWith(dns.RcodeSuccess, goodA))
	r, _ := NewResolvers(a.addr, b.addr)
	got, err := lookup(t.Context(), r.Exchange, hostA, "example.com.")
	if err != nil || len(got.records) != 0 || got.ttl != minTTL || b.udp.Load() != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// An alias is followed within the answer and, if it ends there, by another question.
func TestAliasesAreFollowed(t *testing.T) {
	t.Parallel()
	inOne := replyWith(dns.RcodeSuccess, "host.example.com. 300 CNAME a.test.", "a.test. 40 CNAME b.test.", "b.test. 300 A 10.1.0.1")
	steps := func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
		next := map[string]string{
			"host.example.com.": "host.example.com. 40 CNAME a.test.", "a.test.": "a.test. 300 CNAME b.test.", "b.test.": "b.test. 300 A 10.1.0.1",
		}
		replyWith(dns.RcodeSuccess, next[q.Question[0].Name])(w, q, tcp)
	}
	for name, handle := range map[string]func(dns.ResponseWriter, *dns.Msg, bool){"in one answer": inOne, "step by step": steps} {
		s := serve(t, handle)
		r, _ := NewResolvers(s.addr)
		got, err := lookup(t.Context(), r.Exchange, hostA, "example.com.")
		if err != nil || len(got.records) != 1 || got.ttl != 40*time.Second {
			t.Errorf("%s: got %+v, %v", name, got, err)
		}
	}
}

func TestQueriesCannotBeGuessed(t *testing.T) {
	t.Parallel()
	var flags atomic.Int32
	s := serve(t, func(w dns.ResponseWriter, q *dns.Msg, tcp bool) {
		if o := q.IsEdns0(); o == nil || o.UDPSize() != udpSize || o.Do() || !q.AuthenticatedData || q.CheckingDisabled || !q.RecursionDesired {
			flags.Add(1)
		}
		replyWith(dns.RcodeSuccess, goodA)(w, q, tcp)
	})
	r, _ := NewResolvers(s.addr)
	const n = 50
	for range n {
		if _, err := r.Exchange(t.Context(), hostA.wire()); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ids) < n-3 || len(s.ports) < n-10 || flags.Load() != 0 {
		t.Errorf("%d IDs and %d ports in %d queries, %d with the wrong flags", len(s.ids), len(s.ports), n, flags.Load())
	}
}

func TestSilentResolversAreAskedLast(t *testing.T) {
	t.Parallel()
	a, b := netip.MustParseAddrPort("10.0.0.1:53"), netip.MustParseAddrPort("10.0.0.2:53")
	r, err := NewResolvers(a, b)
	if err != nil {
		t.Fatal(err)
	}
	now := start
	check := func(want ...netip.AddrPort) {
		t.Helper()
		if got := r.order(now); !slices.Equal(got, want) {
			t.Errorf("after %s: %v, want %v", now.Sub(start), got, want)
		}
	}
	check(a, b)
	r.record(a, false, now)
	check(b, a)
	r.record(b, false, now.Add(time.Second))
	check(a, b) // The first one's time is over sooner.
	now = now.Add(deadMin)
	check(a, b)
	r.record(a, false, now)
	now = now.Add(deadMin)
	check(b, a) // Twice as long.
	r.record(a, true, now)
	check(a, b)
	if _, err := NewResolvers(slices.Repeat([]netip.AddrPort{a}, maxResolvers+1)...); err == nil {
		t.Error("any number of resolvers is taken")
	}
}

func TestResolvConfIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	r := &Resolvers{path: path}
	now := start
	for _, step := range []struct{ text, want string }{
		{"", "[]"},
		{"search a.test\nnameserver 10.0.0.1\nnameserver fe80::1%eth0\nnameserver nonsense\n", "[10.0.0.1:53 [fe80::1%eth0]:53]"},
		{"nameserver 10.0.0.2\n", "[10.0.0.2:53]"},
		{"# nothing\n", "[10.0.0.2:53]"},
		{strings.Repeat("nameserver 10.0.0.3\n", 20), "[" + strings.TrimSpace(strings.Repeat("10.0.0.3:53 ", maxResolvers)) + "]"},
	} {
		if step.text != "" {
			if err := os.WriteFile(path, []byte(step.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(resolvConfPause)
		if got := fmt.Sprint(r.order(now)); got != step.want {
			t.Errorf("%q: %s, want %s", step.text, got, step.want)
		}
	}
	if _, err := (&Resolvers{path: path + "x"}).Exchange(context.WithoutCancel(t.Context()), hostA.wire()); err == nil || !strings.Contains(err.Error(), "no resolver is known") {
		t.Errorf("got %v", err)
	}
}
