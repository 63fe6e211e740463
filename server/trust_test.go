package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/identity/identitytest"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// introduced is what the fake remembers of calls that make and end trust.
type introduced struct {
	last     Introduction
	revealed [32]byte
	updated  map[peering.ClusterID]identity.ClusterInfo
	revoked  map[peering.ClusterID]string
	nonce    [32]byte
	err      error

	proof     identity.Proof
	confirmed []byte
}

func (f *fakeTrust) Prove(_ context.Context, p identity.Proof) (self identity.ClusterInfo, share, confirmation []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.proof = p
	return f.self, bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 64), f.err
}

func (f *fakeTrust) Confirm(_ context.Context, id peering.ClusterID, channel [identity.ChannelLen]byte, confirmation []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id != f.proof.ID || channel != f.proof.Channel {
		return peering.Errorf(peering.ReasonProofUnknown, "there is no such run")
	}
	f.confirmed = append([]byte{}, confirmation...)
	return f.err
}

func (f *fakeTrust) Introduce(_ context.Context, i Introduction) (identity.ClusterInfo, [32]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = i
	return f.self, f.nonce, f.err
}

func (f *fakeTrust) Reveal(_ context.Context, id peering.ClusterID, nonce [32]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if id != f.last.ID {
		return peering.Errorf(peering.ReasonIntroductionUnknown, "there is no such introduction")
	}
	f.revealed = nonce
	return f.err
}

func (f *fakeTrust) UpdateBundle(_ context.Context, id peering.ClusterID, info identity.ClusterInfo) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.updated == nil {
		f.updated = map[peering.ClusterID]identity.ClusterInfo{}
	}
	f.updated[id] = info
	return f.err
}

func (f *fakeTrust) Revoked(_ context.Context, id peering.ClusterID, message string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.revoked == nil {
		f.revoked = map[peering.ClusterID]string{}
	}
	f.revoked[id] = message
	return f.err
}

func introduceRequest(as *identity.Source) *ententev1.IntroduceRequest {
	return &ententev1.IntroduceRequest{
		Cluster:    &ententev1.ClusterInfo{Name: "consumer", Bundle: as.Identity().TrustBundle().DER()},
		Commitment: make([]byte, 32),
	}
}

