package mdns

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/discovery/mdns/internal/rules"
)

// seconds are sorted, to take a part of them.
func seconds(list []time.Duration) func(percent int) float64 {
	slices.Sort(list)
	return func(percent int) float64 {
		return list[min(len(list)*percent/100, len(list)-1)].Seconds()
	}
}

// firstWith returns when a record of an instance was on the wire first, alive or not.
func firstWith(packets []rules.Packet, instance string, goodbye bool) time.Time {
	for _, p := range packets {
		var m dns.Msg
		if m.Unpack(p.Data) != nil || !m.Response {
			continue
		}
		for _, rr := range m.Answer {
			if to, ok := rr.(*dns.PTR); ok && strings.HasPrefix(to.Ptr, instance+".") && (rr.Header().Ttl == 0) == goodbye {
				return p.At
			}
		}
	}
	return time.Time{}
}

// BenchmarkFindBesideAvahi is how long after its announcement a cluster is found, and how long
// after its goodbye it is not: by us, and by avahi in the same run. Times begin when the packet is
// on the wire; avahi's end when avahi-browse has printed it.
func BenchmarkFindBesideAvahi(b *testing.B) {
	const starts = 50
	s := newSegment(b, 3)
	r := s.record()
	a := s.avahi(3, "stranger")
	browse := a.start("avahi-browse", "-rpk", "_entente._tcp")
	far, _ := s.start(1)
	near, _ := s.start(2)
	came, went := map[string]time.Time{}, map[string]time.Time{}
	for b.Loop() {
		for i := range starts {
			name := fmt.Sprintf("c%d", i)
			if err := far.Publish([]discovery.Service{service(1, name)}); err != nil {
				b.Fatal(err)
			}
			until(b, near, name, func(f []discovery.Found) bool { return slices.Contains(names(f), name) })
			came[name] = time.Now()
			browse.line(0, "^=;eth0;IPv4;"+name+";")
			if err := far.Publish(nil); err != nil {
				b.Fatal(err)
			}
			until(b, near, "none", finds())
			went[name] = time.Now()
			browse.line(0, "^-;eth0;IPv4;"+name+";")
		}
	}
	packets := r.all()
	var ours, theirs, oursGone, theirsGone []time.Duration
	for name, at := range came {
		up, down := firstWith(packets, name, false), firstWith(packets, name, true)
		ours, oursGone = append(ours, at.Sub(up)), append(oursGone, went[name].Sub(down))
		first := func(sign string) time.Time {
			four, _ := browse.line(0, `^\`+sign+";eth0;IPv4;"+name+";")
			six, _ := browse.line(0, `^\`+sign+";eth0;IPv6;"+name+";")
			return earlier(four, six)
		}
		// That avahi knows the name, without where it is.
		theirs, theirsGone = append(theirs, first("+").Sub(up)), append(theirsGone, first("-").Sub(down))
	}
	o, t, og, tg := seconds(ours), seconds(theirs), seconds(oursGone), seconds(theirsGone)
	b.ReportMetric(o(50)*1000, "p50-ms")
	b.ReportMetric(o(99)*1000, "p99-ms")
	b.ReportMetric(t(50)*1000, "avahi-p50-ms")
	b.ReportMetric(t(99)*1000, "avahi-p99-ms")
	b.ReportMetric(og(50)*1000, "goodbye-p50-ms")
	b.ReportMetric(tg(50)*1000, "avahi-goodbye-p50-ms")
	b.Logf("announced to found, %d times: p50 %.1f ms, p99 %.1f ms; avahi-browse %.1f ms, %.1f ms: ratio of p50 %.2f; bar: 1.2 x avahi's + 100 ms = %.1f ms",
		starts, o(50)*1000, o(99)*1000, t(50)*1000, t(99)*1000, o(50)/t(50), 1200*t(50)+100)
	b.Logf("goodbye to gone: p50 %.1f ms, p99 %.1f ms; avahi %.1f ms, %.1f ms; bar: the second of grace of RFC 6762 10.1, and 100 ms",
		og(50)*1000, og(99)*1000, tg(50)*1000, tg(99)*1000)
	if o(50) > 1.2*t(50)+0.1 || og(50) > 1.1 {
		b.Error("a bar is missed")
	}
}

// BenchmarkAtRestBesideAvahi measures what a hundred clusters on a LAN cost a browser, once all are
// found: the packets that it sends, and processor time. The clusters are on two more hosts in this
// process, which browse, too, and whose time counts. avahi-browse asks for types only, once it has
// resolved what it found; we refresh the rest, to notice when it ends.
func BenchmarkAtRestBesideAvahi(b *testing.B) {
	const instances, minutes = 100, 2
	s := newSegment(b, 4)
	r := s.record()
	for host := range 2 {
		var list []discovery.Service
		for i := range instances / 2 {
			n := 1 + host*instances/2 + i
			list = append(list, service(n, fmt.Sprintf("cluster %d", n)))
		}
		s.start(host+1, list...)
	}
	ours, _ := s.start(3)
	a := s.avahi(4, "stranger")
	a.start("avahi-browse", "-rpk", "_entente._tcp")
	a.start("avahi-browse", "-rpk", "_automatic._sub._entente._tcp")
	until(b, ours, "all", func(f []discovery.Found) bool { return len(f) == instances })
	time.Sleep(20 * time.Second)
	var begin, end time.Time
	var used time.Duration
	for b.Loop() {
		before := processorTime(b)
		begin = time.Now()
		time.Sleep(minutes * time.Minute)
		end, used = time.Now(), processorTime(b)-before
	}
	if got := len(ours.Found()); got != instances {
		b.Errorf("%d are found after %v", got, end.Sub(begin))
	}
	packets, bytes := map[string]int{}, map[string]int{}
	for _, p := range r.all() {
		if p.At.After(begin) && p.At.Before(end) {
			packets[p.Host]++
			bytes[p.Host] += len(p.Data)
		}
	}
	us, them := s.ns(3), s.ns(4)
	core := used.Seconds() / end.Sub(begin).Seconds() * 100
	b.ReportMetric(float64(packets[us])/minutes, "packets/min")
	b.ReportMetric(float64(packets[them])/minutes, "avahi-packets/min")
	b.ReportMetric(core, "%core")
	b.Logf("%d instances at rest, a minute: %d packets and %d bytes; avahi %d and %d: ratio %.2f; those that publish %d packets",
		instances, packets[us]/minutes, bytes[us]/minutes, packets[them]/minutes, bytes[them]/minutes,
		float64(packets[us])/float64(max(packets[them], 1)), (packets[s.ns(1)]+packets[s.ns(2)])/minutes)
	b.Logf("processor: %.3f %% of a core for three responders and the capture; bar: 1 %%", core)
	if core > 1 {
		b.Error("a bar is missed")
	}
}

func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
