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

// view is the last look at what there is, kept until something of it changes.
type view struct {
	// supply is what nodes and pods come to, which takes the longest to sum up; nil is
	// to be read.
	supply *market.Supply
	// market is all that decides; nil is to be read.
	market *market.Market
	// contracts is by name, those that were just signed included.
	contracts map[string]*v1alpha1.Contract

	runtimeClasses, storageClasses []string
	classesAt                      time.Time
}

// contractOf returns the contract of a request that is not closed; nil if there is
// none.
func (v *view) contractOf(peer peering.ClusterID, request string) *v1alpha1.Contract {
	for _, c := range v.contracts {
		if c.Spec.PeerID == string(peer) && c.Spec.Role == v1alpha1.ContractProvider && c.Spec.RequestID == request && !store.Closed(c) {
			return c
		}
	}
	return nil
}

func (v *view) contractsWith(peer peering.ClusterID) int {
	n := 0
	for _, c := range v.contracts {
		if c.Spec.PeerID == string(peer) && !store.Released(c) {
			n++
		}
	}
	return n
}

// invalidate says that what is held back changed. The lock is held.
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

// market returns what there is now. While informers tell of changes, only what changed
// is read again, and nodes and pods by refresh alone. The lock is held.
func (p *Provider) market(ctx context.Context) (*market.Market, error) {
	p.lapse()
	following := p.following.Load()
	if p.view.supply == nil || !following {
		supply, err := readSupply(ctx, p.Client)
		if err != nil {
			return nil, err
		}
		p.view.supply, p.view.market = &supply, nil
	}
	// Reset before looking: a change that comes meanwhile has it done again.
	if p.stale.Swap(false) || !following {
		p.view.market = nil
	}
	if p.view.market == nil {
		m, err := p.look(ctx)
		if err != nil {
			return nil, err
		}
		p.view.market = m
	}
	return p.view.market, nil
}

// joined returns a peer that just joined, from the API server; nil is one that the cache
// shows, or a stranger. It is called without the lock, so that others need not wait.
func (p *Provider) joined(ctx context.Context, peer peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
	if fc, err := store.Peek(ctx, p.Client, peer); err != nil || fc != nil {
		return nil, err
	}
	return store.Find(ctx, p.Reader, peer)
}

// marketFor is market with a peer in it that the last look did not show: the one that
// just joined, or that of the cache. The lock is held.
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

// look reads everything but nodes and pods. The lock is held.
func (p *Provider) look(ctx context.Context) (*market.Market, error) {
	m := market.Market{Supply: *p.view.supply}
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
	m.RuntimeClasses, m.StorageClasses = p.view.runtimeClasses, p.view.storageClasses
	if m.Exports, err = p.exports(ctx, m.Policies); err != nil {
		return nil, err
	}
	if p.view.contracts, err = p.contracts(ctx); err != nil {
		return nil, err
	}
	reserved, err := p.reservations()
	if err != nil {
		return nil, err
	}
	return market.New(m, reserved)
}

// reservations returns what contracts and offers hold back. An offer that was stored as
// a contract is dropped. The lock is held.
func (p *Provider) reservations() ([]market.Reservation, error) {
	out := make([]market.Reservation, 0, len(p.view.contracts)+len(p.advertised))
	for _, name := range slices.Sorted(maps.Keys(p.view.contracts)) {
		c := p.view.contracts[name]
		if !store.Unverified(c).Wants().Capacity {
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
		// What it was to become may be stored, and whoever signed it gone before it
		// could be told.
		if c := p.view.contracts[o.ad.ContractID]; c != nil && !o.signing && uint64(max(c.Spec.Revision, 0)) >= o.ad.Revision {
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

// contracts returns the contracts by name: those that the cache shows, and what
// was signed since. Whether one of the latter is there after all is asked for
// when the cache takes long.
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
		if p.Now().Sub(r.at) >= recentSettle {
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

// readClasses reads which runtime and storage classes there are, if a policy offers
// any. Where they cannot be read they are as they were. The lock is held.
func (p *Provider) readClasses(ctx context.Context, policies []market.Policy) {
	v, now := &p.view, p.Now()
	if !slices.ContainsFunc(policies, func(p market.Policy) bool { return len(p.Value.RuntimeClasses)+len(p.Value.StorageClasses) > 0 }) {
		v.runtimeClasses, v.storageClasses, v.classesAt = nil, nil, time.Time{}
		return
	}
	if p.following.Load() && now.Sub(v.classesAt) < classesPause {
		return
	}
	v.classesAt = now
	var runtime nodev1.RuntimeClassList
	if err := p.Reader.List(ctx, &runtime); err != nil {
		p.log().Warn("cannot tell which runtime classes there are", "err", err)
	} else {
		v.runtimeClasses = names(runtime.Items, func(c nodev1.RuntimeClass) string { return c.Name })
	}
	var storage storagev1.StorageClassList
	if err := p.Reader.List(ctx, &storage); err != nil {
		p.log().Warn("cannot tell which storage classes there are", "err", err)
	} else {
		v.storageClasses = names(storage.Items, func(c storagev1.StorageClass) string { return c.Name })
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

// exports returns what the peers of each policy are told, by the policy's name. The
// lock is held.
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
	// Before looking: a change that comes meanwhile has it done again.
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

// open returns those of the named namespaces whose Services may be told of, and the Services.
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

// policiesRead is policies as they were read last, and of what.
type policiesRead struct {
	mu       sync.Mutex
	of       []v1alpha1.PeeringPolicy
	policies []market.Policy
}

// policies returns the policies in the order in which they are asked, to be read only. They are
// read again once one changed: each pod of a peer asks for what it is granted.
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

// readSupply reads nodes and pods. What it is given is only read, so a cache
// need not copy it.
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
