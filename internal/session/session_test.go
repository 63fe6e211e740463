package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// whoami answers with the caller's ID, whether it is trusted, and its session.
func whoami(_ any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // as grpc.MethodHandler has it
	if err := dec(new(wrapperspb.StringValue)); err != nil {
		return nil, err
	}
	info, ok := identity.PeerFromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "no peer")
	}
	return wrapperspb.String(fmt.Sprintf("%s %t %d", info.ID, info.Trusted, info.Session)), nil
}

// tail answers with a message each 10 ms until the caller goes.
func tail(_ any, s grpc.ServerStream) error {
	if err := s.RecvMsg(new(wrapperspb.StringValue)); err != nil {
		return err
	}
	for {
		if err := s.SendMsg(wrapperspb.String("tick")); err != nil {
			return err
		}
		select {
		case <-s.Context().Done():
			return s.Context().Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

var testService = grpc.ServiceDesc{
	ServiceName: "test.Test",
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Who", Handler: whoami}},
	Streams:     []grpc.StreamDesc{{StreamName: "Tail", Handler: tail, ServerStreams: true}},
}

// node is one cluster's agent, as far as this package goes.
type node struct {
	*Manager
	id      peering.ClusterID
	source  *identity.Source
	bundles *identity.Bundles
	addr    string
}

type nodeOption func(*Config, *identity.SourceConfig)

func dialOnly(c *Config, _ *identity.SourceConfig) {
	_ = c.Listener.Close()
	c.Listener = nil
}

func newIdentity(t *testing.T) *identity.Identity {
	t.Helper()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func start(t *testing.T, opts ...nodeOption) *node {
	t.Helper()
	return startAs(t, newIdentity(t), opts...)
}

func startAs(t *testing.T, id *identity.Identity, opts ...nodeOption) *node {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(ServerCredentials()))
	server.RegisterService(&testService, nil)
	cfg := Config{Bundles: identity.NewBundles(), Server: server, Listener: listener}
	scfg := identity.SourceConfig{Identity: id}
	for _, o := range opts {
		o(&cfg, &scfg)
	}
	if cfg.Source, err = identity.NewSource(scfg); err != nil {
		t.Fatal(err)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Manager: m, id: id.ID(), source: cfg.Source, bundles: cfg.Bundles}
	if a := m.Addr(); a != nil {
		n.addr = a.String()
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not end")
		}
	})
	return n
}

// trust makes a trust b.
func trust(t *testing.T, a, b *node) {
	t.Helper()
	if err := a.bundles.Trust(b.id, b.source.Identity().TrustBundle()); err != nil {
		t.Fatal(err)
	}
}

func trustEachOther(t *testing.T, a, b *node) {
	t.Helper()
	trust(t, a, b)
	trust(t, b, a)
}

// patience is how long a test waits for what has to come: longer than the longest
// pause between two dials, on a machine that is busy with other tests.
const patience = 2 * backoffMax

// eventually waits for something that has to become so.
var eventually = waittest.Eventually

// closed waits until a session that the other side does not dial again ended, and returns why.
// The dialling side has a session before the other, so that a side without one proves nothing.
func closed(t *testing.T, victim, peer *node) error {
	t.Helper()
	var err error
	eventually(t, "the session is closed", func() bool {
		err = victim.Status(peer.id).Err
		return err != nil
	})
	return err
}

func up(a, b *node) func() bool { return func() bool { return a.Status(b.id).Session != nil } }

func who(ctx context.Context, from, to *node, opts ...grpc.CallOption) (string, error) {
	out := new(wrapperspb.StringValue)
	err := from.Conn(to.id).Invoke(ctx, "/test.Test/Who", wrapperspb.String(""), out, opts...)
	return out.GetValue(), err
}

func mustWho(t *testing.T, from, to *node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	got, err := who(ctx, from, to, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("call %s -> %s: %v", from.id.Short(), to.id.Short(), err)
	}
	if !strings.HasPrefix(got, string(from.id)+" true ") || strings.HasSuffix(got, " 0") {
		t.Fatalf("callee saw %q, want %s, trusted, with a session", got, from.id)
	}
}

// soonWho is mustWho after one session took another's place: a call that was on
// its way in the old one fails as calls do when a connection breaks.
func soonWho(t *testing.T, a, b *node) {
	t.Helper()
	eventually(t, "calls run both ways", func() bool {
		_, err1 := who(t.Context(), a, b)
		_, err2 := who(t.Context(), b, a)
		return err1 == nil && err2 == nil
	})
	mustWho(t, a, b)
	mustWho(t, b, a)
}

func TestCallsRunBothWaysOverOneConnectionThatOnlyOneSideCanDial(t *testing.T) {
	t.Parallel()
	server := start(t)
	natted := start(t, dialOnly)
	trustEachOther(t, server, natted)
	natted.SetPeers([]Peer{{ID: server.id, Endpoints: []string{server.addr}}})
	mustWho(t, natted, server)
	mustWho(t, server, natted)
	if got := len(server.Sessions()) + len(natted.Sessions()); got != 2 {
		t.Errorf("%d ends of sessions, want 2", got)
	}
	s := natted.Status(server.id).Session
	if !s.Dialled || s.Endpoint != server.addr || s.ClockSkew.Abs() > 5*time.Second {
		t.Errorf("session of the dialling side: %+v", *s)
	}
	if server.Status(natted.id).Session.Dialled {
		t.Error("the dialled side has the session as one that it dialled")
	}
}

func TestACallWithoutASessionFailsFastWithTheReason(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t)
	trustEachOther(t, a, b)
	began := time.Now()
	_, err := who(t.Context(), a, b)
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no session with "+string(b.id)) {
		t.Errorf("got %v", err)
	}
	if d := time.Since(began); d > openTimeout/2 {
		t.Errorf("took %s", d)
	}
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	mustWho(t, a, b) // the same client connection comes to life
}

