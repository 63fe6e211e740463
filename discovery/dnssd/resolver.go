package dnssd

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Exchange asks a resolver one question and returns its reply. An error means that there is none;
// NXDOMAIN is a reply.
type Exchange func(context.Context, dns.Question) (Reply, error)

// Resolvers asks resolvers one after the other until one answers.
type Resolvers struct {
	// path is a resolv.conf(5), which is read again when it changes. "" means a fixed list.
	path string

	mu    sync.Mutex
	list  []resolver
	stamp string
	seen  time.Time
}

type resolver struct {
	addr netip.AddrPort
	// dead is the time until which it is tried last, and silent how many times it did not respond.
	dead   time.Time
	silent int
}

// NewResolvers returns the resolvers of list, or those of /etc/resolv.conf if it is empty.
func NewResolvers(list ...netip.AddrPort) (*Resolvers, error) {
	if len(list) > maxResolvers {
		return nil, fmt.Errorf("%d resolvers; the limit is %d", len(list), maxResolvers)
	}
	if len(list) == 0 {
		return &Resolvers{path: "/etc/resolv.conf"}, nil
	}
	r := &Resolvers{}
	r.set(list)
	return r, nil
}

func (r *Resolvers) set(list []netip.AddrPort) {
	old := r.list
	r.list = nil
	for _, addr := range list {
		if at := slices.IndexFunc(old, func(o resolver) bool { return o.addr == addr }); at >= 0 {
			r.list = append(r.list, old[at])
		} else {
			r.list = append(r.list, resolver{addr: addr})
		}
	}
}

// order returns the resolvers in the order in which to ask them: that of the list, with silent ones last.
func (r *Resolvers) order(now time.Time) []netip.AddrPort {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reload(now)
	list := slices.Clone(r.list)
	until := func(r resolver) time.Time {
		if now.Before(r.dead) {
			return r.dead
		}
		return time.Time{}
	}
	slices.SortStableFunc(list, func(a, b resolver) int { return until(a).Compare(until(b)) })
	out := make([]netip.AddrPort, len(list))
	for i := range list {
		out[i] = list[i].addr
	}
	return out
}

func (r *Resolvers) record(addr netip.AddrPort, responded bool, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.list {
		switch e := &r.list[i]; {
		case e.addr != addr:
		case responded:
			e.silent, e.dead = 0, time.Time{}
		case !now.Before(e.dead): // Queries in progress count once.
			e.silent++
			e.dead = now.Add(backoff(deadMin, deadMax, e.silent))
		}
	}
}

// reload reads resolv.conf if it changed. If that fails, the list stays.
func (r *Resolvers) reload(now time.Time) {
	if r.path == "" || !r.seen.IsZero() && now.Sub(r.seen) < resolvConfPause {
		return
	}
	r.seen = now
	info, err := os.Stat(r.path)
	if err != nil {
		return
	}
	stamp := fmt.Sprint(info.ModTime().UnixNano(), info.Size())
	if stamp == r.stamp {
		return
	}
	f, err := os.Open(r.path)
	if err != nil {
		return
	}
	conf, err := dns.ClientConfigFromReader(io.LimitReader(f, maxResolvConf))
	if errors.Join(err, f.Close()) != nil {
		return
	}
	var list []netip.AddrPort
	for _, s := range conf.Servers {
		if addr, err := netip.ParseAddr(s); err == nil && len(list) < maxResolvers {
			list = append(list, netip.AddrPortFrom(addr, 53))
		}
	}
	if len(list) > 0 {
		r.stamp = stamp
		r.set(list)
	}
}

// Exchange asks the resolvers. After SERVFAIL, REFUSED and the like it asks the next one.
func (r *Resolvers) Exchange(ctx context.Context, q dns.Question) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	err := errors.New("no resolver is known: configure one, or see /etc/resolv.conf")
	for range rounds {
		silent := false
		for _, addr := range r.order(time.Now()) {
			var reply Reply
			reply, err = askResolver(ctx, addr, q)
			if ctx.Err() != nil && err != nil {
				// The caller ended it, or it timed out; err is that of the last resolver.
				return Reply{}, err
			}
			r.record(addr, err == nil, time.Now())
			if err != nil {
				silent = true
				continue
			}
			if rcode := reply.Msg.Rcode; rcode != dns.RcodeSuccess && rcode != dns.RcodeNameError {
				err = fmt.Errorf("ask resolver %s for %s: %s", addr, question{canonical(q.Name), q.Qtype}, rcodeText(rcode))
				continue
			}
			return reply, nil
		}
		if !silent {
			break // All of them responded, and would do so again.
		}
	}
	return Reply{}, err
}