func TestAStrangerIntroducesItselfAsWhoItProvesToBe(t *testing.T) {
	p := newPeerTest(t)
	if _, err := rand.Read(p.trust.nonce[:]); err != nil {
		t.Fatal(err)
	}
	c := ententev1.NewTrustServiceClient(p.dial(t, p.caller))
	req := introduceRequest(p.caller)
	req.Commitment[0], req.Requested = 7, true
	resp, err := c.Introduce(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if got := p.trust.last; got.ID != p.caller.ID() || got.Info.Name != "consumer" || got.Commitment[0] != 7 || !got.Requested || got.From != "127.0.0.1" {
		t.Errorf("it is introduced as %+v", got)
	}
	if string(resp.GetNonce()) != string(p.trust.nonce[:]) || resp.GetCluster().GetName() != "provider" {
		t.Errorf("answered %v", resp)
	}
	nonce := make([]byte, 32)
	nonce[31] = 9
	if _, err := c.Reveal(t.Context(), &ententev1.RevealRequest{Nonce: nonce}); err != nil || p.trust.revealed[31] != 9 {
		t.Errorf("reveal: %v", err)
	}
	stranger := ententev1.NewTrustServiceClient(p.dial(t, identitytest.NewSource(t)))
	if _, err := stranger.Reveal(t.Context(), &ententev1.RevealRequest{Nonce: nonce}); wire.ReasonOf(err) != peering.ReasonIntroductionUnknown {
		t.Errorf("another cluster opens its commitment: %v", err)
	}
	for _, err := range []error{
		func() error {
			_, err := c.UpdateBundle(t.Context(), &ententev1.UpdateBundleRequest{Cluster: req.GetCluster()})
			return err
		}(),
		func() error { _, err := c.Revoke(t.Context(), &ententev1.RevokeRequest{}); return err }(),
	} {
		if wire.ReasonOf(err) != peering.ReasonPeerNotTrusted {
			t.Errorf("what is for peers: %v", err)
		}
	}
	if p.bundles.Has(p.caller.ID()) || len(p.trust.peers) != 0 {
		t.Error("an introduction made trust")
	}
}

func TestInvalidIntroductionsAreRefused(t *testing.T) {
	p := newPeerTest(t)
	stranger := identitytest.NewSource(t)
	for name, tc := range map[string]struct {
		as     *identity.Source
		change func(*ententev1.IntroduceRequest)
		want   peering.Reason
	}{
		"as another, by its bundle": {p.caller, func(r *ententev1.IntroduceRequest) { r.Cluster.Bundle = stranger.Identity().TrustBundle().DER() }, peering.ReasonRequestInvalid},
		"as another, by its key":    {p.caller, func(r *ententev1.IntroduceRequest) { r.Cluster.IdentityKey = stranger.Identity().PublicKey() }, peering.ReasonRequestInvalid},
		"with a succession out of order": {p.caller, func(r *ententev1.IntroduceRequest) {
			r.Cluster.Succession = [][]byte{stranger.Identity().TrustBundle().DER()}
		}, peering.ReasonRequestInvalid},
		"with nine successions": {p.caller, func(r *ententev1.IntroduceRequest) {
			for range 9 {
				r.Cluster.Succession = append(r.Cluster.Succession, []byte{1})
			}
		}, peering.ReasonRequestInvalid},
		"with a long key":            {p.caller, func(r *ententev1.IntroduceRequest) { r.Cluster.IdentityKey = make([]byte, 257) }, peering.ReasonRequestInvalid},
		"with a short commitment":    {p.caller, func(r *ententev1.IntroduceRequest) { r.Commitment = r.Commitment[:31] }, peering.ReasonRequestInvalid},
		"with no bundle":             {p.caller, func(r *ententev1.IntroduceRequest) { r.Cluster.Bundle = nil }, peering.ReasonRequestInvalid},
		"with no cluster":            {p.caller, func(r *ententev1.IntroduceRequest) { r.Cluster = nil }, peering.ReasonRequestInvalid},
		"with a malformed name":      {p.caller, func(r *ententev1.IntroduceRequest) { r.Cluster.Name = "x\x1b[2J" }, peering.ReasonRequestInvalid},
		"with half of an endpoint":   {p.caller, func(r *ententev1.IntroduceRequest) { r.Cluster.Endpoints = []string{"10.0.0.1"} }, peering.ReasonRequestInvalid},
		"of the cluster to itself":   {p.self, func(*ententev1.IntroduceRequest) {}, peering.ReasonPeerIsSelf},
		"a reveal of the wrong size": {p.caller, nil, peering.ReasonRequestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			c := ententev1.NewTrustServiceClient(p.dial(t, tc.as))
			var err error
			if tc.change == nil {
				_, err = c.Reveal(t.Context(), &ententev1.RevealRequest{Nonce: make([]byte, 33)})
			} else {
				req := introduceRequest(tc.as)
				tc.change(req)
				_, err = c.Introduce(t.Context(), req)
			}
			if got := wire.ReasonOf(err); got != tc.want {
				t.Errorf("got %v (%s), want %s", err, got, tc.want)
			}
			if p.trust.last.ID != "" {
				t.Error("it was introduced all the same")
			}
		})
	}
}

func proveRequest(as *identity.Source) *ententev1.ProveRequest {
	return &ententev1.ProveRequest{Cluster: &ententev1.ClusterInfo{Name: "consumer", Bundle: as.Identity().TrustBundle().DER()}, Group: "blue", Share: make([]byte, 32)}
}

func TestAStrangerProvesAGroupsSecretOverItsConnection(t *testing.T) {
	p := newPeerTest(t)
	conn := p.dial(t, p.caller)
	c := ententev1.NewTrustServiceClient(conn)
	resp, err := c.Prove(t.Context(), proveRequest(p.caller))
	if err != nil {
		t.Fatal(err)
	}
	got := p.trust.proof
	if got.ID != p.caller.ID() || got.Info.Name != "consumer" || got.Group != "blue" || len(got.Share) != 32 || got.From != "127.0.0.1" || got.Channel == [identity.ChannelLen]byte{} {
		t.Errorf("it proves as %+v", got)
	}
	if resp.GetCluster().GetName() != "provider" || resp.GetShare()[0] != 1 || resp.GetConfirmation()[0] != 2 {
		t.Errorf("answered %v", resp)
	}
	if _, err := c.Confirm(t.Context(), &ententev1.ConfirmRequest{Confirmation: make([]byte, 64)}); err != nil || len(p.trust.confirmed) != 64 {
		t.Errorf("confirm: %v", err)
	}
	if _, err := c.Confirm(t.Context(), &ententev1.ConfirmRequest{}); err != nil || len(p.trust.confirmed) != 0 {
		t.Errorf("confirm that the secrets differ: %v", err)
	}
	again := ententev1.NewTrustServiceClient(p.dial(t, p.caller))
	if _, err := again.Confirm(t.Context(), &ententev1.ConfirmRequest{Confirmation: make([]byte, 64)}); wire.ReasonOf(err) != peering.ReasonProofUnknown {
		t.Errorf("the same cluster over another connection: %v", err)
	}
	if p.bundles.Has(p.caller.ID()) {
		t.Error("a proof made trust in the server itself")
	}
}

