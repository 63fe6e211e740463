package wire

import (
	"crypto/sha256"
	"crypto/x509"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// ClusterInfo is what a cluster says of itself when it joins.
type ClusterInfo struct {
	// Name is for people, a DNS label; it may be empty and proves nothing.
	Name string
	// Endpoints is where its peer API can be dialled, as host:port, best first.
	Endpoints []string
	// Roots, IdentityKey and Succession are its trust bundle, as in identity.Bundle.
	// The identity key may be empty where its root is there.
	Roots       []*x509.Certificate
	IdentityKey []byte
	Succession  [][]byte
}

// NewClusterInfo returns what a cluster says of itself that has this trust bundle.
func NewClusterInfo(name string, endpoints []string, b identity.Bundle) ClusterInfo {
	return ClusterInfo{Name: name, Endpoints: endpoints, Roots: b.Roots, IdentityKey: b.IdentityKey, Succession: b.Succession}
}

// Bundle returns the cluster's trust bundle.
func (c ClusterInfo) Bundle() identity.Bundle {
	return identity.Bundle{Roots: c.Roots, IdentityKey: c.IdentityKey, Succession: c.Succession}
}

// PEM returns the trust bundle as PEM, as a ForeignCluster holds it.
func (c ClusterInfo) PEM() string { return string(c.Bundle().PEM()) }

// ClusterInfoTo writes a ClusterInfo.
func ClusterInfoTo(c ClusterInfo) *ententev1.ClusterInfo {
	m := &ententev1.ClusterInfo{
		Name: c.Name, Endpoints: c.Endpoints, Bundle: c.Bundle().DER(), IdentityKey: c.IdentityKey, Succession: c.Succession,
	}
	for _, root := range c.Roots {
		if string(root.RawSubjectPublicKeyInfo) == string(c.IdentityKey) {
			m.IdentityKey = nil
		}
	}
	return m
}

// ClusterInfoFrom reads the ClusterInfo of a cluster that proved to be id. Its
// bundle has to be that of id, directly or by succession.
func ClusterInfoFrom(m *ententev1.ClusterInfo, id peering.ClusterID) (ClusterInfo, error) {
	if m == nil {
		return ClusterInfo{}, invalid("cluster", "is required")
	}
	if err := checkLabel("cluster.name", m.GetName()); err != nil {
		return ClusterInfo{}, err
	}
	c := ClusterInfo{Name: m.GetName()}
	var err error
	if c.Endpoints, err = checkEndpoints("cluster.endpoints", m.GetEndpoints()); err != nil {
		return ClusterInfo{}, err
	}
	if n := len(m.GetBundle()); n == 0 || n > MaxBundleLen {
		return ClusterInfo{}, invalid("cluster.bundle", "has %d bytes, want 1 to %d", n, MaxBundleLen)
	}
	if n := len(m.GetIdentityKey()); n > peering.MaxPublicKeyLen {
		return ClusterInfo{}, invalid("cluster.identity_key", "has %d bytes, want at most %d", n, peering.MaxPublicKeyLen)
	}
	if n := len(m.GetSuccession()); n > peering.MaxSuccession {
		return ClusterInfo{}, invalid("cluster.succession", "want at most %d", peering.MaxSuccession)
	}
	b, err := identity.ReadBundle(id, m.GetBundle(), m.GetIdentityKey(), m.GetSuccession())
	if err != nil {
		return ClusterInfo{}, invalid("cluster.bundle", "%s", Text(err.Error(), MaxMessageLen))
	}
	return NewClusterInfo(c.Name, c.Endpoints, b), nil
}

// BundleHash is how two sides compare a trust bundle without sending it: the
// SHA-256 of the roots, the newest key's first, and then the succession.
func BundleHash(b identity.Bundle) peering.Hash {
	h := sha256.New()
	h.Write(b.DER())
	for _, der := range b.Succession {
		h.Write(der)
	}
	return peering.Hash(h.Sum(nil))
}
