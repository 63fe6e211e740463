package mdns

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/entente-dev/entente/discovery"
)

// String returns the name with escapes, for test output.
func (n name) String() string {
	s, _, err := dns.UnpackDomainName([]byte(n), 0)
	if err != nil {
		return "?"
	}
	return s
}

// hostile are packets that are sent on purpose only.
func hostile() map[string][]byte {
	header := func(flags, q, an, ns, ar uint16) []byte {
		var b []byte
		for _, v := range []uint16{0, flags, q, an, ns, ar} {
			b = binary.BigEndian.AppendUint16(b, v)
		}
		return b
	}
	rr := func(name string, typ uint16, ttl uint32, length int, data string) []byte {
		b := append([]byte(name), byte(typ>>8), byte(typ), 0x80, 1)
		b = binary.BigEndian.AppendUint32(b, ttl)
		b = binary.BigEndian.AppendUint16(b, uint16(length))
		return append(b, data...)
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	service := string(serviceName)
	return map[string][]byte{
		"nothing":                    nil,
		"half a header":              make([]byte, 11),
		"a pointer to itself":        join(header(0x8400, 0, 1, 0, 0), rr("\xc0\x0c", 12, 1, 0, "")),
		"two that point in a circle": join(header(0x8400, 1, 0, 0, 0), []byte("\xc0\x0e\xc0\x0c\x00\x0c\x00\x01")),
		"a pointer past the end":     join(header(0x8400, 0, 1, 0, 0), rr("\xff\xff", 12, 1, 0, "")),
		"a pointer that is cut":      join(header(0, 1, 0, 0, 0), []byte{0xc0}),
		"65535 records":              header(0x8400, 0xffff, 0xffff, 0xffff, 0xffff),
		"a record longer than all":   join(header(0x8400, 0, 1, 0, 0), rr(service, 16, 1, 0xffff, "x")),
		"SRV of six bytes":           join(header(0x8400, 0, 1, 0, 0), rr(service, 33, 1, 6, "123456")),
		"A of three bytes":           join(header(0x8400, 0, 1, 0, 0), rr(service, 1, 1, 3, "123")),
		"a name longer than data":    join(header(0x8400, 0, 1, 0, 0), rr(service, 12, 1, 2, "\x05abcde\x00")),
		"TXT with a cut string":      join(header(0x8400, 0, 1, 0, 0), rr(service, 16, 1, 2, "\x09x")),
		"TXT of 255 bytes":           join(header(0x8400, 0, 1, 0, 0), rr(service, 16, 1, 256, "\xff"+strings.Repeat("x", 255))),
		"TTL of 2^31":                join(header(0x8400, 0, 1, 0, 0), rr(service, 16, 1<<31, 1, "\x00")),
		"TTL of 2^32-1":              join(header(0x8400, 0, 1, 0, 0), rr(service, 16, 1<<32-1, 1, "\x00")),
		"TTL of 0":                   join(header(0x8400, 0, 1, 0, 0), rr(service, 16, 0, 1, "\x00")),
		"a label of dots and NUL":    join(header(0x8400, 0, 1, 0, 0), rr("\x05a.\x00\\b"+service, 16, 1, 1, "\x00")),
		"a label of UTF-8":           join(header(0x8400, 0, 1, 0, 0), rr("\x06b\xc3\xbcro "+service, 16, 1, 1, "\x00")),
		"a label of bad UTF-8":       join(header(0x8400, 0, 1, 0, 0), rr("\x03\xff\xfe\xfd"+service, 16, 1, 1, "\x00")),
		"an update":                  join(header(0x2800, 1, 0, 0, 0), []byte(service), []byte{0, 12, 0, 1}),
		"an error":                   join(header(0x8403, 0, 1, 0, 0), rr(service, 16, 1, 1, "\x00")),
		"more than 9000 bytes":       join(header(0x8400, 0, 1, 0, 0), rr(service, 16, 1, 9000, strings.Repeat("\x00", 9000))),
	}
}

func TestHostilePacketsAreDropped(t *testing.T) {
	t.Parallel()
	// These are read, each with what is in it.
	read := map[string]bool{
		"TXT of 255 bytes": true, "TTL of 2^31": true, "TTL of 2^32-1": true, "TTL of 0": true, "a label of dots and NUL": true,
		"a label of UTF-8": true, "a label of bad UTF-8": true,
	}
	malformed := map[string]bool{"SRV of six bytes": true, "A of three bytes": true, "a name longer than data": true, "TXT with a cut string": true}
	for name, b := range hostile() {
		m, err := unpack(b)
		switch {
		case read[name]:
			if err != nil || len(m.answers) != 1 {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
		case malformed[name]:
			if name == "a name longer than data" {
				continue // the records after it cannot be read either
			}
			if err != nil || m.malformed != 1 || len(m.answers) != 0 {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
		case err == nil:
			t.Errorf("%s is read as %+v", name, m)
		}
	}
	for name, want := range map[string]time.Duration{"TTL of 2^31": 0, "TTL of 2^32-1": 0, "TTL of 0": 0} {
		if m, _ := unpack(hostile()[name]); m.answers[0].ttl != want {
			t.Errorf("%s is read as %v", name, m.answers[0].ttl)
		}
	}
}

// Whatever it receives, a link does not fail, keeps no more than its limits, and sends packets that
// another codec can read.
func FuzzLink(f *testing.F) {
	for _, b := range hostile() {
		f.Add(b, uint16(port), true)
	}
	f.Add(say(clusterRecords(2, -1)...), uint16(port), true)
	f.Add(ask([]question{{name: serviceName, typ: dns.TypePTR}}, ptr(serviceName, office)), uint16(port), true)
	f.Add(ask([]question{{name: office, typ: dns.TypeANY, unicast: true}}), uint16(4000), false)
	f.Fuzz(func(t *testing.T, b []byte, from uint16, multicast bool) {
		l := newLink("eth0", ipv4Family, 1452, rand.New(rand.NewPCG(1, 2)), newEchoes())
		now := epoch
		l.setAddresses(now, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
		l.publish(now, []discovery.Service{service(1, "office")})
		l.browse(now, []name{serviceName, automatic})
		for i := range 8 {
			l.receive(now, b, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 9}), from), multicast)
			for range 40 {
				next := l.next()
				if next.IsZero() || next.Sub(now) > 2*time.Second {
					break
				}
				now = later(now, next)
				l.tick(now)
			}
			for _, p := range l.packets() {
				var m dns.Msg
				if err := m.Unpack(p.data); err != nil {
					t.Fatalf("sends what cannot be read: %v\n% x", err, p.data)
				}
				if _, err := unpack(p.data); err != nil || len(p.data) > 9000 {
					t.Fatalf("sends %d bytes: %v", len(p.data), err)
				}
			}
			l.found()
			if l.cache.entries > maxEntries || l.cache.bytes > maxBytes {
				t.Fatalf("%d entries, %d bytes", l.cache.entries, l.cache.bytes)
			}
			now = now.Add(time.Duration(i) * time.Second)
		}
	})
}

// What is read is written so that it is read again as the same.
func FuzzPacket(f *testing.F) {
	for _, b := range hostile() {
		f.Add(b)
	}
	f.Add(say(clusterRecords(2, -1)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := unpack(b)
		if err != nil {
			return
		}
		if n := len(m.questions) + len(m.answers) + len(m.proposed) + len(m.additional); n > maxRecords {
			t.Fatalf("%d records", n)
		}
		list := append(append(m.answers, m.proposed...), m.additional...)
		var again []record
		for _, b := range packResponses(8900, list, nil) {
			m, err := unpack(b)
			if err != nil {
				t.Fatalf("not read again: %v", err)
			}
			again = append(again, m.answers...)
		}
		// A record that fills a packet by itself may not fit with its name.
		if len(b) < 4000 && len(again) != len(list) {
			t.Fatalf("%d of %d records are read again", len(again), len(list))
		}
		for i := range again {
			if len(again) == len(list) && again[i] != list[i] {
				t.Fatalf("%+v is read again as %+v", list[i], again[i])
			}
		}
	})
}

func TestNamesAreCompressed(t *testing.T) {
	t.Parallel()
	b := say(clusterRecords(2, -1)...)
	for _, s := range []string{"_entente", "_tcp", "local", "cluster 2", "entente-2"} {
		// The last is not in a TXT record; the name of the cluster is.
		want := 1
		if s == "cluster 2" {
			want = 2
		}
		if got := bytes.Count(b, []byte(s)); got != want {
			t.Errorf("%q is in the packet %d times, want %d", s, got, want)
		}
	}
	var m dns.Msg
	if err := m.Unpack(b); err != nil {
		t.Fatal(err)
	}
	if srv, ok := m.Answer[1].(*dns.SRV); !ok || srv.Target != "entente-2.local." || srv.Port != 7443 {
		t.Errorf("the codec reads %v", m.Answer[1])
	}
}

func TestNamesNeedNoEscapes(t *testing.T) {
	t.Parallel()
	n := newLAN(t)
	a := n.add()
	a.browse(n.now, []name{serviceName})
	b := n.add()
	const odd = `Büro 3.1 \ "süd"`
	b.publish(n.now, []discovery.Service{service(2, odd)})
	n.run(5 * time.Second)
	if got := a.found(); len(got) != 1 || got[0].Instance != odd {
		t.Errorf("found %+v", got)
	}
}

func TestFoldChangesASCIILettersOnly(t *testing.T) {
	t.Parallel()
	if fold(join(local, "AZaz[@Ä")) != join(local, "azaz[@Ä") {
		t.Error("other than ASCII letters are changed")
	}
	long := join(local, strings.Repeat("A", 63), "Z")
	if fold(long) != join(local, strings.Repeat("a", 63), "z") {
		t.Error("a length is changed")
	}
}

func TestKnownAnswersGoOnInMorePackets(t *testing.T) {
	t.Parallel()
	n, h := browser(t)
	n.run(1500 * time.Millisecond)
	for i := range 60 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(100 + i)}), port)
		h.receive(n.now, say(clusterRecords(i+1, -1)...), from, true)
	}
	n.forget()
	n.run(2 * time.Second)
	asked := n.since(epoch, h, queryOf)
	if len(asked) < 2 {
		t.Fatalf("%d packets", len(asked))
	}
	known := 0
	for i, s := range asked {
		if known += len(s.answers); len(s.data) > h.payload {
			t.Errorf("a packet of %d bytes", len(s.data))
		}
		if s.more != (i < len(asked)-1) || (len(s.questions) == 0) != (i > 0) {
			t.Errorf("packet %d has %d questions, more: %v", i, len(s.questions), s.more)
		}
	}
	if known != 60 {
		t.Errorf("%d of 60 answers are known", known)
	}
}

