package agent

import (
	"bytes"
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/pake"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// member is a cluster with a policy that names a group, and the peer API as the agent
// serves it, over TLS.
type member struct {
	*trust.Groups
	source   *identity.Source
	endpoint string

	mu       sync.Mutex
	admitted []peering.ClusterID
	failed   []peering.ClusterID
}

const (
	blue      = "blue"
	ourSecret = "the secret of the blue group"
)

var newSource = identitytest.NewSource

func infoOf(s *identity.Source) identity.ClusterInfo {
	return identity.ClusterInfo{Name: s.ID().Short(), Bundle: s.Identity().TrustBundle()}
}

// newMember starts a cluster with a secret of the group; empty means that no policy names it.
func newMember(t *testing.T, secret string) *member {
	t.Helper()
	m := &member{source: newSource(t)}
	c := indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()))
	self := func() identity.ClusterInfo { return infoOf(m.source) }
	m.Groups = &trust.Groups{
		Self: m.source.ID(), Cache: c, Forgotten: &store.Forgotten{Client: c, Namespace: "entente-system", Now: time.Now}, Now: time.Now,
		Call: prover(m.source, self),
		Secret: func(_ context.Context, group string) (string, []byte, error) {
			if secret == "" || group != blue {
				return "", nil, trust.GroupUnknown(group)
			}
			return "policy", []byte(secret), nil
		},
		Admit: func(_ context.Context, id peering.ClusterID, info identity.ClusterInfo, policy, group string) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			if info.Name != id.Short() || policy != "policy" || group != blue {
				t.Errorf("%s is admitted as %+v by %s in %s", id, info, policy, group)
			}
			m.admitted = append(m.admitted, id)
			return nil
		},
		Failed: func(_ string, id peering.ClusterID, _ string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.failed = append(m.failed, id)
		},
	}
	bundles := identity.NewBundles()
	peer, err := server.NewPeer(server.PeerConfig{
		Credentials: session.ServerCredentials(), Self: m.source.ID(), Trusted: bundles.Has,
		Trust: joining{}, Introductions: introductions{}, Proofs: proofs{m.Groups, self},
		Negotiator: negotiator{}, Contracts: struct{ server.Contracts }{}, Offers: struct{ server.Offers }{}, Sessions: struct{ server.Sessions }{},
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.endpoint = l.Addr().String()
	sessions, err := session.New(session.Config{Source: m.source, Bundles: bundles, Server: peer.GRPC(), Listener: l})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{sessions.Run, func(ctx context.Context) error { return peer.Run(ctx) }} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return m
}

// saw returns the clusters that it admitted, and those with which a run failed.
func (m *member) saw() (admitted, failed []peering.ClusterID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.admitted), slices.Clone(m.failed)
}

func (m *member) admits(t *testing.T, want ...peering.ClusterID) {
	t.Helper()
	if admitted, _ := m.saw(); !slices.Equal(admitted, want) {
		t.Errorf("%s admitted %s, want %s", m.source.ID(), admitted, want)
	}
}

func (m *member) failedWith(t *testing.T, want ...peering.ClusterID) {
	t.Helper()
	if _, failed := m.saw(); !slices.Equal(failed, want) {
		t.Errorf("%s failed with %s, want %s", m.source.ID(), failed, want)
	}
}

// as calls a member over a connection of its own, as a cluster.
func (m *member) as(t *testing.T, source *identity.Source) ententev1.TrustServiceClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+m.endpoint, grpc.WithTransportCredentials(credentials.NewTLS(source.ClientTLS(m.source.ID(), nil, "", "h2"))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return ententev1.NewTrustServiceClient(conn)
}

func TestTwoClustersWithTheSameSecretTrustEachOther(t *testing.T) {
	home, office := newMember(t, ourSecret), newMember(t, ourSecret+"\n")
	if err := home.Join(t.Context(), blue, office.endpoint, office.source.ID()); err != nil {
		t.Fatal(err)
	}
	home.admits(t, office.source.ID())
	office.admits(t, home.source.ID())
	if err := office.Join(t.Context(), blue, home.endpoint, home.source.ID()); err != nil {
		t.Errorf("the other way round: %v", err)
	}
	home.admits(t, office.source.ID(), office.source.ID())
	office.admits(t, home.source.ID(), home.source.ID())
	home.failedWith(t)
	office.failedWith(t)
}

func TestTwoClustersWithDifferentSecretsBothLearnIt(t *testing.T) {
	home, office := newMember(t, ourSecret), newMember(t, "the secret of yesterday")
	for _, dials := range []struct{ from, to *member }{{home, office}, {office, home}} {
		err := dials.from.Join(t.Context(), blue, dials.to.endpoint, dials.to.source.ID())
		if wire.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
			t.Errorf("got %v", err)
		}
	}
	for _, m := range []*member{home, office} {
		m.admits(t)
	}
	home.failedWith(t, office.source.ID(), office.source.ID())
	office.failedWith(t, home.source.ID(), home.source.ID())
}

