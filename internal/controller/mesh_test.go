package controller

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/fabric"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// site is a cluster of a mesh: what its agent keeps, and what its nodes make of it. All of
// them have the same pod prefix, and their aliases come from the default pool.
type site struct {
	id    string
	local []netip.Prefix
	pool  []netip.Prefix
	nodes []v1alpha1.FabricNode
	peers map[string]*link
	now   time.Time
}

// link is what a site keeps of a peer. planned does not outlive its agent.
type link struct {
	fc      *v1alpha1.ForeignCluster
	tunnel  *v1alpha1.Tunnel
	planned aliases.Allocation
	open    map[netip.Addr]bool
	// passed is what is open to it of third sites.
	passed []allow.Exposed
}

func newSite(i int) *site {
	s := &site{
		id: fmt.Sprint("site-", i), local: []netip.Prefix{prefix("10.200.0.0/16"), prefix("fd77:1::/56")}, pool: []netip.Prefix{prefix("198.18.0.0/15"), prefix("fdd7:585b:e300::/57")},
		peers: map[string]*link{}, now: now,
	}
	for j := range 2 {
		n := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", j)}, Spec: v1alpha1.FabricNodeSpec{ClusterID: s.id, Gateway: j == 0}}
		key := sha256.Sum256([]byte(s.id + n.Name))
		n.Status.PublicKey, n.Status.OverlayAddress = base64.StdEncoding.EncodeToString(key[:]), plan.Overlay(s.id, n.Name).String()
		n.Status.PodCIDRs = []string{fmt.Sprintf("10.200.%d.0/24", j), fmt.Sprintf("fd77:1:0:%d::/64", j)}
		n.Status.PodNetworkAddresses = []string{fmt.Sprintf("10.200.%d.1", j), fmt.Sprintf("fd77:1:0:%d::1", j)}
		n.Spec.Endpoints = []string{"192.0.2.1:51820"}
		s.nodes = append(s.nodes, n)
	}
	return s
}

// pod is the address of a pod of any site.
func pod(n int) netip.Addr {
	if n%5 == 0 {
		return netip.MustParseAddr(fmt.Sprintf("fd77:1:0:%d::%x", n%2, 16+n/2))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.200.%d.%d", n%2, 2+n/2))
}

func (s *site) meet(id string) {
	s.peers[id] = &link{
		fc: &v1alpha1.ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Name: id, UID: types.UID(id)}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: id},
		}, open: map[netip.Addr]bool{},
	}
}

// hear observes another site's current state.
func (s *site) hear(t failing, other *site) {
	l := other.peers[s.id]
	var tunnel v1alpha1.TunnelSpec
	if l.tunnel != nil {
		tunnel = l.tunnel.Spec
	}
	network := networkOf(l.fc, other.local, other.nodes, tunnel, s.now)
	network.Direct = transit.IDs(transit.Direct(l.fc, other.known()))
	said := wire.StateTo(peering.PeerState{Network: network})
	state, err := wire.StateFrom(said)
	if err != nil {
		t.Fatalf("%s does not accept the state of %s: %v", s.id, other.id, err)
	}
	s.peers[other.id].fc.Status.Network = networkFromWire(state.Network, nil, time.Time{})
}

// plan plans aliases for a peer, tunnel writes its Tunnel, and store what was planned, as
// Peers.Reconcile does.
func (s *site) plan(id string) {
	l := s.peers[id]
	if l.fc.Status.Network == nil {
		return
	}
	in := aliases.Input{Pool: s.pool, Taken: s.local, Have: l.planned, Now: s.now}
	for other, o := range s.peers {
		if other != id {
			space, given := stored.Space(o.fc.Status), o.planned.Space()
			in.Others = append(in.Others, aliases.Space{Prefixes: union(space.Prefixes, given.Prefixes), Blocks: union(space.Blocks, given.Blocks)})
		}
	}
	l.planned = planFor(in, l.fc.Status.Network, transit.Through(l.fc)).Allocation
}

func (s *site) write(id string) {
	l := s.peers[id]
	fc := l.fc.DeepCopy()
	fc.Status.Aliases, fc.Status.AliasBlocks = stored.Status(l.planned)
	in := tunnelInput{wanted: true, peer: fc, local: s.local, nodes: s.nodes}
	if l.tunnel != nil {
		in.current, in.exists = l.tunnel.Spec, true
	}
	open := allow.Exposed{Contract: "c", AnySource: true}
	for a := range l.open {
		open.To = append(open.To, allow.Destination{Addr: a})
	}
	in.exposed = append([]allow.Exposed{open}, l.passed...)
	in.agreed, in.direct, in.there = transit.Agreed(fc, s.known()), transit.AgreedDirect(fc, s.known()), s.podAddress
	if spec, _ := planTunnelWrite(in); spec != nil {
		l.tunnel = &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: id, UID: types.UID(id)}, Spec: *spec}
	}
}

