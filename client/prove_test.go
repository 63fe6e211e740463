package client

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/pake"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

const groupSecret = "the secret of the blue group"

// prover is the side that a group's secret is proven to.
type prover struct {
	ententev1.UnimplementedTrustServiceServer
	as     *identity.Source
	secret pake.Secret
	// change spoils the answer; nil leaves it. refuse is what Prove and Confirm answer.
	change                     func(*ententev1.ProveResponse)
	refuseProve, refuseConfirm error

	mu        sync.Mutex
	request   *ententev1.ProveRequest
	run       *pake.Responder
	confirmed []*ententev1.ConfirmRequest
}

func (p *prover) Prove(ctx context.Context, req *ententev1.ProveRequest) (*ententev1.ProveResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.request = req
	if p.refuseProve != nil {
		return nil, p.refuseProve
	}
	caller, channel := callerOf(ctx)
	var err error
	if p.run, err = pake.Respond(p.secret, pake.GroupRun(req.GetGroup(), caller, string(p.as.ID()), channel[:]), req.GetShare()); err != nil {
		return nil, err
	}
	resp := &ententev1.ProveResponse{Cluster: wire.ClusterInfoTo(selfOf(p.as, "office")), Share: p.run.Share(), Confirmation: p.run.Confirmation()}
	if p.change != nil {
		p.change(resp)
	}
	return resp, nil
}

// callerOf returns the caller and the channel of its connection, as plain TLS credentials have
// them.
func callerOf(ctx context.Context) (id string, channel [identity.ChannelLen]byte) {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			peer, err := identity.PeerOf(info.State, nil)
			if err == nil {
				return string(peer.ID), peer.Channel
			}
		}
	}
	return "", channel
}

func (p *prover) Confirm(_ context.Context, req *ententev1.ConfirmRequest) (*ententev1.ConfirmResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.confirmed = append(p.confirmed, req)
	if p.refuseConfirm != nil {
		return nil, p.refuseConfirm
	}
	if err := p.run.Finish(req.GetConfirmation()); err != nil {
		return nil, wire.Status(&peering.Error{Reason: peering.ReasonGroupSecretMismatch, Message: "they differ"}).Err()
	}
	return &ententev1.ConfirmResponse{}, nil
}

func TestProveProvesTheSecretToBothSidesAndSendsItToNone(t *testing.T) {
	home, office := newSource(t), newSource(t)
	p := &prover{as: office, secret: pake.Secret(groupSecret + "\n")}
	info, err := Prove(t.Context(), ProveConfig{
		Endpoint: serveTrust(t, office, p), ID: office.ID(), Source: home, Self: selfOf(home, "home"), Group: "blue", Secret: pake.Secret(groupSecret),
	})
	if err != nil || info.Name != "office" || !info.Roots[0].Equal(office.Identity().Root()) {
		t.Errorf("met %+v, %v", info, err)
	}
	if len(p.confirmed) != 1 || len(p.confirmed[0].GetConfirmation()) != pake.ConfirmationLen {
		t.Errorf("confirmed by %v", p.confirmed)
	}
	if p.request.GetCluster().GetName() != "home" || p.request.GetGroup() != "blue" {
		t.Errorf("it sent %v", p.request)
	}
	if sent := p.request.String() + p.confirmed[0].String(); strings.Contains(sent, groupSecret[:8]) {
		t.Errorf("it sent the secret: %s", sent)
	}
}