func TestAGroupThatOnlyOneSideHasIsUnknown(t *testing.T) {
	home, office := newMember(t, ourSecret), newMember(t, "")
	if err := home.Join(t.Context(), blue, office.endpoint, office.source.ID()); wire.ReasonOf(err) != peering.ReasonGroupUnknown {
		t.Errorf("got %v", err)
	}
	if err := office.Join(t.Context(), blue, home.endpoint, home.source.ID()); wire.ReasonOf(err) != peering.ReasonGroupUnknown {
		t.Errorf("the other way round: %v", err)
	}
	for _, m := range []*member{home, office} {
		m.admits(t)
		m.failedWith(t)
	}
}

func TestAProofIsValidOnItsConnectionOnly(t *testing.T) {
	office, home := newMember(t, ourSecret), newSource(t)
	recorded := &recording{}
	if _, err := client.Prove(t.Context(), client.ProveConfig{
		Endpoint: recorded.serve(t, office), ID: recorded.as.ID(), Source: home, Self: infoOf(home), Group: blue, Secret: pake.Secret(ourSecret),
	}); wire.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
		t.Fatalf("through an interceptor: %v", err)
	}
	share, confirmation := recorded.request.GetShare(), recorded.response.GetConfirmation()
	for name, c := range map[string][]byte{"the confirmation of the other side": confirmation, "one of zeros": make([]byte, 64), "none": nil} {
		again := office.as(t, home)
		if _, err := again.Prove(t.Context(), &ententev1.ProveRequest{Cluster: wire.ClusterInfoTo(infoOf(home)), Group: blue, Share: share}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := again.Confirm(t.Context(), &ententev1.ConfirmRequest{Confirmation: c}); wire.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
			t.Errorf("%s: %v", name, err)
		}
	}
	office.admits(t)
}

func TestAConfirmationIsOfOneConnection(t *testing.T) {
	office, home := newMember(t, ourSecret), newSource(t)
	// The whole of a run that succeeded, of which home knows all but the secret point.
	run, conn := begin(t, office, home)
	right, err := run.Finish(conn.response.GetShare(), conn.response.GetConfirmation())
	if err != nil {
		t.Fatal(err)
	}
	other := office.as(t, home)
	if _, err := other.Confirm(t.Context(), &ententev1.ConfirmRequest{Confirmation: right}); wire.ReasonOf(err) != peering.ReasonProofUnknown {
		t.Errorf("over another connection: %v", err)
	}
	if _, err := other.Prove(t.Context(), conn.request); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Confirm(t.Context(), &ententev1.ConfirmRequest{Confirmation: right}); wire.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
		t.Errorf("after the same share over another connection: %v", err)
	}
	office.admits(t)
	run, conn = begin(t, office, home)
	if right, err = run.Finish(conn.response.GetShare(), conn.response.GetConfirmation()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Confirm(t.Context(), &ententev1.ConfirmRequest{Confirmation: right}); err != nil {
		t.Errorf("over its own: %v", err)
	}
	office.admits(t, home.ID())
}

// begun is a run that a test began by hand.
type begun struct {
	ententev1.TrustServiceClient
	request  *ententev1.ProveRequest
	response *ententev1.ProveResponse
}

// begin begins a run with a member, over a connection of its own.
func begin(t *testing.T, with *member, as *identity.Source) (*pake.Initiator, begun) {
	t.Helper()
	var channel [identity.ChannelLen]byte
	creds := channelled{credentials.NewTLS(as.ClientTLS(with.source.ID(), nil, "", "h2")), &channel}
	conn, err := grpc.NewClient("passthrough:///"+with.endpoint, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	b := begun{TrustServiceClient: ententev1.NewTrustServiceClient(conn)}
	// There has to be a connection before there is a channel: any call makes it.
	_, _ = b.Confirm(t.Context(), &ententev1.ConfirmRequest{})
	run, err := pake.Initiate(pake.Secret(ourSecret), pake.GroupRun(blue, string(as.ID()), string(with.source.ID()), channel[:]))
	if err != nil {
		t.Fatal(err)
	}
	b.request = &ententev1.ProveRequest{Cluster: wire.ClusterInfoTo(infoOf(as)), Group: blue, Share: run.Share()}
	if b.response, err = b.Prove(t.Context(), b.request); err != nil {
		t.Fatal(err)
	}
	return run, b
}

// channelled notes the channel of the connection.
type channelled struct {
	credentials.TransportCredentials
	channel *[identity.ChannelLen]byte
}

func (c channelled) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err == nil {
		*c.channel, err = identity.Channel(info.(credentials.TLSInfo).State)
	}
	return conn, info, err
}

func (c channelled) Clone() credentials.TransportCredentials { return c }

// recording is an interceptor between two clusters, with a key of its own to each, that passes on
// their messages.
type recording struct {
	ententev1.UnimplementedTrustServiceServer
	as   *identity.Source
	next ententev1.TrustServiceClient
	// change alters the response that it passes on; nil does not.
	change func(*ententev1.ProveResponse)

	request  *ententev1.ProveRequest
	response *ententev1.ProveResponse
}