func TestOwnPacketsAreKnown(t *testing.T) {
	t.Parallel()
	e := newEchoes()
	q, r := ask([]question{{name: serviceName, typ: dns.TypePTR}}), say(clusterRecords(1, -1)...)
	e.add(epoch, "eth0", q, ipv4Family|ipv6Family)
	e.add(epoch, "eth0", r, ipv4Family)
	for i, tt := range []struct {
		link string
		b    []byte
		at   time.Duration
		want bool
	}{
		{"eth1", q, 0, false}, // another's
		{"eth0", q, 0, true},
		{"eth0", q, 0, true},
		{"eth0", q, 0, false}, // another's, after one in each family
		{"eth1", r, 0, true},  // no other host sends that
		{"eth0", r, 0, true},
		{"eth0", say(clusterRecords(2, -1)...), 0, false},
		{"eth1", r, 3 * time.Second, false},
	} {
		if got := e.own(epoch.Add(tt.at), tt.link, tt.b); got != tt.want {
			t.Errorf("%d: own is %v", i, got)
		}
	}
	for range 3 * maxEchoes {
		e.add(epoch, "eth0", q, ipv4Family)
	}
	if len(e.order) > maxEchoes || len(e.sent) > 1 || len(e.sent[e.order[0]]) > maxEchoes {
		t.Errorf("%d are remembered", len(e.order))
	}
}

