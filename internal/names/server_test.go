package names

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// rig is a server on loopback. 127.0.0.1 is a pod of one consumer and 127.0.0.2 of another; others
// are unknown.
type rig struct {
	*Server
	book    *Book
	address string
}

func newRig(t *testing.T, upstreams ...netip.AddrPort) *rig {
	t.Helper()
	r := &rig{book: twoConsumers()}
	r.book.SetPod("shop-a", "local", addrs("127.0.0.1"))
	r.book.SetPod("shop-b", "local", addrs("127.0.0.2"))
	s, err := New(Config{
		Book: r.book, Upstreams: upstreams, ClusterNames: ClusterNames{Hidden: []string{"cluster.local"}},
		Refuse: func(a netip.Addr) error {
			if a.IsLinkLocalUnicast() {
				return errors.New("it is another thing on each node")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Server = s
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := listen.ListenPacket(t.Context(), "udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	r.address = l.Addr().String()
	var done sync.WaitGroup
	stopped := make(chan struct{})
	done.Go(func() { _ = s.servePackets(t.Context(), p, stopped) })
	done.Go(func() { _ = s.serveConns(t.Context(), l, stopped) })
	t.Cleanup(func() {
		close(stopped)
		_ = p.Close()
		_ = l.Close()
		done.Wait()
	})
	return r
}

// ask sends a query from an address.
func (r *rig) ask(t *testing.T, network, from, name string, qtype uint16, change func(*dns.Msg)) (*dns.Msg, error) {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	if change != nil {
		change(m)
	}
	c := dns.Client{Net: network, Timeout: 10 * time.Second}
	if network == "tcp" {
		c.Dialer = &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	} else {
		c.Dialer = &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	}
	in, _, err := c.ExchangeContext(t.Context(), m, r.address)
	return in, err
}

func TestServerAnswersByConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, network := range []string{"udp", "tcp"} {
		in, err := r.ask(t, network, "127.0.0.1", "web.shop.svc.cluster.local.", dns.TypeA, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(in.Answer) != 1 || in.Answer[0].(*dns.A).A.String() != "10.96.0.1" || !in.Authoritative || !in.RecursionAvailable {
			t.Errorf("%s: a pod of one consumer gets\n%s", network, in)
		}
		if in, err = r.ask(t, network, "127.0.0.2", "web.shop.svc.home.example.", dns.TypeA, nil); err != nil {
			t.Fatal(err)
		}
		if len(in.Answer) != 1 || in.Answer[0].(*dns.A).A.String() != "10.96.0.2" {
			t.Errorf("%s: a pod of the other gets\n%s", network, in)
		}
		if in, err = r.ask(t, network, "127.0.0.2", "web.shop.svc.cluster.local.", dns.TypeA, nil); err != nil {
			t.Fatal(err)
		}
		if in.Rcode != dns.RcodeNameError {
			t.Errorf("%s: a pod gets a name of another's home, or of this cluster:\n%s", network, in)
		}
	}
}

func TestServerRefusesAddressesOfNoConsumersPod(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	in, err := r.ask(t, "udp", "127.0.0.3", "web.shop.svc.cluster.local.", dns.TypeA, nil)
	if err != nil {
		t.Fatal(err)
	}
	// With its question: clients ignore an answer without.
	if in.Rcode != dns.RcodeRefused || len(in.Question) != 1 || len(in.Answer) > 0 {
		t.Errorf("a stranger gets\n%s", in)
	}
}

func TestServerWaitsForANewPodToBeKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	time.AfterFunc(300*time.Millisecond, func() { r.book.SetPod("shop-a", "new", addrs("127.0.0.4")) })
	in, err := r.ask(t, "udp", "127.0.0.4", "web.shop.svc.cluster.local.", dns.TypeA, nil)
	if err != nil || len(in.Answer) != 1 {
		t.Errorf("a new pod's first query: %v\n%s", err, in)
	}
}

func TestQueriesOfStrangersAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Book: twoConsumers()})
		if err != nil {
			t.Fatal(err)
		}
		raw := pack(new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA), maxReplyUDP)
		var refused, dropped atomic.Int32
		var done sync.WaitGroup
		for i := range maxUnknownPerAddress + 10 {
			done.Go(func() {
				if s.handle(t.Context(), raw, netip.MustParseAddr("10.9.9.9"), i%2 == 0) == nil {
					dropped.Add(1)
				} else {
					refused.Add(1)
				}
			})
		}
		done.Wait()
		if refused.Load() != maxUnknownPerAddress || dropped.Load() != 10 {
			t.Errorf("of a stranger's queries %d were refused and %d dropped", refused.Load(), dropped.Load())
		}
		if left := s.unknown.Now(); len(left) > 0 {
			t.Errorf("queries of %v are still counted", left)
		}
	})
}

func TestAConsumerBeyondItsRateHarmsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Book: twoConsumers()})
		if err != nil {
			t.Fatal(err)
		}
		raw := pack(new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA), maxReplyUDP)
		answered := 0
		for range queryBurst + 100 {
			if s.handle(t.Context(), raw, netip.MustParseAddr("10.244.1.1"), false) != nil {
				answered++
			}
		}
		if answered != queryBurst {
			t.Errorf("%d queries at once were answered; the limit is %d", answered, queryBurst)
		}
		if s.handle(t.Context(), raw, netip.MustParseAddr("10.244.1.2"), false) == nil {
			t.Error("another consumer's query was dropped")
		}
		time.Sleep(time.Second)
		if s.handle(t.Context(), raw, netip.MustParseAddr("10.244.1.1"), false) == nil {
			t.Error("a second later its queries are still dropped")
		}
	})
}

func TestAnswersThatAreTooLongAreAskedForOverTCP(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.book.SetService("db-a", "many", Service{Headless: true})
	var list []Endpoint
	for i := range 300 {
		list = append(list, Endpoint{Address: netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})})
	}
	r.book.SetSlice("db-a", "many-1", "many", list)
	for what, tc := range map[string]struct {
		network   string
		edns      uint16
		most      int
		truncated bool
	}{
		"UDP":                           {"udp", 0, 512, true},
		"UDP with EDNS":                 {"udp", 1232, 1232, true},
		"UDP with more than is allowed": {"udp", 65535, 1232, true},
		"TCP":                           {"tcp", 0, 65535, false},
	} {
		in, err := r.ask(t, tc.network, "127.0.0.1", "many.db.svc.cluster.local.", dns.TypeA, func(m *dns.Msg) {
			if tc.edns > 0 {
				m.SetEdns0(tc.edns, true)
			}
		})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		in.Compress = true
		if in.Truncated != tc.truncated || in.Len() > tc.most || len(in.Answer) < 20 || (!tc.truncated && len(in.Answer) != 300) {
			t.Errorf("%s: %d records in %d bytes, truncated %v", what, len(in.Answer), in.Len(), in.Truncated)
		}
		if opt := in.IsEdns0(); (opt != nil) != (tc.edns > 0) || (opt != nil && (!opt.Do() || opt.UDPSize() != maxReplyUDP)) {
			t.Errorf("%s: EDNS of the answer is %v", what, opt)
		}
	}
}

func TestMalformedQueriesGetAnErrorOrNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for what, tc := range map[string]struct {
		change func(*dns.Msg)
		want   int
	}{
		"an update":                 {func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		"a notify":                  {func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented},
		"two questions":             {func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, dns.RcodeFormatError},
		"a query with an answer":    {func(m *dns.Msg) { m.Answer = []dns.RR{address("a.", addrs("10.0.0.1")[0])} }, dns.RcodeFormatError},
		"another class":             {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		"an EDNS that is not known": {func(m *dns.Msg) { m.SetEdns0(512, false); m.IsEdns0().SetVersion(7) }, dns.RcodeBadVers},
	} {
		in, err := r.ask(t, "udp", "127.0.0.1", "web.shop.svc.cluster.local.", dns.TypeA, tc.change)
		// The client does not like an answer to two questions; the server's word counts.
		if err != nil && in == nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if in.Rcode != tc.want || len(in.Answer) > 0 {
			t.Errorf("%s: %s with %d records; want %s", what, dns.RcodeToString[in.Rcode], len(in.Answer), dns.RcodeToString[tc.want])
		}
	}
	// An answer is not answered: two servers could do that for ever.
	m := new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA)
	m.Response = true
	for _, source := range []string{"127.0.0.1", "127.0.0.9"} {
		if reply := r.handle(expired(t), pack(m, 512), netip.MustParseAddr(source), false); reply != nil {
			t.Errorf("an answer from %s is answered with %x", source, reply)
		}
	}
}