func TestEndpointsAreTriedInTurnAndTheErrorNamesEach(t *testing.T) {
	t.Parallel()
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deadAddr := dead.Addr().String()
	_ = dead.Close()
	a, b := start(t, dialOnly), start(t)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{deadAddr}}})
	eventually(t, "a try failed", func() bool { return a.Status(b.id).Err != nil })
	var failure *dialError
	if err := a.Status(b.id).Err; !errors.As(err, &failure) || !strings.Contains(err.Error(), deadAddr) {
		t.Errorf("got %v", err)
	}
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{deadAddr, b.addr}}})
	mustWho(t, a, b)
}

func TestAnotherClusterAtTheEndpointIsRefused(t *testing.T) {
	t.Parallel()
	a, b, mallory := start(t, dialOnly), start(t), start(t)
	trustEachOther(t, a, b)
	trustEachOther(t, a, mallory)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{mallory.addr}}})
	eventually(t, "the dial failed", func() bool { return a.Status(b.id).Err != nil })
	var pin *identity.PinError
	if err := a.Status(b.id).Err; !errors.As(err, &pin) || pin.Want != b.id || pin.Got != mallory.id {
		t.Errorf("got %v", err)
	}
}

func TestThePeersRefusalNamesItsReason(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	trust(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	eventually(t, "the dial failed", func() bool { return a.Status(b.id).Err != nil })
	var refused *RefusedError
	if err := a.Status(b.id).Err; !errors.As(err, &refused) || !refused.Untrusted() {
		t.Errorf("got %v", err)
	}
	if len(b.Sessions()) != 0 {
		t.Error("a session came up")
	}
}

func TestRevokedPeerIsCutAtOnceAndStaysOut(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t)
	trustEachOther(t, a, b)
	b.SetPeers([]Peer{{ID: a.id, Endpoints: []string{a.addr}}})
	mustWho(t, b, a)

	stream, err := b.Conn(a.id).NewStream(t.Context(), &testService.Streams[0], "/test.Test/Tail")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(wrapperspb.String("")); err != nil {
		t.Fatal(err)
	}
	direct := dialDirect(t, b, a)
	if out, err := whoDirect(t, direct); err != nil || !strings.Contains(out, "true 0") {
		t.Fatalf("h2 call of a trusted peer: %q, %v", out, err)
	}

	began := time.Now()
	a.bundles.Remove(b.id)
	if a.Status(b.id).Session != nil {
		t.Error("the session is still there when Remove returned")
	}
	if err := a.Status(b.id).Err; !errors.Is(err, errRevoked) {
		t.Errorf("status says %v", err)
	}
	for {
		if err := stream.RecvMsg(new(wrapperspb.StringValue)); err != nil {
			break
		}
	}
	if d := time.Since(began); d > writeTimeout {
		t.Errorf("the stream lived for %s", d)
	}
	eventually(t, "calls over h2 no longer count as trusted", func() bool {
		out, err := whoDirect(t, direct)
		return err != nil || strings.Contains(out, "false")
	})
	eventually(t, "the peer learns it", func() bool {
		var refused *RefusedError
		return errors.As(b.Status(a.id).Err, &refused) && refused.Untrusted()
	})
	trust(t, a, b)
	eventually(t, "trusted again, the session comes back", up(b, a))
}

