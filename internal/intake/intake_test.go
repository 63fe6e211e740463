package intake

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
)

const kib = 1 << 10

// sentBy is a connection of a sender; what begins with "s" is a stranger.
type sentBy string

func (sentBy) AuthType() string { return "test" }

func newMeter(change ...func(*Config)) *Meter {
	cfg := Config{
		Log: slog.New(slog.DiscardHandler), Call: 1 << 40, Peer: 1 << 40, Stranger: 1 << 40, All: 1 << 40,
		Sender: func(_ net.Addr, auth credentials.AuthInfo) (string, bool) {
			name := string(auth.(sentBy))
			return name, name[0] != 's'
		},
		EndTimeout: time.Minute, WriteTimeout: time.Minute, ReadBuffer: kib,
	}
	for _, c := range change {
		c(&cfg)
	}
	return New(cfg)
}

// fakeConn has an address, and is open until it is closed.
type fakeConn struct {
	net.Conn
	closed chan struct{}
}

func (fakeConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

func (c fakeConn) Close() error {
	close(c.closed)
	return nil
}

func (m *Meter) opened(from string) *conn {
	return m.open(fakeConn{closed: make(chan struct{})}, sentBy(from))
}

// begun begins a call on a connection, for which gRPC lets go of it as soon as it ends.
func begun(c *conn, id uint32) context.Context {
	ctx, letGo := context.WithCancel(peer.NewContext(context.Background(), &peer.Peer{Addr: c.RemoteAddr()}))
	c.stream = id
	own := c.meter.Begin(ctx)
	context.AfterFunc(own, letGo)
	return own
}

// receive is what the connection does with bytes that it read.
func (c *conn) receive(b []byte) {
	c.meter.mu.Lock()
	defer c.meter.mu.Unlock()
	c.count(b)
	c.meter.relieve(c)
}

// data is a DATA frame.
func data(b []byte, flags byte, stream uint32, payload []byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), frameData, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// send has a call receive 16 KiB frames that cost at least so much.
func send(c *conn, stream uint32, cost int) {
	c.preface = 0
	for ; cost > 0; cost -= 16 * kib {
		c.receive(data(nil, 0, stream, make([]byte, 16*kib)))
	}
}

func TestMeterCountsFramesCutInAnyPieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		m := newMeter()
		c := m.opened("a")
		ctx := begun(c, 1)
		m.HandleRPC(ctx, &stats.Begin{IsClientStream: true})
		var sizes []int
		var all []byte
		for range 1 + random.IntN(6) {
			sizes = append(sizes, 5+random.IntN(3000))
			all = append(all, make([]byte, sizes[len(sizes)-1])...)
		}
		sent, want := []byte(preface), int64(0)
		for rest := all; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(2000))
			payload, flags := rest[:n], byte(0)
			rest = rest[n:]
			if random.IntN(2) == 0 {
				pad := random.IntN(200)
				payload, flags = append(append([]byte{byte(pad)}, payload...), make([]byte, pad)...), flagPadded
			}
			sent = data(sent, flags, 1, payload)
			want += int64(frameCost(uint32(len(payload))))
			sent = data(sent, 0, 9, []byte{1, 2, 3}) // a stream that does not exist
			sent = append(sent, 0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
		}
		for len(sent) > 0 {
			n := min(len(sent), 1+random.IntN(500))
			c.receive(sent[:n])
			sent = sent[n:]
		}
		if got := m.Unread(); got != want || c.from.unread != want {
			t.Fatalf("round %d: %d bytes are unread, %d of the sender, want %d", round, got, c.from.unread, want)
		}
		for i, size := range sizes {
			if m.Unread() == 0 {
				t.Fatalf("round %d: nothing is unread before message %d of %d is read", round, i, len(sizes))
			}
			m.HandleRPC(ctx, &stats.InPayload{WireLength: size})
		}
		if got := m.Unread(); got != 0 {
			t.Fatalf("round %d: %d bytes are unread after all was read", round, got)
		}
	}
}

func TestTheMessageOfAUnaryCallCountsUntilTheCallEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(func(c *Config) { c.Call = 40 * kib })
		c := m.opened("a")
		ctx := begun(c, 1)
		m.HandleRPC(ctx, &stats.Begin{})
		send(c, 1, 16*kib)
		m.HandleRPC(ctx, &stats.InPayload{WireLength: 16 * kib})
		if m.Unread() == 0 {
			t.Error("nothing is unread while the handler runs")
		}
		send(c, 1, 48*kib)
		synctest.Wait()
		if m.Unread() != 0 || !errors.Is(context.Cause(ctx), ErrUnreadLimit) {
			t.Errorf("%d bytes are unread of a call that ended with %v", m.Unread(), context.Cause(ctx))
		}
	})
}

