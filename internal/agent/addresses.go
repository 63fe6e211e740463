package agent

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/internal/direct"
	"github.com/entente-dev/entente/internal/fabric"
	"github.com/entente-dev/entente/internal/netpolicy"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// addresses translates addresses between a peer and this cluster, by the prefixes that both sides announced. It
// reads from a cache.
type addresses struct {
	client client.Reader
	// pods returns the prefixes of this cluster's pods.
	pods func() ([]netip.Prefix, error)

	// openings is what peers opened for pods of other clusters, as the tables say.
	openings direct.Openings

	mu     sync.Mutex
	tables map[peering.ClusterID]*table
}

// table is the translation of a peer's addresses, by one version of its ForeignCluster.
type table struct {
	uid, version string
	prefixes     []plan.Mapping
	single       map[netip.Addr]netip.Addr
	// reals is the reverse of single.
	reals map[netip.Addr]netip.Addr
	// released is the addresses in single that the peer no longer names.
	released map[netip.Addr]bool
	// ours is this cluster's own addresses, with the aliases that the peer announced for them.
	ours []plan.Mapping
	// places is where the peer's pods in third clusters are, by their addresses at the peer.
	places map[netip.Addr]transit.Place
	// passes: traffic with the peer passes.
	passes bool
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
	return a.homes(peer)(addr)
}

// reached is home for the addresses that pods of this cluster reach. A peer may have pods of a family that they do not
// have.
func (a *addresses) reached(peer peering.ClusterID, addr netip.Addr) (netip.Addr, bool) {
	alias, ok := a.home(peer, addr)
	if !ok {
		return netip.Addr{}, false
	}
	pods, err := a.pods()
	return alias, err != nil || cidr.MayHaveFamily(pods, alias)
}

// homes returns home for one peer, as its addresses translate now.
func (a *addresses) homes(peer peering.ClusterID) func(netip.Addr) (netip.Addr, bool) {
	t := a.table(peer)
	if t == nil {
		return func(netip.Addr) (netip.Addr, bool) { return netip.Addr{}, false }
	}
	return t.home
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

// endpoint is named for the endpoints of a peer's Services. For a pod of the peer in a third cluster it returns the
// address in the tunnel to that cluster, while that passes traffic and has opened the pod to this one.
func (a *addresses) endpoint(home peering.ClusterID, addr netip.Addr) (netip.Addr, bool) {
	t := a.table(home)
	if t == nil {
		return netip.Addr{}, false
	}
	if at, ok := t.places[addr]; ok && at.Third != home {
		third := a.table(at.Third)
		if third != nil && third.passes && a.openings.Count(at.Third, transit.Opening{Home: home, Addr: at.There}) {
			if alias, ok := third.named(at.There); ok {
				return alias, true
			}
		}
	}
	return t.named(addr)
}

// places returns the addresses of a peer's pods in third clusters, as the peer knows them, with those by which they are
// known in the tunnels to these clusters: those that the third cluster opened for the peer, and all that the peer
// names.
func (a *addresses) places(home peering.ClusterID) (open, named []netpolicy.Mapping) {
	t := a.table(home)
	if t == nil {
		return nil, nil
	}
	for _, addr := range slices.SortedFunc(maps.Keys(t.places), netip.Addr.Compare) {
		at := t.places[addr]
		third := a.table(at.Third)
		if third == nil || at.Third == home {
			continue
		}
		alias, ok := third.named(at.There)
		if !ok {
			continue
		}
		m := netpolicy.Mapping{Real: netip.PrefixFrom(addr, addr.BitLen()), Alias: netip.PrefixFrom(alias, alias.BitLen())}
		if named = append(named, m); a.openings.Count(at.Third, transit.Opening{Home: home, Addr: at.There}) {
			open = append(open, m)
		}
	}
	return open, named
}

// there returns the address that a pod of this cluster has in a peer, by its address here.
func (a *addresses) there(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool) {
	t := a.table(peer)
	if t == nil {
		return netip.Addr{}, false
	}
	for _, m := range t.prefixes {
		if out, ok := plan.Remap(alias, m.Alias, m.Real); ok {
			return out, true
		}
	}
	out, ok := t.reals[alias]
	return out, ok
}

// ownPod translates a peer's alias to the address of a pod of this cluster. The peer
// announces which address an alias means: that counts only for addresses that pods here have.
func (a *addresses) ownPod(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool) {
	own, ok := a.own(peer, alias)
	if !ok {
		return netip.Addr{}, false
	}
	prefixes, err := a.pods()
	return own, err == nil && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(own) })
}

// ownPrefixes returns a function for the prefixes of this cluster's pods.
func (a *agent) ownPrefixes() func() ([]netip.Prefix, error) {
	pods := &lastKnown[[]netip.Prefix]{now: time.Now, every: lookupRetry, log: a.log, what: "which prefixes pods have", ask: func(ctx context.Context) ([]netip.Prefix, error) {
		prefixes, _, err := a.states.Prefixes(ctx)
		return prefixes, err
	}}
	return func() ([]netip.Prefix, error) {
		return pods.get(context.Background()) //nolint:forbidigo // a read from a cache does not block
	}
}

// own returns this cluster's address that a peer announces to know by an alias.
func (a *addresses) own(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool) {
	return a.remap(peer, alias, func(m plan.Mapping) (from, to netip.Prefix) { return m.Alias, m.Real })
}

// knownAs returns the address by which a peer knows a pod of this cluster: none if the peer's pods do not reach it, as
// they have no address of its family, but of another one that pods here have.
func (a *addresses) knownAs(peer peering.ClusterID, own netip.Addr) (netip.Addr, bool) {
	alias, ok := a.remap(peer, own, func(m plan.Mapping) (from, to netip.Prefix) { return m.Real, m.Alias })
	t := a.table(peer)
	if !ok || t == nil {
		return netip.Addr{}, false
	}
	theirs := plan.Reals(t.prefixes)
	if !cidr.MayHaveFamily(theirs, own) && slices.ContainsFunc(t.ours, func(m plan.Mapping) bool { return cidr.MayHaveFamily(theirs, m.Real.Addr()) }) {
		return netip.Addr{}, true
	}
	return alias, true
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
	a.mu.Lock()
	defer a.mu.Unlock()
	fc := a.peer(peer) // not before: an older one must not follow a newer one
	if fc == nil {
		delete(a.tables, peer)
		a.openings.Forget(peer)
		return nil
	}
	t := a.tables[peer]
	if t == nil || t.uid != string(fc.UID) || t.version != fc.ResourceVersion || fc.ResourceVersion == "" {
		t = tableOf(fc)
		a.openings.See(peer, transit.Openings(fc))
		if a.tables == nil {
			a.tables = map[peering.ClusterID]*table{}
		}
		a.tables[peer] = t
	}
	return t
}

func tableOf(fc *v1alpha1.ForeignCluster) *table {
	t := &table{uid: string(fc.UID), version: fc.ResourceVersion, prefixes: fabric.Mappings(fc.Status.Aliases, nil), single: map[netip.Addr]netip.Addr{}, reals: map[netip.Addr]netip.Addr{}, released: map[netip.Addr]bool{}}
	t.places, t.passes = transit.Places(fc), transit.Passes(fc)
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
		t.reals[m.Alias.Addr()] = m.Real.Addr()
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
	later := notify.Gather(observedPause, observedPause, func(struct{}) { a.exchange.ChangedAll() })
	return func() { later(struct{}{}) }
}
