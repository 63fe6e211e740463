package identity

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/entente-dev/entente/peering"
)

// Bundles has the roots of each trusted peer separately: a peer's roots vouch for that peer
// alone. It implements x509bundle.Source and is safe for concurrent use. The zero value is not
// usable; call NewBundles.
type Bundles struct {
	mu       sync.RWMutex
	byPeer   map[peering.ClusterID]*x509bundle.Bundle
	watchers map[*watcher]struct{}
}

type watcher struct {
	f func(id peering.ClusterID, trusted bool)
}

// NewBundles returns an empty set, which trusts no cluster.
func NewBundles() *Bundles {
	return &Bundles{
		byPeer:   map[peering.ClusterID]*x509bundle.Bundle{},
		watchers: map[*watcher]struct{}{},
	}
}

// Trust trusts a peer by a bundle, in place of the one that it had. Call Supersedes before to
// check whether the new one may replace it.
func (b *Bundles) Trust(id peering.ClusterID, bundle Bundle) error {
	domain, err := spiffeid.TrustDomainFromString(string(id))
	if err != nil {
		return fmt.Errorf("trust bundle of %s: %w", id, err)
	}
	next := x509bundle.FromX509Authorities(domain, bundle.Roots)
	b.mu.RLock()
	old := b.byPeer[id]
	b.mu.RUnlock()
	if old != nil && old.Equal(next) {
		return nil // these roots were checked when they came
	}
	if err := bundle.check(id); err != nil {
		return fmt.Errorf("trust bundle of %s: %w", id, err)
	}
	b.mu.Lock()
	b.byPeer[id] = next
	b.mu.Unlock()
	b.notify(id, true)
	return nil
}

// Remove stops trusting a peer. When it returns, every function passed to Watch was called, so
// the peer's connections are closed.
func (b *Bundles) Remove(id peering.ClusterID) {
	b.mu.Lock()
	_, ok := b.byPeer[id]
	delete(b.byPeer, id)
	b.mu.Unlock()
	if ok {
		b.notify(id, false)
	}
}

// Has reports whether a peer is trusted. A nil Bundles trusts no cluster.
func (b *Bundles) Has(id peering.ClusterID) bool {
	if b == nil {
		return false
	}
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

// Watch calls f after each change, also of the roots of a peer that stays trusted,
// in the goroutine that made the change. f calls Has for the current state, and must not call
// Trust or Remove. A change in progress may still call f after cancel returned.
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
