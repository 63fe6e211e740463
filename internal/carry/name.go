package carry

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"

	"github.com/entente-dev/entente/peering"
)

// Target names a cluster so that only those that know its ID recognise it. A third peer without a session
// with that cluster does not learn its ID.
type Target struct {
	Nonce [16]byte
	Name  [32]byte
}

// NewTarget names the cluster to in a request of the cluster from.
func NewTarget(from, to peering.ClusterID) Target {
	var t Target
	_, _ = rand.Read(t.Nonce[:]) // never fails
	t.Name = t.name(from, to)
	return t
}

// Is reports whether the target names the cluster to in a request of the cluster from.
func (t Target) Is(from, to peering.ClusterID) bool { return t.Name == t.name(from, to) }

func (t Target) name(from, to peering.ClusterID) [32]byte {
	h := hmac.New(sha256.New, t.Nonce[:])
	for _, part := range []string{"entente carry v1", string(from), string(to)} {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return [32]byte(h.Sum(nil))
}
