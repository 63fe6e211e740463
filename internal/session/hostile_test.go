package session

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// proxy relays TCP, and can break it.
type proxy struct {
	addr string

	mu    sync.Mutex
	conns []net.Conn
	// frozen relays nothing more, and closes nothing.
	frozen chan struct{}
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), frozen: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, in, out)
			p.mu.Unlock()
			wg.Go(func() { p.relay(in, out) })
			wg.Go(func() { p.relay(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		wg.Wait()
	})
	return p
}

func (p *proxy) relay(from, to net.Conn) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		select {
		case <-p.frozen:
			return
		default:
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

func (p *proxy) freeze() { close(p.frozen) }

// rawSession does the dialling side's handshake and leaves the rest to the test.
func rawSession(t *testing.T, from, to *node) *tls.Conn {
	t.Helper()
	cfg := from.source.ClientTLS(to.id, nil, "", protoSession)
	c, err := tls.Dial("tcp", to.addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if v, _, err := readPreface(c); err != nil || v != welcome {
		t.Fatalf("verdict %d, %v", v, err)
	}
	return c
}

func frame(kind byte, flags uint16, stream, length uint32) []byte {
	b := []byte{0, kind}
	b = binary.BigEndian.AppendUint16(b, flags)
	b = binary.BigEndian.AppendUint32(b, stream)
	return binary.BigEndian.AppendUint32(b, length)
}

func TestAbuseEndsTheSession(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		bytes func() []byte
		want  string
	}{
		{"a frame larger than any window", func() []byte {
			return append(frame(yamuxWindow, yamuxSYN, 1, 0), frame(yamuxData, 0, 1, 1<<31)...)
		}, "a frame of 2147483648 bytes"},
		{"a flood of pings", func() []byte {
			var b []byte
			for i := range uint32(pingBurst + 50) {
				b = append(b, frame(yamuxPing, yamuxSYN, 0, i)...)
			}
			return b
		}, "too many pings"},
		{"a flood of streams", func() []byte {
			var b []byte
			for i := range uint32(streamBurst + 50) {
				b = append(b, frame(yamuxWindow, yamuxSYN, 2*i+1, 0)...)
			}
			return b
		}, "too fast"},
		{"a stream with the other side's number", func() []byte {
			return frame(yamuxWindow, yamuxSYN, 2, 0)
		}, "a number of this side"},
		{"what is not a frame", func() []byte { return []byte("GET / HTTP/1.1\r\n\r\n") }, "not a yamux frame"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			victim, peer := start(t), start(t, dialOnly)
			trust(t, victim, peer)
			c := rawSession(t, peer, victim)
			eventually(t, "the session is up", up(victim, peer))
			if _, err := c.Write(tt.bytes()); err != nil {
				t.Fatal(err)
			}
			err := closed(t, victim, peer)
			var abuse *abuseError
			if !errors.As(err, &abuse) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("status says %v, want %q", err, tt.want)
			}
		})
	}
}