func expired(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// upstream is a resolver of the node.
func upstream(t *testing.T, answer func(q dns.Question, tcp bool) *dns.Msg) netip.AddrPort {
	t.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := listen.ListenPacket(t.Context(), "udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		_, tcp := w.RemoteAddr().(*net.TCPAddr)
		in := answer(m.Question[0], tcp)
		if in == nil {
			return
		}
		rcode, question := in.Rcode, in.Question
		in.SetReply(m)
		in.Rcode = rcode
		if question != nil {
			in.Question = question
		}
		_ = w.WriteMsg(in)
	})
	for _, s := range []*dns.Server{{Listener: l, Handler: handler}, {PacketConn: p, Handler: handler}} {
		go func() { _ = s.ActivateAndServe() }()
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return netip.MustParseAddrPort(l.Addr().String())
}

func record(text string) dns.RR {
	rr, err := dns.NewRR(text)
	if err != nil {
		panic(err)
	}
	return rr
}

func TestNamesOfTheInternetAreForwardedAndKept(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	down := netip.MustParseAddrPort("127.0.0.1:1")
	bad := upstream(t, func(dns.Question, bool) *dns.Msg { return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeRefused}} })
	liar := upstream(t, func(dns.Question, bool) *dns.Msg {
		return &dns.Msg{Question: []dns.Question{{Name: "other.example.", Qtype: dns.TypeA, Qclass: dns.ClassINET}}, Answer: []dns.RR{record("other.example. 60 IN A 192.0.2.66")}}
	})
	good := upstream(t, func(q dns.Question, tcp bool) *dns.Msg {
		asked.Add(1)
		switch {
		case q.Name == "none.example.":
			return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}, Ns: []dns.RR{record("example. 60 IN SOA a. b. 1 2 3 4 60")}}
		case q.Name == "long.example." && !tcp:
			return &dns.Msg{MsgHdr: dns.MsgHdr{Truncated: true}}
		}
		return &dns.Msg{Answer: []dns.RR{record(q.Name + " 60 IN A 192.0.2.1")}, Extra: []dns.RR{record("evil.example. 60 IN A 192.0.2.66")}}
	})
	r := newRig(t, down, bad, liar, good)
	for range 2 {
		for name, rcode := range map[string]int{"www.example.": dns.RcodeSuccess, "none.example.": dns.RcodeNameError, "long.example.": dns.RcodeSuccess} {
			in, err := r.ask(t, "udp", "127.0.0.1", name, dns.TypeA, nil)
			if err != nil {
				t.Fatal(err)
			}
			if in.Rcode != rcode || (len(in.Answer) == 1) != (rcode == dns.RcodeSuccess) || len(in.Extra) > 0 || in.Authoritative || in.Truncated {
				t.Errorf("%s:\n%s", name, in)
			}
		}
	}
	// long.example. takes UDP and TCP.
	if got := asked.Load(); got != 4 {
		t.Errorf("the resolver was asked %d times; want 4", got)
	}
	// What is kept for one consumer is not for another.
	if _, err := r.ask(t, "udp", "127.0.0.2", "www.example.", dns.TypeA, nil); err != nil {
		t.Fatal(err)
	}
	if got := asked.Load(); got != 5 {
		t.Errorf("the resolver was asked %d times; want 5", got)
	}
	if got := testutil.ToFloat64(r.queries.WithLabelValues(outcomeCached)); got != 3 {
		t.Errorf("%v answers were kept ones; want 3", got)
	}
}

