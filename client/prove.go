package client

import (
	"context"
	"errors"
	"fmt"
	"net"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/pake"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// ProveConfig configures Prove.
type ProveConfig struct {
	// Endpoint is where the other cluster is dialled, as host:port. Required.
	Endpoint string
	// ID is the cluster that has to be there. Required.
	ID peering.ClusterID
	// Source is this cluster's identity. Required.
	Source *identity.Source
	// Self is this cluster's own ClusterInfo. Required.
	Self identity.ClusterInfo
	// Group is the group, a DNS label, which is sent to the other side. Required.
	Group string
	// Secret is the secret of the group's clusters: 16 to 1024 bytes, of which one newline at the
	// end is left out. It is never sent. Required.
	Secret pake.Secret
	// Dial opens TCP connections; nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Prove proves to another cluster that this one knows a group's secret, and verifies the same of
// the other. It returns the ClusterInfo of the other cluster, to be trusted in turn; the other
// cluster trusts this one by then.
//
// A cluster that responds without the secret learns whether one guess is right: the caller has to
// limit how often it calls a cluster that failed.
//
// Errors are *peering.Error, with the reasons PEER_UNREACHABLE, PEER_IDENTITY_MISMATCH,
// PEER_IS_SELF, GROUP_UNKNOWN, GROUP_SECRET_MISMATCH, RATE_LIMITED, TRUST_DENIED,
// TRUST_FORGOTTEN, RESPONSE_INVALID, or another one of the other side. A secret that is too short
// or too long is pake.ErrSecret, before any call.
func Prove(ctx context.Context, cfg ProveConfig) (identity.ClusterInfo, error) {
	if cfg.Source == nil || len(cfg.Self.Roots) == 0 || cfg.ID == "" || cfg.Group == "" {
		return identity.ClusterInfo{}, errors.New("prove: ID, Source, Self and Group are required")
	}
	if err := cfg.Secret.Check(); err != nil {
		return identity.ClusterInfo{}, fmt.Errorf("secret of group %s: %w", cfg.Group, err)
	}
	self := cfg.Source.ID()
	if cfg.ID == self {
		return identity.ClusterInfo{}, &peering.Error{Reason: peering.ReasonPeerIsSelf, Message: fmt.Sprintf("%s is this cluster itself: name an endpoint of the other one", cfg.Endpoint)}
	}
	conn, _, err := stranger{source: cfg.Source, dial: cfg.Dial, expect: cfg.ID, by: "expected was"}.call(ctx, cfg.Endpoint)
	if err != nil {
		return identity.ClusterInfo{}, err
	}
	defer conn.Close()
	channel, err := identity.Channel(conn.below.ConnectionState())
	if err != nil {
		return identity.ClusterInfo{}, err
	}
	run, err := pake.Initiate(cfg.Secret, pake.GroupRun(cfg.Group, string(self), string(cfg.ID), channel[:]))
	if err != nil {
		return identity.ClusterInfo{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinCallTimeout)
	defer cancel()
	trust := ententev1.NewTrustServiceClient(conn)
	resp, err := trust.Prove(ctx, &ententev1.ProveRequest{Cluster: wire.ClusterInfoTo(cfg.Self), Group: cfg.Group, Share: run.Share()})
	if err != nil {
		return identity.ClusterInfo{}, callFailed(err, cfg.Endpoint)
	}
	info, err := wire.ClusterInfoFrom(resp.GetCluster(), cfg.ID)
	if err != nil {
		return identity.ClusterInfo{}, fmt.Errorf("%s: %w", cfg.Endpoint, wire.Response(err))
	}
	confirmation, err := run.Finish(resp.GetShare(), resp.GetConfirmation())
	switch {
	case errors.Is(err, pake.ErrMismatch):
		// An empty confirmation ends the run at the other side too; its response does not matter.
		_, _ = trust.Confirm(ctx, &ententev1.ConfirmRequest{})
		return identity.ClusterInfo{}, &peering.Error{
			Reason: peering.ReasonGroupSecretMismatch, Err: err,
			Message: fmt.Sprintf("%s: this cluster's secret of group %s and that of cluster %s differ, or the connection was intercepted: give both the same secret", cfg.Endpoint, cfg.Group, cfg.ID),
		}
	case err != nil:
		return identity.ClusterInfo{}, peering.Errorf(peering.ReasonResponseInvalid, "%s: the peer's share of a proof breaks the protocol: %w", cfg.Endpoint, err)
	}
	if _, err := trust.Confirm(ctx, &ententev1.ConfirmRequest{Confirmation: confirmation}); err != nil {
		return identity.ClusterInfo{}, callFailed(err, cfg.Endpoint)
	}
	return info, nil
}