func TestTooManyStreamsEndTheSession(t *testing.T) {
	t.Parallel()
	victim, peer := start(t), start(t, dialOnly)
	trust(t, victim, peer)
	c := rawSession(t, peer, victim)
	// Slow enough for each to be accepted; one that waits too long for that is refused
	// by itself and not counted.
	for i := range uint32(streamBurst - 1) {
		if _, err := c.Write(frame(yamuxWindow, yamuxSYN, 2*i+1, 0)); err != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := closed(t, victim, peer); !strings.Contains(err.Error(), "streams are open") {
		t.Errorf("status says %v", err)
	}
}

func TestSlowHandshakesDoNotKeepOthersOut(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t, dialOnly)
	trustEachOther(t, a, b)
	var stalled []net.Conn
	for range maxHandshakesPerIP - 2 {
		c, err := net.Dial("tcp", a.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = c.Write([]byte{22, 3, 1}) // the first bytes of a handshake, and no more
		stalled = append(stalled, c)
	}
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	mustWho(t, b, a)
	began := time.Now()
	for _, c := range stalled {
		_ = c.SetReadDeadline(time.Now().Add(handshakeTimeout + patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
			t.Fatalf("a stalled handshake was still open after %s", time.Since(began))
		}
	}
	mustWho(t, b, a)
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestConnectionsBeyondTheRateAreDroppedUnread(t *testing.T) {
	t.Parallel()
	a := start(t)
	var conns []net.Conn
	dropped := 0
	for range acceptBurst + 60 {
		c, err := net.Dial("tcp", a.addr)
		if err != nil {
			dropped++
			continue
		}
		defer c.Close()
		conns = append(conns, c)
	}
	end := time.Now().Add(patience)
	for _, c := range slices.Backward(conns) {
		_ = c.SetReadDeadline(end)
		if dropped >= 20 {
			break
		}
		if _, err := c.Read(make([]byte, 1)); err != nil && !isTimeout(err) {
			dropped++
		}
	}
	if dropped < 20 {
		t.Errorf("only %d connections were dropped", dropped)
	}
}

func unknown(netip.Prefix) bool { return false }

func fine() {}

func tcpAddr(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 1} }

func TestLimiterCountsEachAddressAndForgetsIt(t *testing.T) {
	t.Parallel()
	l := newLimiter(unknown)
	now := time.Unix(1_700_000_000, 0)
	admitted := 0
	for range 2 * acceptBurst {
		if h := l.admit(tcpAddr("192.0.2.1"), now, fine); h != nil {
			admitted++
			h.done()
			h.done() // twice is once
		}
	}
	if admitted != acceptBurst {
		t.Errorf("%d at once, want %d", admitted, acceptBurst)
	}
	if h := l.admit(tcpAddr("192.0.2.2"), now, fine); h == nil {
		t.Error("another address pays for the first")
	}
	if h := l.admit(tcpAddr("192.0.2.1"), now.Add(time.Second), fine); h == nil {
		t.Error("a second later it is still shut out")
	}
	for range acceptBurst {
		if h := l.admit(tcpAddr("2001:db8::1"), now, fine); h != nil {
			h.done()
		}
	}
	if h := l.admit(tcpAddr("2001:db8::2"), now, fine); h != nil {
		t.Error("one /64 counts as many sources")
	}
	for i := range 2 * maxAddresses {
		if h := l.admit(tcpAddr(net.IPv4(10, byte(i>>16), byte(i>>8), byte(i)).String()), now, fine); h != nil {
			h.done()
		}
	}
	if n := len(l.byAddr); n > maxAddresses {
		t.Errorf("%d addresses remembered", n)
	}
	later := now.Add(time.Hour)
	if h := l.admit(tcpAddr("198.51.100.1"), later, fine); h == nil || len(l.byAddr) > 3 {
		t.Errorf("after an hour %d addresses are remembered", len(l.byAddr))
	}
	before := len(l.open)
	for range 2 * maxHandshakes {
		_ = l.admit(tcpAddr("203.0.113.1"), later, fine)
	}
	if n := len(l.open) - before; n != maxHandshakesPerIP {
		t.Errorf("%d handshakes from one address", n)
	}
}

// Who has few handshakes under way keeps them, however many addresses of however few networks flood.
func TestAFullLimiterCutsTheBusiestNetworkFirst(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	trusted := prefixOf(tcpAddr("203.0.113.7"))
	for name, tc := range map[string]struct {
		honest string
		flood  func(n int) string
		cut    bool
	}{
		"four addresses of one network":         {"192.0.2.200", func(n int) string { return fmt.Sprint("198.51.100.", n%4) }, false},
		"neighbours in the same network":        {"198.51.100.9", func(n int) string { return fmt.Sprint("198.51.100.", n%4) }, false},
		"a whole IPv4 network":                  {"192.0.2.200", func(n int) string { return fmt.Sprint("198.51.100.", n%256) }, false},
		"an IPv6 network":                       {"2001:db8:2::1", func(n int) string { return fmt.Sprintf("2001:db8:1:%x::1", n) }, false},
		"fifty networks":                        {"192.0.2.200", func(n int) string { return fmt.Sprintf("10.0.%d.%d", n%50, n/50) }, false},
		"more networks than there are places":   {"192.0.2.200", func(n int) string { return fmt.Sprintf("10.%d.%d.1", n/256, n%256) }, true},
		"so many, and a trusted peer's address": {"203.0.113.7", func(n int) string { return fmt.Sprintf("10.%d.%d.1", n/256, n%256) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, cut := newLimiter(func(p netip.Prefix) bool { return p == trusted }), false
			for n := range maxHandshakes {
				l.admit(tcpAddr(tc.flood(n)), now, fine)
			}
			if l.admit(tcpAddr(tc.honest), now, func() { cut = true }) == nil {
				t.Fatal("it is not admitted")
			}
			for n := range 4 * maxHandshakes {
				l.admit(tcpAddr(tc.flood(n)), now.Add(time.Second), fine)
			}
			if cut != tc.cut {
				t.Errorf("it was cut: %t, want %t", cut, tc.cut)
			}
			if n := len(l.open); n > maxHandshakes {
				t.Errorf("%d handshakes are under way", n)
			}
		})
	}
}

func TestHandshakesOfTrustedPeersKeepHalfOfThePlacesAtMost(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	l, cut := newLimiter(unknown), 0
	for n := range maxHandshakes {
		l.admit(tcpAddr(fmt.Sprintf("10.0.%d.1", n)), now, func() { cut++ }).trust()
	}
	for n := range maxHandshakes {
		if l.admit(tcpAddr(fmt.Sprintf("192.%d.2.1", n)), now, fine) == nil {
			t.Fatalf("stranger %d is not admitted", n)
		}
	}
	if cut != maxHandshakes/2 {
		t.Errorf("%d handshakes of trusted peers were cut, want %d", cut, maxHandshakes/2)
	}
}

func TestWhereATrustedPeerWasConnectedFromIsKnown(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t, dialOnly)
	trustEachOther(t, a, b)
	local := prefixOf(tcpAddr("127.0.0.1"))
	if a.wasConnectedFrom(local) {
		t.Error("it is known before a session came up")
	}
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	eventually(t, "a session", up(a, b))
	if !a.wasConnectedFrom(local) || a.wasConnectedFrom(prefixOf(tcpAddr("127.0.0.2"))) || b.wasConnectedFrom(local) {
		t.Error("another address than that of the peer that dialled is known")
	}
	a.bundles.Remove(b.id)
	if a.wasConnectedFrom(local) {
		t.Error("it is known though the peer is no longer trusted")
	}
}

func TestSessionOfAClientThatIsNotAPeerIsRefused(t *testing.T) {
	t.Parallel()
	a := start(t)
	c, err := tls.Dial("tcp", a.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protoSession}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if v, _, err := readPreface(c); err != nil || v != refusedUntrusted {
		t.Errorf("without a certificate: verdict %d, %v", v, err)
	}
	c, err = tls.Dial("tcp", a.addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	if err == nil {
		_ = c.Close()
		t.Error("TLS 1.2 was accepted")
	}
	c, err = tls.Dial("tcp", a.addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("without ALPN: %v", err)
	}
}

func TestExpiredCertificateIsRefusedWithBothClocks(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t, dialOnly)
	trustEachOther(t, a, b)
	// A source that cannot renew: its clock does not move.
	cfg := b.source.ClientTLS(a.id, nil, "", protoSession)
	old := expiredLeaf(t, b.source)
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return old, nil }
	c, err := tls.Dial("tcp", a.addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	code, clock, err := readPreface(c)
	if err != nil || code != refusedClock || time.Since(clock).Abs() > time.Minute {
		t.Errorf("verdict %d, clock %s, %v", code, clock, err)
	}
	if up(a, b)() {
		t.Error("a session came up")
	}
	eventually(t, "the status of the side that refused has the reason", func() bool {
		var late *identity.TimeError
		return errors.As(a.Status(b.id).Err, &late) && late.ID == b.id
	})
}

// impostor answers one connection as a peer's agent would, with this certificate
// and verdict and a clock that is ahead.
func impostor(t *testing.T, as *node, cert *tls.Certificate, code verdict, ahead time.Duration) string {
	t.Helper()
	cfg := as.source.ServerTLS(as.bundles, protoSession)
	cfg.VerifyConnection = nil
	cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return cert, nil }
	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(encodePreface(code, time.Now().Add(ahead)))
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// Only the clock is used of what a peer sends whose certificate has expired.
func TestOnlyTheClockIsTakenFromAPeerWithAnExpiredCertificate(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	trustEachOther(t, a, b)
	for _, code := range []verdict{welcome, refusedDenied} {
		addr := impostor(t, b, expiredLeaf(t, b.source), code, 3*time.Hour)
		a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{addr}}})
		var late *identity.TimeError
		eventually(t, "the dial fails for the time", func() bool {
			err := a.Status(b.id).Err
			return errors.As(err, &late) && strings.Contains(err.Error(), addr)
		})
		if skew := time.Until(late.Clock); skew < 2*time.Hour || skew > 4*time.Hour {
			t.Errorf("the peer's clock is reported as %s ahead", skew)
		}
		if !strings.Contains(late.Error(), "ahead; set the clocks right") {
			t.Errorf("status says %v", late)
		}
		if status := a.Status(b.id); status.Session != nil || deniedBy(status) {
			t.Errorf("verdict %d was believed: %+v", code, status)
		}
	}
}

