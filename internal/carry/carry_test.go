package carry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/peering"
)

// world is the peers of a Carrier.
type world struct {
	mu       sync.Mutex
	sessions map[peering.ClusterID]uint64
	denied   map[peering.ClusterID]bool
	// take answers the calls of the Carrier; nil takes all.
	take func(peer peering.ClusterID, s *peertest.CallEnd)
	far  chan *peertest.CallEnd
}

const a, b, c peering.ClusterID = "aaaa", "bbbb", "cccc"

func newWorld() *world {
	return &world{sessions: map[peering.ClusterID]uint64{a: 1, b: 2}, denied: map[peering.ClusterID]bool{}, far: make(chan *peertest.CallEnd, 100)}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

func (w *world) carrier(t *testing.T, rate int) *Carrier {
	t.Helper()
	carrier, err := NewCarrier(CarrierConfig{
		Connected: func() (out []peering.ClusterID) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for id := range w.sessions {
				out = append(out, id)
			}
			return out
		},
		Session: func(id peering.ClusterID) uint64 {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.sessions[id]
		},
		Allowed: func(id peering.ClusterID) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.denied[id]
		},
		Open: func(ctx context.Context, peer peering.ClusterID) (Stream, error) {
			near, far := peertest.NewCall()
			context.AfterFunc(ctx, func() { near.End(nil) })
			if w.take != nil {
				w.take(peer, far)
			} else {
				_ = far.Send(nil)
			}
			w.far <- far
			return near, nil
		},
		PeerRate: rate, AllRate: 4 * rate, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return carrier
}

// carry asks for a connection from a to a peer. What the Carrier answers in the end comes on done.
func carryTo(t *testing.T, carrier *Carrier, to peering.ClusterID) (near *peertest.CallEnd, done chan error) {
	t.Helper()
	near, far := peertest.NewCall()
	done = make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	context.AfterFunc(ctx, func() { near.End(nil) })
	go func() {
		err := carrier.Carry(ctx, a, NewTarget(a, to), far)
		far.End(err)
		cancel()
		done <- err
	}()
	return near, done
}

func TestBytesPassBothWaysUntilAnEndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		carrier := w.carrier(t, 1<<20)
		near, done := carryTo(t, carrier, b)
		if first, err := near.Recv(); err != nil || len(first) != 0 {
			t.Fatalf("the first response: %q, %v", first, err)
		}
		listener, err := Listen(func(peering.ClusterID) bool { return true }, func(peering.ClusterID) net.Addr { return nowhere() })
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = listener.Take(t.Context(), c, <-w.far) }()
		there, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if first, err := near.Recv(); err != nil || len(first) != 0 { // the listener's own message
			t.Fatalf("got %q, %v", first, err)
		}
		here, pass := Join(near, c, nowhere())
		go pass()
		sent := bytes.Repeat([]byte("0123456789"), 100_000)
		for _, way := range [][2]net.Conn{{here, there}, {there, here}} {
			go func() { _, _ = way[0].Write(sent) }()
			got := make([]byte, len(sent))
			if _, err := io.ReadFull(way[1], got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("what came is not what was sent: %v", err)
			}
		}
		if carrier.Carried() != 1 || carrier.bytes.Load() < int64(2*len(sent)) {
			t.Errorf("%d connections, %d bytes are counted", carrier.Carried(), carrier.bytes.Load())
		}
		_ = there.Close()
		if _, err := here.Read(make([]byte, 1)); err == nil {
			t.Error("the connection is open")
		}
		<-done
		if carrier.Carried() != 0 {
			t.Error("it is still counted")
		}
	})
}

