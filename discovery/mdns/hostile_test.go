package mdns

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// heapOf returns how many bytes more are in use after do than before, without garbage.
func heapOf(do func()) int64 {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.GC()
	runtime.ReadMemStats(&after)
	return int64(after.HeapAlloc) - int64(before.HeapAlloc)
}

// maxHeap bounds the memory of a link, whatever others send: names and data, and the maps and lists
// around them.
const maxHeap = 8 << 20

// A flooder sends from invented addresses.
type flooder struct {
	*lan
	to   *host
	rand *rand.Rand
	i    int
}

func (f *flooder) from(sources int) netip.AddrPort {
	n := f.rand.IntN(sources)
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 3, byte(n / 250), byte(n % 250)}), port)
}

// instance is all of another cluster that does not exist.
func (f *flooder) instance() []byte {
	f.i++
	return say(clusterRecords(1000+f.i, (1<<31-1)*time.Second)...)
}

// for each kind of flood, the next packet.
func floods(f *flooder) map[string]func() []byte {
	var list [][]byte
	for _, k := range slices.Sorted(maps.Keys(hostile())) {
		list = append(list, hostile()[k])
	}
	full := func(n int, r func(i int) record) []byte {
		p := newPacker(maxPacket - headersIP)
		for i := 0; i < n && p.record(inAnswers, r(i)); i++ {
			continue
		}
		return p.bytes(0, bitResponse|bitAuthoritative)
	}
	odd := []string{"a.b", "a\x00b", "\xff\xfe", "\xc3\x28", "..", " ", "\x1b[2J", strings.Repeat("x", 63), "_x", "A.LOCAL"}
	return map[string]func() []byte{
		"what is malformed": func() []byte {
			f.i++
			return list[f.i%len(list)]
		},
		"random bytes": func() []byte {
			b := make([]byte, f.rand.IntN(9100))
			for i := range b {
				b[i] = byte(f.rand.Uint32())
			}
			if len(b) > 12 {
				copy(b[2:], []byte{0x84, 0, 0, 1, 0, 9, 0, 0, 0, 0})
			}
			return b
		},
		"instances": f.instance,
		"instances, 80 a packet": func() []byte {
			return full(80, func(int) record {
				f.i++
				return ptr(serviceName, join(serviceName, fmt.Sprintf("x%d", f.i)))
			})
		},
		"odd names": func() []byte {
			f.i++
			n := join(serviceName, odd[f.i%len(odd)]+fmt.Sprint(f.i)[:1])
			return say(ptr(serviceName, n), srv(n, join(local, odd[f.i%len(odd)]), 1), txt(n, []string{"id=" + string(id(f.i))}))
		},
		"TTLs of 0": func() []byte {
			f.i++
			return say(clusterRecords(1000+f.i, 0)...)
		},
		"many addresses of one host": func() []byte {
			f.i++
			return full(500, func(i int) record {
				return address(domain("entente-2.local"), netip.AddrFrom4([4]byte{10, 4, byte(f.i), byte(i)}))
			})
		},
		"known answers of many packets": func() []byte {
			f.i++
			p := newPacker(maxPacket - headersIP)
			p.question(question{name: serviceName, typ: dns.TypePTR})
			for i := 0; p.record(inAnswers, ptr(serviceName, join(serviceName, fmt.Sprintf("%d %d", f.i, i)))) && i < 500; i++ {
				continue
			}
			return p.bytes(0, bitTruncated)
		},
		"questions": func() []byte {
			p := newPacker(maxPacket - headersIP)
			for range 500 {
				p.question(question{name: serviceName, typ: dns.TypePTR})
			}
			return p.bytes(0, 0)
		},
		"probes for our names": func() []byte {
			f.i++
			n := join(serviceName, "office")
			p := newPacker(1452)
			p.question(question{n, dns.TypeANY, true})
			p.record(inProposed, txt(n, []string{fmt.Sprint(f.i)}))
			return p.bytes(0, 0)
		},
	}
}

