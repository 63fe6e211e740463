package identity

import (
	"context"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/entente-dev/entente/peering"
)

// AuthInfo is what a connection proved about the cluster at its other end. Each call has it as
// gRPC's AuthInfo, as it was when the connection began; get it by PeerFromContext.
type AuthInfo struct {
	credentials.CommonAuthInfo

	// ID is the other cluster. It is empty without a certificate: then the caller may only ask for
	// health.
	ID peering.ClusterID
	// Trusted means that this cluster has a bundle for ID and that the certificate verified
	// against it. Without it the caller has only proved that it has the key behind ID: it may only
	// join.
	Trusted bool
	// NotAfter is when the certificate that it presented ends.
	NotAfter time.Time
	// Session is the number of the session of the call, as in session.Info. It is 0 on a
	// connection of its own.
	Session uint64
	// Channel is a secret of the two ends of this TLS connection: a proof that is bound to it
	// cannot be relayed over another connection. It is zero if the connection has no channel.
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
