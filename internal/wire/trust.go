package wire

import (
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

// ClusterInfoTo writes a ClusterInfo.
func ClusterInfoTo(c identity.ClusterInfo) *ententev1.ClusterInfo {
	m := &ententev1.ClusterInfo{
		Name: c.Name, Endpoints: c.Endpoints, Bundle: c.Bundle.DER(), IdentityKey: c.IdentityKey, Succession: c.Succession,
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
func ClusterInfoFrom(m *ententev1.ClusterInfo, id peering.ClusterID) (identity.ClusterInfo, error) {
	if m == nil {
		return identity.ClusterInfo{}, invalid("cluster", "is required")
	}
	if err := checkLabel("cluster.name", m.GetName()); err != nil {
		return identity.ClusterInfo{}, err
	}
	c := identity.ClusterInfo{Name: m.GetName()}
	var err error
	if c.Endpoints, err = checkEndpoints("cluster.endpoints", m.GetEndpoints()); err != nil {
		return identity.ClusterInfo{}, err
	}
	if n := len(m.GetBundle()); n == 0 || n > MaxBundleLen {
		return identity.ClusterInfo{}, invalid("cluster.bundle", "has %d bytes, want 1 to %d", n, MaxBundleLen)
	}
	if n := len(m.GetIdentityKey()); n > peering.MaxPublicKeyLen {
		return identity.ClusterInfo{}, invalid("cluster.identity_key", "has %d bytes, want at most %d", n, peering.MaxPublicKeyLen)
	}
	if n := len(m.GetSuccession()); n > peering.MaxSuccession {
		return identity.ClusterInfo{}, invalid("cluster.succession", "want at most %d", peering.MaxSuccession)
	}
	b, err := identity.ReadBundle(id, m.GetBundle(), m.GetIdentityKey(), m.GetSuccession())
	if err != nil {
		return identity.ClusterInfo{}, invalid("cluster.bundle", "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return identity.ClusterInfo{Name: c.Name, Endpoints: c.Endpoints, Bundle: b}, nil
}