// bounded returns of what a link keeps too much.
func (h *host) bounded() string {
	c := &h.cache
	for what, n := range map[string][2]int{
		"records": {c.entries, maxEntries}, "bytes": {c.bytes, maxBytes}, "sources": {len(c.sources), maxEntries},
		"sets": {len(c.sets), maxEntries}, "queries": {len(h.queries), 6*maxInstances + 2}, "wants": {len(h.wants), 40 * maxInstances},
		"pending": {len(h.pending), maxPending}, "counted": {len(h.counted), maxPackets}, "queued": {len(h.queue), 64},
		"echoes": {len(h.sent.order), maxEchoes}, "conflicts": {len(h.conflicts), conflictCount}, "sentAt": {len(h.sentAt), 64},
	} {
		if n[0] > n[1] {
			return fmt.Sprintf("%d %s, more than %d", n[0], what, n[1])
		}
	}
	for _, p := range h.pending {
		if len(p.known) > 64 || len(p.answers) > 64 {
			return fmt.Sprintf("a query with %d answers that knows %d", len(p.answers), len(p.known))
		}
	}
	return ""
}

// Thousands of packets of each flood, from a thousand addresses: the link's memory is bounded,
// known clusters are found all the time, published ones stay published, and a cluster that comes
// during the flood is found within a minute of its end.
func TestFloodsFromManyAddresses(t *testing.T) {
	for _, kind := range slices.Sorted(maps.Keys(floods(&flooder{}))) {
		rates := []int{2500}
		if strings.HasPrefix(kind, "instances") {
			rates = []int{500, 2500}
		}
		for _, perSecond := range rates {
			t.Run(fmt.Sprintf("%s, %d a second", kind, perSecond), func(t *testing.T) {
				n := newLAN(t)
				h := n.cluster("office")
				// No other host browses: one that does makes us forget instances that do not answer
				// (RFC 6762 section 10.5).
				publish := func(name string) {
					o := n.add()
					o.publish(n.now, []discovery.Service{service(len(n.hosts), name)})
				}
				publish("home")
				n.run(10 * time.Second)
				f := &flooder{lan: n, to: h, rand: rand.New(rand.NewPCG(1, 2))}
				// 10000 packets that fill the cache, fewer of those that take long to read.
				count := perSecond
				if len(rates) > 1 {
					count *= 4
				}
				another := floods(f)[kind]
				var packets [][]byte
				for range min(count, 2000) {
					packets = append(packets, another())
				}
				missing := 0
				grown := heapOf(func() {
					for i := range count {
						h.receive(n.now, packets[i%len(packets)], f.from(1000), true)
						n.collect(h)
						h.due = h.next()
						if i == count/2 {
							publish("late")
						}
						n.run(time.Second / time.Duration(perSecond))
						n.forget()
						if i%200 == 0 {
							if what := h.bounded(); what != "" {
								t.Fatalf("after %d packets: %s", i, what)
							}
							if !slices.Contains(names(h.found()), "home") {
								missing++
							}
						}
					}
				})
				runtime.KeepAlive(packets)
				if missing != 0 {
					t.Errorf("the known cluster is not found %d times", missing)
				}
				if grown > maxHeap {
					t.Errorf("%d bytes more are held", grown)
				}
				ended := n.now
				for n.now.Sub(ended) < 2*time.Minute && !slices.Contains(names(h.found()), "late") {
					n.run(100 * time.Millisecond)
				}
				took := n.now.Sub(ended).Round(100 * time.Millisecond)
				t.Logf("%d kB more are held; the cluster that came during the flood is found %v after it; refused %d, dropped %d", grown>>10, took, h.stats.Refused, h.stats.Dropped)
				if took > time.Minute {
					t.Errorf("the cluster that came during the flood is found %v after it", took)
				}
				other := n.cluster("other")
				n.run(time.Minute)
				if got := names(other.found()); !slices.Contains(got, h.claims[1].label) {
					t.Errorf("others do not find us, but %q", got)
				}
				if got := names(h.found()); !slices.Contains(got, "home") {
					t.Errorf("the known cluster is not among the %d found", len(got))
				}
				// What does not exist is forgotten where it takes the place of others.
				if got := len(h.found()); kind == "instances" && got > 3 {
					t.Errorf("%d are found, of which three exist", got)
				}
			})
		}
	}
}

