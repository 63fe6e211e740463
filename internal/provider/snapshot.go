package provider

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// snapshot is this cluster's capacity, policies and contracts as last read. A change drops the part
// that it affects.
type snapshot struct {
	// supply sums up nodes and pods, which takes the longest; nil means that it has to
	// be read.
	supply *market.Supply
	// market is everything that decisions need; nil means that it has to be read.
	market *market.Market
	// contracts is by name, including those that were just signed.
	contracts map[string]*v1alpha1.Contract

	runtimeClasses, storageClasses []string
	classesAt                      time.Time
}

// contractOf returns the contract of a request; nil if there is no contract, or it is
// closed.
func (s *snapshot) contractOf(peer peering.ClusterID, request string) *v1alpha1.Contract {
	for _, c := range s.contracts {
		if c.Spec.PeerID == string(peer) && c.Spec.Role == v1alpha1.ContractProvider && c.Spec.RequestID == request && !store.Closed(c) {
			return c
		}
	}
	return nil
}

func (s *snapshot) contractsWith(peer peering.ClusterID) int {
	n := 0
	for _, c := range s.contracts {
		if c.Spec.PeerID == string(peer) && !store.Released(c) {
			n++
		}
	}
	return n
}

// invalidate says that reservations changed. p.mu must be held.
func (p *Provider) invalidate() {
	p.stale.Store(true)
	p.wake.Notify()
}

func (p *Provider) log() *slog.Logger {
	if p.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Log
}

// market returns the current market. While informers report changes, it reads only what
// changed, and leaves nodes and pods to refresh. p.mu must be held.
func (p *Provider) market(ctx context.Context) (*market.Market, error) {
	p.lapse()
	following := p.following.Load()
	if p.snapshot.supply == nil || !following {
		supply, err := readSupply(ctx, p.Client)
		if err != nil {
			return nil, err
		}
		p.snapshot.supply, p.snapshot.market = &supply, nil
	}
	// Reset before reading: a change meanwhile causes another read.
	if p.stale.Swap(false) || !following {
		p.snapshot.market = nil
	}
	if p.snapshot.market == nil {
		m, err := p.readMarket(ctx)
		if err != nil {
			return nil, err
		}
		p.snapshot.market = m
	}
	return p.snapshot.market, nil
}

// joined returns a peer that just joined, from the API server; nil if the cache has the
// peer, or it is not trusted. It is called without p.mu, so that other calls need not wait.
func (p *Provider) joined(ctx context.Context, peer peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
	if fc, err := store.Peek(ctx, p.Client, peer); err != nil || fc != nil {
		return nil, err
	}
	return store.Find(ctx, p.Reader, peer)
}

// marketFor returns the market with a peer that it may lack: the one that just joined, or
// the one in the cache. p.mu must be held.
func (p *Provider) marketFor(ctx context.Context, peer peering.ClusterID, joined *v1alpha1.ForeignCluster) (*market.Market, error) {
	m, err := p.market(ctx)
	if err != nil || m.Peers[peer] != nil {
		return m, err
	}
	if joined == nil {
		if joined, err = store.Cached(ctx, p.Client, peer); err != nil {
			return nil, err
		}
	}
	if joined != nil {
		m.Peers[peer] = joined
	}
	return m, nil
}