// Trust that ends between the handshake and the first call.
func TestPeerRevokedDuringItsHandshakeStaysOut(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t, dialOnly)
	trust(t, a, b)
	here, there := net.Pipe()
	defer there.Close()
	auth := identity.AuthInfo{ID: b.id, Trusted: true} // as the handshake found it
	a.bundles.Remove(b.id)
	l := &link{info: Info{Peer: b.id}, auth: auth, raw: here}
	if err := a.register(l); !errors.Is(err, errUntrusted) {
		t.Errorf("session: %v", err)
	}
	if err := a.track(&Conn{Conn: here, info: auth}, here); !errors.Is(err, errUntrusted) {
		t.Errorf("h2: %v", err)
	}
	if up(a, b)() {
		t.Error("a session came up")
	}
}

// dialDirect makes an h2 connection as some other tool would.
func dialDirect(t *testing.T, from, to *node) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient("passthrough:///"+to.addr, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(from.source.ClientTLS(to.id, nil, ""))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return cc
}

func whoDirect(t *testing.T, cc *grpc.ClientConn) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out := new(wrapperspb.StringValue)
	err := cc.Invoke(ctx, "/test.Test/Who", wrapperspb.String(""), out)
	return out.GetValue(), err
}

func TestStrangerReachesTheServerAsAStranger(t *testing.T) {
	t.Parallel()
	a, stranger := start(t), start(t, dialOnly)
	out, err := whoDirect(t, dialDirect(t, stranger, a))
	if want := string(stranger.id) + " false 0"; err != nil || out != want {
		t.Errorf("with a certificate: got %q, %v, want %q", out, err, want)
	}
	cc, err := grpc.NewClient("passthrough:///"+a.addr, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})))
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	out, err = whoDirect(t, cc)
	if want := " false 0"; err != nil || out != want {
		t.Errorf("without a certificate: got %q, %v, want %q", out, err, want)
	}
}

func TestDialFromBothSidesLeavesOneSessionDialledByTheLowerID(t *testing.T) {
	t.Parallel()
	for i := range 5 {
		a, b := start(t), start(t)
		if b.id < a.id {
			a, b = b, a
		}
		trustEachOther(t, a, b)
		var wg sync.WaitGroup
		for _, pair := range [][2]*node{{a, b}, {b, a}} {
			wg.Go(func() { pair[0].SetPeers([]Peer{{ID: pair[1].id, Endpoints: []string{pair[1].addr}}}) })
		}
		wg.Wait()
		var sa *Info
		eventually(t, "the lower ID's session stays", func() bool {
			sa = a.Status(b.id).Session
			sb := b.Status(a.id).Session
			return sa != nil && sb != nil && sa.Dialled && !sb.Dialled
		})
		soonWho(t, a, b)
		// The other side's next dial, as after a pause, is refused.
		raw, host, err := b.connect(t.Context(), a.id, a.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.shake(t.Context(), raw, Info{Peer: a.id, Endpoint: a.addr}, host); err == nil {
			t.Errorf("round %d: the higher ID dialled another session", i)
		}
		_ = raw.Close()
		if now := a.Status(b.id).Session; now == nil || now.Number != sa.Number {
			t.Errorf("round %d: the session flapped: %+v, then %+v", i, *sa, now)
		}
	}
}

// The race that yieldDelay makes rare: both handshakes are through before either
// side decides.
func TestSimultaneousHandshakesKeepTheLowerIDsSession(t *testing.T) {
	t.Parallel()
	a, b := start(t), start(t)
	if b.id < a.id {
		a, b = b, a
	}
	trustEachOther(t, a, b)
	dial := func(from, to *node) {
		l, err := from.dialEndpoint(t.Context(), to.id, to.addr)
		if err == nil && l != nil {
			from.serve(t.Context(), new(sync.WaitGroup), l)
		}
	}
	for i := range 20 {
		var wg sync.WaitGroup
		wg.Go(func() { dial(a, b) })
		wg.Go(func() { dial(b, a) })
		wg.Wait()
		eventually(t, "both sides have the same session", func() bool {
			sa, sb := a.Status(b.id).Session, b.Status(a.id).Session
			return sa != nil && sb != nil && sa.Dialled != sb.Dialled
		})
		soonWho(t, a, b)
		a.Close(b.id, fmt.Errorf("round %d is over", i))
		eventually(t, "the session is gone on both sides", func() bool { return !up(a, b)() && !up(b, a)() })
	}
}

func TestSessionComesBackAfterACut(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	proxy := newProxy(t, b.addr)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{proxy.addr}}})
	mustWho(t, a, b)
	first := a.Status(b.id).Session.Number
	proxy.cut()
	eventually(t, "there is another session", func() bool {
		s := a.Status(b.id).Session
		return s != nil && s.Number != first
	})
	soonWho(t, a, b)
}

