package controller

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// PlanNetwork returns what the network with a peer would be. A peer that told no prefixes is
// planned with some that are assumed. own is this cluster's gateways.
func (r *Peers) PlanNetwork(ctx context.Context, fc *v1alpha1.ForeignCluster, assumed []string, own []peering.PlannedGateway) (peering.NetworkPlan, error) {
	in := networkInput{peer: fc, assumed: assumed, own: own, pool: r.AliasPool, allocate: r.allocate, have: fc.Status.Aliases}
	var err error
	if in.local, in.omitted, err = r.States.Prefixes(ctx); err != nil {
		return peering.NetworkPlan{}, err
	}
	r.mu.Lock()
	in.taken, err = r.taken(ctx, fc, in.local)
	if m := r.memory[fc.UID]; m != nil && m.planned {
		in.have = m.aliases
	}
	r.mu.Unlock()
	if err != nil {
		return peering.NetworkPlan{}, err
	}
	if fc.Name == "" {
		return planNetwork(in), nil
	}
	var tunnel v1alpha1.Tunnel
	err = r.Client.Get(ctx, client.ObjectKey{Name: fc.Name}, &tunnel)
	if client.IgnoreNotFound(err) != nil {
		return peering.NetworkPlan{}, fmt.Errorf("tunnel to %s: %w", fc.Name, err)
	}
	if err == nil && tunnel.Spec.PeerID == fc.Spec.ClusterID {
		in.standing = &tunnel.Spec
	}
	return planNetwork(in), nil
}

// networkInput is what decides what the network with a peer would be.
type networkInput struct {
	peer *v1alpha1.ForeignCluster
	// assumed is the peer's prefixes where it told none, have the aliases that it has.
	assumed []string
	have    []v1alpha1.PrefixAlias
	// local is this cluster's prefixes, but for omitted ones; taken what no alias may overlap.
	local       []netip.Prefix
	omitted     int
	pool, taken []netip.Prefix
	allocate    func(taken []netip.Prefix, wanted netip.Prefix) (netip.Prefix, error)
	own         []peering.PlannedGateway
	standing    *v1alpha1.TunnelSpec
}

// planNetwork says what would be done for a peer, by what does it: see PlanAliases and
// PlanTunnel.
func planNetwork(in networkInput) peering.NetworkPlan {
	fc := in.peer.DeepCopy()
	network := fc.Status.Network
	if network == nil {
		network = &v1alpha1.PeerNetwork{}
	}
	out := peering.NetworkPlan{Own: in.own}
	for _, p := range in.pool {
		out.Pool = append(out.Pool, p.String())
	}
	for _, g := range network.Gateways {
		out.Theirs = append(out.Theirs, peering.PlannedGateway{Name: g.Name, Endpoints: g.Endpoints})
	}
	if len(network.Prefixes) == 0 {
		network.Prefixes = in.assumed
	}
	if len(network.Prefixes) == 0 {
		out.Warnings = append(out.Warnings, "the peer tells its pod prefixes when a contract wants a tunnel: name those that it will have with --prefix")
	}
	fc.Status.Network = network
	aliases, err := PlanAliases(in.have, network.Prefixes, in.pool, in.taken, in.allocate)
	if err != nil {
		out.Refused = append(out.Refused, strings.Split(err.Error(), "\n")...) // as errors.Join has it
	}
	fc.Status.Aliases = aliases
	for _, prefix := range network.Prefixes {
		alias, _ := aliasOf(aliases, prefix)
		before, had := aliasOf(in.have, prefix)
		out.Remote = append(out.Remote, peering.PlannedAlias{Prefix: prefix, Alias: alias, Stands: had && before == alias && alias != ""})
	}
	spec, _ := PlanTunnel(fc, in.local, in.standing)
	for _, prefix := range in.local {
		planned := peering.PlannedAlias{Prefix: prefix.String()}
		if spec != nil {
			planned.Alias, planned.Stands = aliasOf(spec.Local, prefix.String())
		}
		out.Local = append(out.Local, planned)
	}
	if len(in.local) == 0 {
		out.Refused = append(out.Refused, "this cluster has no pod prefixes: set --pod-cidr where nodes have no spec.podCIDR")
	}
	if in.omitted > 0 {
		out.Warnings = append(out.Warnings, fmt.Sprintf("%d pod prefixes of this cluster's nodes have no way to the peer, which can be told %d: set the prefix that holds them all with --pod-cidr", in.omitted, peering.MaxPrefixes))
	}
	out.Warnings = append(out.Warnings, usedOf(in.pool, in.taken)...)
	for _, g := range in.own {
		out.Warnings = append(out.Warnings, g.Problems...)
	}
	out.Warnings = distinct(out.Warnings)
	refused, warning := dialling(in.own, out.Theirs)
	if refused != "" {
		out.Refused = append(out.Refused, refused)
	}
	if warning != "" {
		out.Warnings = append(out.Warnings, warning)
	}
	return out
}

func distinct(texts []string) (out []string) {
	for _, t := range texts {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// usedOf says which parts of the alias pool are of no use, for they lie in what is in use.
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

// dialling says whether gateways of two clusters can find each other: it is enough that one
// side can dial the other. What a name leads to is found out by who dials it.
func dialling(own, theirs []peering.PlannedGateway) (refused, warning string) {
	us, them := reachOf(own), reachOf(theirs)
	switch {
	case len(own) == 0:
		return "no node is a gateway: the fabric runs on none; look at DaemonSet entente-fabric", ""
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

// reaches is what kinds of endpoints gateways have.
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

// isPublic says that an address can be dialled from other networks, as far as it tells. Those
// of carriers' NAT (RFC 6598) cannot.
func isPublic(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !netip.MustParsePrefix("100.64.0.0/10").Contains(a)
}
