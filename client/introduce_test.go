package client

import (
	"context"
	"crypto/rand"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/internal/wire/wiretest"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/introduce"
)

// responder is the side that an introduction is made to.
type responder struct {
	ententev1.UnimplementedTrustServiceServer
	as *identity.Source
	// change spoils the answer; nil leaves it.
	change func(*ententev1.IntroduceResponse)
	refuse error

	mu       sync.Mutex
	nonce    [32]byte
	request  *ententev1.IntroduceRequest
	revealed []byte
}

func (r *responder) Introduce(_ context.Context, req *ententev1.IntroduceRequest) (*ententev1.IntroduceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return nil, r.refuse
	}
	r.request = req
	if _, err := rand.Read(r.nonce[:]); err != nil {
		return nil, err
	}
	resp := &ententev1.IntroduceResponse{Cluster: wire.ClusterInfoTo(selfOf(r.as, "office")), Nonce: r.nonce[:]}
	if r.change != nil {
		r.change(resp)
	}
	return resp, nil
}

func (r *responder) Reveal(_ context.Context, req *ententev1.RevealRequest) (*ententev1.RevealResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.revealed = req.GetNonce()
	return &ententev1.RevealResponse{}, nil
}

func serveTrust(t testing.TB, as *identity.Source, service ententev1.TrustServiceServer) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := wiretest.NewServer(grpc.Creds(credentials.NewTLS(as.ServerTLS(identity.NewBundles(), "h2"))))
	ententev1.RegisterTrustServiceServer(s, service)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

func TestBothSidesOfAnIntroductionSeeTheSameCode(t *testing.T) {
	home, office := newSource(t), newSource(t)
	r := &responder{as: office}
	endpoint := serveTrust(t, office, r)
	for name, id := range map[string]peering.ClusterID{"with an ID": office.ID(), "without one": ""} {
		t.Run(name, func(t *testing.T) {
			got, err := Introduce(t.Context(), IntroduceConfig{Endpoint: endpoint, ID: id, Source: home, Self: selfOf(home, "home"), Requested: id == ""})
			if err != nil {
				t.Fatal(err)
			}
			if got.ID != office.ID() || got.Info.Name != "office" || !got.Info.Roots[0].Equal(office.Identity().Root()) {
				t.Errorf("met %+v", got)
			}
			nonce := [32]byte(r.revealed)
			if commitment := introduce.Commitment(home.ID(), nonce); string(commitment[:]) != string(r.request.GetCommitment()) {
				t.Error("what was revealed is not what was committed to")
			}
			if want := introduce.Code(home.ID(), nonce, office.ID(), r.nonce); got.Code != want || len(want) != 6 {
				t.Errorf("this side shows %s, the other %s", got.Code, want)
			}
			if r.request.GetCluster().GetName() != "home" || r.request.GetRequested() != (id == "") {
				t.Errorf("introduced as %v", r.request)
			}
		})
	}
}

func TestAFailedIntroduceReturnsTheReason(t *testing.T) {
	home, office, stranger := newSource(t), newSource(t), newSource(t)
	spoilt := func(change func(*ententev1.IntroduceResponse)) string {
		return serveTrust(t, office, &responder{as: office, change: change})
	}
	refused := func(reason peering.Reason) string {
		return serveTrust(t, office, &responder{as: office, refuse: wire.Status(&peering.Error{Reason: reason, Message: "no", RetryAfter: time.Minute}).Err()})
	}
	for name, tc := range map[string]struct {
		endpoint string
		id       peering.ClusterID
		reason   peering.Reason
		says     string
	}{
		"nothing listens":                {endpoint: closedPort(t), reason: peering.ReasonPeerUnreachable, says: "refused"},
		"not an address":                 {endpoint: "office", reason: peering.ReasonPeerUnreachable, says: "host:port"},
		"another cluster than was meant": {endpoint: serveTrust(t, stranger, &responder{as: stranger}), id: office.ID(), reason: peering.ReasonPeerIdentity, says: string(stranger.ID())},
		"the cluster itself":             {endpoint: serveTrust(t, home, &responder{as: home}), reason: peering.ReasonPeerIsSelf, says: "itself"},
		"its own ID":                     {endpoint: closedPort(t), id: home.ID(), reason: peering.ReasonPeerIsSelf, says: "itself"},
		"it shows the roots of another":  {endpoint: spoilt(func(r *ententev1.IntroduceResponse) { r.Cluster.Bundle = stranger.Identity().TrustBundle().DER() }), reason: peering.ReasonResponseInvalid, says: "breaks the protocol"},
		"it shows no roots":              {endpoint: spoilt(func(r *ententev1.IntroduceResponse) { r.Cluster = nil }), reason: peering.ReasonResponseInvalid, says: "breaks the protocol"},
		"its number is short":            {endpoint: spoilt(func(r *ententev1.IntroduceResponse) { r.Nonce = r.Nonce[:31] }), reason: peering.ReasonResponseInvalid, says: "31 bytes"},
		"it refuses":                     {endpoint: refused(peering.ReasonTrustDenied), reason: peering.ReasonTrustDenied, says: "no"},
		"too many wait for an answer":    {endpoint: refused(peering.ReasonIntroductionsPending), reason: peering.ReasonIntroductionsPending, says: "no"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Introduce(t.Context(), IntroduceConfig{Endpoint: tc.endpoint, ID: tc.id, Source: home, Self: selfOf(home, "home")})
			if wire.ReasonOf(err) != tc.reason || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v (%s), want %s with %q", err, wire.ReasonOf(err), tc.reason, tc.says)
			}
			if got.Code != "" || got.ID != "" {
				t.Errorf("it met %+v all the same", got)
			}
		})
	}
}

