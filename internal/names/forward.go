package names

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/miekg/dns"
)

// errNoUpstream is the error of a forwarder without resolvers.
var errNoUpstream = errors.New("this node has no resolver that can be asked from a pod")

// forwarder forwards questions to the resolvers of the node.
type forwarder struct {
	upstreams []netip.AddrPort
	// good is the index of the resolver that answered last.
	good atomic.Int32
}

// ask returns the answer of the first resolver that has one, with only the requested records, or
// the SOA of a negative answer.
func (f *forwarder) ask(ctx context.Context, q dns.Question, dnssec bool) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	err := errNoUpstream
	first := int(f.good.Load())
	for i := range f.upstreams {
		at := (first + i) % len(f.upstreams)
		var m *dns.Msg
		if m, err = exchange(ctx, f.upstreams[at], q, dnssec); err == nil {
			f.good.Store(int32(at))
			return m, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// exchange asks one resolver, from a random port and with a random ID.
func exchange(ctx context.Context, upstream netip.AddrPort, q dns.Question, dnssec bool) (*dns.Msg, error) {
	m := new(dns.Msg)
	m.Id = dns.Id()
	m.RecursionDesired = true
	m.Question = []dns.Question{q}
	m.SetEdns0(maxReplyUDP, dnssec)
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network, Timeout: upstreamTimeout}
		in, _, err := c.ExchangeContext(ctx, m, upstream.String())
		if err != nil {
			return nil, fmt.Errorf("ask resolver %s: %w", upstream, err)
		}
		if !in.Response || in.Opcode != dns.OpcodeQuery || len(in.Question) != 1 || !sameQuestion(in.Question[0], q) {
			return nil, fmt.Errorf("ask resolver %s: it answered another question", upstream)
		}
		if in.Truncated && network == "udp" {
			continue
		}
		if in.Rcode != dns.RcodeSuccess && in.Rcode != dns.RcodeNameError {
			return nil, fmt.Errorf("ask resolver %s: %s", upstream, dns.RcodeToString[in.Rcode])
		}
		return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: in.Rcode, Truncated: in.Truncated}, Answer: in.Answer, Ns: in.Ns}, nil
	}
	return nil, fmt.Errorf("ask resolver %s: its answer is truncated", upstream)
}

func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && strings.EqualFold(a.Name, b.Name)
}
