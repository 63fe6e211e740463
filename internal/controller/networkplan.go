package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// PlanNetwork returns what the network with a peer would be. For a peer that announced no prefixes it assumes the
// given ones. own is this cluster's gateways.
func (r *Peers) PlanNetwork(ctx context.Context, fc *v1alpha1.ForeignCluster, assumed []string, own []peering.PlannedGateway) (peering.NetworkPlan, error) {
	in := networkInput{peer: fc, assumed: assumed, own: own, aliases: aliases.Input{
		Pool: r.AliasPool, Have: stored.Allocation(fc.Status.Aliases, fc.Status.AliasBlocks), Now: r.Now(),
	}}
	pods, err := r.States.PodPrefixes(ctx)
	if err != nil {
		return peering.NetworkPlan{}, err
	}
	in.local, in.omitted, in.learnt = pods.Prefixes, pods.Omitted, learntText(pods)
	if in.aliases.Taken, in.aliases.Avoid, err = r.taken(ctx, in.local); err != nil {
		return peering.NetworkPlan{}, err
	}
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return peering.NetworkPlan{}, fmt.Errorf("list fabric nodes: %w", err)
	}
	in.nodes, in.outside = nodes.Items, cmp.Or(gateways.PodsOutside(r.OwnPod, in.local, nodes.Items), pods.Advice)
	if r.Hosts != nil {
		hosts, err := r.Hosts(ctx)
		if err != nil {
			return peering.NetworkPlan{}, err
		}
		in.hosts, _ = allow.Plan(allow.ExposedHosts(hosts, fc.Name), nil)
	}
	r.mu.Lock()
	in.aliases.Others, err = r.spaces(ctx, fc)
	in.aliases.Resting, in.aliases.JustReleased = r.released.OfOthers(fc.Spec.ClusterID, in.aliases.Now)
	if m := r.memory[fc.UID]; m != nil && m.planned {
		in.aliases.Have = m.aliases
	}
	r.mu.Unlock()
	if err != nil {
		return peering.NetworkPlan{}, err
	}
	var peers v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &peers, client.UnsafeDisableDeepCopy); err != nil {
		return peering.NetworkPlan{}, fmt.Errorf("list foreign clusters: %w", err)
	}
	in.transit = transit.States(fc, peers.Items)
	var offloaded v1alpha1.NamespaceOffloadingList
	if err := r.Client.List(ctx, &offloaded, client.UnsafeDisableDeepCopy); err != nil {
		return peering.NetworkPlan{}, fmt.Errorf("list namespace offloadings: %w", err)
	}
	in.gaps = transit.Gaps(fc, peers.Items, offloaded.Items)
	if fc.Name == "" {
		return planNetwork(in), nil
	}
	var tunnel v1alpha1.Tunnel
	err = r.Client.Get(ctx, client.ObjectKey{Name: fc.Name}, &tunnel)
	if client.IgnoreNotFound(err) != nil {
		return peering.NetworkPlan{}, fmt.Errorf("tunnel to %s: %w", fc.Name, err)
	}
	if err == nil && tunnel.Spec.PeerID == fc.Spec.ClusterID {
		in.current = &tunnel.Spec
	}
	return planNetwork(in), nil
}

// networkInput is everything that decides what the network with a peer would be.
type networkInput struct {
	peer *v1alpha1.ForeignCluster
	// assumed is the peer's prefixes if it announced none.
	assumed []string
	// aliases is what decides about aliases, except for what the peer announced.
	aliases aliases.Input
	// local is this cluster's prefixes without omitted ones.
	local   []netip.Prefix
	omitted int
	// learnt says where they were learnt, and what is not one of them.
	learnt []string
	// outside says that pods have addresses outside of these prefixes, and what to set; empty if that is not known.
	outside string
	nodes   []v1alpha1.FabricNode
	own     []peering.PlannedGateway
	current *v1alpha1.TunnelSpec
	// hosts is the exposed addresses that belong to hosts, not pods.
	hosts []v1alpha1.Exposure
	// transit is the state of transit between the peer and third clusters.
	transit []transit.State
	// gaps is the third clusters that have pods of the same namespaces as the peer, and to which no traffic passes.
	gaps []transit.Gap
}

