package trust

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Session is the session with a peer's agent, or why there is none.
type Session struct {
	// Up is the session; nil while there is none.
	Up *SessionInfo
	// Why says why there is none, and At when that was found out.
	Why string
	At  time.Time
	// Denied says that the peer, when it was dialled last, proved who it is and said
	// that an administrator there denied this cluster; Untrusted, that it does not
	// know or trust this cluster.
	Denied, Untrusted bool
}

// SessionInfo is a session that is up.
type SessionInfo struct {
	// Dialled says that this side dialled, Endpoint where.
	Dialled  bool
	Endpoint string
	// InBand says that it runs through the tunnel.
	InBand bool
	// Through is the name of the third peer that carries it, or its ID; empty if none does.
	Through string
	Since   time.Time
	// RoundTrip is that of a message; 0 until it was measured.
	RoundTrip time.Duration
	// ClockSkew is how far the peer's clock is ahead. The side that was dialled knows
	// it once RoundTrip is known.
	ClockSkew time.Duration
	// NotAfter is when the certificate ends that the peer showed.
	NotAfter time.Time
}

// Protect gives a trusted peer's object the finalizer, so that it stays until what exists
// because of it was removed, and the label by which peers are selected. For one that was
// never trusted, and is not in-band, there is nothing to remove.
func Protect(fc *v1alpha1.ForeignCluster) {
	if fc.Spec.TrustBundle != "" || fc.Spec.InBand != nil {
		controllerutil.AddFinalizer(fc, v1alpha1.Finalizer)
	}
	if fc.Spec.ClusterID != "" {
		metav1.SetMetaDataLabel(&fc.ObjectMeta, v1alpha1.LabelPeer, fc.Spec.ClusterID)
	}
}