func TestLimitsEndTheLargestCall(t *testing.T) {
	type sent struct {
		from   string
		stream uint32
		cost   int
	}
	for name, tc := range map[string]struct {
		limits func(*Config)
		sent   []sent
		ended  []int
	}{
		"no limit": {func(*Config) {}, []sent{{"a", 1, 320 * kib}, {"s", 1, 640 * kib}}, nil},
		"of a call": {
			func(c *Config) { c.Call = 100 * kib }, []sent{{"a", 1, 80 * kib}, {"a", 3, 112 * kib}, {"s", 1, 16 * kib}}, []int{1},
		},
		"of a peer": {
			func(c *Config) { c.Peer = 100 * kib }, []sent{{"a", 1, 32 * kib}, {"a", 3, 48 * kib}, {"b", 1, 80 * kib}, {"a", 5, 32 * kib}}, []int{1},
		},
		"of a stranger": {
			func(c *Config) { c.Stranger = 40 * kib }, []sent{{"a", 1, 80 * kib}, {"s", 1, 16 * kib}, {"s", 3, 48 * kib}, {"t", 1, 80 * kib}}, []int{2},
		},
		"of all, by peers": {
			func(c *Config) { c.All = 200 * kib }, []sent{{"a", 1, 64 * kib}, {"b", 1, 48 * kib}, {"a", 3, 48 * kib}, {"c", 1, 48 * kib}}, []int{0},
		},
		"of all, also by a stranger": {
			func(c *Config) { c.All = 200 * kib }, []sent{{"a", 1, 128 * kib}, {"s1", 1, 16 * kib}, {"s2", 1, 32 * kib}, {"b", 1, 48 * kib}}, []int{2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMeter(tc.limits)
				conns := map[string]*conn{}
				calls := make([]context.Context, len(tc.sent))
				for i, s := range tc.sent {
					if conns[s.from] == nil {
						conns[s.from] = m.opened(s.from)
					}
					calls[i] = begun(conns[s.from], s.stream)
				}
				for _, s := range tc.sent {
					send(conns[s.from], s.stream, s.cost)
				}
				var ended []int
				for i, ctx := range calls {
					if ctx.Err() != nil {
						ended = append(ended, i)
					}
				}
				if len(ended) != len(tc.ended) || len(ended) > 0 && ended[0] != tc.ended[0] {
					t.Errorf("calls %v were ended, want %v", ended, tc.ended)
				}
			})
		})
	}
}

func TestCallThatDoesNotEndLosesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(func(c *Config) { c.All = 100 * kib })
		stuck, other := m.opened("a"), m.opened("b")
		ctx, letGo := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: stuck.RemoteAddr()}))
		stuck.stream = 1
		m.Begin(ctx)
		begun(other, 1)
		send(stuck, 1, 80*kib)
		begin := time.Now()
		send(other, 1, 32*kib)
		<-stuck.Conn.(fakeConn).closed
		if took := time.Since(begin); took != time.Minute {
			t.Errorf("it was cut off after %s", took)
		}
		letGo()
		synctest.Wait()
		if unread := m.Unread(); unread > 33*kib {
			t.Errorf("%d bytes are unread", unread)
		}
		if m.senders["a"] != nil || m.senders["b"] == nil {
			t.Errorf("%d senders are left", len(m.senders))
		}
	})
}

func TestOnEndReplacesTheEndOfTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(func(c *Config) { c.Call = 10 * kib })
		c := m.opened("a")
		ctx, letGo := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()}))
		c.stream = 1
		own := m.Begin(ctx)
		ended := 0
		OnEnd(own, func(why error) {
			if !errors.Is(why, ErrUnreadLimit) {
				t.Errorf("it is ended for %v", why)
			}
			ended++
			letGo()
		})
		send(c, 1, 16*kib)
		send(c, 1, 16*kib)
		if ended != 1 {
			t.Errorf("it was ended %d times", ended)
		}
	})
}

// The goroutines of a handler may read while gRPC lets go of the call.
func TestMessageIsReadWhileItsCallEnds(t *testing.T) {
	m := newMeter()
	c := m.opened("a")
	for range 100 {
		ctx, letGo := context.WithCancel(peer.NewContext(t.Context(), &peer.Peer{Addr: c.RemoteAddr()}))
		c.stream = 1
		own := m.Begin(ctx)
		m.HandleRPC(own, &stats.Begin{IsClientStream: true})
		send(c, 1, 32*kib)
		gone := own.Value(callKey{}).(*call).gone
		var reading sync.WaitGroup
		reading.Go(func() {
			for range 100 {
				m.HandleRPC(own, &stats.InPayload{WireLength: kib})
			}
		})
		letGo()
		reading.Wait()
		<-gone
	}
	if m.Unread() != 0 || len(c.calls) != 0 {
		t.Errorf("%d bytes are unread by %d calls", m.Unread(), len(c.calls))
	}
}
