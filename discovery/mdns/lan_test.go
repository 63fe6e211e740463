package mdns

import (
	"fmt"
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

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A lan is a set of links that receive each other's packets, in virtual time.
type lan struct {
	t     *testing.T
	now   time.Time
	rand  *rand.Rand
	hosts []*host
	wire  []inFlight
	// log is all that was sent.
	log []sent
	// loss is the part of packets, for each receiver, that is lost; delay the most that
	// one takes, which reorders them.
	loss  float64
	delay time.Duration
	// cut are hosts that neither receive nor reach others.
	cut map[*host]bool
}

type host struct {
	*link
	addr netip.Addr
	// due is what next last returned.
	due time.Time
}

type inFlight struct {
	at        time.Time
	to        *host
	from      netip.AddrPort
	multicast bool
	data      []byte
}

type sent struct {
	at   time.Time
	from *host
	// to is not valid for the group.
	to netip.AddrPort
	message
	data []byte
}

func newLAN(t *testing.T) *lan {
	return &lan{t: t, now: epoch, rand: rand.New(rand.NewPCG(1, 2)), delay: time.Millisecond, cut: map[*host]bool{}}
}

func (n *lan) add() *host {
	i := len(n.hosts) + 1
	a := netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i%250 + 1)})
	h := &host{link: newLink(fmt.Sprintf("eth%d", i), ipv4Family, 1452, rand.New(rand.NewPCG(7, uint64(i))), newEchoes()), addr: a}
	h.setAddresses(n.now, []netip.Addr{a})
	n.hosts = append(n.hosts, h)
	return h
}

// id is a cluster's ID, another one for each number.
func id(i int) peering.ClusterID {
	b := []byte(strings.Repeat("a", 32))
	for at := 0; i > 0; i /= 26 {
		b[at] = byte('a' + i%26)
		at++
	}
	return peering.ClusterID(b)
}

func service(i int, name string) discovery.Service {
	return discovery.Service{Instance: name, Host: fmt.Sprintf("entente-%d", i), Port: 7443, Text: discovery.Text{ID: id(i), Name: name, API: "1-2"}}
}

// cluster adds a host that publishes a service and browses.
func (n *lan) cluster(name string) *host {
	h := n.add()
	h.publish(n.now, []discovery.Service{service(len(n.hosts), name)})
	h.browse(n.now, []mdnsName{serviceName, automatic})
	return h
}

// publisher adds a host that publishes a service and does not browse.
func (n *lan) publisher(i int, name string) *host {
	h := n.add()
	h.publish(n.now, []discovery.Service{service(i, name)})
	return h
}

type mdnsName = name

func (n *lan) collect(h *host) {
	for _, p := range h.packets() {
		m, err := unpack(p.data)
		if err != nil {
			n.t.Fatalf("%s sends what cannot be read: %v", h.name, err)
		}
		n.log = append(n.log, sent{n.now, h, p.to, m, p.data})
		for _, to := range n.hosts {
			if p.to.IsValid() && to.addr != p.to.Addr() || n.cut[to] != n.cut[h] || n.cut[h] && to != h {
				continue
			}
			if to != h && n.rand.Float64() < n.loss {
				continue
			}
			at := n.now.Add(1 + time.Duration(n.rand.Int64N(int64(n.delay))))
			// The next to arrive is the last.
			place, _ := slices.BinarySearchFunc(n.wire, at, func(p inFlight, at time.Time) int { return at.Compare(p.at) })
			n.wire = slices.Insert(n.wire, place, inFlight{at, to, netip.AddrPortFrom(h.addr, port), !p.to.IsValid(), p.data})
		}
	}
}

// run lets time go by.
func (n *lan) run(d time.Duration) {
	end := n.now.Add(d)
	for _, h := range n.hosts {
		n.collect(h)
		h.due = h.next()
	}
	for {
		next, at := end, len(n.wire)-1
		if at >= 0 && !n.wire[at].at.After(next) {
			next = n.wire[at].at
		} else {
			at = -1
		}
		var who *host
		for _, h := range n.hosts {
			if t := h.due; !t.IsZero() && t.Before(next) {
				next, who = later(t, n.now), h
			}
		}
		n.now = next
		switch {
		case who != nil:
			who.tick(n.now)
			if t := who.next(); !t.IsZero() && !t.After(n.now) && len(who.out) == 0 {
				who.tick(n.now)
				if t := who.next(); !t.IsZero() && !t.After(n.now) && len(who.out) == 0 {
					n.t.Fatalf("%s is due at %v again, which it was just now", who.name, t.Sub(epoch))
				}
			}
		case at >= 0:
			p := n.wire[at]
			n.wire = n.wire[:at]
			who = p.to
			p.to.receive(n.now, p.data, p.from, p.multicast)
		default:
			return
		}
		n.collect(who)
		who.due = who.next()
	}
}

// since returns the packets that h (or all) sent after a time.
func (n *lan) since(t time.Time, h *host, want func(sent) bool) []sent {
	var out []sent
	for _, s := range n.log {
		if s.at.After(t) && (h == nil || s.from == h) && want(s) {
			out = append(out, s)
		}
	}
	return out
}

func (n *lan) forget() { n.log = nil }

func queryOf(s sent) bool    { return !s.response }
func responseOf(s sent) bool { return s.response }
func probeOf(s sent) bool    { return !s.response && len(s.proposed) > 0 }

func names(list []discovery.Found) []string {
	out := []string{}
	for _, f := range list {
		out = append(out, f.Instance)
	}
	return out
}

// inject passes a packet to one host, as if another had sent it from an address.
func (n *lan) inject(to *host, from string, b []byte) {
	to.receive(n.now, b, netip.MustParseAddrPort(from), true)
}

// ask is a packet with questions.
func ask(questions []question, known ...record) []byte {
	b, _ := packQuery(1452, questions, func(k key) []record {
		return slices.DeleteFunc(slices.Clone(known), func(r record) bool { return r.key() != k })
	})
	return b[0]
}

func say(list ...record) []byte { return packResponses(8000, list, nil)[0] }

func has(list []record, typ uint16, n name) bool {
	return slices.ContainsFunc(list, func(r record) bool { return r.typ == typ && fold(r.name) == fold(n) })
}

var _ = dns.TypeA

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// found returns the found clusters.
func (l *link) found() []discovery.Found {
	out, _ := l.collect()
	return out
}

// domain returns a name of plain labels: "_entente._tcp.local".
func domain(s string) name { return join("\x00", strings.Split(s, ".")...) }