func TestIntroductionRevealsNothingToAWrongResponse(t *testing.T) {
	home, office, stranger := newSource(t), newSource(t), newSource(t)
	r := &responder{as: office, change: func(r *ententev1.IntroduceResponse) { r.Cluster.Bundle = stranger.Identity().TrustBundle().DER() }}
	_, err := Introduce(t.Context(), IntroduceConfig{Endpoint: serveTrust(t, office, r), Source: home, Self: selfOf(home, "home")})
	if err == nil || r.revealed != nil {
		t.Errorf("revealed %x, error %v", r.revealed, err)
	}
}

// middle intercepts the connection of two clusters, with an identity of its own to each. It does
// the best that it can: it responds to one with numbers of its choice, and introduces itself to
// the other.
type middle struct {
	responder
	next   string
	theirs Introduction
}

func (m *middle) Introduce(ctx context.Context, req *ententev1.IntroduceRequest) (*ententev1.IntroduceResponse, error) {
	var err error
	// It passes on what the other side sends, except for the roots, which would be refused.
	m.theirs, err = Introduce(ctx, IntroduceConfig{Endpoint: m.next, Source: m.as, Self: selfOf(m.as, req.GetCluster().GetName())})
	if err != nil {
		return nil, err
	}
	return m.responder.Introduce(ctx, req)
}

func TestAnInterceptedIntroductionHasDifferentCodes(t *testing.T) {
	home, office, mallory := newSource(t), newSource(t), newSource(t)
	r := &responder{as: office}
	m := &middle{responder: responder{as: mallory}, next: serveTrust(t, office, r)}
	got, err := Introduce(t.Context(), IntroduceConfig{Endpoint: serveTrust(t, mallory, m), Source: home, Self: selfOf(home, "home")})
	if err != nil {
		t.Fatal(err)
	}
	atOffice := introduce.Code(mallory.ID(), [32]byte(r.revealed), office.ID(), r.nonce)
	if atOffice != m.theirs.Code {
		t.Fatal("the test's own arithmetic is wrong")
	}
	// One chance in a million.
	if got.Code == atOffice {
		t.Errorf("both administrators see %s", got.Code)
	}
	if got.ID != mallory.ID() {
		t.Errorf("home met %s", got.ID)
	}
	// A caller that names the ID needs no code.
	_, err = Introduce(t.Context(), IntroduceConfig{Endpoint: serveTrust(t, mallory, m), ID: office.ID(), Source: home, Self: selfOf(home, "home")})
	if wire.ReasonOf(err) != peering.ReasonPeerIdentity {
		t.Errorf("with the ID of the office: %v", err)
	}
}

func TestUpdateBundleAndRevokeCarryThePeersReason(t *testing.T) {
	home := newSource(t)
	endpoint := serveTrust(t, home, &responder{as: home})
	conn, _, err := stranger{source: newSource(t), dial: (&net.Dialer{}).DialContext}.call(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for name, err := range map[string]error{
		"update bundle": UpdateBundle(t.Context(), conn, selfOf(home, "home")),
		"revoke":        Revoke(t.Context(), conn, "bye"),
	} {
		if wire.ReasonOf(err) != "UNIMPLEMENTED" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
