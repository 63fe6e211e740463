package agent

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fabric"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// addresses translates addresses between a peer and this cluster, by the prefixes that both sides announced. It
// reads from a cache.
type addresses struct {
	client client.Reader

	mu     sync.Mutex
	tables map[peering.ClusterID]*table
}

// table is the translation of a peer's addresses, by one version of its ForeignCluster.
type table struct {
	uid, version string
	prefixes     []plan.Mapping
	single       map[netip.Addr]netip.Addr
	// released is the addresses in single that the peer no longer names.
	released map[netip.Addr]bool
	// ours is this cluster's own addresses, with the aliases that the peer announced for them.
	ours []plan.Mapping
}

// peer returns the ForeignCluster of a peer, for reading only; nil if it is not known.
func (a *addresses) peer(id peering.ClusterID) *v1alpha1.ForeignCluster {
	fc, err := store.Peek(context.Background(), a.client, id) //nolint:forbidigo // a read from a cache does not block
	if err != nil {
		return nil
	}
	return fc
}

// home translates a peer's pod address to this cluster's address for it.
func (a *addresses) home(peer peering.ClusterID, addr netip.Addr) (netip.Addr, bool) {
	t := a.table(peer)
	if t == nil {
		return netip.Addr{}, false
	}
	return t.home(addr)
}

// named is home for the addresses that a peer names now. An alias stays for a while after its address is no longer
// named, and is not translated then.
func (a *addresses) named(peer peering.ClusterID, addr netip.Addr) (netip.Addr, bool) {
	t := a.table(peer)
	if t == nil {
		return netip.Addr{}, false
	}
	return t.named(addr)
}

// ownPods returns a function that translates a peer's alias to the address of a pod of this cluster. The peer
// announces which address an alias means: that counts only for addresses that pods here have.
func (a *agent) ownPods() func(peering.ClusterID, netip.Addr) (netip.Addr, bool) {
	pods := &lastKnown[[]netip.Prefix]{now: time.Now, every: lookupRetry, log: a.log, what: "which prefixes pods have", ask: func(ctx context.Context) ([]netip.Prefix, error) {
		prefixes, _, err := a.states.Prefixes(ctx)
		return prefixes, err
	}}
	return func(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool) {
		own, ok := a.addresses.own(peer, alias)
		if !ok {
			return netip.Addr{}, false
		}
		prefixes, err := pods.get(context.Background()) //nolint:forbidigo // a read from a cache does not block
		return own, err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(own) })
	}
}

// own returns this cluster's address that a peer announces to know by an alias.
func (a *addresses) own(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool) {
	return a.remap(peer, alias, func(m plan.Mapping) (from, to netip.Prefix) { return m.Alias, m.Real })
}

// knownAs returns the address by which a peer knows a pod of this cluster.
func (a *addresses) knownAs(peer peering.ClusterID, own netip.Addr) (netip.Addr, bool) {
	return a.remap(peer, own, func(m plan.Mapping) (from, to netip.Prefix) { return m.Real, m.Alias })
}

// remap translates an address by what a peer announced of this cluster's own addresses.
func (a *addresses) remap(peer peering.ClusterID, addr netip.Addr, way func(plan.Mapping) (from, to netip.Prefix)) (netip.Addr, bool) {
	t := a.table(peer)
	if t == nil {
		return netip.Addr{}, false
	}
	for _, m := range t.ours {
		from, to := way(m)
		if out, ok := plan.Remap(addr, from, to); ok {
			return out, true
		}
	}
	return netip.Addr{}, false
}

// table returns the table of a peer, which is built again when its ForeignCluster changed: addresses are translated
// by the thousand.
func (a *addresses) table(peer peering.ClusterID) *table {
	fc := a.peer(peer)
	a.mu.Lock()
	defer a.mu.Unlock()
	if fc == nil {
		delete(a.tables, peer)
		return nil
	}
	t := a.tables[peer]
	if t == nil || t.uid != string(fc.UID) || t.version != fc.ResourceVersion || fc.ResourceVersion == "" {
		t = tableOf(fc)
		if a.tables == nil {
			a.tables = map[peering.ClusterID]*table{}
		}
		a.tables[peer] = t
	}
	return t
}

func tableOf(fc *v1alpha1.ForeignCluster) *table {
	t := &table{uid: string(fc.UID), version: fc.ResourceVersion, prefixes: fabric.Mappings(fc.Status.Aliases, nil), single: map[netip.Addr]netip.Addr{}, released: map[netip.Addr]bool{}}
	for _, b := range fc.Status.AliasBlocks {
		for _, r := range b.Released {
			if int(r.Index) < len(b.Addresses) {
				if addr, err := netip.ParseAddr(b.Addresses[r.Index]); err == nil {
					t.released[addr] = true
				}
			}
		}
	}
	for _, m := range fabric.Mappings(nil, fc.Status.AliasBlocks) {
		t.single[m.Real.Addr()] = m.Alias.Addr()
	}
	if n := fc.Status.Network; n != nil {
		t.ours = fabric.Mappings(n.Aliases, n.AliasBlocks)
	}
	return t
}

func (t *table) home(addr netip.Addr) (netip.Addr, bool) {
	for _, m := range t.prefixes {
		if out, ok := plan.Remap(addr, m.Real, m.Alias); ok {
			return out, true
		}
	}
	out, ok := t.single[addr]
	return out, ok
}

func (t *table) named(addr netip.Addr) (netip.Addr, bool) {
	out, ok := t.home(addr)
	if alias, single := t.single[addr]; single && t.released[addr] && alias == out {
		return netip.Addr{}, false
	}
	return out, ok
}

// sessionAddress returns where a peer's end of the session with it is seen. One of this cluster's own addresses
// means that something on the path hides it, as kube-proxy may.
func (a *agent) sessionAddress(peer peering.ClusterID) netip.Addr {
	s := a.sessions.Status(peer).Session
	if s == nil || s.Through != "" {
		return netip.Addr{}
	}
	remote, err := netip.ParseAddrPort(s.RemoteAddr)
	if err != nil || !a.mayDial(s.RemoteAddr) {
		return netip.Addr{}
	}
	return remote.Addr().Unmap()
}

// observed sends all peers where gateways of this cluster are seen, a moment later: the report of one peer is sent
// to all.
func (a *agent) observed() func() {
	later := gather(observedPause, func(struct{}) { a.exchange.ChangedAll() })
	return func() { later(struct{}{}) }
}
