package trust

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Session is the session with a peer's agent, or why there is no session.
type Session struct {
	// Up is the session, if it is up.
	Up *SessionInfo
	// Why is why there is no session, and At since when that is known.
	Why string
	At  time.Time
	// Denied means that the peer, when it was last dialled, proved its identity and reported that
	// an administrator there denied this cluster; Untrusted, that it does not know or trust this
	// cluster.
	Denied, Untrusted bool
}

// SessionInfo is a session that is up.
type SessionInfo struct {
	// Dialled means that this side dialled, at Endpoint.
	Dialled  bool
	Endpoint string
	// InBand means that it runs through the tunnel.
	InBand bool
	// Through is the name, or else the ID, of the third peer that carries it, if one does.
	Through string
	Since   time.Time
	// RoundTrip is the round-trip time of a message, 0 until it was measured.
	RoundTrip time.Duration
	// ClockSkew is how far the peer's clock is ahead. The side that was dialled knows
	// it once RoundTrip is known.
	ClockSkew time.Duration
	// NotAfter is when the peer's certificate ends.
	NotAfter time.Time
}

// Protect adds to a trusted peer's object the finalizer, so that it stays until what depends on
// it was removed, and the label by which peers are selected. Nothing depends on a peer that was
// never trusted and is not in-band.
func Protect(fc *v1alpha1.ForeignCluster) {
	if fc.Spec.TrustBundle != "" || fc.Spec.InBand != nil {
		controllerutil.AddFinalizer(fc, v1alpha1.Finalizer)
	}
	if fc.Spec.ClusterID != "" {
		metav1.SetMetaDataLabel(&fc.ObjectMeta, v1alpha1.LabelPeer, fc.Spec.ClusterID)
	}
}
