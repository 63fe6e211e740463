package wire

import (
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
	// Roots is its trust bundle: at least one certificate.
	Roots []*x509.Certificate
}

// ClusterInfoTo writes a ClusterInfo.
func ClusterInfoTo(c ClusterInfo) *ententev1.ClusterInfo {
	m := &ententev1.ClusterInfo{Name: c.Name, Endpoints: c.Endpoints}
	for _, root := range c.Roots {
		m.Bundle = append(m.Bundle, root.Raw...)
	}
	return m
}

// ClusterInfoFrom reads the ClusterInfo of a cluster that proved to be id. Its
// bundle has to be that of id.
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
	if c.Roots, err = identity.ParseBundle(id, m.GetBundle()); err != nil {
		return ClusterInfo{}, invalid("cluster.bundle", "%s", Text(err.Error(), MaxMessageLen))
	}
	return c, nil
}

// PEM returns the trust bundle as PEM, as a ForeignCluster holds it.
func (c ClusterInfo) PEM() string { return string(identity.EncodeBundlePEM(c.Roots)) }