func TestHomesNamesNeedNoResolver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	in, err := r.ask(t, "udp", "127.0.0.1", "example.com.", dns.TypeA, nil)
	if err != nil || in.Rcode != dns.RcodeServerFailure {
		t.Errorf("a name of the Internet without a resolver: %v\n%s", err, in)
	}
	if in, err = r.ask(t, "udp", "127.0.0.1", "web.shop.svc.cluster.local.", dns.TypeA, nil); err != nil || len(in.Answer) != 1 {
		t.Errorf("a name of home: %v\n%s", err, in)
	}
}

func TestQueriesThatWaitForResolversAreBounded(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	slow := upstream(t, func(q dns.Question, _ bool) *dns.Msg {
		<-release
		return &dns.Msg{Answer: []dns.RR{record(q.Name + " 60 IN A 192.0.2.1")}}
	})
	r := newRig(t, slow)
	a := netip.MustParseAddr("127.0.0.1")
	query := func(source netip.Addr, n int) int {
		m := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.", n), dns.TypeA)
		reply := new(dns.Msg)
		if err := reply.Unpack(r.handle(t.Context(), pack(m, 512), source, false)); err != nil {
			t.Error(err)
		}
		return reply.Rcode
	}
	var done sync.WaitGroup
	for n := range maxForwards {
		done.Go(func() { query(a, n) })
	}
	for len(r.forwards) < maxForwards {
		time.Sleep(time.Millisecond)
	}
	if got := query(a, maxForwards); got != dns.RcodeServerFailure {
		t.Errorf("one query more than the most: %s", dns.RcodeToString[got])
	}
	close(release)
	done.Wait()
	if got := query(netip.MustParseAddr("127.0.0.2"), 0); got != dns.RcodeSuccess {
		t.Errorf("another consumer's query afterwards: %s", dns.RcodeToString[got])
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	dial := func() net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP("127.0.0.1")}}
		c, err := d.DialContext(t.Context(), "tcp", r.address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		return c
	}
	for range maxConnsPerAddress {
		dial()
	}
	c := dial()
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one connection more than the most: %v; want it closed", err)
	}
	if in, err := r.ask(t, "tcp", "127.0.0.2", "web.shop.svc.home.example.", dns.TypeA, nil); err != nil || len(in.Answer) != 1 {
		t.Errorf("another pod's connection: %v\n%s", err, in)
	}
}

func TestServeDrainsBeforeItEnds(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Book: twoConsumers()})
	if err != nil {
		t.Fatal(err)
	}
	s.cfg.Book.SetPod("shop-a", "local", addrs("127.0.0.1"))
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p, err := listen.ListenPacket(t.Context(), "udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, p, l) }()
	cancel()
	r := &rig{Server: s, address: l.Addr().String()}
	if in, err := r.ask(t, "udp", "127.0.0.1", "web.shop.svc.cluster.local.", dns.TypeA, nil); err != nil || len(in.Answer) != 1 {
		t.Errorf("while it ends: %v\n%s", err, in)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(2 * drain):
		t.Error("it does not end")
	}
}

func TestCacheIsBoundedAndForgets(t *testing.T) {
	t.Parallel()
	c := newCache()
	now := time.Unix(1_000_000, 0)
	q := func(peer string, n int) question {
		return question{peer: peer, name: fmt.Sprintf("n%d.example.", n), qtype: dns.TypeTXT}
	}
	msg := func(ttl int) *dns.Msg {
		return &dns.Msg{Answer: []dns.RR{record(fmt.Sprintf("n.example. %d IN TXT %q", ttl, strings.Repeat("x", 2000)))}}
	}
	for n := range 1000 {
		c.put(q("a", n), msg(60), now)
	}
	c.put(q("b", 0), msg(60), now)
	if c.bytes > cacheBytesPerConsumer+maxCached || c.get(q("b", 0), now) == nil || c.get(q("a", 0), now) != nil || c.get(q("a", 999), now) == nil {
		t.Errorf("1000 answers of one consumer take %d bytes; another's is %v", c.bytes, c.get(q("b", 0), now))
	}
	for peer := range 40 {
		for n := range 600 {
			c.put(q(fmt.Sprint(peer), n), msg(60), now)
		}
	}
	if c.bytes > cacheBytes {
		t.Errorf("answers of 40 consumers take %d bytes", c.bytes)
	}
	c.put(q("c", 0), msg(60), now)
	if m := c.get(q("c", 0), now.Add(20*time.Second)); m == nil || m.Answer[0].Header().Ttl != 40 {
		t.Errorf("after 20 s of 60: %v", m)
	}
	if m := c.get(q("c", 0), now.Add(time.Minute)); m != nil {
		t.Errorf("after 60 s of 60: %v", m)
	}
	c.put(q("c", 1), msg(0), now)
	c.put(q("c", 2), &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeServerFailure}}, now)
	c.put(q("c", 3), &dns.Msg{}, now)
	for n := 1; n <= 3; n++ {
		if c.get(q("c", n), now) != nil {
			t.Errorf("answer %d is kept", n)
		}
	}
}