func TestAFailedProveReturnsTheReason(t *testing.T) {
	home, office, stranger := newSource(t), newSource(t), newSource(t)
	right, wrong := pake.Secret(groupSecret), pake.Secret("the secret of yesterday")
	no := func(reason peering.Reason) error {
		return wire.Status(&peering.Error{Reason: reason, Message: "no"}).Err()
	}
	for name, tc := range map[string]struct {
		p      *prover
		id     peering.ClusterID
		closed bool
		reason peering.Reason
		says   string
		// confirms is how many bytes of confirmation the other side gets, -1 if it gets no confirmation.
		confirms int
	}{
		"nothing listens":             {closed: true, reason: peering.ReasonPeerUnreachable, says: "refused", confirms: -1},
		"another cluster answers":     {p: &prover{as: stranger, secret: right}, reason: peering.ReasonPeerIdentity, says: string(stranger.ID()), confirms: -1},
		"its own ID":                  {id: home.ID(), closed: true, reason: peering.ReasonPeerIsSelf, says: "itself", confirms: -1},
		"no such group there":         {p: &prover{as: office, refuseProve: no(peering.ReasonGroupUnknown)}, reason: peering.ReasonGroupUnknown, says: "no", confirms: -1},
		"another secret there":        {p: &prover{as: office, secret: wrong}, reason: peering.ReasonGroupSecretMismatch, says: "group blue", confirms: 0},
		"a confirmation of one bit":   {p: &prover{as: office, secret: right, change: func(r *ententev1.ProveResponse) { r.Confirmation[0] ^= 1 }}, reason: peering.ReasonGroupSecretMismatch, says: "differ", confirms: 0},
		"no confirmation":             {p: &prover{as: office, secret: right, change: func(r *ententev1.ProveResponse) { r.Confirmation = nil }}, reason: peering.ReasonGroupSecretMismatch, says: "differ", confirms: 0},
		"the identity for a share":    {p: &prover{as: office, secret: right, change: func(r *ententev1.ProveResponse) { r.Share = make([]byte, 32) }}, reason: peering.ReasonResponseInvalid, says: "share", confirms: -1},
		"a share cut off":             {p: &prover{as: office, secret: right, change: func(r *ententev1.ProveResponse) { r.Share = r.Share[:31] }}, reason: peering.ReasonResponseInvalid, says: "share", confirms: -1},
		"the roots of another":        {p: &prover{as: office, secret: right, change: func(r *ententev1.ProveResponse) { r.Cluster.Bundle = stranger.Identity().TrustBundle().DER() }}, reason: peering.ReasonResponseInvalid, says: "breaks the protocol", confirms: -1},
		"it refuses the confirmation": {p: &prover{as: office, secret: right, refuseConfirm: no(peering.ReasonGroupSecretMismatch)}, reason: peering.ReasonGroupSecretMismatch, says: "no", confirms: pake.ConfirmationLen},
		"it was denied meanwhile":     {p: &prover{as: office, secret: right, refuseConfirm: no(peering.ReasonTrustDenied)}, reason: peering.ReasonTrustDenied, says: "no", confirms: pake.ConfirmationLen},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := closedPort(t)
			if !tc.closed {
				endpoint = serveTrust(t, tc.p.as, tc.p)
			}
			if tc.id == "" {
				tc.id = office.ID()
			}
			info, err := Prove(t.Context(), ProveConfig{Endpoint: endpoint, ID: tc.id, Source: home, Self: selfOf(home, "home"), Group: "blue", Secret: right})
			if wire.ReasonOf(err) != tc.reason || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), groupSecret) {
				t.Errorf("got %v (%s), want %s with %q", err, wire.ReasonOf(err), tc.reason, tc.says)
			}
			if len(info.Roots) != 0 {
				t.Errorf("it met %+v all the same", info)
			}
			got := -1
			if tc.p != nil && len(tc.p.confirmed) > 0 {
				got = len(tc.p.confirmed[0].GetConfirmation())
			}
			if got != tc.confirms {
				t.Errorf("the other side got a confirmation of %d bytes, want %d", got, tc.confirms)
			}
		})
	}
	for name, secret := range map[string]pake.Secret{"none": nil, "too short": pake.Secret("too short"), "too long": bytes.Repeat([]byte{1}, pake.MaxSecret+1)} {
		_, err := Prove(t.Context(), ProveConfig{Endpoint: closedPort(t), ID: office.ID(), Source: home, Self: selfOf(home, "home"), Group: "blue", Secret: secret})
		if !errors.Is(err, pake.ErrSecret) {
			t.Errorf("a secret that is %s: %v", name, err)
		}
	}
}
