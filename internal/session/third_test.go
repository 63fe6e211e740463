package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

func TestThirdPeersAreTriedInAnOrderThatBothEndsShareAndPairsDoNot(t *testing.T) {
	t.Parallel()
	var candidates []peering.ClusterID
	for i := range 6 {
		candidates = append(candidates, peering.ClusterID(fmt.Sprintf("c%d", i)))
	}
	now := time.Now()
	first := map[peering.ClusterID]int{}
	for i := range 300 {
		a, b := peering.ClusterID(fmt.Sprintf("a%d", i)), peering.ClusterID(fmt.Sprintf("b%d", i))
		one := thirds{}.next(a, b, candidates, now)
		reversed := slices.Clone(candidates)
		slices.Reverse(reversed)
		if other := (thirds{}).next(b, a, reversed, now); !slices.Equal(one, other) || len(one) != thirdTries {
			t.Fatalf("%s has %v, %s has %v", a, one, b, other)
		}
		first[one[0]]++
		// Without one that is not the first, the first stays.
		less := slices.DeleteFunc(slices.Clone(candidates), func(id peering.ClusterID) bool { return id == one[1] })
		if got := (thirds{}).next(a, b, less, now); got[0] != one[0] {
			t.Fatalf("without %s the first is %s, not %s", one[1], got[0], one[0])
		}
	}
	for _, c := range candidates {
		if first[c] < 300/6/2 {
			t.Errorf("%s is the first of %d pairs of 300", c, first[c])
		}
	}
}

func TestAThirdPeerThatFailedIsNotAskedForAWhile(t *testing.T) {
	t.Parallel()
	now := time.Now()
	known := thirds{}
	pauses := []time.Duration{}
	for range 12 {
		known.failed("c", errors.New("no"), now)
		pauses = append(pauses, known["c"].again.Sub(now))
		if got := known.next("a", "b", []peering.ClusterID{"a", "b", "c", "d"}, now); !slices.Equal(got, []peering.ClusterID{"d"}) {
			t.Fatalf("candidates are %v", got)
		}
		if now = known["c"].again; len(known.next("a", "b", []peering.ClusterID{"c"}, now)) != 1 {
			t.Fatal("it is never asked again")
		}
	}
	if pauses[0] != thirdBackoffMin || pauses[1] != 2*thirdBackoffMin || pauses[11] != thirdBackoffMax {
		t.Errorf("the pauses are %v", pauses)
	}
	if known.keep([]peering.ClusterID{"d"}); len(known) != 0 {
		t.Error("one that is gone is remembered")
	}
}

func TestADirectSessionTakesThePlaceOfACarriedOneAtBothEnds(t *testing.T) {
	t.Parallel()
	const low, high peering.ClusterID = "a", "b"
	for _, dialled := range []bool{true, false} {
		for _, dialledNew := range []bool{true, false} {
			for _, m := range []*Manager{{self: low}, {self: high}} {
				peer := low
				if m.self == low {
					peer = high
				}
				carried, direct := Info{Peer: peer, Through: "c", Dialled: dialled}, Info{Peer: peer, Dialled: dialledNew}
				if !m.supersedes(carried, direct) || m.supersedes(direct, carried) {
					t.Errorf("dialled %t, %t: a carried session is kept", dialled, dialledNew)
				}
				other := carried
				other.Through, other.Dialled = "d", dialledNew
				if m.supersedes(carried, other) != replaces(m.self, peer, dialled, dialledNew) {
					t.Errorf("dialled %t, %t: of two that are carried another one is kept", dialled, dialledNew)
				}
			}
		}
	}
}

// carriedEnd is where connections come in that a third peer carries.
type carriedEnd struct {
	net.Listener
	by peering.ClusterID
}

type carriedConn struct {
	net.Conn
	by peering.ClusterID
}

func (c carriedConn) Through() string { return string(c.by) }

func (e *carriedEnd) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return carriedConn{conn, e.by}, nil
}

// behindThird has a node reached through a third peer alone, and returns its end of that.
func behindThird(t *testing.T, by peering.ClusterID) (*carriedEnd, nodeOption) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	end := &carriedEnd{l, by}
	return end, func(c *Config, s *identity.SourceConfig) {
		dialOnly(c, s)
		c.Carried = end
	}
}