// known is what the site knows of its peers.
func (s *site) known() (out []v1alpha1.ForeignCluster) {
	for _, other := range s.peers {
		out = append(out, *other.fc)
	}
	return out
}

// podAddress is the reverse of called.
func (s *site) podAddress(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool) {
	fc := s.peers[string(peer)].fc
	for _, m := range fabric.Mappings(fc.Status.Aliases, fc.Status.AliasBlocks) {
		if real, ok := plan.Remap(alias, m.Alias, m.Real); ok {
			return real, true
		}
	}
	return netip.Addr{}, false
}

func (s *site) store(id string) {
	l := s.peers[id]
	l.fc.Status.Aliases, l.fc.Status.AliasBlocks = stored.Status(l.planned)
}

// kill ends the site's agent; another one begins with what is stored.
func (s *site) kill() {
	for _, l := range s.peers {
		l.planned = stored.Allocation(l.fc.Status.Aliases, l.fc.Status.AliasBlocks)
	}
}

// layouts is what the site's nodes make of it, by name.
func (s *site) layouts(t failing) map[string]plan.Layout {
	var tunnels []v1alpha1.Tunnel
	keys := map[types.UID]fabric.TunnelKeys{}
	for _, id := range slices.Sorted(maps.Keys(s.peers)) {
		if tunnel := s.peers[id].tunnel; tunnel != nil {
			tunnels = append(tunnels, *tunnel)
			keys[tunnel.UID] = fabric.TunnelKeys{PresharedKey: plan.PresharedKey{1}}
		}
	}
	out := map[string]plan.Layout{}
	for _, n := range s.nodes {
		own := []netip.Prefix{prefix(n.Status.PodCIDRs[0]), prefix(n.Status.PodCIDRs[1])}
		d := fabric.Desired(fabric.Config{Node: n.Name, AliasPool: s.pool}, own, s.nodes, tunnels, fabric.Known{Keys: keys, Gateways: []string{"node-0"}}, now)
		l, err := plan.Plan(*d, plan.Observed{Sources: kube.Addrs(n.Status.PodNetworkAddresses)})
		if err != nil {
			t.Fatalf("%v", err)
		}
		out[n.Name] = l
	}
	return out
}

// called is what a site calls an address of a peer.
func (s *site) called(id string, a netip.Addr) (netip.Addr, bool) {
	status := s.peers[id].fc.Status
	for _, m := range fabric.Mappings(status.Aliases, status.AliasBlocks) {
		if out, ok := plan.Remap(a, m.Real, m.Alias); ok {
			return out, true
		}
	}
	return netip.Addr{}, false
}

type failing interface {
	Fatalf(format string, args ...any)
}

// mesh is sites, and how their nodes carry packets.
type mesh map[string]*site

func newMesh(n int) mesh {
	m := mesh{}
	for i := range n {
		m.add(newSite(i))
	}
	return m
}

func (m mesh) add(s *site) {
	for _, other := range m {
		s.meet(other.id)
		other.meet(s.id)
	}
	m[s.id] = s
}

func (m mesh) ids() []string { return slices.Sorted(maps.Keys(m)) }

// settle exchanges states and reconciles until nothing changes.
func (m mesh) settle(t failing) {
	for range 8 {
		for _, id := range m.ids() {
			for _, other := range m.ids() {
				if id != other {
					s := m[id]
					s.hear(t, m[other])
					s.plan(other)
					s.write(other)
					s.store(other)
				}
			}
		}
	}
}

