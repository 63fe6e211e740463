package names

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/entente-dev/entente/internal/accept"
)

// Config configures a Server.
type Config struct {
	// Book has the names. Required.
	Book *Book
	// Refuse returns why an alias of a name of the Internet must not resolve to an address, as for
	// one that means another machine on each node. Nil refuses none.
	Refuse func(netip.Addr) error
	// Upstreams are the resolvers for names of the Internet.
	Upstreams []netip.AddrPort
	// ClusterNames is which of this cluster's own names consumers can resolve.
	ClusterNames ClusterNames
	// Metrics registers the server's metrics, which name no consumer. Nil registers none.
	Metrics prometheus.Registerer
	// Log is for errors. Nil discards.
	Log *slog.Logger
}

// Server answers the queries of consumers' pods.
type Server struct {
	cfg     Config
	log     *slog.Logger
	forward forwarder
	cache   *cache
	queries *prometheus.CounterVec

	// work bounds the UDP queries that are handled at once, forwards those that wait for a
	// resolver.
	work, forwards chan struct{}

	// unknown counts the waiting queries of each address that is not known as a pod's, conns and
	// peerConns the connections of each address and of each consumer.
	unknown, conns *accept.Counts[netip.Addr]
	peerConns      *accept.Counts[string]

	mu        sync.Mutex
	consumers map[string]*consumer
	// failures limits the log lines about queries.
	failures rate.Sometimes
}

// consumer has what one consumer uses of the server.
type consumer struct {
	queries  *rate.Limiter
	forwards chan struct{}
}

// Outcomes of queries, in the metrics.
const (
	outcomeHome      = "home"
	outcomeInternet  = "internet"
	outcomeCached    = "cached"
	outcomeFailed    = "failed"
	outcomeRefused   = "refused"
	outcomeMalformed = "malformed"
	outcomeDropped   = "dropped"
)

// New returns a Server.
func New(cfg Config) (*Server, error) {
	if cfg.Book == nil {
		return nil, errors.New("names: a book is required")
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Server{
		cfg: cfg, log: cfg.Log, forward: forwarder{upstreams: cfg.Upstreams}, cache: newCache(),
		work: make(chan struct{}, maxConcurrent), forwards: make(chan struct{}, maxForwardsInAll),
		consumers: make(map[string]*consumer), unknown: accept.NewCounts[netip.Addr](maxUnknown, maxUnknownPerAddress),
		conns: accept.NewCounts[netip.Addr](maxConns, maxConnsPerAddress), peerConns: accept.NewCounts[string](maxConns, maxConnsPerConsumer), failures: rate.Sometimes{Interval: complainAgain},
		queries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "entente_dns_queries_total",
			Help: "Queries of pods of consumers, by outcome: answered from home's names, from the Internet or the cache, failed, refused (not a consumer's pod), malformed, or dropped (beyond a limit).",
		}, []string{"outcome"}),
	}
	for _, outcome := range []string{outcomeHome, outcomeInternet, outcomeCached, outcomeFailed, outcomeRefused, outcomeMalformed, outcomeDropped} {
		s.queries.WithLabelValues(outcome)
	}
	if cfg.Metrics != nil {
		if err := cfg.Metrics.Register(s.queries); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return s, nil
}

// Serve answers on a packet connection and a listener until ctx ends, and for drain after that. It
// closes both.
func (s *Server) Serve(ctx context.Context, packets net.PacketConn, listener net.Listener) error {
	stopped := make(chan struct{})
	// Queries that are answered meanwhile may still ask resolvers.
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	failed := make(chan error, 2)
	var tasks sync.WaitGroup
	tasks.Go(func() { failed <- s.servePackets(work, packets, stopped) })
	tasks.Go(func() { failed <- s.serveConns(work, listener, stopped) })
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		select {
		case err = <-failed:
		case <-time.After(drain):
		}
	}
	close(stopped)
	cancel()
	_ = packets.Close()
	_ = listener.Close()
	tasks.Wait()
	return err
}

