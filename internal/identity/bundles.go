package identity

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/entente-dev/entente/peering"
)

const (
	// maxRoots is the most roots in a bundle: one in use, one to come, and room.
	maxRoots = 4
	// maxBundle is the most bytes of a bundle, DER; as PEM it may have twice that.
	maxBundle = 16 << 10
)

// Bundles holds the roots of each trusted peer, apart from each other: a peer's
// roots vouch for that peer and nobody else. It implements x509bundle.Source and
// is safe for concurrent use. The zero value is not usable; call NewBundles.
type Bundles struct {
	mu       sync.RWMutex
	byPeer   map[peering.ClusterID]*x509bundle.Bundle
	watchers map[*watcher]struct{}
}

type watcher struct {
	f func(id peering.ClusterID, trusted bool)
}

// NewBundles returns an empty set: nobody is trusted.
func NewBundles() *Bundles {
	return &Bundles{
		byPeer:   map[peering.ClusterID]*x509bundle.Bundle{},
		watchers: map[*watcher]struct{}{},
	}
}

// Set trusts a peer by these roots, in place of those it had. Each has to be a
// self-signed certificate of the key behind the peer's ID.
func (b *Bundles) Set(id peering.ClusterID, roots []*x509.Certificate) error {
	if err := checkRoots(id, roots); err != nil {
		return fmt.Errorf("trust bundle of %s: %w", id, err)
	}
	domain, err := spiffeid.TrustDomainFromString(string(id))
	if err != nil {
		return fmt.Errorf("trust bundle of %s: %w", id, err)
	}
	bundle := x509bundle.FromX509Authorities(domain, roots)
	b.mu.Lock()
	old := b.byPeer[id]
	b.byPeer[id] = bundle
	b.mu.Unlock()
	if old == nil || !old.Equal(bundle) {
		b.notify(id, true)
	}
	return nil
}

// Remove no longer trusts a peer. When it returns, every function given to Watch
// has been told, so the peer's connections have been cut.
func (b *Bundles) Remove(id peering.ClusterID) {
	b.mu.Lock()
	_, ok := b.byPeer[id]
	delete(b.byPeer, id)
	b.mu.Unlock()
	if ok {
		b.notify(id, false)
	}
}

// Has says whether a peer is trusted.
func (b *Bundles) Has(id peering.ClusterID) bool {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.byPeer[id] != nil
}

// IDs returns the trusted peers, sorted.
func (b *Bundles) IDs() []peering.ClusterID {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Sorted(maps.Keys(b.byPeer))
}

// Watch calls f after each change, in the goroutine that made the change. f looks
// at Has for what is so now, and must not call Set or Remove. Calls end before
// cancel returns only where no change is under way.
func (b *Bundles) Watch(f func(id peering.ClusterID, trusted bool)) (cancel func()) {
	w := &watcher{f: f}
	b.mu.Lock()
	b.watchers[w] = struct{}{}
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		delete(b.watchers, w)
		b.mu.Unlock()
	}
}

func (b *Bundles) notify(id peering.ClusterID, trusted bool) {
	b.mu.RLock()
	watchers := slices.Collect(maps.Keys(b.watchers))
	b.mu.RUnlock()
	for _, w := range watchers {
		w.f(id, trusted)
	}
}

// GetX509BundleForTrustDomain implements x509bundle.Source.
func (b *Bundles) GetX509BundleForTrustDomain(domain spiffeid.TrustDomain) (*x509bundle.Bundle, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	bundle := b.byPeer[peering.ClusterID(domain.Name())]
	if bundle == nil {
		return nil, fmt.Errorf("cluster %s is not trusted here", domain.Name())
	}
	return bundle, nil
}

// ParseBundle reads a trust bundle as it comes over the wire: certificates, DER,
// one after the other. Each has to be a root of id.
func ParseBundle(id peering.ClusterID, der []byte) ([]*x509.Certificate, error) {
	if len(der) > maxBundle {
		return nil, fmt.Errorf("trust bundle has %d bytes, more than %d", len(der), maxBundle)
	}
	roots, err := x509.ParseCertificates(der)
	if err != nil {
		return nil, fmt.Errorf("trust bundle: %w", err)
	}
	if err := checkRoots(id, roots); err != nil {
		return nil, fmt.Errorf("trust bundle of %s: %w", id, err)
	}
	return roots, nil
}

// ParseBundlePEM is ParseBundle for PEM, as in a ForeignCluster.
func ParseBundlePEM(id peering.ClusterID, text []byte) ([]*x509.Certificate, error) {
	if len(text) > 2*maxBundle {
		return nil, fmt.Errorf("trust bundle has %d bytes, more than %d", len(text), 2*maxBundle)
	}
	var der []byte
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != pemCert {
			return nil, fmt.Errorf("trust bundle: unexpected PEM block %q", block.Type)
		}
		der = append(der, block.Bytes...)
	}
	if len(bytes.TrimSpace(text)) != 0 {
		return nil, errors.New("trust bundle: there is text after the certificates")
	}
	return ParseBundle(id, der)
}

// EncodeBundlePEM writes roots as PEM.
func EncodeBundlePEM(roots []*x509.Certificate) []byte {
	var out []byte
	for _, c := range roots {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw})...)
	}
	return out
}

func checkRoots(id peering.ClusterID, roots []*x509.Certificate) error {
	if len(roots) == 0 || len(roots) > maxRoots {
		return fmt.Errorf("%d root certificates, want 1 to %d", len(roots), maxRoots)
	}
	for _, root := range roots {
		if err := checkRoot(id, root); err != nil {
			return err
		}
	}
	return nil
}

// checkRoot checks that a certificate is a root of the cluster: self-signed by
// the key behind the ID, and saying so in its only URI.
func checkRoot(id peering.ClusterID, root *x509.Certificate) error {
	key, ok := root.PublicKey.(*ecdsa.PublicKey)
	if !ok || key.Curve != elliptic.P256() {
		return errors.New("root certificate's key is not ECDSA P-256")
	}
	if got := peering.ClusterIDOfSPKI(root.RawSubjectPublicKeyInfo); got != id {
		return &PinError{Want: id, Got: got}
	}
	if !root.IsCA || !root.BasicConstraintsValid || root.KeyUsage&x509.KeyUsageCertSign == 0 {
		return errors.New("root certificate may not sign certificates")
	}
	if len(root.URIs) != 1 || root.URIs[0].String() != id.TrustDomainURI() {
		return fmt.Errorf("root certificate's URI is not %s alone", id.TrustDomainURI())
	}
	if err := root.CheckSignatureFrom(root); err != nil {
		return fmt.Errorf("root certificate is not self-signed: %w", err)
	}
	return nil
}
