package server

import (
	"context"
	"fmt"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Trust is what joining needs.
type Trust interface {
	// Self returns what this cluster says of itself.
	Self(ctx context.Context) (wire.ClusterInfo, error)
	// Redeem uses up a token for a cluster. Of several clusters exactly one
	// succeeds, and the same one succeeds again. A token that is unknown, expired,
	// used by another or has another secret is a *wire.Error with the reason
	// TOKEN_INVALID.
	Redeem(ctx context.Context, tokenID string, secret peering.Secret, by peering.ClusterID) error
	// AddPeer makes a cluster trusted; repeating it is no error.
	AddPeer(ctx context.Context, id peering.ClusterID, info wire.ClusterInfo) error
}

// trustServer is the TrustService.
type trustServer struct {
	ententev1.UnimplementedTrustServiceServer
	cfg PeerConfig
}

// Join implements TrustService. Who joins is who holds the key of the
// connection; what the request says of itself is checked against that.
func (s *trustServer) Join(ctx context.Context, req *ententev1.JoinRequest) (*ententev1.JoinResponse, error) {
	caller, ok := identity.PeerFromContext(ctx)
	if !ok || caller.ID == "" {
		return nil, &wire.Error{Reason: wire.ReasonPeerNotTrusted, Message: "present a certificate of your cluster's identity"}
	}
	if caller.ID == s.cfg.Self {
		return nil, &wire.Error{Reason: wire.ReasonPeerIsSelf, Message: "the token is this cluster's own: redeem it in the other cluster"}
	}
	info, err := wire.ClusterInfoFrom(req.GetCluster(), caller.ID)
	if err != nil {
		return nil, err
	}
	secret, err := peering.ParseSecret(req.GetSecret())
	if err != nil {
		return nil, &wire.Error{Reason: wire.ReasonTokenInvalid, Message: "the token is not valid", Err: err}
	}
	// Before the token is used up, so that an answer can be given once it is.
	self, err := s.cfg.Trust.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("tell of this cluster: %w", err)
	}
	if err := s.cfg.Trust.Redeem(ctx, req.GetTokenId(), secret, caller.ID); err != nil {
		return nil, fmt.Errorf("redeem token: %w", err)
	}
	if err := s.cfg.Trust.AddPeer(ctx, caller.ID, info); err != nil {
		return nil, fmt.Errorf("add peer %s: %w", caller.ID, err)
	}
	return &ententev1.JoinResponse{Cluster: wire.ClusterInfoTo(self)}, nil
}