// over reports whether a channel is closed.
func over(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *Server) servePackets(ctx context.Context, c net.PacketConn, stopped <-chan struct{}) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	// The extra byte shows that a query was cut.
	buffer := make([]byte, maxQuery+1)
	for {
		n, from, err := c.ReadFrom(buffer)
		switch {
		case over(stopped):
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("read queries: %w", err)
		case err != nil:
			// For example, an answer could not be delivered.
			s.logFailure("read query", err)
			time.Sleep(time.Millisecond)
			continue
		}
		source, ok := sourceOf(from)
		if !ok || n > maxQuery {
			s.count(outcomeMalformed)
			continue
		}
		select {
		case s.work <- struct{}{}:
		default:
			s.count(outcomeDropped)
			continue
		}
		raw := append([]byte(nil), buffer[:n]...)
		tasks.Go(func() {
			defer func() { <-s.work }()
			if reply := s.handle(ctx, raw, source, false); reply != nil {
				if _, err := c.WriteTo(reply, from); err != nil && !over(stopped) {
					s.logFailure("answer query", err)
				}
			}
		})
	}
}

func sourceOf(from net.Addr) (netip.Addr, bool) {
	udp, ok := from.(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, false
	}
	return udp.AddrPort().Addr().Unmap().WithZone(""), udp.AddrPort().IsValid()
}

func (s *Server) serveConns(ctx context.Context, l net.Listener, stopped <-chan struct{}) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for {
		c, err := l.Accept()
		switch {
		case over(stopped):
			if err == nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connections: %w", err)
		case err != nil:
			s.logFailure("accept connection", err)
			time.Sleep(10 * time.Millisecond)
			continue
		}
		source := accept.From(c)
		who, _ := s.cfg.Book.Source(source)
		leave, ok := s.enterConn(source, who.Peer)
		if !ok {
			s.count(outcomeDropped)
			_ = c.Close()
			continue
		}
		tasks.Go(func() {
			defer leave()
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			defer func() { _ = c.Close() }()
			s.serveConn(ctx, &dns.Conn{Conn: c}, source)
		})
	}
}

// serveConn answers one query after the other.
func (s *Server) serveConn(ctx context.Context, c *dns.Conn, source netip.Addr) {
	for range maxQueriesPerConn {
		if err := c.SetDeadline(time.Now().Add(connIdle)); err != nil {
			return
		}
		raw, err := c.ReadMsgHeader(nil)
		if err != nil {
			return
		}
		reply := s.handle(ctx, raw, source, true)
		if reply == nil {
			return
		}
		if err := c.SetWriteDeadline(time.Now().Add(connIdle)); err != nil {
			return
		}
		if _, err := c.Write(reply); err != nil {
			return
		}
	}
}

// enterConn counts a connection, within the limits. All unknown addresses together count as one
// consumer.
func (s *Server) enterConn(a netip.Addr, peer string) (leave func(), ok bool) {
	if !a.IsValid() {
		return nil, false
	}
	leaveAddress, ok := s.conns.Enter(a)
	if !ok {
		return nil, false
	}
	leavePeer, ok := s.peerConns.Enter(peer)
	if !ok {
		leaveAddress()
		return nil, false
	}
	return func() { leaveAddress(); leavePeer() }, true
}

