package identity

import (
	"context"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/entente-dev/entente/peering"
)

// AuthInfo is what a connection proved of the cluster at its other end. It
// travels with each call as gRPC's AuthInfo, as it was when the connection began;
// get it by PeerFromContext.
type AuthInfo struct {
	credentials.CommonAuthInfo

	// ID is the other cluster. Empty when it presented no certificate: then it may
	// ask for health and nothing else.
	ID peering.ClusterID
	// Trusted says that a bundle for ID is held here and that the certificate
	// verified against it. Without it the caller has only proved that it holds the
	// key behind ID: it may join and nothing else.
	Trusted bool
	// NotAfter is when the certificate ends that it presented.
	NotAfter time.Time
	// Session numbers the session that the call came over, as in session.Info. It
	// is 0 on a connection of its own.
	Session uint64
	// Channel is what only the two ends of this TLS connection know: what is bound to it
	// cannot be passed on to another connection, by somebody in between neither. Both
	// ends have the same. It is zero where there is none.
	Channel [ChannelLen]byte
}

// AuthType implements credentials.AuthInfo.
func (AuthInfo) AuthType() string { return "entente" }

// PeerFromContext returns what the caller of a gRPC handler proved. It is false
// when the call did not come through the peer API.
func PeerFromContext(ctx context.Context) (AuthInfo, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return AuthInfo{}, false
	}
	info, ok := p.AuthInfo.(AuthInfo)
	return info, ok
}
