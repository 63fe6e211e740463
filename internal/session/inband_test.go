package session

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// tunnelEnd is where a node's connections through tunnels come in.
type tunnelEnd struct {
	net.Listener
	// of is the peer at the other end, as a relay reports it.
	of peering.ClusterID
}

type tunnelConn struct {
	net.Conn
	of peering.ClusterID
}

func (c tunnelConn) Peer() string { return string(c.of) }

func (e *tunnelEnd) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tunnelConn{conn, e.of}, nil
}

// behindTunnel has a node reached by a tunnel alone, and returns its end of that.
func behindTunnel(t *testing.T, of peering.ClusterID) (*tunnelEnd, nodeOption) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	end := &tunnelEnd{l, of}
	return end, func(c *Config, s *identity.SourceConfig) {
		dialOnly(c, s)
		c.InBand = end
	}
}

func through(end *tunnelEnd) nodeOption {
	return func(c *Config, s *identity.SourceConfig) {
		dialOnly(c, s)
		c.DialInBand = func(ctx context.Context, _ peering.ClusterID) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", end.Addr().String())
		}
	}
}

func TestASessionRunsThroughTheTunnelAndBothSidesKnow(t *testing.T) {
	t.Parallel()
	id := newIdentity(t)
	end, option := behindTunnel(t, id.ID())
	b := start(t, option)
	a := startAs(t, id, through(end))
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, InBand: true, Endpoints: []string{"192.0.2.1:1"}}}) // which is not dialled
	eventually(t, "a session", up(a, b))
	mustWho(t, a, b)
	mustWho(t, b, a)
	for _, s := range []*Info{a.Status(b.id).Session, b.Status(a.id).Session} {
		if s == nil || !s.InBand || s.Endpoint != "" {
			t.Errorf("the session is %+v", s)
		}
	}
}

func TestTheStatusSaysThatAPeerCannotBeReachedInBand(t *testing.T) {
	t.Parallel()
	b := start(t)
	a := start(t, dialOnly, func(c *Config, _ *identity.SourceConfig) {
		c.DialInBand = func(context.Context, peering.ClusterID) (net.Conn, error) { return nil, errors.New("no relay answers") }
	})
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, InBand: true}})
	eventually(t, "the status has the reason", func() bool {
		err := a.Status(b.id).Err
		return err != nil && strings.Contains(err.Error(), "in-band: no relay answers")
	})
}

// A gateway of one peer cannot bring another cluster, trusted or not.
func TestASessionThroughAnothersTunnelIsRefused(t *testing.T) {
	t.Parallel()
	end, option := behindTunnel(t, newIdentity(t).ID())
	b := start(t, option)
	a := start(t, through(end))
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, InBand: true}})
	eventually(t, "it was refused", func() bool { return a.Status(b.id).Err != nil })
	if a.Status(b.id).Session != nil || b.Status(a.id).Session != nil {
		t.Error("there is a session")
	}

	stranger := start(t, dialOnly)
	raw, err := new(net.Dialer).DialContext(t.Context(), "tcp", end.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	stranger.bundles = identity.NewBundles()
	if err := stranger.bundles.Trust(b.id, b.source.Identity().TrustBundle()); err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, stranger.source.ClientTLS(b.id, stranger.bundles, "", protoGRPC))
	defer func() { _ = conn.Close() }()
	if err := conn.HandshakeContext(t.Context()); err == nil {
		if _, err = conn.Read(make([]byte, 1)); err == nil {
			t.Error("it is answered")
		}
	}
}