// send sends a packet from a pod of one site to what it calls a pod of another, and returns
// where it arrives and with which source address. Every node applies its layout.
func (m mesh) send(layouts map[string]map[string]plan.Layout, from string, source, dest netip.Addr) (site string, at, by netip.Addr, ok bool) {
	home := layouts[from]
	node := ownerOf(home, source)
	l := home[node]
	if !slices.ContainsFunc(l.Routes, func(r plan.Route) bool { return !r.Return && r.Way.IsValid() && r.Prefix.Contains(dest) }) {
		return
	}
	for _, w := range l.Masquerades {
		if holdsAddr(w.Remote, dest) && !holdsAddr(w.Known, source) {
			source = l.Sources[slices.IndexFunc(l.Sources, func(s netip.Addr) bool { return s.BitLen() == source.BitLen() })]
		}
	}
	peer := allowed(l, dest)
	if peer != nil && !peer.Remote { // to the node that carries it
		before := node
		node = peer.Node
		l = home[node]
		if back := allowed(l, source); back == nil || back.Node != before {
			return
		}
		peer = allowed(l, dest)
	}
	if peer == nil || !peer.Remote {
		return
	}
	if source, ok = translated(l, dest, source, false); !ok {
		return
	}
	there := layouts[peer.Cluster]
	l = there[peer.Node]
	if back := allowed(l, source); back == nil || back.Cluster != from || back.Node != node {
		return "", at, by, false // the cipher drops it
	}
	if dest, ok = translated(l, source, dest, true); !ok {
		return
	}
	owner := ownerOf(there, dest)
	if next := allowed(l, dest); owner != peer.Node && (next == nil || next.Node != owner) {
		return "", at, by, false
	}
	return peer.Cluster, dest, source, opens(there[owner].Inbound, source, dest)
}

func ownerOf(layouts map[string]plan.Layout, a netip.Addr) string {
	for name, l := range layouts {
		if holdsAddr(l.Own, a) {
			return name
		}
	}
	return ""
}

func holdsAddr(list []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// allowed is the WireGuard peer that an address belongs to.
func allowed(l plan.Layout, a netip.Addr) (found *plan.WireGuardPeer) {
	longest := -1
	for i := range l.Peers {
		for _, p := range l.Peers[i].AllowedIPs {
			if p.Contains(a) && p.Bits() > longest {
				found, longest = &l.Peers[i], p.Bits()
			}
		}
	}
	return found
}

// translated is how an address of ours is translated in a packet to or from a peer's alias.
func translated(l plan.Layout, theirs, ours netip.Addr, entering bool) (netip.Addr, bool) {
	for _, t := range l.Translations {
		if !holdsAddr(t.Remote, theirs) {
			continue
		}
		for _, m := range t.Local {
			from, to := m.Real, m.Alias
			if entering {
				from, to = to, from
			}
			if out, ok := plan.Remap(ours, from, to); ok {
				return out, true
			}
		}
	}
	return netip.Addr{}, false
}

func opens(in plan.Inbound, source, dest netip.Addr) bool {
	for _, p := range in.Prefixes {
		if p.Prefix.Contains(source) && slices.ContainsFunc(in.Open, func(o plan.Opening) bool { return o.Class == p.Class && o.Addr == dest }) {
			return true
		}
	}
	return false
}

func (m mesh) layouts(t failing) map[string]map[string]plan.Layout {
	out := map[string]map[string]plan.Layout{}
	for id, s := range m {
		out[id] = s.layouts(t)
	}
	return out
}

// check sends a packet between all pods that one may send to, or those of which say tells, and
// from a pod that the other knows and one that it does not.
func (m mesh) check(t failing, say func(from, to string, a netip.Addr) bool) (tried int) {
	layouts := m.layouts(t)
	for from, s := range m {
		for to := range s.peers {
			for a := range m[to].peers[from].open {
				if say != nil && !say(from, to, a) {
					continue
				}
				alias, ok := s.called(to, a)
				if !ok {
					t.Fatalf("%s has no name for %v of %s", from, a, to)
				}
				for _, source := range []netip.Addr{pod(1), pod(2), pod(400 + tried%3), pod(5), pod(10), pod(405)} {
					if source.BitLen() != a.BitLen() {
						continue
					}
					site, at, by, ok := m.send(layouts, from, source, alias)
					if !ok || site != to || at != a {
						t.Fatalf("%v of %s to %v of %s (%v): at %v of %q, open: %t", source, from, a, to, alias, at, site, ok)
					}
					back, known := m[to].called(from, source)
					if say == nil && known && m[from].peers[to].open[source] && by != back {
						t.Fatalf("%v of %s seems to be %v at %s, which calls it %v", source, from, by, to, back)
					}
					tried++
				}
			}
		}
	}
	return tried
}

// Clusters that all have the same prefix, and are more than whole prefixes of the default pool
// serve, reach each other's open pods in full mesh, and no others.
func TestFiveClustersOfTheSamePrefixReachEachOther(t *testing.T) {
	t.Parallel()
	m := newMesh(5)
	for _, id := range m.ids() {
		for other, l := range m[id].peers {
			for n := range 12 {
				l.open[pod(n+len(other)+int(id[len(id)-1]))] = true
			}
		}
	}
	m.settle(t)
	if tried := m.check(t, nil); tried < 5*4*12*2 {
		t.Errorf("only %d packets were tried", tried)
	}
	split := 0
	layouts := m.layouts(t)
	for from, s := range m {
		for to, l := range s.peers {
			if len(l.fc.Status.AliasBlocks) > 0 {
				split++
			}
			// Whatever it sends to, nothing arrives that is not open.
			for _, b := range l.fc.Status.AliasBlocks {
				p := prefix(b.Alias)
				for a := p.Addr(); p.Contains(a); a = a.Next() {
					if site, at, _, ok := m.send(layouts, from, pod(2), a); ok && (site != to || !m[to].peers[from].open[at]) {
						t.Errorf("%s reaches %v of %s, which is not open", from, at, site)
					}
				}
			}
		}
	}
	if split == 0 {
		t.Error("whole prefixes were enough: the test shows nothing")
	}
}

// Whatever happens to other pods, peers and agents, in whatever order, pods that stay open are
// reached under the name that they had, at every step, and in the end all are.
func TestPodsThatStayAreReachedAtEveryStep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newMesh(rapid.IntRange(2, 4).Draw(t, "sites"))
		stays := map[string]bool{}
		key := func(from, to string, a netip.Addr) string { return from + to + a.String() }
		for _, id := range m.ids() {
			for other, l := range m[id].peers {
				for n := range 3 {
					l.open[pod(n)] = true
					stays[key(other, id, pod(n))] = true
				}
			}
		}
		m.settle(t)
		names := map[string]netip.Addr{}
		say := func(from, to string, a netip.Addr) bool {
			k := key(from, to, a)
			if !stays[k] {
				return false
			}
			alias, _ := m[from].called(to, a)
			if was, ok := names[k]; ok && was != alias {
				t.Fatalf("%v of %s was %v at %s and is %v", a, to, was, from, alias)
			}
			names[k] = alias
			return true
		}
		m.check(t, say)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			id := rapid.SampledFrom(m.ids()).Draw(t, "site")
			other := rapid.SampledFrom(slices.DeleteFunc(m.ids(), func(o string) bool { return o == id })).Draw(t, "peer")
			s := m[id]
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0:
				for range 20 {
					s.peers[other].open[pod(rapid.IntRange(3, 90).Draw(t, "pod"))] = true
				}
			case 1:
				for a := range s.peers[other].open {
					if !stays[key(other, id, a)] && rapid.Bool().Draw(t, "ends") {
						delete(s.peers[other].open, a)
					}
				}
			case 2:
				s.hear(t, m[other])
			case 3:
				s.plan(other)
			case 4:
				s.write(other)
			case 5:
				s.store(other)
			case 6:
				s.kill()
			case 7:
				for _, s := range m {
					s.now = s.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(t, "s")) * time.Second)
				}
			}
			m.check(t, say)
		}
		m.settle(t)
		m.check(t, nil)
	})
}