// FuzzHandle sends anything: the server does not fail, and its answers have the query's ID and fit.
func FuzzHandle(f *testing.F) {
	edns := new(dns.Msg).SetQuestion("_http._tcp.web.shop.svc.cluster.local.", dns.TypeSRV)
	edns.SetEdns0(4096, true)
	for _, m := range []*dns.Msg{
		new(dns.Msg).SetQuestion("web.shop.svc.cluster.local.", dns.TypeA), edns,
		new(dns.Msg).SetQuestion("example.com.", dns.TypeANY), new(dns.Msg).SetUpdate("cluster.local."),
	} {
		f.Add(pack(m, maxReply), true)
		f.Add(pack(m, maxReply), false)
	}
	loop := pack(new(dns.Msg).SetQuestion("a.", dns.TypeA), 512)
	loop[12], loop[13] = 0xc0, 0x0c
	f.Add(loop, true)
	f.Add(bytes.Repeat([]byte{0}, 12), false)
	ctx, cancel := context.WithCancel(context.Background())
	f.Cleanup(cancel)
	b := twoConsumers()
	f.Fuzz(func(t *testing.T, raw []byte, known bool) {
		s, err := New(Config{Book: b})
		if err != nil {
			t.Fatal(err)
		}
		var reply []byte
		if known {
			reply = s.handle(ctx, raw, netip.MustParseAddr("10.244.1.1"), false)
		} else {
			reply = failure(raw, dns.RcodeRefused)
		}
		if reply == nil {
			return
		}
		m := new(dns.Msg)
		if err := m.Unpack(reply); err != nil {
			t.Fatalf("the answer to %x cannot be read: %v", raw, err)
		}
		if !m.Response || len(raw) < 2 || !slices.Equal(reply[:2], raw[:2]) || len(reply) > maxReplyUDP {
			t.Errorf("%x is answered with %x", raw, reply)
		}
	})
}

func TestAnswersThatTakeWorkCountAsSeveral(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := twoConsumers()
		b.SetService("db-a", "many", Service{Headless: true})
		for part := range 50 {
			var list []Endpoint
			for i := range 100 {
				list = append(list, Endpoint{Address: netip.AddrFrom4([4]byte{10, 3, byte(part), byte(i)}), Hostname: fmt.Sprintf("h-%d-%d", part, i)})
			}
			b.SetSlice("db-a", fmt.Sprintf("many-%d", part), "many", list)
		}
		s, err := New(Config{Book: b})
		if err != nil {
			t.Fatal(err)
		}
		// All 5,000 are read for a host that does not exist.
		raw := pack(new(dns.Msg).SetQuestion("nope.many.db.svc.cluster.local.", dns.TypeA), maxReplyUDP)
		answered := 0
		for range queryBurst {
			if s.handle(t.Context(), raw, netip.MustParseAddr("10.244.1.1"), false) != nil {
				answered++
			}
		}
		if most := queryBurst / (5000 / workPerQuery); answered > most || answered < most/2 {
			t.Errorf("%d queries that take much were answered at once; want at most %d", answered, most)
		}
	})
}