// planNetwork computes the plan for a peer by the same functions that carry it out: see aliases.Plan and
// PlanTunnel.
func planNetwork(in networkInput) peering.NetworkPlan {
	fc := in.peer.DeepCopy()
	network := cmp.Or(fc.Status.Network, &v1alpha1.PeerNetwork{})
	out := peering.NetworkPlan{Own: in.own, Transit: plannedTransit(in), Pool: wire.Texts(in.aliases.Pool)}
	for _, g := range network.Gateways {
		out.Theirs = append(out.Theirs, peering.PlannedGateway{Name: g.Name, Endpoints: g.Endpoints})
	}
	if len(network.Prefixes) == 0 {
		network.Prefixes = in.assumed
	}
	if len(network.Prefixes) == 0 {
		out.Warnings = append(out.Warnings, "the peer announces its pod prefixes when a contract wants a tunnel: name those that it will have with --prefix")
	}
	fc.Status.Network = network
	result := planFor(in.aliases, network, transit.Through(fc))
	out.Refused = append(out.Refused, lacksOf(result, in.aliases.Pool)...)
	fc.Status.Aliases, fc.Status.AliasBlocks = stored.Status(result.Allocation)
	have, _ := stored.Status(in.aliases.Have)
	for _, prefix := range network.Prefixes {
		alias, _ := aliasOf(fc.Status.Aliases, prefix)
		before, had := aliasOf(have, prefix)
		planned := peering.PlannedAlias{Prefix: prefix, Alias: alias, Stands: had && before == alias && alias != ""}
		planned.ByAddress = slices.ContainsFunc(result.ByAddress, func(p netip.Prefix) bool { return p.String() == prefix })
		planned.Addresses = aliasesIn(fc.Status.AliasBlocks, prefix)
		out.Remote = append(out.Remote, planned)
	}
	out.Local = plannedLocal(in, fc)
	if len(in.local) == 0 {
		out.Refused = append(out.Refused, "this cluster has no pod prefixes, as its nodes have no spec.podCIDRs, and neither its network plugin nor kubeadm says any: set cluster.podCIDRs in the chart's values")
	}
	if in.omitted > 0 {
		out.Warnings = append(out.Warnings, beyondPrefixes(in.omitted))
	}
	out.Warnings = append(out.Warnings, in.learnt...)
	if in.outside != "" {
		out.Warnings = append(out.Warnings, in.outside)
	}
	out.Warnings = append(out.Warnings, usedOf(in.aliases.Pool, in.aliases.Taken)...)
	for _, g := range in.gaps {
		out.Warnings = append(out.Warnings, gapText(fc, g))
	}
	for _, g := range in.own {
		out.Warnings = append(out.Warnings, g.Problems...)
	}
	out.Warnings = union(nil, out.Warnings)
	refused, warning := dialling(in.own, out.Theirs)
	if refused != "" {
		out.Refused = append(out.Refused, refused)
	}
	if warning != "" {
		out.Warnings = append(out.Warnings, warning)
	}
	return out
}

// learntText says where this cluster's prefixes were learnt, unless spec.podCIDRs of Nodes say it all, and which others
// are left out.
func learntText(pods PodPrefixes) (out []string) {
	if len(pods.Sources) > 1 || len(pods.Sources) == 1 && pods.Sources[0] != FromNodes {
		out = append(out, "the prefixes of this cluster are by "+strings.Join(pods.Sources, ", "))
	}
	return append(out, pods.LeftOut...)
}

// plannedLocal returns the aliases that the peer uses for this cluster's prefixes.
func plannedLocal(in networkInput, fc *v1alpha1.ForeignCluster) (out []peering.PlannedAlias) {
	var opens []v1alpha1.Exposure
	if in.current != nil {
		opens = in.current.Allow
	}
	opens = slices.DeleteFunc(slices.Concat(opens, in.hosts), func(e v1alpha1.Exposure) bool { return e.DestinationPeerID != "" })
	own, _ := ownAddresses(opens, in.nodes, fc.Status.Network)
	spec, _ := PlanTunnel(fc, in.local, own, nil, in.current)
	for _, prefix := range in.local {
		planned := peering.PlannedAlias{Prefix: prefix.String()}
		if spec != nil {
			planned.Alias, planned.Stands = aliasOf(spec.Local, prefix.String())
			planned.Addresses = aliasesIn(spec.LocalAliasBlocks, prefix.String())
			planned.ByAddress = planned.Addresses > 0
		}
		out = append(out, planned)
	}
	for _, a := range hostsIn(opens, in.local) {
		planned := peering.PlannedAlias{Prefix: netip.PrefixFrom(a, a.BitLen()).String()}
		if spec != nil {
			if alias, ok := allow.CalledBy(spec, a); ok {
				planned.Alias, planned.Stands = netip.PrefixFrom(alias, alias.BitLen()).String(), true
			}
		}
		out = append(out, planned)
	}
	return out
}

// plannedTransit returns the transit between the peer and third clusters, and how many addresses there have an
// alias in the cluster that is to reach them.
func plannedTransit(in networkInput) []peering.PlannedTransit {
	var out []peering.PlannedTransit
	for _, s := range in.transit {
		p := peering.PlannedTransit{Third: cmp.Or(s.Name, s.Third), Through: s.Through, Missing: s.Missing}
		var announced []v1alpha1.TransitAddresses
		var blocks []v1alpha1.AliasBlock
		switch {
		case s.Through && in.peer.Status.Network != nil:
			announced, blocks = in.peer.Status.Network.Transit, in.peer.Status.AliasBlocks
		case !s.Through && in.current != nil:
			announced, blocks = in.current.Transit, in.current.LocalAliasBlocks
		}
		for _, t := range announced {
			if t.ClusterID != s.Third {
				continue
			}
			p.Addresses = len(t.Addresses)
			for _, b := range blocks {
				p.Named += sets.New(t.Addresses...).Intersection(sets.New(b.Addresses...)).Len()
			}
		}
		out = append(out, p)
	}
	return out
}