// A new peer does not change another's plan, and one that goes leaves the plan that there
// was before it.
func TestAPeerThatComesAndGoesChangesNothingOfOthers(t *testing.T) {
	t.Parallel()
	m := newMesh(3)
	for _, id := range m.ids() {
		for _, l := range m[id].peers {
			for n := range 8 {
				l.open[pod(n)] = true
			}
		}
	}
	m.settle(t)
	before := m.layouts(t)
	late := newSite(9)
	m.add(late)
	for id, s := range m {
		if id == late.id {
			for _, l := range s.peers {
				for n := range 200 {
					l.open[pod(n)] = true
				}
			}
			continue
		}
		s.peers[late.id].open[pod(3)] = true
	}
	m.settle(t)
	m.check(t, nil)
	with := m.layouts(t)
	for id := range before {
		for node, was := range before[id] {
			is := with[id][node]
			for _, w := range was.Peers {
				if w.Remote && !slices.ContainsFunc(is.Peers, func(v plan.WireGuardPeer) bool { return cmp.Equal(v, w, ofAddresses()) }) {
					t.Errorf("%s %s: %s %s changed", id, node, w.Cluster, w.Node)
				}
			}
			for _, w := range was.Translations {
				if !slices.ContainsFunc(is.Translations, func(v plan.Translation) bool { return cmp.Equal(v, w, ofAddresses()) }) {
					t.Errorf("%s %s: the translation for %s changed", id, node, w.Cluster)
				}
			}
		}
	}
	delete(m, late.id)
	for _, s := range m {
		delete(s.peers, late.id)
	}
	m.settle(t)
	if diff := cmp.Diff(before, m.layouts(t), ofAddresses()); diff != "" {
		t.Errorf("the plan is not what it was (-before +after):\n%s", diff)
	}
}

func ofAddresses() cmp.Option {
	return cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{}, netip.Prefix{})
}