// Each flood goes on for longer than any TTL of a neighbour, three times: the link's memory stays
// bounded, a neighbour is found all the time, and one that was away for longer than its TTLs is
// lost. If it starts again, it is found within a minute of the flood's end. If only its link was
// cut, and it announces nothing when that is restored, it is found after the time for which it was
// away, at the latest.
func TestFloodsThatLast(t *testing.T) {
	const (
		perSecond = 8
		there     = ttlHost + ttlHost/4 // so that its records have to be asked for again
		away      = ttlHost + time.Minute
	)
	run := func(kind string, within time.Duration, comesBack func(n *lan, home *host)) func(*testing.T) {
		return func(t *testing.T) {
			t.Parallel()
			n := newLAN(t)
			h := n.cluster("office")
			// It does not browse, as in the test before.
			home := n.publisher(2, "home")
			n.run(10 * time.Second)
			f := &flooder{lan: n, to: h, rand: rand.New(rand.NewPCG(5, 6))}
			another := floods(f)[kind]
			found := func() bool { return slices.Contains(names(h.found()), "home") }
			flood := func(d time.Duration, each func()) {
				for range d / (time.Second / perSecond) {
					h.receive(n.now, another(), f.from(1000), true)
					n.collect(h)
					h.due = h.next()
					n.run(time.Second / perSecond)
					n.forget()
					each()
				}
				if what := h.bounded(); what != "" {
					t.Fatalf("after %d packets: %s", f.i, what)
				}
			}
			missing := 0
			flood(there, func() {
				if !found() {
					missing++
				}
			})
			if missing != 0 {
				t.Errorf("the present neighbour is not found %d times", missing)
			}
			n.cut[home] = true
			flood(away, func() {})
			if found() {
				t.Error("the absent neighbour is still found")
			}
			comesBack(n, home)
			flood(10*time.Second, func() {})
			ended := n.now
			for n.now.Sub(ended) < 2*time.Hour && !found() {
				n.run(100 * time.Millisecond)
			}
			took := n.now.Sub(ended).Round(100 * time.Millisecond)
			t.Logf("the neighbour that came back is found %v after the end", took)
			if took > within {
				t.Errorf("the neighbour that came back is found %v after the end, want %v", took, within)
			}
			other := n.cluster("other")
			n.run(time.Minute)
			if got := names(other.found()); !slices.Contains(got, h.claims[1].label) {
				t.Errorf("others do not find us, but %q", got)
			}
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(floods(&flooder{}))) {
		t.Run(kind, func(t *testing.T) {
			t.Run("it starts again", run(kind, time.Minute, func(n *lan, _ *host) { n.publisher(2, "home") }))
			// The other kinds take a minute more: ENTENTE_INTEROP_LONG=1 runs them, too.
			if kind == "questions" || kind == "many addresses of one host" || os.Getenv("ENTENTE_INTEROP_LONG") != "" {
				t.Run("its link is mended", run(kind, away, func(n *lan, home *host) { n.cut[home] = false }))
			}
		})
	}
}

// A hundred thousand instances of a few addresses.
func TestAHundredThousandInstances(t *testing.T) {
	n := newLAN(t)
	h := n.cluster("office")
	n.cluster("home")
	n.run(10 * time.Second)
	f := &flooder{lan: n, to: h, rand: rand.New(rand.NewPCG(3, 4))}
	grown := heapOf(func() {
		for i := range 1250 {
			p := newPacker(maxPacket - headersIP)
			for j := range 80 {
				p.record(inAnswers, ptr(serviceName, join(serviceName, fmt.Sprintf("x%d", i*80+j))))
			}
			h.receive(n.now, p.bytes(0, bitResponse|bitAuthoritative), f.from(20), true)
			n.collect(h)
			n.run(time.Second)
			n.forget()
			if what := h.bounded(); what != "" {
				t.Fatal(what)
			}
			if !slices.Contains(names(h.found()), "home") {
				t.Fatalf("the known cluster is gone after %v", n.now.Sub(epoch))
			}
		}
	})
	t.Logf("%d kB more are held; %d instances, refused %d", grown>>10, len(h.cache.sets[key{serviceName, dns.TypePTR}]), h.stats.Refused)
	if grown > maxHeap {
		t.Errorf("%d bytes more are held", grown)
	}
}
