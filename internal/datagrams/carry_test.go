package datagrams

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/waittest"
)

const patience = 10 * time.Second

// side is a cluster: a hub, and a gateway beside a socket in the place of WireGuard.
type side struct {
	t         *testing.T
	name      string
	key       [32]byte
	hub       *Hub
	listener  net.Listener
	gateway   *Gateway
	wireguard *net.UDPConn
	// other is where calls lead; while broken is set they fail.
	other  *side
	broken atomic.Bool
}

func testLog(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.DiscardHandler)
}

func newSide(t *testing.T, name string, rates int) *side {
	t.Helper()
	s := &side{t: t, name: name, key: [32]byte{name[0]}}
	var err error
	if s.wireguard, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.wireguard.Close() })
	s.hub, err = NewHub(HubConfig{
		Carries: func(peer string) bool { return peer == s.other.name },
		Keys: func(_ context.Context, peer string) []Key {
			if peer != s.other.name {
				return nil
			}
			return []Key{testKey}
		},
		IsGateway: func(_ context.Context, key [32]byte) bool { return key == s.key },
		Call: func(ctx context.Context, peer string, next func(context.Context) ([]byte, error)) error {
			for {
				batch, err := next(ctx)
				if err != nil {
					return nil //nolint:nilerr // the hub ended the call, as a stream's half does
				}
				if s.broken.Load() {
					return errors.New("no session")
				}
				if err := s.other.hub.Receive(ctx, s.name, batch); err != nil {
					return err
				}
			}
		},
		PeerRate: rates, AllRate: 2 * rates, Log: testLog(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	s.gateway, err = NewGateway(GatewayConfig{
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", s.listener.Addr().String())
		},
		Port: s.wireguard.LocalAddr().(*net.UDPAddr).Port, Local: 17449, Log: testLog(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// pair runs two clusters until the test ends.
func pair(t *testing.T, rates int) (a, b *side) {
	t.Helper()
	a, b = newSide(t, "a", rates), newSide(t, "b", rates)
	a.other, b.other = b, a
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var tasks sync.WaitGroup
	for _, s := range []*side{a, b} {
		tasks.Go(func() { _ = s.hub.Serve(ctx, s.listener) })
		tasks.Go(func() { _ = s.gateway.Run(ctx) })
	}
	for _, s := range []*side{a, b} {
		s.gateway.Set(s.key, []Peer{{ID: s.other.name, Key: testKey, Gateways: [][32]byte{s.other.key}, Needed: true}})
	}
	t.Cleanup(func() {
		cancel()
		done := make(chan struct{})
		go func() { tasks.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("something does not end")
		}
	})
	for _, s := range []*side{a, b} {
		s.linked()
	}
	return a, b
}

func (s *side) linked() {
	s.t.Helper()
	eventually(s.t, s.name+" has a link", func() bool {
		s.hub.mu.Lock()
		defer s.hub.mu.Unlock()
		return s.hub.links[linkID{s.other.name, tagOf(s.key)}] != nil
	})
}

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

// data is a datagram as WireGuard writes it, with a number in it.
func data(n, size int) []byte {
	b := make([]byte, max(size, dataLen))
	b[0] = byte(kindData)
	binary.BigEndian.PutUint32(b[4:], uint32(n))
	return b
}

// to is where the side's WireGuard reaches the other's gateway.
func (s *side) to() netip.AddrPort {
	s.t.Helper()
	at, ok := s.gateway.Endpoint(s.other.name, s.other.key)
	if !ok || !at.Addr().IsLoopback() {
		s.t.Fatalf("%s reaches %s at %v, %v", s.name, s.other.name, at, ok)
	}
	return at
}

func (s *side) send(b []byte) {
	s.t.Helper()
	if _, err := s.wireguard.WriteToUDPAddrPort(b, s.to()); err != nil {
		s.t.Fatal(err)
	}
}

// receive returns the next datagram that the side's WireGuard gets, and from where.
func (s *side) receive() ([]byte, netip.AddrPort, error) {
	buffer := make([]byte, 1<<16)
	_ = s.wireguard.SetReadDeadline(time.Now().Add(patience))
	n, from, err := s.wireguard.ReadFromUDPAddrPort(buffer)
	return buffer[:n], from, err
}

// passes sends a datagram until it arrives.
func (s *side) passes(n, size int) {
	s.t.Helper()
	want := data(n, size)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			_, _ = s.wireguard.WriteToUDPAddrPort(want, s.to())
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	for {
		got, from, err := s.other.receive()
		if err != nil {
			s.t.Fatalf("from %s to %s: %v", s.name, s.other.name, err)
		}
		if from != s.other.to() {
			s.t.Fatalf("it came from %v, and answers would go to %v", from, s.other.to())
		}
		if bytes.Equal(got, want) {
			return
		}
	}
}

const fast = 1 << 30

func TestDatagramsPassBothWays(t *testing.T) {
	a, b := pair(t, fast)
	for i, size := range []int{dataLen, 148, 1452, MaxDatagram} {
		a.passes(i, size)
		b.passes(i, size)
	}
	if got := a.hub.Stats()["b"]; got.Sent == 0 || got.Received == 0 || got.Malformed+got.Homeless > 0 {
		t.Errorf("counted %+v", got)
	}
}

// While a better way is tried datagrams by this one wait, and are not lost.
func TestDelayedDatagramsArriveLaterInTheirOrder(t *testing.T) {
	a, b := pair(t, fast)
	a.passes(0, 100)
	const first, second = 100 * time.Millisecond, 80 * time.Millisecond
	b.gateway.Delay(b.to(), first)
	began := time.Now()
	for n := range 3 {
		a.send(data(10+n, 100))
	}
	time.Sleep(first / 2)
	b.gateway.Delay(b.to(), second) // from now, so it ends later
	for n := 0; n < 3; {
		got, _, err := b.receive()
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Equal(got, data(0, 100)) {
			continue // sent again before this began
		}
		if took := time.Since(began); took < first/2+second {
			t.Errorf("datagram %d came after %s", n, took)
		}
		if !bytes.Equal(got, data(10+n, 100)) {
			t.Errorf("datagram %d is %x", n, got[:8])
		}
		n++
	}
	a.passes(1, 100)
}

func TestDatagramsThatAreNotWireGuardsAreNotCarried(t *testing.T) {
	a, b := pair(t, fast)
	evil := []byte("\x12\x34\x01\x00 a DNS query, for instance, that is long enough")
	a.send(evil)
	// The peer's agent is not trusted.
	if err := b.hub.Receive(t.Context(), "a", appendFrame(nil, tagOf(a.key), tagOf(b.key), evil)); err != nil {
		t.Fatal(err)
	}
	a.passes(1, 100)
	if got := b.hub.Stats()["a"]; got.Malformed != 1 {
		t.Errorf("counted %+v", got)
	}
}

func TestDatagramsGoToGatewaysOfThePeerAlone(t *testing.T) {
	a, b := pair(t, fast)
	if err := b.hub.Receive(t.Context(), "c", nil); !errors.Is(err, ErrRefused) {
		t.Errorf("a cluster for which nothing is carried: %v", err)
	}
	if err := b.hub.Receive(t.Context(), "a", appendFrame(nil, tagOf(a.key), Tag{9}, data(1, 100))); err != nil {
		t.Fatal(err)
	}
	if err := b.hub.Receive(t.Context(), "a", appendFrame(nil, Tag{9}, tagOf(b.key), data(2, 100))); err != nil {
		t.Fatal(err)
	}
	a.passes(3, 100) // and neither of those arrived before
	if got := b.hub.Stats()["a"]; got.Homeless != 1 {
		t.Errorf("counted %+v", got)
	}
	if err := b.hub.Receive(t.Context(), "a", []byte{1}); err == nil {
		t.Error("a malformed batch was accepted")
	}
	if err := b.hub.Receive(t.Context(), "a", make([]byte, MaxBatch+1)); err == nil {
		t.Error("a batch that is too long was accepted")
	}
}

func TestDatagramsOfOtherProcessesAreIgnored(t *testing.T) {
	a, _ := pair(t, fast)
	other, err := net.Dial("udp4", a.to().String())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, _ = other.Write(data(1, 100))
	a.passes(2, 100)
	if got := a.hub.Stats()["b"]; got.Sent > 20 {
		t.Errorf("counted %+v", got)
	}
	if got, _, err := a.other.receive(); err == nil && bytes.Equal(got, data(1, 100)) {
		t.Error("another program's datagram was carried")
	}
}

func TestALinkComesBack(t *testing.T) {
	a, b := pair(t, fast)
	a.passes(1, 100)
	b.hub.mu.Lock()
	_ = b.hub.links[linkID{"a", tagOf(b.key)}].conn.Close()
	b.hub.mu.Unlock()
	a.passes(2, 100)
	// And where the way between the agents was away.
	a.broken.Store(true)
	a.send(data(3, 100))
	eventually(t, "the call fails", func() bool {
		a.hub.mu.Lock()
		defer a.hub.mu.Unlock()
		p := a.hub.peers["b"]
		return !p.calling && p.pause > 0
	})
	a.broken.Store(false)
	a.passes(4, 100)
}

func TestAnUnwantedLinkEnds(t *testing.T) {
	a, b := pair(t, fast)
	a.passes(1, 100)
	at := a.to()
	a.gateway.Set(a.key, []Peer{{ID: "b", Key: testKey, Gateways: [][32]byte{b.key}}})
	eventually(t, "the link ends", func() bool {
		a.hub.mu.Lock()
		defer a.hub.mu.Unlock()
		return len(a.hub.links) == 0
	})
	if a.to() != at {
		t.Errorf("the address changed from %v to %v", at, a.to())
	}
	a.gateway.Set(a.key, nil)
	if _, ok := a.gateway.Endpoint("b", b.key); ok {
		t.Error("a gateway of no peer has an address")
	}
	a.gateway.Set(a.key, []Peer{{ID: "b", Key: testKey, Gateways: [][32]byte{b.key}, Needed: true}})
	a.linked()
	if a.to() != at {
		t.Errorf("the address changed from %v to %v", at, a.to())
	}
	a.passes(2, 100)
}

// A peer that floods waits, and takes neither memory nor others' room.
func TestAPeerThatFloodsIsPaced(t *testing.T) {
	const perSecond = 1 << 20
	a, b := pair(t, perSecond)
	var batch []byte
	for len(batch)+frameHead+1400 < MaxBatch {
		batch = appendFrame(batch, tagOf(a.key), tagOf(b.key), data(1, 1400))
	}
	began, sent := time.Now(), 0
	for time.Since(began) < time.Second {
		if err := b.hub.Receive(t.Context(), "a", batch); err != nil {
			t.Fatal(err)
		}
		sent += len(batch)
	}
	if most := 2 * perSecond; sent > most {
		t.Errorf("%d bytes were taken in a second, want at most %d", sent, most)
	}
	// It does not begin handshakes without end either.
	initiation := append([]byte{byte(kindInitiation)}, make([]byte, initiationLen-1)...)
	batch = nil
	for range 2 * handshakeBurst {
		batch = appendFrame(batch, tagOf(a.key), tagOf(b.key), initiation)
	}
	before := b.hub.Stats()["a"]
	if err := b.hub.Receive(t.Context(), "a", batch); err != nil {
		t.Fatal(err)
	}
	if got := b.hub.Stats()["a"]; got.Handshakes < handshakeBurst*9/10 || got.Received-before.Received > handshakeBurst*11/10 {
		t.Errorf("of %d handshakes %d were refused, %d passed", 2*handshakeBurst, got.Handshakes, got.Received-before.Received)
	}
}

func TestPeersShareTheRateForAll(t *testing.T) {
	h, err := NewHub(HubConfig{
		Carries: func(string) bool { return true }, Keys: func(context.Context, string) []Key { return []Key{testKey} },
		IsGateway: func(context.Context, [32]byte) bool { return true }, PeerRate: 1000, AllRate: 2000, Log: testLog(t),
		Call: func(context.Context, string, func(context.Context) ([]byte, error)) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for i, want := range []float64{1000, 1000, 666, 500} {
		p := h.of(string(rune('a'+i)), now)
		if got := float64(p.sent.Limit()); got != want {
			t.Errorf("each of %d peers has %v bytes a second, want %v", i+1, got, want)
		}
	}
	now = now.Add(2 * shareFor)
	if got := float64(h.of("a", now).received.Limit()); got != 1000 {
		t.Errorf("one that is alone has %v bytes a second", got)
	}
}

// A gateway that does not read loses its own datagrams, and does not delay others.
func TestAGatewayThatHangsDelaysNoOther(t *testing.T) {
	a, b := pair(t, fast)
	b.gateway.Set(b.key, nil) // its own link ends
	conn, err := net.Dial("tcp", b.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := ask(conn, request{b.key, "a"}, testKey); err != nil {
		t.Fatal(err)
	}
	b.linked()
	batch := appendFrame(nil, tagOf(a.key), tagOf(b.key), data(1, MaxDatagram))
	began := time.Now()
	for range 4000 {
		if err := b.hub.Receive(t.Context(), "a", batch); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("%s for datagrams to a gateway that does not read", took)
	}
	eventually(t, "some are lost", func() bool { return b.hub.Stats()["a"].Late > 1000 })
}

func TestStrangersInTheClusterGetNoLink(t *testing.T) {
	_, b := pair(t, fast)
	var delayed []net.Conn
	defer func() {
		for _, c := range delayed {
			c.Close()
		}
	}()
	for range 2 * maxUnprovenOfOne {
		c, err := net.Dial("tcp", b.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		delayed = append(delayed, c)
	}
	open := 0
	for _, c := range delayed {
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := c.Read(make([]byte, 1)); err == nil {
			open++
		}
	}
	if open > maxUnprovenOfOne {
		t.Errorf("%d connections that did not prove themselves were taken from one address, want %d", open, maxUnprovenOfOne)
	}
}