func TestPacketsFromTheLinkAreTaken(t *testing.T) {
	t.Parallel()
	f := iface{prefixes: []netip.Prefix{netip.MustParsePrefix("10.9.0.5/24"), netip.MustParsePrefix("fd09::5/64")}}
	for from, want := range map[string]bool{
		"10.9.0.77": true, "10.9.1.77": false, "8.8.8.8": false, "fd09::77": true, "fd0a::1": false, "fe80::1%eth0": true, "169.254.3.4": true,
	} {
		if got := f.onLink(netip.MustParseAddr(from), false); got != want {
			t.Errorf("a packet to this host from %s: %v", from, got)
		}
		if !f.onLink(netip.MustParseAddr(from), true) {
			t.Errorf("a packet to the group from %s is dropped", from)
		}
	}
}

func TestInterfacesByName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"eth0": true, "enp3s0": true, "wlan0": true, "bond0": true, "br0": true, "vlan7": true,
		"docker0": false, "veth12ab": false, "cni0": false, "flannel.1": false, "cali123": false, "cilium_host": false,
		"br-0123": false, "tun0": false, "tap1": false, "wg0": false, "entente0": false, "tailscale0": false,
	} {
		if got := DefaultInterface(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	some := NamedInterfaces([]string{"docker0", "en*"})
	for name, want := range map[string]bool{"docker0": true, "docker01": false, "eno1": true, "eth0": false} {
		if got := some(name); got != want {
			t.Errorf("named %s: %v", name, got)
		}
	}
	if !NamedInterfaces(nil)("eth0") || NamedInterfaces(nil)("wg0") {
		t.Error("an empty list is not the default")
	}
}

func TestNamesOfTheServiceAreThoseOfItsType(t *testing.T) {
	t.Parallel()
	for got, want := range map[name]string{
		serviceName: discovery.ServiceType + ".local", automatic: discovery.SubtypeAutomatic + "._sub." + discovery.ServiceType + ".local",
		metaName: "_services._dns-sd._udp.local", local: "local",
	} {
		if got != domain(want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestAPacketIsChargedWithWhatItHasRoomFor sends packets that announce more records than they can
// have, to use up the limits of others.
func TestAPacketIsChargedWithWhatItHasRoomFor(t *testing.T) {
	t.Parallel()
	header := make([]byte, headerSize)
	for i := 4; i < headerSize; i++ {
		header[i] = 0xff
	}
	for extra, want := range map[int]int{0: 0, 4: 0, 5: 1, 50: 10, maxPacket: maxRecords} {
		if got := recordsIn(append(slices.Clone(header), make([]byte, extra)...)); got != want {
			t.Errorf("%d bytes after the header count as %d records, want %d", extra, got, want)
		}
	}
	if got := recordsIn(header[:5]); got != 0 {
		t.Errorf("half a header counts as %d records", got)
	}
}