func TestConnectionsThatAreNotCarriedAreAllRefusedAlike(t *testing.T) {
	for name, change := range map[string]func(*world){
		"a peer that is not known":    func(w *world) { delete(w.sessions, b) },
		"a peer whose session is not": func(w *world) { w.sessions[b] = 0 },
		"a peer that is not allowed":  func(w *world) { w.denied[b] = true },
		"a caller that is not":        func(w *world) { w.denied[a] = true },
		"a caller that is carried":    func(w *world) { w.sessions[a] = 0 },
		"a peer that refuses":         func(w *world) { w.take = func(_ peering.ClusterID, s *peertest.CallEnd) { s.End(errNotTaken) } },
		"a peer that says nothing":    func(w *world) { w.take = func(peering.ClusterID, *peertest.CallEnd) {} },
		"a peer that says too much": func(w *world) {
			w.take = func(_ peering.ClusterID, s *peertest.CallEnd) { _ = s.Send([]byte("hello")) }
		},
		"a session that is gone by then": func(w *world) {
			w.take = func(id peering.ClusterID, s *peertest.CallEnd) { _ = s.Send(nil); w.set(func() { w.sessions[id]++ }) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				change(w)
				_, done := carryTo(t, w.carrier(t, 1<<20), b)
				if err := <-done; !errors.Is(err, errUnavailable) {
					t.Errorf("it got %v", err)
				}
			})
		})
	}
}

func TestAConnectionEndsWithItsPolicyOrSession(t *testing.T) {
	for name, change := range map[string]func(*world){
		"the policy for the caller": func(w *world) { w.denied[a] = true },
		"the policy for the peer":   func(w *world) { w.denied[b] = true },
		"the session of the caller": func(w *world) { w.sessions[a] = 0 },
		"the session of the peer":   func(w *world) { w.sessions[b] = 9 },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				near, done := carryTo(t, w.carrier(t, 1<<20), b)
				far := <-w.far
				if _, err := near.Recv(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * recheck)
				if near.Ended() {
					t.Fatal("it ended before")
				}
				began := time.Now()
				w.set(func() { change(w) })
				if err := <-done; !errors.Is(err, errUnavailable) || time.Since(began) > recheck || !far.Ended() {
					t.Errorf("it ended after %s: %v", time.Since(began), err)
				}
			})
		})
	}
}

func TestAnIdleConnectionEnds(t *testing.T) {
	for name, send := range map[string][]byte{"silence": nil, "messages without bytes": {}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				near, done := carryTo(t, w.carrier(t, 1<<20), b)
				began := time.Now()
				if send != nil {
					go func() {
						for near.Send(send) == nil {
							select {
							case <-near.Done():
							case <-time.After(time.Second):
							}
						}
					}()
					far := <-w.far
					go func() {
						for _, err := far.Recv(); err == nil; _, err = far.Recv() {
						}
					}()
				}
				if err := <-done; !errors.Is(err, errIdle) || time.Since(began) > idleTimeout+2*recheck {
					t.Errorf("it ended after %s: %v", time.Since(began), err)
				}
			})
		})
	}
}

// An end that does not read blocks the one that writes, and the two lose their connection.
func TestASlowReaderBuffersLittleAndEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		carrier := w.carrier(t, 1<<30)
		near, done := carryTo(t, carrier, b)
		var sent atomic.Int64
		go func() {
			for near.Send(make([]byte, MaxData)) == nil {
				sent.Add(1)
			}
		}()
		if err := <-done; !errors.Is(err, errIdle) {
			t.Errorf("it ended with %v", err)
		}
		// What both calls let wait, and one message in hand.
		if n := sent.Load(); n > 4+4+2 {
			t.Errorf("%d messages were taken that were not read", n)
		}
	})
}

func TestAMessageBeyondTheLimitEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		near, done := carryTo(t, w.carrier(t, 1<<20), b)
		if err := near.Send(make([]byte, MaxData+1)); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, errUnavailable) {
			t.Errorf("got %v", err)
		}
	})
}

func TestARateLimitsEachPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const bytesASecond = 1 << 20
		w := newWorld()
		carrier := w.carrier(t, bytesASecond)
		near, _ := carryTo(t, carrier, b)
		far := <-w.far
		go func() {
			for near.Send(make([]byte, MaxData)) == nil {
			}
		}()
		go func() {
			for _, err := far.Recv(); err == nil; _, err = far.Recv() {
			}
		}()
		began := time.Now()
		time.Sleep(10 * time.Second)
		got := float64(carrier.bytes.Load()) / time.Since(began).Seconds()
		if got < 0.9*bytesASecond || got > 1.1*bytesASecond {
			t.Errorf("%.0f bytes a second of %d", got, bytesASecond)
		}
		near.End(nil)
		synctest.Wait()
	})
}

func TestRequestsAndConnectionsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		carrier := w.carrier(t, 1<<20)
		var open []*peertest.CallEnd
		for range maxCarriedOfPeer {
			near, _ := carryTo(t, carrier, b)
			if _, err := near.Recv(); err != nil {
				t.Fatal(err)
			}
			open = append(open, near)
		}
		_, done := carryTo(t, carrier, b)
		if err := <-done; !errors.Is(err, errFull) {
			t.Errorf("one more of a peer: %v", err)
		}
		for _, near := range open {
			near.End(nil)
		}
		synctest.Wait()
		for {
			near, done := carryTo(t, carrier, c)
			if err := <-done; errors.Is(err, errAsks) {
				break
			} else if !errors.Is(err, errUnavailable) {
				t.Fatal(err)
			}
			near.End(nil)
		}
		if carrier.refused[refusedRate].Load() != 1 || carrier.refused[refusedFull].Load() != 1 {
			t.Error("refusals are not counted")
		}
		time.Sleep(2 * time.Second / askRate)
		near, _ := carryTo(t, carrier, b)
		if _, err := near.Recv(); err != nil {
			t.Errorf("later: %v", err)
		}
		near.End(nil)
		synctest.Wait()
	})
}

func TestAListenerTakesABoundedNumberOfAThirdPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refuse atomic.Bool
		listener, err := Listen(func(peering.ClusterID) bool { return !refuse.Load() }, func(peering.ClusterID) net.Addr { return nowhere() })
		if err != nil {
			t.Fatal(err)
		}
		take := func(third peering.ClusterID) (*peertest.CallEnd, chan error) {
			near, far := peertest.NewCall()
			done := make(chan error, 1)
			go func() {
				err := listener.Take(t.Context(), third, far)
				far.End(err)
				done <- err
			}()
			return near, done
		}
		var conns []net.Conn
		for range maxAcceptedOfThird {
			take(c)
			conn, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if conn.(*Conn).Through() != string(c) {
				t.Errorf("it comes through %s", conn.(*Conn).Through())
			}
			conns = append(conns, conn)
		}
		_, done := take(c)
		if err := <-done; !errors.Is(err, errNotTaken) {
			t.Errorf("one more: %v", err)
		}
		_, waits := take(a) // which is not accepted
		if err := <-waits; !errors.Is(err, errNotTaken) {
			t.Errorf("one that is not accepted: %v", err)
		}
		refuse.Store(true)
		_, done = take(b)
		if err := <-done; !errors.Is(err, errNotTaken) {
			t.Errorf("one that is not allowed: %v", err)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
		synctest.Wait()
		if left := listener.counts.Now(); len(left) != 0 {
			t.Errorf("%v are still counted", left)
		}
		_ = listener.Close()
		if _, err := listener.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a closed listener accepts: %v", err)
		}
	})
}

func TestATargetDoesNotRevealTheClusterID(t *testing.T) {
	one, two := NewTarget(a, b), NewTarget(a, b)
	if !one.Is(a, b) || one.Is(a, c) || one.Is(c, b) || one.Is(b, a) {
		t.Error("it names another pair")
	}
	if one.Name == two.Name || one.Nonce == two.Nonce {
		t.Error("two names of the same cluster are equal")
	}
}

func TestMetricsCountCarriedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		carrier := w.carrier(t, 1<<20)
		near, done := carryTo(t, carrier, b)
		if _, err := near.Recv(); err != nil {
			t.Fatal(err)
		}
		if err := near.Send(make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		_, refused := carryTo(t, carrier, c)
		<-refused
		synctest.Wait()
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(carrier.Collector())
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		if got["entente_carried_between_peers"] != 1 || got["entente_carried_bytes_total"] != 1000 || got["entente_carry_refused_total"] != 1 {
			t.Errorf("got %v", got)
		}
		near.End(nil)
		<-done
	})
}
