package server

import (
	"context"
	"fmt"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// Trust makes clusters trusted by a token, keeps their bundles, and ends trust. The connection
// proved the ID of the cluster, and its ClusterInfo was checked against that.
type Trust interface {
	// Join redeems a token for a cluster, makes the cluster trusted, and returns
	// this cluster's own ClusterInfo. Of several clusters exactly one succeeds, and
	// it may repeat the call. A token that is unknown, expired, used by another
	// or has another secret is a *peering.Error with the reason TOKEN_INVALID.
	Join(ctx context.Context, by peering.ClusterID, info identity.ClusterInfo, tokenID string, secret jointoken.Secret) (identity.ClusterInfo, error)
	// UpdateBundle takes a peer's new roots. The error is BUNDLE_INVALID where they do not follow
	// from those that are known.
	UpdateBundle(ctx context.Context, id peering.ClusterID, info identity.ClusterInfo) error
	// Revoked records that a peer no longer trusts this cluster.
	Revoked(ctx context.Context, id peering.ClusterID, message string) error
}

// Introductions takes the introductions of clusters that are not trusted.
type Introductions interface {
	// Introduce keeps the ClusterInfo of a cluster until it opens its commitment, and
	// returns this cluster's own and its random number. Errors have
	// the reasons TRUST_DENIED, TRUST_FORGOTTEN and INTRODUCTIONS_PENDING.
	Introduce(ctx context.Context, i Introduction) (self identity.ClusterInfo, nonce [32]byte, err error)
	// Reveal opens the commitment of a cluster's introduction. Errors have the
	// reasons TRUST_DENIED, TRUST_FORGOTTEN, INTRODUCTION_UNKNOWN and
	// COMMITMENT_MISMATCH.
	Reveal(ctx context.Context, id peering.ClusterID, nonce [32]byte) error
}

// Introduction is a cluster that introduces itself.
type Introduction struct {
	// ID is the one that the connection proved.
	ID peering.ClusterID
	// From is the key of its address in limits.
	From string
	// Info is its ClusterInfo.
	Info identity.ClusterInfo
	// Commitment is the hash of its random number.
	Commitment peering.Hash
	// Requested means that an administrator there asked for it.
	Requested bool
}

// Proofs serves the runs by which two clusters prove to each other that they know a group's secret.
type Proofs interface {
	// Prove begins a run, and returns this cluster's own ClusterInfo, its share and its
	// confirmation. Errors have the reasons GROUP_UNKNOWN, TRUST_DENIED, TRUST_FORGOTTEN,
	// REQUEST_INVALID and RATE_LIMITED.
	Prove(ctx context.Context, p identity.Proof) (self identity.ClusterInfo, share, confirmation []byte, err error)
	// Confirm ends the run of a cluster over the same channel, and makes the cluster
	// trusted if its confirmation is right. Errors have the reasons PROOF_UNKNOWN,
	// GROUP_SECRET_MISMATCH, TRUST_DENIED and TRUST_FORGOTTEN.
	Confirm(ctx context.Context, id peering.ClusterID, channel [identity.ChannelLen]byte, confirmation []byte) error
}

// trustServer is the TrustService.
type trustServer struct {
	ententev1.UnimplementedTrustServiceServer
	cfg PeerConfig
}

// openToStrangers reports whether a cluster that is not trusted may call a method.
func openToStrangers(method string) bool {
	switch method {
	case ententev1.TrustService_Join_FullMethodName,
		ententev1.TrustService_Introduce_FullMethodName,
		ententev1.TrustService_Reveal_FullMethodName,
		ententev1.TrustService_Prove_FullMethodName,
		ententev1.TrustService_Confirm_FullMethodName:
		return true
	}
	return false
}

// stranger returns the calling cluster, which need not be trusted, and its ClusterInfo. Its
// ID is that of the key of the connection.
func (s *trustServer) stranger(ctx context.Context, m *ententev1.ClusterInfo) (peering.ClusterID, identity.ClusterInfo, error) {
	caller, err := identified(ctx)
	if err != nil {
		return "", identity.ClusterInfo{}, err
	}
	if caller.ID == s.cfg.Self {
		return "", identity.ClusterInfo{}, &peering.Error{Reason: peering.ReasonPeerIsSelf, Message: "the call came from this cluster itself: make it from the other cluster"}
	}
	info, err := wire.ClusterInfoFrom(m, caller.ID)
	return caller.ID, info, err
}

// identified returns the cluster that calls, which need not be trusted.
func identified(ctx context.Context) (identity.AuthInfo, error) {
	caller, ok := identity.PeerFromContext(ctx)
	if !ok || caller.ID == "" {
		return caller, &peering.Error{Reason: peering.ReasonPeerNotTrusted, Message: "present a certificate of your cluster's identity"}
	}
	return caller, nil
}

func (s *trustServer) Join(ctx context.Context, req *ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
	id, info, err := s.stranger(ctx, req.GetCluster())
	if err != nil {
		return nil, err
	}
	secret, err := jointoken.ParseSecret(req.GetSecret())
	if err != nil {
		return nil, &peering.Error{Reason: peering.ReasonTokenInvalid, Message: "the token is not valid", Err: err}
	}
	self, err := s.cfg.Trust.Join(ctx, id, info, req.GetTokenId(), secret)
	if err != nil {
		return nil, fmt.Errorf("join %s: %w", id, err)
	}
	return &ententev1.JoinResponse{Cluster: wire.ClusterInfoTo(self)}, nil
}

func (s *trustServer) Introduce(ctx context.Context, req *ententev1.IntroduceRequest) (*ententev1.IntroduceResponse, error) {
	id, info, err := s.stranger(ctx, req.GetCluster())
	if err != nil {
		return nil, err
	}
	if len(req.GetCommitment()) != len(peering.Hash{}) {
		return nil, middleware.BadField("commitment", "want %d bytes", len(peering.Hash{}))
	}
	self, nonce, err := s.cfg.Introductions.Introduce(ctx, Introduction{
		ID: id, From: middleware.AddressKey(middleware.RemoteAddress(ctx)), Info: info, Commitment: peering.Hash(req.GetCommitment()), Requested: req.GetRequested(),
	})
	if err != nil {
		return nil, fmt.Errorf("introduction of %s: %w", id, err)
	}
	return &ententev1.IntroduceResponse{Cluster: wire.ClusterInfoTo(self), Nonce: nonce[:]}, nil
}

func (s *trustServer) Reveal(ctx context.Context, req *ententev1.RevealRequest) (*ententev1.RevealResponse, error) {
	caller, err := identified(ctx)
	if err != nil {
		return nil, err
	}
	if len(req.GetNonce()) != 32 {
		return nil, middleware.BadField("nonce", "want 32 bytes")
	}
	if err := s.cfg.Introductions.Reveal(ctx, caller.ID, [32]byte(req.GetNonce())); err != nil {
		return nil, fmt.Errorf("introduction of %s: %w", caller.ID, err)
	}
	return &ententev1.RevealResponse{}, nil
}

// bound returns the cluster that calls, with the channel that a proof is bound to.
func bound(ctx context.Context) (identity.AuthInfo, error) {
	caller, err := identified(ctx)
	if err == nil && caller.Channel == [identity.ChannelLen]byte{} {
		err = fmt.Errorf("the connection of %s has no channel to bind a proof to", caller.ID)
	}
	return caller, err
}

func (s *trustServer) Prove(ctx context.Context, req *ententev1.ProveRequest) (*ententev1.ProveResponse, error) {
	id, info, err := s.stranger(ctx, req.GetCluster())
	if err != nil {
		return nil, err
	}
	caller, err := bound(ctx)
	if err != nil {
		return nil, err
	}
	self, share, confirmation, err := s.cfg.Proofs.Prove(ctx, identity.Proof{
		ID: id, Channel: caller.Channel, From: middleware.AddressKey(middleware.RemoteAddress(ctx)), Info: info, Group: req.GetGroup(), Share: req.GetShare(),
	})
	if err != nil {
		return nil, fmt.Errorf("proof of %s: %w", id, err)
	}
	return &ententev1.ProveResponse{Cluster: wire.ClusterInfoTo(self), Share: share, Confirmation: confirmation}, nil
}

func (s *trustServer) Confirm(ctx context.Context, req *ententev1.ConfirmRequest) (*ententev1.ConfirmResponse, error) {
	caller, err := bound(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Proofs.Confirm(ctx, caller.ID, caller.Channel, req.GetConfirmation()); err != nil {
		return nil, fmt.Errorf("proof of %s: %w", caller.ID, err)
	}
	return &ententev1.ConfirmResponse{}, nil
}

func (s *trustServer) UpdateBundle(ctx context.Context, req *ententev1.UpdateBundleRequest) (*ententev1.UpdateBundleResponse, error) {
	caller, _ := identity.PeerFromContext(ctx)
	info, err := wire.ClusterInfoFrom(req.GetCluster(), caller.ID)
	if err != nil {
		return nil, &peering.Error{Reason: peering.ReasonBundleInvalid, Message: wire.FromStatus(err).Error(), Err: err}
	}
	if err := s.cfg.Trust.UpdateBundle(ctx, caller.ID, info); err != nil {
		return nil, fmt.Errorf("update bundle of %s: %w", caller.ID, err)
	}
	return &ententev1.UpdateBundleResponse{}, nil
}

func (s *trustServer) Revoke(ctx context.Context, req *ententev1.RevokeRequest) (*ententev1.RevokeResponse, error) {
	caller, _ := identity.PeerFromContext(ctx)
	if err := s.cfg.Trust.Revoked(ctx, caller.ID, peering.Text(req.GetMessage(), peering.MaxMessageLen)); err != nil {
		return nil, fmt.Errorf("revocation by %s: %w", caller.ID, err)
	}
	return &ententev1.RevokeResponse{}, nil
}
