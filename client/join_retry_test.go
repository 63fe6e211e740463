package client

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
)

// crowdedListener hangs up on connections while more than a few are open, before a
// byte is read, as an agent does.
type crowdedListener struct {
	net.Listener
	open, refused atomic.Int64
}

func (l *crowdedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) > 8 {
			l.open.Add(-1)
			l.refused.Add(1)
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
			continue
		}
		return &crowdedConn{Conn: c, closed: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
	}
}

type crowdedConn struct {
	net.Conn
	closed func()
}

func (c *crowdedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Many clusters behind one address join at once: the limits of the issuer make them wait, by
// closing connections or by a pause that it asks for, and no join fails.
func TestJoinersBehindOneAddressQueue(t *testing.T) {
	foreign := newSource(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	crowd := &crowdedListener{Listener: l}
	s := wiretest.NewServer(grpc.Creds(credentials.NewTLS(foreign.ServerTLS(identity.NewBundles(), "h2"))))
	var asked atomic.Int64
	ententev1.RegisterTrustServiceServer(s, &issuer{join: func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
		if asked.Add(1)%3 == 0 {
			return nil, wire.Status(&peering.Error{Reason: peering.ReasonRateLimited, Message: "too many calls a second", RetryAfter: 50 * time.Millisecond}).Err()
		}
		return &ententev1.JoinResponse{Cluster: wire.ClusterInfoTo(selfOf(foreign, "office"))}, nil
	}})
	go func() { _ = s.Serve(crowd) }()
	t.Cleanup(s.Stop)
	token := tokenOf(t, foreign, time.Now().Add(time.Minute), l.Addr().String())
	var wg sync.WaitGroup
	for range 40 {
		home := newSource(t)
		wg.Go(func() {
			if _, err := Join(t.Context(), JoinConfig{Token: token, Source: home, Self: selfOf(home, "home")}); err != nil {
				t.Errorf("it failed: %v", err)
			}
		})
	}
	wg.Wait()
	if crowd.refused.Load() == 0 || asked.Load() <= 40 {
		t.Errorf("%d connections and %d calls were pushed back: that are too few", crowd.refused.Load(), asked.Load()-40)
	}
}

// A join to an issuer that never has room fails in the end.
func TestAJoinThatIsAlwaysPushedBackEnds(t *testing.T) {
	home, foreign := newSource(t), newSource(t)
	asked := 0
	at := serveIssuer(t, foreign, func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
		asked++
		return nil, wire.Status(&peering.Error{Reason: peering.ReasonRateLimited, Message: "too many", RetryAfter: 2 * joinPatience}).Err()
	})
	begin := time.Now()
	_, err := Join(t.Context(), JoinConfig{Token: tokenOf(t, foreign, time.Now().Add(time.Minute), at, closedPort(t)), Source: home, Self: selfOf(home, "home")})
	if wire.ReasonOf(err) != peering.ReasonPeerUnreachable || asked == 0 {
		t.Errorf("got %v after %d calls", err, asked)
	}
	if took := time.Since(begin); took > joinPatience+joinDialTimeout {
		t.Errorf("it took %s", took)
	}
}

// An issuer that was just installed may refuse connections for some seconds.
func TestAJoinWaitsForAnIssuerThatStarts(t *testing.T) {
	t.Parallel()
	home, foreign := newSource(t), newSource(t)
	serving := serveIssuer(t, foreign, func(*ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
		return &ententev1.JoinResponse{Cluster: wire.ClusterInfoTo(selfOf(foreign, "office"))}, nil
	})
	closed, dials := closedPort(t), 0
	info, err := Join(t.Context(), JoinConfig{
		Token: tokenOf(t, foreign, time.Now().Add(time.Minute), serving), Source: home, Self: selfOf(home, "home"),
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dials++; dials <= 2 {
				address = closed
			}
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	})
	if err != nil || info.Name != "office" || dials != 3 {
		t.Errorf("after %d dials: %+v, %v", dials, info, err)
	}
}