// serve puts it in front of a member.
func (r *recording) serve(t *testing.T, before *member) string {
	t.Helper()
	r.as = newSource(t)
	r.next = before.as(t, r.as)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := wiretest.NewServer(grpc.Creds(credentials.NewTLS(r.as.ServerTLS(identity.NewBundles(), "h2"))))
	ententev1.RegisterTrustServiceServer(s, r)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func (r *recording) Prove(ctx context.Context, req *ententev1.ProveRequest) (*ententev1.ProveResponse, error) {
	// It can claim no identity but its own: of the roots of another it does not get past
	// the first check.
	r.request = req
	own := wire.ClusterInfoTo(infoOf(r.as))
	var err error
	if r.response, err = r.next.Prove(ctx, &ententev1.ProveRequest{Cluster: own, Group: req.GetGroup(), Share: req.GetShare()}); err != nil {
		return nil, err
	}
	answer := &ententev1.ProveResponse{Cluster: own, Share: r.response.GetShare(), Confirmation: r.response.GetConfirmation()}
	if r.change != nil {
		r.change(answer)
	}
	return answer, nil
}

func (r *recording) Confirm(ctx context.Context, req *ententev1.ConfirmRequest) (*ententev1.ConfirmResponse, error) {
	return r.next.Confirm(ctx, req)
}

func TestAManInTheMiddleIsTrustedByNeither(t *testing.T) {
	home, office := newMember(t, ourSecret), newMember(t, ourSecret)
	mallory := &recording{}
	endpoint := mallory.serve(t, office)
	if err := home.Join(t.Context(), blue, endpoint, mallory.as.ID()); wire.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
		t.Errorf("home: %v", err)
	}
	for _, m := range []*member{home, office} {
		m.admits(t)
		m.failedWith(t, mallory.as.ID())
	}
	// At the address of the office, for a caller that wants the office.
	if err := home.Join(t.Context(), blue, endpoint, office.source.ID()); wire.ReasonOf(err) != peering.ReasonPeerIdentity {
		t.Errorf("home wants the office: %v", err)
	}
	home.admits(t)
}

func TestGroupMessagesAreNotReflected(t *testing.T) {
	home := newMember(t, ourSecret)
	// An interceptor is in front of home itself: what home sends as the caller comes back
	// to it as from another, and the response, too.
	mallory := &recording{}
	endpoint := mallory.serve(t, home)
	if err := home.Join(t.Context(), blue, endpoint, mallory.as.ID()); wire.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
		t.Errorf("through the middle: %v", err)
	}
	mallory.change = func(r *ententev1.ProveResponse) {
		r.Share, r.Confirmation = mallory.request.GetShare(), bytes.Repeat([]byte{1}, pake.ConfirmationLen)
	}
	if err := home.Join(t.Context(), blue, endpoint, mallory.as.ID()); wire.ReasonOf(err) != peering.ReasonGroupSecretMismatch {
		t.Errorf("with its own share: %v", err)
	}
	home.admits(t)
}

func TestWeakSharesAreRefused(t *testing.T) {
	home, office := newMember(t, ourSecret), newMember(t, ourSecret)
	bad := map[string][]byte{"the identity": make([]byte, 32), "no element": bytes.Repeat([]byte{0xff}, 32)}
	for name, share := range bad {
		mallory := &recording{change: func(r *ententev1.ProveResponse) { r.Share = share }}
		if err := home.Join(t.Context(), blue, mallory.serve(t, office), mallory.as.ID()); wire.ReasonOf(err) != peering.ReasonResponseInvalid {
			t.Errorf("%s, of the one that responds: %v", name, err)
		}
		caller := newSource(t)
		_, err := office.as(t, caller).Prove(t.Context(), &ententev1.ProveRequest{Cluster: wire.ClusterInfoTo(infoOf(caller)), Group: blue, Share: share})
		if wire.ReasonOf(err) != peering.ReasonRequestInvalid {
			t.Errorf("%s, of who calls: %v", name, err)
		}
	}
	home.admits(t)
	office.admits(t)
}

func TestTheGroupSecretDoesNotProveAnID(t *testing.T) {
	home, office, mallory := newMember(t, ourSecret), newMember(t, ourSecret), newMember(t, ourSecret)
	// At the office's address responds a cluster that has the secret and not the office's key.
	if err := home.Join(t.Context(), blue, mallory.endpoint, office.source.ID()); wire.ReasonOf(err) != peering.ReasonPeerIdentity {
		t.Errorf("got %v", err)
	}
	// A cluster that has the secret claims to be the office.
	_, err := client.Prove(t.Context(), client.ProveConfig{
		Endpoint: home.endpoint, ID: home.source.ID(), Source: mallory.source, Self: infoOf(office.source), Group: blue, Secret: pake.Secret(ourSecret),
	})
	if wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("as the office: %v", err)
	}
	home.admits(t)
	home.failedWith(t)
}
