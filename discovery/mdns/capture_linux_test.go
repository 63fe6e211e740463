package mdns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/discovery/mdns/internal/rules"
)

// A recording is all packets of Multicast DNS that hosts of a segment send, each once, as
// their bridge gets it, with the kernel's time.
type recording struct {
	mu      sync.Mutex
	packets []rules.Packet
	stop    func()
}

func (s *segment) record() *recording {
	t := s.t
	t.Helper()
	r := &recording{}
	ready, done := make(chan error, 1), make(chan struct{})
	var fd int
	ports := map[int]string{}
	go s.within("br", func() {
		defer close(done)
		err := func() (err error) {
			for i := 1; i <= s.hosts; i++ {
				n, err := interfaceIndex(fmt.Sprintf("port%d", i))
				if err != nil {
					return err
				}
				ports[n] = s.ns(i)
			}
			all := uint16(unix.ETH_P_ALL)
			fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all<<8|all>>8))
			if err != nil {
				return err
			}
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}))
		}()
		ready <- err
	})
	<-done
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		b, oob := make([]byte, 65536), make([]byte, 128)
		for {
			n, on, _, from, err := unix.Recvmsg(fd, b, oob, 0)
			select {
			case <-end:
				return
			default:
			}
			at, ok := from.(*unix.SockaddrLinklayer)
			if err != nil || !ok || at.Pkttype == unix.PACKET_OUTGOING || ports[at.Ifindex] == "" {
				continue
			}
			if p, ok := datagramOf(b[:n]); ok {
				p.At, p.Host = timestamp(oob[:on]), ports[at.Ifindex]
				r.mu.Lock()
				r.packets = append(r.packets, p)
				r.mu.Unlock()
			}
		}
	}()
	r.stop = sync.OnceFunc(func() {
		close(end)
		<-ended
		_ = unix.Close(fd)
	})
	t.Cleanup(r.stop)
	return r
}

// all ends the recording and returns it, in the order of times.
func (r *recording) all() []rules.Packet {
	r.stop()
	slices.SortStableFunc(r.packets, func(a, b rules.Packet) int { return a.At.Compare(b.At) })
	return r.packets
}

func interfaceIndex(name string) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, req)
	return int(req.Uint32()), err
}

func timestamp(oob []byte) time.Time {
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range list {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

// datagramOf reads an IP packet with a whole UDP datagram from or to the port.
func datagramOf(b []byte) (rules.Packet, bool) {
	var from, to netip.Addr
	var p rules.Packet
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && b[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(b[6:])&0x3fff == 0:
		from, to, p.TTL = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), int(b[8])
		b = b[min(len(b), int(b[0]&15)*4):]
	case len(b) >= 40 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		from, to, p.TTL = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), int(b[7])
		b = b[40:]
	default:
		return p, false
	}
	if len(b) < 8 {
		return p, false
	}
	p.From, p.To = netip.AddrPortFrom(from, binary.BigEndian.Uint16(b)), netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:]))
	if p.From.Port() != port && p.To.Port() != port {
		return p, false
	}
	p.Data = slices.Clone(b[8:min(len(b), int(binary.BigEndian.Uint16(b[4:])))])
	return p, true
}

// What is on the wire breaks no rule, whether it is ours or avahi's: the rules are not made
// to fit us.
func TestPacketsOnTheWireKeepTheRules(t *testing.T) {
	s := newSegment(t, 4)
	r := s.record()
	a := s.avahi(3, "stranger")
	home := a.publish(3, "home")
	a.start("avahi-browse", "-rpk", "_entente._tcp")
	_, leave := s.start(1, automaticService(1, "office"))
	watcher, _ := s.start(2)
	until(t, watcher, "both", finds("home", "office"))
	// Announcements and the first questions are over.
	time.Sleep(10 * time.Second)
	// These ask for records that others know, and for some that no host has asked for yet.
	late, _ := s.start(4, service(4, "lab"))
	until(t, late, "both", finds("home", "office"))
	time.Sleep(3 * time.Second)
	leave()
	home.end(os.Interrupt)
	until(t, watcher, "the one that is left", finds("lab"))
	packets := r.all()

	// A busy machine sends late, and the packet after that comes early.
	for _, v := range rules.Check(packets, rules.Slack{Early: 150 * time.Millisecond, Late: 5 * time.Second}) {
		// What goes along with an answer, avahi 0.8 puts among the answers, also where it sent it
		// less than a second before.
		if v.Host == s.ns(3) && (v.Rule == "6 unasked" || v.Rule == "6 repeated") {
			t.Logf("avahi: %v", v)
		} else {
			t.Error(v)
		}
	}
	counts := map[string]map[string]int{}
	for _, p := range packets {
		if counts[p.Host] == nil {
			counts[p.Host] = map[string]int{}
		}
		counts[p.Host][kindOf(p)]++
	}
	for i := 1; i <= 4; i++ {
		c := counts[s.ns(i)]
		t.Logf("host %d: %v", i, c)
		// The second only browses. Other hosts may have asked all questions of the first two.
		if i != 2 && (c["probe"] < 3 || c["response"] < 4) || i > 2 && c["query"] == 0 {
			t.Errorf("host %d sent too little for a result: %v", i, c)
		}
	}
	for i := range 4 {
		logGaps(t, packets, s.ns(i+1))
	}
}

func kindOf(p rules.Packet) string {
	var m dns.Msg
	switch err := m.Unpack(p.Data); {
	case err != nil:
		return "unreadable"
	case m.Response && slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return rr.Header().Ttl == 0 }):
		return "goodbye"
	case m.Response:
		return "response"
	case len(m.Ns) > 0:
		return "probe"
	}
	return "query"
}

// logGaps logs when an instance was probed and announced.
func logGaps(t *testing.T, packets []rules.Packet, host string) {
	t.Helper()
	var out []string
	var last time.Time
	for _, p := range packets {
		var m dns.Msg
		if p.Host != host || !p.From.Addr().Is4() || m.Unpack(p.Data) != nil || len(out) > 5 {
			continue
		}
		instance := func(rr dns.RR) bool { return rr.Header().Rrtype == dns.TypeSRV }
		if k := kindOf(p); k == "probe" && slices.ContainsFunc(m.Ns, instance) || k == "response" && slices.ContainsFunc(m.Answer, instance) {
			if !last.IsZero() {
				out = append(out, fmt.Sprintf("%s +%d ms", k, p.At.Sub(last).Milliseconds()))
			} else {
				out = append(out, k)
			}
			last = p.At
		}
	}
	t.Logf("%s: %s", host, strings.Join(out, ", "))
}