// readMarket reads everything but nodes and pods. p.mu must be held.
func (p *Provider) readMarket(ctx context.Context) (*market.Market, error) {
	m := market.Market{Supply: *p.snapshot.supply}
	var err error
	if m.Policies, err = p.policies(ctx); err != nil {
		return nil, err
	}
	var peers v1alpha1.ForeignClusterList
	if err := p.Client.List(ctx, &peers, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	m.Peers = store.KnownAll(peers.Items)
	p.readClasses(ctx, m.Policies)
	m.RuntimeClasses, m.StorageClasses = p.snapshot.runtimeClasses, p.snapshot.storageClasses
	if m.Exports, err = p.exports(ctx, m.Policies); err != nil {
		return nil, err
	}
	if p.snapshot.contracts, err = p.contracts(ctx); err != nil {
		return nil, err
	}
	reserved, err := p.reservations(m.Peers)
	if err != nil {
		return nil, err
	}
	return market.New(m, reserved)
}

// reservations returns what contracts grant and advertisements promise. It drops advertisements that
// were stored as contracts, and those to peers that were forgotten and joined again since. p.mu must be held.
func (p *Provider) reservations(peers map[peering.ClusterID]*v1alpha1.ForeignCluster) ([]market.Reservation, error) {
	out := make([]market.Reservation, 0, len(p.snapshot.contracts)+len(p.advertised))
	for _, name := range slices.Sorted(maps.Keys(p.snapshot.contracts)) {
		c := p.snapshot.contracts[name]
		if !store.Unverified(c).Desired().Capacity {
			continue
		}
		amounts, err := store.Resources(c.Spec.Resources)
		if err != nil {
			return nil, fmt.Errorf("resources of contract %s: %w", c.Name, err)
		}
		out = append(out, market.Reservation{
			Peer: peering.ClusterID(c.Spec.PeerID), Contract: c.Name, Amounts: amounts, Selector: c.Spec.NodeSelector,
			Tolerations: store.Tolerations(c),
		})
	}
	for key, o := range p.advertised {
		// Its contract may be stored although the call that signed it ended before the
		// response.
		if c := p.snapshot.contracts[o.ad.ContractID]; c != nil && !o.signing && uint64(max(c.Spec.Revision, 0)) >= o.ad.Revision {
			delete(p.advertised, key)
			continue
		}
		if fc := peers[key.peer]; fc != nil && fc.UID != o.trust && !o.signing {
			delete(p.advertised, key)
			continue
		}
		out = append(out, market.Reservation{
			Peer: key.peer, Contract: o.ad.ContractID, Amounts: o.ad.Resources, Selector: o.ad.NodeSelector,
			Tolerations: o.tolerations,
		})
	}
	return out, nil
}

// contracts returns the contracts by name: those in the cache, and those signed
// since. If the cache lacks one of the latter for long, it is read from the API
// server.
func (p *Provider) contracts(ctx context.Context) (map[string]*v1alpha1.Contract, error) {
	var list v1alpha1.ContractList
	if err := p.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	out := make(map[string]*v1alpha1.Contract, len(list.Items)+len(p.recent))
	for i := range list.Items {
		out[list.Items[i].Name] = &list.Items[i]
	}
	for name, r := range p.recent {
		if shown := out[name]; shown != nil && shown.Spec.Revision >= r.contract.Spec.Revision {
			delete(p.recent, name)
			continue
		}
		if p.Now().Sub(r.at) >= cacheLag {
			var now v1alpha1.Contract
			err := p.Reader.Get(ctx, client.ObjectKey{Name: name}, &now)
			if apierrors.IsNotFound(err) {
				delete(p.recent, name)
				delete(out, name)
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read contract %s: %w", name, err)
			}
			r = recentContract{contract: &now, at: p.Now()}
			p.recent[name] = r
		}
		out[name] = r.contract
	}
	return out, nil
}

// readClasses reads which runtime and storage classes exist, if a policy offers any.
// It keeps the previous ones if that fails. p.mu must be held.
func (p *Provider) readClasses(ctx context.Context, policies []market.Policy) {
	s, now := &p.snapshot, p.Now()
	if !slices.ContainsFunc(policies, func(p market.Policy) bool { return len(p.Value.RuntimeClasses)+len(p.Value.StorageClasses) > 0 }) {
		s.runtimeClasses, s.storageClasses, s.classesAt = nil, nil, time.Time{}
		return
	}
	if p.following.Load() && now.Sub(s.classesAt) < classesPause {
		return
	}
	s.classesAt = now
	var runtime nodev1.RuntimeClassList
	if err := p.Reader.List(ctx, &runtime); err != nil {
		p.log().Warn("cannot list runtime classes", "err", err)
	} else {
		s.runtimeClasses = names(runtime.Items, func(c nodev1.RuntimeClass) string { return c.Name })
	}
	var storage storagev1.StorageClassList
	if err := p.Reader.List(ctx, &storage); err != nil {
		p.log().Warn("cannot list storage classes", "err", err)
	} else {
		s.storageClasses = names(storage.Items, func(c storagev1.StorageClass) string { return c.Name })
	}
}

// names returns the names of classes, sorted.
func names[T any](classes []T, name func(T) string) []string {
	out := make([]string, len(classes))
	for i := range classes {
		out[i] = name(classes[i])
	}
	slices.Sort(out)
	return out
}

// exports returns the Services that each policy exports, by the policy's name. p.mu
// must be held.
func (p *Provider) exports(ctx context.Context, policies []market.Policy) (map[string]market.Exported, error) {
	named, sets := map[string]bool{}, false
	for i := range policies {
		for _, e := range policies[i].Exports {
			named[e.Namespace] = true
		}
		sets = sets || policies[i].HasSet()
	}
	inSet := map[peering.ServiceName]bool{}
	if sets && p.ServiceExports != nil {
		exported, err := p.ServiceExports(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range exported {
			named[name.Namespace], inSet[name] = true, true
		}
	}
	// Before reading: a change meanwhile causes another read.
	p.exporting.Store(sets || len(named) > 0)
	namespaces, services, err := p.open(ctx, slices.Sorted(maps.Keys(named)))
	if err != nil {
		return nil, err
	}
	out := map[string]market.Exported{}
	for i := range policies {
		if policy := &policies[i]; policy.HasSet() || len(policy.Exports) > 0 {
			out[policy.Value.Name] = market.Exports(policy.Exports, services, func(s *corev1.Service) bool {
				return inSet[peering.ServiceName{Namespace: s.Namespace, Name: s.Name}] && policy.Shares(namespaces[s.Namespace], p.Namespace)
			})
		}
	}
	return out, nil
}

// open returns those of the named namespaces whose Services may be exported, and the Services.
func (p *Provider) open(ctx context.Context, names []string) (map[string]*corev1.Namespace, []corev1.Service, error) {
	namespaces := map[string]*corev1.Namespace{}
	var services []corev1.Service
	for _, name := range names {
		var namespace corev1.Namespace
		err := p.Client.Get(ctx, client.ObjectKey{Name: name}, &namespace)
		if client.IgnoreNotFound(err) != nil {
			return nil, nil, fmt.Errorf("read namespace %s: %w", name, err)
		}
		if err != nil || market.Closed(&namespace, p.Namespace) {
			continue
		}
		var list corev1.ServiceList
		if err := p.Client.List(ctx, &list, client.InNamespace(name), client.UnsafeDisableDeepCopy); err != nil {
			return nil, nil, fmt.Errorf("list services of namespace %s: %w", name, err)
		}
		namespaces[name] = &namespace
		services = append(services, list.Items...)
	}
	return namespaces, services, nil
}

// policiesRead is the policies as last read, and the objects that they were read from.
type policiesRead struct {
	mu       sync.Mutex
	of       []v1alpha1.PeeringPolicy
	policies []market.Policy
}

// policies returns the policies in order of precedence. Callers must not change them. They are parsed
// again only when one changed, since each pod of a peer needs them.
func (p *Provider) policies(ctx context.Context) ([]market.Policy, error) {
	var list v1alpha1.PeeringPolicyList
	if err := p.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list peering policies: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.PeeringPolicy) int { return strings.Compare(a.Name, b.Name) })
	r := &p.read
	r.mu.Lock()
	defer r.mu.Unlock()
	same := func(a, b v1alpha1.PeeringPolicy) bool {
		return a.UID == b.UID && a.ResourceVersion == b.ResourceVersion
	}
	if r.policies == nil || !slices.EqualFunc(r.of, list.Items, same) {
		r.of, r.policies = list.Items, market.ReadPolicies(list.Items)
	}
	return r.policies, nil
}

// readSupply reads nodes and pods. It does not change them, so a cache need not
// copy them.
func readSupply(ctx context.Context, c client.Reader) (market.Supply, error) {
	var nodes corev1.NodeList
	var pods corev1.PodList
	if err := c.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return market.Supply{}, fmt.Errorf("list nodes: %w", err)
	}
	if err := c.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return market.Supply{}, fmt.Errorf("list pods: %w", err)
	}
	return market.NewSupply(nodes.Items, pods.Items), nil
}