func TestInvalidProofsAreRefused(t *testing.T) {
	p := newPeerTest(t)
	stranger := identitytest.NewSource(t)
	for name, tc := range map[string]struct {
		as     *identity.Source
		change func(*ententev1.ProveRequest)
		want   peering.Reason
	}{
		"as another, by its bundle":       {p.caller, func(r *ententev1.ProveRequest) { r.Cluster.Bundle = stranger.Identity().TrustBundle().DER() }, peering.ReasonRequestInvalid},
		"with no cluster":                 {p.caller, func(r *ententev1.ProveRequest) { r.Cluster = nil }, peering.ReasonRequestInvalid},
		"with a short share":              {p.caller, func(r *ententev1.ProveRequest) { r.Share = r.Share[:31] }, peering.ReasonRequestInvalid},
		"with a long share":               {p.caller, func(r *ententev1.ProveRequest) { r.Share = make([]byte, 33) }, peering.ReasonRequestInvalid},
		"with no group":                   {p.caller, func(r *ententev1.ProveRequest) { r.Group = "" }, peering.ReasonRequestInvalid},
		"with a malformed group":          {p.caller, func(r *ententev1.ProveRequest) { r.Group = "Blue\n" }, peering.ReasonRequestInvalid},
		"with a group that is too long":   {p.caller, func(r *ententev1.ProveRequest) { r.Group = strings.Repeat("x", 64) }, peering.ReasonRequestInvalid},
		"of the cluster to itself":        {p.self, func(*ententev1.ProveRequest) {}, peering.ReasonPeerIsSelf},
		"a confirmation that is too long": {p.caller, nil, peering.ReasonRequestInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			c := ententev1.NewTrustServiceClient(p.dial(t, tc.as))
			var err error
			if tc.change == nil {
				_, err = c.Confirm(t.Context(), &ententev1.ConfirmRequest{Confirmation: make([]byte, 65)})
			} else {
				req := proveRequest(tc.as)
				tc.change(req)
				_, err = c.Prove(t.Context(), req)
			}
			if got := wire.ReasonOf(err); got != tc.want {
				t.Errorf("got %v (%s), want %s", err, got, tc.want)
			}
			if p.trust.proof.ID != "" {
				t.Error("it was asked all the same")
			}
		})
	}
}

func TestAProofNeedsAChannelToBeBoundTo(t *testing.T) {
	self, caller := identitytest.NewSource(t), identitytest.NewSource(t)
	f := &fakeTrust{}
	s := &trustServer{cfg: PeerConfig{Self: self.ID(), Proofs: f}}
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: identity.AuthInfo{ID: caller.ID()}})
	if _, err := s.Prove(ctx, proveRequest(caller)); err == nil || f.proof.ID != "" {
		t.Errorf("prove: %v", err)
	}
	if _, err := s.Confirm(ctx, &ententev1.ConfirmRequest{}); err == nil || f.confirmed != nil {
		t.Errorf("confirm: %v", err)
	}
}

func TestAPeerUpdatesItsOwnBundleAndRevokesItsOwnTrust(t *testing.T) {
	p := newPeerTest(t)
	p.trustCaller(t)
	c := ententev1.NewTrustServiceClient(p.dial(t, p.caller))
	own := &ententev1.ClusterInfo{Bundle: p.caller.Identity().TrustBundle().DER()}
	if _, err := c.UpdateBundle(t.Context(), &ententev1.UpdateBundleRequest{Cluster: own}); err != nil || len(p.trust.updated[p.caller.ID()].Roots) != 1 {
		t.Errorf("update: %v, keeps %v", err, p.trust.updated)
	}
	p.trust.updated = nil
	others := &ententev1.ClusterInfo{Bundle: identitytest.NewSource(t).Identity().TrustBundle().DER()}
	_, err := c.UpdateBundle(t.Context(), &ententev1.UpdateBundleRequest{Cluster: others})
	if wire.ReasonOf(err) != peering.ReasonBundleInvalid || status.Code(err) != codes.InvalidArgument || p.trust.updated != nil {
		t.Errorf("another cluster's roots: %v, keeps %v", err, p.trust.updated)
	}
	if _, err := c.Revoke(t.Context(), &ententev1.RevokeRequest{Message: "bye\x1b[2J"}); err != nil || p.trust.revoked[p.caller.ID()] != "bye [2J" {
		t.Errorf("revoke: %v, %q", err, p.trust.revoked)
	}
	if _, err := c.Revoke(t.Context(), &ententev1.RevokeRequest{Message: strings.Repeat("x", 1025)}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a long message: %v", err)
	}
}