// gapText says which pods do not reach each other, and how to let them.
func gapText(fc *v1alpha1.ForeignCluster, g transit.Gap) string {
	namespaces := strings.Join(g.Namespaces[:min(len(g.Namespaces), maxNamedNamespaces)], ", ")
	if more := len(g.Namespaces) - maxNamedNamespaces; more > 0 {
		namespaces += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("pods of %[1]s that run at %[2]s and at %[3]s do not reach each other: transit through this cluster is off between the two; to turn it on, add %[4]s to spec.transit.passTo of ForeignCluster %[2]s and %[5]s to that of %[3]s, and have both add the other to spec.transit.through of the ForeignCluster that this cluster is there",
		namespaces, fc.Name, g.Third, g.ThirdID, fc.Spec.ClusterID)
}

// hostsIn returns, sorted, the exposed addresses that are outside of the pods' prefixes.
func hostsIn(allow []v1alpha1.Exposure, pods []netip.Prefix) []netip.Addr {
	found := map[netip.Addr]bool{}
	for _, e := range allow {
		for _, d := range e.To {
			for _, a := range kube.Addrs(d.Addresses) {
				if !slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(a) }) {
					found[a] = true
				}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), netip.Addr.Compare)
}

// aliasesIn counts the addresses of a prefix that have an alias each.
func aliasesIn(blocks []v1alpha1.AliasBlock, prefix string) (n int) {
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return 0
	}
	for _, b := range blocks {
		for _, a := range kube.Addrs(b.Addresses) {
			if p.Contains(a) {
				n++
			}
		}
	}
	return n
}

// usedOf says which parts of the alias pool cannot be used, because they lie in prefixes that are in use.
func usedOf(pool, taken []netip.Prefix) (out []string) {
	for _, p := range pool {
		for _, t := range taken {
			if t.Bits() <= p.Bits() && t.Overlaps(p) {
				out = append(out, fmt.Sprintf("no alias can be taken from the pool's %v: it lies in %v, which is in use; name another pool with network.aliasPool", p, t))
			}
		}
	}
	return out
}

// dialling checks whether gateways of two clusters can reach each other: it is enough that one side can dial the
// other. A name is resolved only by the gateway that dials it.
func dialling(own, theirs []peering.PlannedGateway) (refused, warning string) {
	us, them := reachOf(own), reachOf(theirs)
	switch {
	case len(own) == 0:
		return "no node is a gateway: the fabric runs on none; check DaemonSet entente-fabric", ""
	case len(theirs) == 0 && us.public:
		return "", ""
	case len(theirs) == 0 && us.any():
		return "", "this cluster's gateways have private addresses only: the peer has to be in the same network, or to have gateways that can be dialled from here, or name others with fabric.endpoints or the annotation " + v1alpha1.AnnotationEndpoint
	case len(theirs) == 0:
		return "", "this cluster's gateways have no endpoint: the peer has to have gateways that can be dialled from here"
	case !us.any() && !them.any():
		return "neither side has an endpoint that the other could dial: name one with fabric.endpoints or the annotation " + v1alpha1.AnnotationEndpoint, ""
	case us.any() && them.any() && !us.named && !them.named && (us.four != them.four) && (us.six != them.six):
		return "one side has IPv4 endpoints only and the other IPv6 ones only: give a gateway an endpoint of the other family", ""
	case !us.public && !them.public:
		return "", "both sides' gateways have private addresses only, which works in one network: else name others with fabric.endpoints or the annotation " + v1alpha1.AnnotationEndpoint
	}
	return "", ""
}

// reaches is the kinds of endpoints that gateways have.
type reaches struct{ four, six, named, public bool }

func (r reaches) any() bool { return r.four || r.six || r.named }

func reachOf(gateways []peering.PlannedGateway) (r reaches) {
	for _, g := range gateways {
		for _, e := range g.Endpoints {
			host, _, err := net.SplitHostPort(e)
			if err != nil {
				continue
			}
			addr, err := netip.ParseAddr(host)
			switch {
			case err != nil:
				r.named, r.public = true, true
				continue
			case addr.Unmap().Is4():
				r.four = true
			default:
				r.six = true
			}
			r.public = r.public || isPublic(addr.Unmap())
		}
	}
	return r
}

// isPublic reports whether an address can be dialled from other networks, as far as the address shows. Those of
// carriers' NAT (RFC 6598) cannot.
func isPublic(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !netip.MustParsePrefix("100.64.0.0/10").Contains(a)
}
