package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/introduce"
)

// IntroduceConfig configures Introduce.
type IntroduceConfig struct {
	// Endpoint is where the other cluster is dialled, as host:port. Required.
	Endpoint string
	// ID is the cluster that has to be there; empty accepts any. Then only the code shows whether
	// it is the right one.
	ID peering.ClusterID
	// Source is this cluster's identity. Required.
	Source *identity.Source
	// Self is this cluster's own ClusterInfo. Required.
	Self identity.ClusterInfo
	// Requested means that an administrator asked for it. A cluster that forgot this one refuses
	// other introductions.
	Requested bool
	// Dial opens TCP connections; nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Introduction is a cluster that this one introduced itself to.
type Introduction struct {
	// ID is the cluster that responded, by its key.
	ID peering.ClusterID
	// Info is its ClusterInfo; the trust bundle is that of ID.
	Info identity.ClusterInfo
	// Code is the short authentication string, six digits: the other side shows the same, unless
	// the connection was intercepted.
	Code string
}

// Introduce introduces this cluster to another one and returns what that one is. It makes no
// trust by itself.
//
// This side commits to its random number before it sees the other's, and each computes the code
// from both: an attacker in the middle, with a key of its own to each side, cannot choose numbers
// that make the two codes equal.
//
// Errors are *peering.Error, with the reasons PEER_UNREACHABLE,
// PEER_IDENTITY_MISMATCH, PEER_IS_SELF, TRUST_DENIED, TRUST_FORGOTTEN,
// INTRODUCTIONS_PENDING, or another one of the other side.
func Introduce(ctx context.Context, cfg IntroduceConfig) (Introduction, error) {
	if cfg.Source == nil || len(cfg.Self.Roots) == 0 {
		return Introduction{}, errors.New("introduce: Source and Self are required")
	}
	self := cfg.Source.ID()
	isSelf := &peering.Error{Reason: peering.ReasonPeerIsSelf, Message: fmt.Sprintf("%s is this cluster itself: name an endpoint of the other one", cfg.Endpoint)}
	if cfg.ID == self {
		return Introduction{}, isSelf
	}
	conn, id, err := stranger{source: cfg.Source, dial: cfg.Dial, expect: cfg.ID, by: "expected was"}.call(ctx, cfg.Endpoint)
	if err != nil {
		return Introduction{}, err
	}
	defer conn.Close()
	if id == self {
		return Introduction{}, isSelf
	}
	ctx, cancel := context.WithTimeout(ctx, joinCallTimeout)
	defer cancel()
	var nonce [32]byte
	if _, err := rand.Read(nonce[:]); err != nil {
		return Introduction{}, fmt.Errorf("read randomness: %w", err)
	}
	commitment := introduce.Commitment(self, nonce)
	trust := ententev1.NewTrustServiceClient(conn)
	resp, err := trust.Introduce(ctx, &ententev1.IntroduceRequest{Cluster: wire.ClusterInfoTo(cfg.Self), Commitment: commitment[:], Requested: cfg.Requested})
	if err != nil {
		return Introduction{}, callFailed(err, cfg.Endpoint)
	}
	info, err := wire.ClusterInfoFrom(resp.GetCluster(), id)
	if err != nil {
		return Introduction{}, fmt.Errorf("%s: %w", cfg.Endpoint, wire.Response(err))
	}
	if len(resp.GetNonce()) != len(nonce) {
		return Introduction{}, peering.Errorf(peering.ReasonResponseInvalid, "%s: the peer's random number has %d bytes, want %d", cfg.Endpoint, len(resp.GetNonce()), len(nonce))
	}
	if _, err := trust.Reveal(ctx, &ententev1.RevealRequest{Nonce: nonce[:]}); err != nil {
		return Introduction{}, callFailed(err, cfg.Endpoint)
	}
	return Introduction{ID: id, Info: info, Code: introduce.Code(self, nonce, id, [32]byte(resp.GetNonce()))}, nil
}

// UpdateBundle sends a peer this cluster's new roots, over their session.
func UpdateBundle(ctx context.Context, conn grpc.ClientConnInterface, self identity.ClusterInfo) error {
	_, err := ententev1.NewTrustServiceClient(conn).UpdateBundle(ctx, &ententev1.UpdateBundleRequest{Cluster: wire.ClusterInfoTo(self)})
	if err != nil {
		return fmt.Errorf("update bundle: %w", wire.FromStatus(err))
	}
	return nil
}

// Revoke notifies a peer, over their session, that this cluster no longer trusts it.
func Revoke(ctx context.Context, conn grpc.ClientConnInterface, message string) error {
	_, err := ententev1.NewTrustServiceClient(conn).Revoke(ctx, &ententev1.RevokeRequest{Message: peering.Text(message, peering.MaxMessageLen)})
	if err != nil {
		return fmt.Errorf("revoke: %w", wire.FromStatus(err))
	}
	return nil
}