// handle returns the answer to a query, or nil to drop it. A query that is not from a consumer's
// pod is not decoded.
func (s *Server) handle(ctx context.Context, raw []byte, source netip.Addr, tcp bool) []byte {
	who, ok, busy := s.who(ctx, source)
	if busy {
		s.count(outcomeDropped)
		return nil
	}
	if !ok {
		s.count(outcomeRefused)
		return failure(raw, dns.RcodeRefused)
	}
	c := s.consumer(who.Peer)
	if !c.queries.Allow() {
		s.count(outcomeDropped)
		return nil
	}
	query := new(dns.Msg)
	if err := query.Unpack(raw); err != nil {
		s.count(outcomeMalformed)
		return failure(raw, dns.RcodeFormatError)
	}
	if query.Response {
		s.count(outcomeMalformed)
		return nil
	}
	reply := new(dns.Msg)
	reply.SetReply(query)
	reply.RecursionAvailable = true
	size, dnssec := maxReply, false
	if !tcp {
		size = dns.MinMsgSize
	}
	opt := query.IsEdns0()
	if opt != nil {
		dnssec = opt.Do()
		reply.SetEdns0(maxReplyUDP, dnssec)
		if !tcp {
			size = min(max(int(opt.UDPSize()), dns.MinMsgSize), maxReplyUDP)
		}
	}
	switch {
	case query.Opcode != dns.OpcodeQuery:
		reply.Rcode = dns.RcodeNotImplemented
	case len(query.Question) != 1 || len(query.Answer) > 0 || len(query.Ns) > 0:
		reply.Rcode = dns.RcodeFormatError
	case opt != nil && opt.Version() != 0:
		reply.Rcode = dns.RcodeBadVers
	case query.Question[0].Qclass != dns.ClassINET:
		reply.Rcode = dns.RcodeRefused
	default:
		s.answer(ctx, who, c, reply, dnssec, tcp)
		return pack(reply, size)
	}
	s.count(outcomeMalformed)
	return pack(reply, size)
}

// who returns the source of a query, for which it waits a moment if the address is not known yet.
// busy means that too many wait.
func (s *Server) who(ctx context.Context, source netip.Addr) (who Who, ok, busy bool) {
	who, ok, more := s.cfg.Book.await(source)
	if ok {
		return who, true, false
	}
	leave, ok := s.unknown.Enter(source)
	if !ok {
		return Who{}, false, true
	}
	defer leave()
	enough := time.NewTimer(unknownPatience)
	defer enough.Stop()
	for {
		select {
		case <-more:
			if who, ok, more = s.cfg.Book.await(source); ok {
				return who, true, false
			}
		case <-enough.C:
			return Who{}, false, false
		case <-ctx.Done():
			return Who{}, false, true
		}
	}
}

func (s *Server) consumer(peer string) *consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.consumers[peer]
	if !ok {
		c = &consumer{queries: rate.NewLimiter(queryRate, queryBurst), forwards: make(chan struct{}, maxForwards)}
		s.consumers[peer] = c
	}
	return c
}

// answer fills in the answer to a query with one question.
func (s *Server) answer(ctx context.Context, who Who, c *consumer, reply *dns.Msg, dnssec, tcp bool) {
	q := reply.Question[0]
	limit := maxRecordsUDP
	if tcp {
		limit = maxRecords
	}
	a := s.cfg.Book.Answer(who, q, limit, s.cfg.ClusterNames)
	if n := a.Work / workPerQuery; n > 0 {
		c.queries.ReserveN(time.Now(), min(n, queryBurst))
	}
	switch {
	case a.Forward:
		s.ask(ctx, who, c, q, reply, dnssec)
		return
	case a.Outside != "":
		s.askOutside(ctx, who, c, a, reply, dnssec)
		return
	}
	s.count(outcomeHome)
	reply.Authoritative = true
	reply.Rcode, reply.Ns = a.Rcode, a.Authority
	reply.Extra = append(a.Extra, reply.Extra...)
	reply.Truncated = a.Partial
	// Clients use the first record.
	rand.Shuffle(len(a.Records), func(i, j int) { a.Records[i], a.Records[j] = a.Records[j], a.Records[i] })
	reply.Answer = append(a.Aliases, a.Records...)
}