func TestRestartedPeerReplacesTheDeadSession(t *testing.T) {
	t.Parallel()
	server := start(t)
	// The proxy keeps the dead process's connection open, as a cut network would.
	proxy := newProxy(t, server.addr)
	id := newIdentity(t)
	var first *node
	t.Run("first life", func(t *testing.T) {
		first = startAs(t, id, dialOnly)
		trustEachOther(t, server, first)
		first.SetPeers([]Peer{{ID: server.id, Endpoints: []string{proxy.addr}}})
		mustWho(t, first, server)
		proxy.freeze()
	})
	if server.Status(first.id).Session == nil {
		t.Fatal("the server noticed by itself: nothing is tested")
	}
	second := startAs(t, id, dialOnly)
	trustEachOther(t, server, second)
	second.SetPeers([]Peer{{ID: server.id, Endpoints: []string{server.addr}}})
	soonWho(t, second, server)
}

// The dead session was dialled by the lower ID, so it has precedence; but it does
// not answer.
func TestDeadSessionHasNoPrecedence(t *testing.T) {
	t.Parallel()
	low := start(t)
	id := newIdentity(t)
	for id.ID() < low.id {
		id = newIdentity(t)
	}
	outer := t
	t.Run("first life", func(t *testing.T) {
		high := startAs(t, id)
		trustEachOther(t, low, high)
		proxy := newProxy(outer, high.addr)
		low.SetPeers([]Peer{{ID: high.id, Endpoints: []string{proxy.addr}}})
		mustWho(t, low, high)
		low.SetPeers(nil)
		proxy.freeze()
	})
	if s := low.Status(id.ID()).Session; s == nil || !s.Dialled {
		t.Fatal("the lower ID noticed by itself: nothing is tested")
	}
	high := startAs(t, id, dialOnly)
	trustEachOther(t, low, high)
	high.SetPeers([]Peer{{ID: low.id, Endpoints: []string{low.addr}}})
	soonWho(t, high, low)
}

func TestUpRunsForTheLifeOfASession(t *testing.T) {
	t.Parallel()
	type life struct {
		n   uint64
		end bool
	}
	events := make(chan life, 16)
	fail := make(chan error)
	watch := func(c *Config, _ *identity.SourceConfig) {
		c.Up = func(ctx context.Context, s Info) error {
			events <- life{s.Number, false}
			defer func() { events <- life{s.Number, true} }()
			select {
			case <-ctx.Done():
				return nil
			case err := <-fail:
				return err
			}
		}
	}
	a, b := start(t, dialOnly, watch), start(t)
	trustEachOther(t, a, b)
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	next := func(want life) {
		t.Helper()
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("got %+v, want %+v", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("nothing came, want %+v", want)
		}
	}
	next(life{1, false})
	fail <- errors.New("three beats were missed")
	next(life{1, true})
	next(life{2, false}) // dialled again
	a.CloseSession(1, errors.New("late"))
	if a.Status(b.id).Session == nil {
		t.Error("closing an old session closed the new one")
	}
	a.CloseSession(2, errors.New("enough"))
	next(life{2, true})
	next(life{3, false})
}

func TestSubscribersAreNotifiedOfChanges(t *testing.T) {
	t.Parallel()
	a, b := start(t, dialOnly), start(t)
	trustEachOther(t, a, b)
	changes, cancel := a.Subscribe()
	defer cancel()
	a.SetPeers([]Peer{{ID: b.id, Endpoints: []string{b.addr}}})
	for a.Status(b.id).Session == nil {
		select {
		case <-changes:
		case <-time.After(patience):
			t.Fatal("no change was announced")
		}
	}
}