func newQuery(q dns.Question) *dns.Msg {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired = true
	m.AuthenticatedData = true // This asks for it in the reply (RFC 6840 section 5.7).
	m.Question = []dns.Question{q}
	m.SetEdns0(udpSize, false)
	return m
}

// askResolver asks one resolver, over TCP if the answer does not fit or an attacker seems to guess
// it.
func askResolver(ctx context.Context, addr netip.AddrPort, q dns.Question) (Reply, error) {
	m := newQuery(q)
	reply, err := sendQuery(ctx, "udp", udpTimeout, addr, m)
	if err == nil && reply.Msg.Rcode == dns.RcodeFormatError && m.IsEdns0() != nil {
		// The resolver may be too old for EDNS (RFC 6891 section 6.2.2).
		m.Extra = nil
		m.Id = dns.Id()
		reply, err = sendQuery(ctx, "udp", udpTimeout, addr, m)
	}
	if errors.Is(err, errUnrelated) || err == nil && reply.Msg.Truncated {
		m.Id = dns.Id()
		reply, err = sendQuery(ctx, "tcp", tcpTimeout, addr, m)
	}
	if err != nil {
		return Reply{}, fmt.Errorf("ask resolver %s for %s: %w", addr, question{canonical(q.Name), q.Qtype}, plain(err))
	}
	return reply, nil
}

var errUnrelated = errors.New("too many packets that do not answer it")

// sendQuery sends a query and waits for its answer, on a connected socket of its own with a random
// port, so that packets of other hosts are not received. Over UDP it ignores packets that do not
// answer the query.
func sendQuery(ctx context.Context, network string, timeout time.Duration, addr netip.AddrPort, m *dns.Msg) (Reply, error) {
	query, err := m.Pack()
	if err != nil {
		return Reply{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	socket, err := new(net.Dialer).DialContext(ctx, network, addr.String())
	if err != nil {
		return Reply{}, err
	}
	defer socket.Close()
	deadline, _ := ctx.Deadline()
	conn, udp := &dns.Conn{Conn: socket, UDPSize: udpSize + 1}, network == "udp"
	if err := conn.SetDeadline(deadline); err != nil {
		return Reply{}, err
	}
	if _, err := conn.Write(query); err != nil {
		return Reply{}, err
	}
	for range maxUnrelated {
		raw, err := conn.ReadMsgHeader(nil)
		if udp && (errors.Is(err, dns.ErrShortRead) || err == nil && (binary.BigEndian.Uint16(raw) != m.Id || len(raw) > udpSize)) {
			continue
		}
		if err != nil {
			return Reply{}, err
		}
		got, leftOut, err := parse(raw)
		switch {
		case err == nil && answers(got, m):
			if !udp && got.Truncated {
				return Reply{}, errors.New("its answer over TCP is truncated, too")
			}
			return Reply{Msg: got, LeftOut: leftOut}, nil
		case !udp:
			return Reply{}, cmp.Or(err, errors.New("it answered another question"))
		case truncated(raw):
			// Some servers cut within a record.
			return Reply{Msg: &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Truncated: true}}}, nil
		}
	}
	return Reply{}, errUnrelated
}

func truncated(raw []byte) bool { return raw[2]&0x82 == 0x82 } // QR and TC

// plain returns the error of a connection without addresses: the local one is of no use, and the
// message has the remote one already.
func plain(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		if op.Timeout() {
			return errors.New("no answer in time")
		}
		return op.Err
	}
	return err
}

// lookup asks a question, and follows an answer that ends in an alias.
func lookup(ctx context.Context, exchange Exchange, q question, domain string) (answer, error) {
	var chain answer
	at := q
	for range maxAliases {
		r, err := exchange(ctx, at.wire())
		if err != nil {
			return answer{}, err
		}
		a, err := read(at, r, domain)
		if err != nil {
			return answer{}, err
		}
		if at != q {
			a.ttl = min(a.ttl, chain.ttl)
			a.authenticated = a.authenticated && chain.authenticated
		}
		if a.alias == "" {
			return a, nil
		}
		chain, at.name = a, a.alias
	}
	return answer{}, fmt.Errorf("%s: a chain of more than %d aliases, or a loop of them", q, maxAliases)
}