// askOutside fills in the answer for an alias whose target is not home's, without addresses that
// Refuse refuses.
func (s *Server) askOutside(ctx context.Context, who Who, c *consumer, a Answer, reply *dns.Msg, dnssec bool) {
	s.ask(ctx, who, c, dns.Question{Name: a.Outside, Qtype: reply.Question[0].Qtype, Qclass: dns.ClassINET}, reply, dnssec)
	if reply.Rcode == dns.RcodeServerFailure {
		return
	}
	reply.Authoritative = true
	reply.Answer = append(a.Aliases, slices.DeleteFunc(reply.Answer, func(rr dns.RR) bool {
		var addr netip.Addr
		switch rr := rr.(type) {
		case *dns.A:
			addr, _ = netip.AddrFromSlice(rr.A.To4())
		case *dns.AAAA:
			addr, _ = netip.AddrFromSlice(rr.AAAA)
		default:
			return false
		}
		return s.cfg.Refuse != nil && s.cfg.Refuse(addr) != nil
	})...)
}

// ask fills in the answer of the node's resolvers, or of the cache.
func (s *Server) ask(ctx context.Context, who Who, c *consumer, q dns.Question, reply *dns.Msg, dnssec bool) {
	key := question{peer: who.Peer, name: strings.ToLower(q.Name), qtype: q.Qtype, dnssec: dnssec}
	m := s.cache.get(key, time.Now())
	if m != nil {
		s.count(outcomeCached)
	} else {
		var err error
		if m, err = s.askUpstream(ctx, c, q, dnssec); err != nil {
			s.count(outcomeFailed)
			s.logFailure("forward query", err)
			reply.Rcode = dns.RcodeServerFailure
			return
		}
		s.count(outcomeInternet)
		s.cache.put(key, m, time.Now())
	}
	reply.Rcode, reply.Answer, reply.Ns, reply.Truncated = m.Rcode, m.Answer, m.Ns, m.Truncated
}

// errBusy means that too many queries wait for the node's resolvers.
var errBusy = errors.New("too many queries wait for the node's resolvers")

func (s *Server) askUpstream(ctx context.Context, c *consumer, q dns.Question, dnssec bool) (*dns.Msg, error) {
	for _, places := range []chan struct{}{c.forwards, s.forwards} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		default:
			return nil, errBusy
		}
	}
	return s.forward.ask(ctx, q, dnssec)
}

// pack encodes an answer within size. If that fails, the answer is SERVFAIL.
func pack(reply *dns.Msg, size int) []byte {
	reply.Compress = true
	partial := reply.Truncated
	reply.Truncate(size)
	reply.Truncated = reply.Truncated || partial
	raw, err := reply.Pack()
	if err != nil || len(raw) > size {
		reply.Answer, reply.Ns, reply.Extra = nil, nil, nil
		reply.Rcode = dns.RcodeServerFailure
		if raw, err = reply.Pack(); err != nil {
			return nil
		}
	}
	return raw
}

// failure returns an answer with a response code to a raw query, or nil if that is not a query. It
// repeats the question, as clients ignore an answer without it.
func failure(raw []byte, rcode int) []byte {
	const headerSize, questionSize, response = 12, 4, 0x80
	if len(raw) < headerSize || raw[2]&response != 0 {
		return nil
	}
	m := &dns.Msg{MsgHdr: dns.MsgHdr{
		Id: binary.BigEndian.Uint16(raw), Response: true, Opcode: int(raw[2]>>3) & 0xf, RecursionDesired: raw[2]&1 != 0, Rcode: rcode,
	}}
	if name, end, err := dns.UnpackDomainName(raw, headerSize); err == nil && binary.BigEndian.Uint16(raw[4:]) == 1 && len(raw) >= end+questionSize {
		m.Question = []dns.Question{{
			Name: name, Qtype: binary.BigEndian.Uint16(raw[end:]), Qclass: binary.BigEndian.Uint16(raw[end+2:]),
		}}
	}
	out, err := m.Pack()
	if err != nil {
		return nil
	}
	return out
}

func (s *Server) count(outcome string) { s.queries.WithLabelValues(outcome).Inc() }

// complainAgain is the shortest pause between two log lines about queries.
const complainAgain = 10 * time.Second

// logFailure logs errors of queries, at a limited rate and without the names in them.
func (s *Server) logFailure(step string, err error) {
	s.failures.Do(func() { s.log.Warn("a DNS query could not be answered", "step", step, "err", err) })
}