// A third peer may carry any connection: a cluster that is not trusted gets only a refusal, not
// even what strangers get on the listener, and the carrier cannot use a connection as its own.
func TestOnlySessionsOfTrustedPeersAreTakenFromAThirdPeer(t *testing.T) {
	t.Parallel()
	third := newIdentity(t)
	end, option := behindThird(t, third.ID())
	b := start(t, option)
	a, c := start(t, dialOnly), startAs(t, third, dialOnly)
	stranger := start(t, dialOnly)
	trustEachOther(t, a, b)
	trustEachOther(t, c, b)
	trust(t, stranger, b)
	for _, tt := range []struct {
		name  string
		node  *node
		proto string
		in    bool
	}{
		{"a peer's session", a, protoSession, true},
		{"a peer's calls without a session", a, protoGRPC, false},
		{"a stranger that would join", stranger, protoGRPC, false},
		{"a stranger's session", stranger, protoSession, false},
		{"the carrier's own session", c, protoSession, false},
	} {
		raw, err := new(net.Dialer).DialContext(t.Context(), "tcp", end.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn := tls.Client(raw, tt.node.source.ClientTLS(b.id, tt.node.bundles, "", tt.proto))
		_ = conn.SetDeadline(time.Now().Add(patience))
		in := false
		if err := conn.HandshakeContext(t.Context()); err == nil && tt.proto == protoSession {
			code, _, err := readPreface(conn)
			in = err == nil && code == welcome
		} else if err == nil {
			_, err = conn.Read(make([]byte, 1))
			in = err == nil || errors.Is(err, context.DeadlineExceeded)
		}
		if in != tt.in {
			t.Errorf("%s: let in %t", tt.name, in)
		}
		if tt.in {
			eventually(t, "the carrier is known", func() bool {
				s := b.Status(tt.node.id).Session
				return s != nil && s.Through == third.ID() && s.Endpoint == ""
			})
		}
		_ = conn.Close()
	}
}

// A carrier sees and can change all bytes of a connection.
func TestACarrierCannotActAsThePeer(t *testing.T) {
	t.Parallel()
	c := start(t)
	b := start(t)
	a := start(t, dialOnly, func(cfg *Config, _ *identity.SourceConfig) {
		cfg.Carries = func(peering.ClusterID) bool { return true }
		cfg.DialThrough = func(ctx context.Context, _, _ peering.ClusterID) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", c.addr) // c itself
		}
	})
	trustEachOther(t, a, b)
	trustEachOther(t, a, c)
	a.SetPeers([]Peer{{ID: c.id, Endpoints: []string{c.addr}}, {ID: b.id}})
	eventually(t, "it was tried", func() bool {
		err := a.Status(b.id).Err
		return err != nil && strings.Contains(err.Error(), "through peer "+string(c.id))
	})
	if a.Status(b.id).Session != nil {
		t.Error("there is a session")
	}
}

func TestAThirdPeerIsAskedOnlyAfterDirectWaysFailed(t *testing.T) {
	t.Parallel()
	b, c := start(t), start(t)
	asked := make(chan struct{}, 1)
	a := start(t, dialOnly, func(cfg *Config, _ *identity.SourceConfig) {
		cfg.Carries = func(peering.ClusterID) bool { return true }
		cfg.DialThrough = func(context.Context, peering.ClusterID, peering.ClusterID) (net.Conn, error) {
			asked <- struct{}{}
			return nil, errors.New("asked")
		}
	})
	trustEachOther(t, a, b)
	trustEachOther(t, a, c)
	a.SetPeers([]Peer{{ID: c.id, Endpoints: []string{c.addr}}, {ID: b.id, Endpoints: []string{b.addr}}})
	eventually(t, "sessions", func() bool { return up(a, b)() && up(a, c)() })
	// The loop that dials ends with the session, and even if it did not, it would ask no peer.
	if l, errs := a.throughThird(t.Context(), b.id, thirds{}); l != nil || errs != nil || !a.hasDirect(b.id) {
		t.Errorf("there is a session: got %v, %v", l, errs)
	}
	if len(asked) > 0 {
		t.Error("a third peer was asked for a peer that is reached directly")
	}
}

// The status of a peer that cannot be reached has to help an administrator: it names the third
// peer that did not carry, also while that one is not asked again, or says that none carries.
func TestTheStatusNamesWhyNoThirdPeerCarries(t *testing.T) {
	t.Parallel()
	c := start(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	var carries atomic.Bool
	a := start(t, dialOnly, func(cfg *Config, _ *identity.SourceConfig) {
		cfg.Carries = func(peering.ClusterID) bool { return carries.Load() }
		cfg.DialThrough = func(context.Context, peering.ClusterID, peering.ClusterID) (net.Conn, error) {
			return nil, errors.New("it does not")
		}
	})
	b, alone := newIdentity(t).ID(), start(t, dialOnly, func(cfg *Config, _ *identity.SourceConfig) {
		cfg.Carries = func(peering.ClusterID) bool { return false }
		cfg.DialThrough = func(context.Context, peering.ClusterID, peering.ClusterID) (net.Conn, error) {
			return nil, errors.New("no")
		}
	})
	trustEachOther(t, a, c)
	lost := Peer{ID: b, Endpoints: []string{closed.Addr().String()}}
	a.SetPeers([]Peer{{ID: c.id, Endpoints: []string{c.addr}}, lost})
	alone.SetPeers([]Peer{lost})
	eventually(t, "the status says that no peer carries", func() bool { return errors.Is(a.Status(b).Err, errNoThird) })
	carries.Store(true)
	named := func() bool {
		err := a.Status(b).Err
		return strings.Contains(err.Error(), "through peer "+string(c.id)+": it does not") && !errors.Is(err, errNoThird)
	}
	eventually(t, "the status names the peer that did not carry", named)
	for tries := a.Status(b).Tries; a.Status(b).Tries < tries+2; time.Sleep(10 * time.Millisecond) {
		if !named() {
			t.Fatalf("while the third peer is left alone the error is %v", a.Status(b).Err)
		}
	}
	if err := alone.Status(b).Err; err == nil || errors.Is(err, errNoThird) {
		t.Errorf("with no other peer that could carry the error is %v", err)
	}
}
