package mdns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// fullLink is a link that publishes one cluster and knows as many others as it may.
func fullLink(tb testing.TB) *link {
	tb.Helper()
	l := newLink("eth0", ipv4Family, 1452, rand.New(rand.NewPCG(1, 2)), newEchoes())
	l.setAddresses(epoch, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	l.publish(epoch, []discovery.Service{service(1, "office")})
	l.browse(epoch, []name{serviceName, automatic})
	now := epoch
	settle := func(d time.Duration) {
		for end := now.Add(d); ; {
			next := l.next()
			if next.IsZero() || next.After(end) {
				now = end
				break
			}
			now = later(now, next)
			l.tick(now)
			l.packets()
		}
	}
	settle(5 * time.Second)
	for i := range maxInstances {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}), port)
		l.receive(now, say(clusterRecords(i+2, -1)...), from, true)
		settle(10 * time.Millisecond)
	}
	if got := len(l.found()); got != maxInstances {
		tb.Fatalf("%d are known", got)
	}
	settle(time.Second)
	return l
}

// BenchmarkNext measures the cost of the loop after each packet, whatever the size of the cache.
func BenchmarkNext(b *testing.B) {
	l := fullLink(b)
	b.ReportMetric(float64(l.cache.entries), "records")
	for b.Loop() {
		if l.next().IsZero() {
			b.Fatal("nothing is due")
		}
	}
}

// BenchmarkReceive measures the cost of a packet with a full cache, of which up to 1000 are read in
// a second.
func BenchmarkReceive(b *testing.B) {
	packet := func(section, n int, flags int, r func(i int) record) []byte {
		p := newPacker(maxPacket - headersIP)
		if section == inAnswers && flags == 0 {
			p.question(question{name: serviceName, typ: dns.TypePTR})
		}
		for i := 0; i < n && p.record(section, r(i)); i++ {
			continue
		}
		return p.bytes(0, flags)
	}
	p := newPacker(maxPacket - headersIP)
	for i := range 500 {
		p.question(question{name: join(serviceName, fmt.Sprintf("%d", i)), typ: dns.TypeSRV})
	}
	questions := p.bytes(0, 0)
	for _, tt := range []struct {
		name string
		b    []byte
	}{
		{"an announcement", say(clusterRecords(7, -1)...)},
		{"a query", ask([]question{{name: serviceName, typ: dns.TypePTR}})},
		{"a query that knows 40", packet(inAnswers, 40, 0, func(i int) record { return clusterRecords(i+2, -1)[0] })},
		{"500 questions", questions},
		{"500 known answers", packet(inAnswers, 500, 0, func(i int) record { return ptr(serviceName, join(serviceName, fmt.Sprint(i))) })},
		{"500 addresses of one host", packet(inAnswers, 500, bitResponse, func(i int) record {
			return address(domain("entente-2.local"), netip.AddrFrom4([4]byte{10, 4, byte(i / 256), byte(i)}))
		})},
		{"500 instances", packet(inAnswers, 500, bitResponse, func(i int) record { return ptr(serviceName, join(serviceName, fmt.Sprint(i))) })},
		{"500 of others", packet(inAnswers, 500, bitResponse, func(i int) record { return ptr(domain("_x._tcp.local"), domain("y.local")) })},
	} {
		b.Run(tt.name, func(b *testing.B) {
			l := fullLink(b)
			now := l.now
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i++
				from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, byte(i / 250), byte(i % 250)}), port)
				l.second, l.received = now, load{}
				l.receive(now, tt.b, from, true)
				l.next()
				l.packets()
				l.pending = nil
			}
		})
	}
}