// The certificate is expired and another cluster's, too.
func TestExpiredCertificateOfAnotherClusterIsAnotherCluster(t *testing.T) {
	t.Parallel()
	a, b, mallory := start(t, dialOnly), start(t), start(t)
	trustEachOther(t, a, b)
	trustEachOther(t, a, mallory)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{impostor(t, mallory, expiredLeaf(t, mallory.source), welcome, 0)}}})
	var pin *identity.PinError
	eventually(t, "the dial fails for the identity", func() bool { return errors.As(a.Status(b.id).Err, &pin) })
}

func TestRefusedForTheClockNamesBoth(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for skew, want := range map[time.Duration]string{
		2 * time.Hour:  "its clock, which says 2026-01-02T14:00:00Z; this cluster's says 2026-01-02T12:00:00Z, so the peer's is 2h0m0s ahead: set the clocks right",
		-2 * time.Hour: "so the peer's is 2h0m0s behind: set the clocks right",
		0:              "this agent does not renew its certificate",
	} {
		if text := (&RefusedError{Peer: "x", code: refusedClock, Clock: now.Add(skew), Now: now}).Error(); !strings.Contains(text, want) {
			t.Errorf("%s ahead: %q", skew, text)
		}
	}
}

// expiredLeaf is a certificate of a source whose machine sleeps: it was minted
// for a second, two seconds ago.
func expiredLeaf(t *testing.T, source *identity.Source) *tls.Certificate {
	t.Helper()
	short, err := identity.NewSource(identity.SourceConfig{Identity: source.Identity(), LeafLife: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := short.ClientTLS(source.ID(), nil, "").GetClientCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(cert.Leaf.NotAfter) + 1500*time.Millisecond)
	return cert
}

func TestReplacesKeepsOneOfTwoSessions(t *testing.T) {
	t.Parallel()
	const low, high peering.ClusterID = "a", "b"
	for _, tt := range []struct {
		name             string
		self, peer       peering.ClusterID
		oldDial, newDial bool
		want             bool
	}{
		{"the lower side dialled again while the other's stood", low, high, false, true, true},
		{"the lower side keeps its own", low, high, true, false, false},
		{"the higher side ends its own", high, low, true, false, true},
		{"the higher side keeps the lower's", high, low, false, true, false},
		{"a second dial of the same side", low, high, false, false, true},
		{"a second dial of our own", high, low, true, true, true},
	} {
		if got := replaces(tt.self, tt.peer, tt.oldDial, tt.newDial); got != tt.want {
			t.Errorf("%s: %t", tt.name, got)
		}
		// Both ends of the same two connections decide alike.
		if replaces(tt.peer, tt.self, !tt.oldDial, !tt.newDial) != tt.want {
			t.Errorf("%s: the other side decides otherwise", tt.name)
		}
	}
}

func FuzzMeter(f *testing.F) {
	f.Add(frame(yamuxWindow, yamuxSYN, 1, 0), uint8(3))
	f.Add(append(frame(yamuxData, 0, 1, 5), "hello"...), uint8(1))
	f.Add(frame(yamuxPing, yamuxSYN, 0, 7), uint8(12))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		now := time.Unix(1_700_000_000, 0)
		whole, pieces := newMeter(true), newMeter(true)
		err := whole.feed(b, now)
		step := int(cut)%16 + 1
		rest := b
		for len(rest) > 0 {
			n := min(step, len(rest))
			_ = pieces.feed(rest[:n], now)
			rest = rest[n:]
		}
		if (err == nil) != (pieces.failed == nil) {
			t.Fatalf("in one piece: %v, in pieces of %d: %v", err, step, pieces.failed)
		}
		if whole.body > streamWindow {
			t.Fatalf("let a frame of %d bytes pass", whole.body)
		}
	})
}

func FuzzPreface(f *testing.F) {
	f.Add(encodePreface(welcome, time.Unix(1_700_000_000, 0)))
	f.Add(encodePreface(refusedClock, time.Unix(1_700_000_000, 0)))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, at, err := readPreface(strings.NewReader(string(b)))
		if err != nil {
			return
		}
		v2, at2, err := readPreface(strings.NewReader(string(encodePreface(v, at))))
		if err != nil || v2 != v || !at2.Equal(at) {
			t.Fatalf("%d %s became %d %s, %v", v, at, v2, at2, err)
		}
		_ = (&RefusedError{code: v}).Error()
	})
}
