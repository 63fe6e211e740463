package fabric

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// Known is the state that a node's fabric has read and still uses when it can no longer be
// read. Only the deletion of a Tunnel ends that tunnel: a Secret that was
// deleted, or has lost a key, does not. The zero value is empty.
type Known struct {
	// Keys are the preshared keys of each Tunnel.
	Keys map[types.UID]TunnelKeys
	// Gateways are the gateways when there last were any.
	Gateways []string
}

// TunnelKeys is the preshared key of a Tunnel, and those before and after it.
type TunnelKeys struct {
	plan.PresharedKey
	plan.SpareKeys
}

// tunnelKeys reads the keys of the tunnel to a peer from the fabric's Secret.
func tunnelKeys(secret map[string][]byte, peer string) (TunnelKeys, bool) {
	read := func(suffix string) plan.PresharedKey {
		if psk := secret[peer+suffix]; len(psk) == len(plan.PresharedKey{}) {
			return plan.PresharedKey(psk)
		}
		return plan.PresharedKey{}
	}
	number, _ := strconv.ParseUint(string(secret[peer+v1alpha1.FabricKeyNumber]), 10, 63)
	out := TunnelKeys{read(""), plan.SpareKeys{Number: number, Next: read(v1alpha1.FabricKeyNext), Previous: read(v1alpha1.FabricKeyPrevious), First: read(v1alpha1.FabricKeyFirst)}}
	return out, !out.IsZero()
}

// Update returns the state after another read. secret is the data of the fabric's Secret.
func (k Known) Update(nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel, secret map[string][]byte) Known {
	out := Known{Keys: map[types.UID]TunnelKeys{}}
	for i := range tunnels {
		uid := tunnels[i].UID
		if keys, ok := tunnelKeys(secret, tunnels[i].Spec.PeerID); ok {
			out.Keys[uid] = keys
		} else if keys, ok := k.Keys[uid]; ok {
			out.Keys[uid] = keys
		}
	}
	for i := range nodes {
		if nodes[i].Spec.Gateway {
			out.Gateways = append(out.Gateways, nodes[i].Name)
		}
	}
	if len(out.Gateways) == 0 {
		out.Gateways = k.Gateways
	}
	return out
}

// Desired returns the desired state of a node's fabric. It returns nil, and the fabric stays
// as it is, until the agent has written to the FabricNodes which cluster this
// is and which nodes are gateways. own is the node's spec.podCIDRs; cfg has further prefixes of this
// cluster's pods, and the pool of aliases.
func Desired(cfg Config, own []netip.Prefix, nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel, known Known, now time.Time) *plan.Desired {
	desired := &plan.Desired{Node: cfg.Node, Pods: slices.Clone(cfg.PodCIDRs), Pool: cfg.AliasPool}
	for i := range nodes {
		if nodes[i].Name == cfg.Node {
			desired.ClusterID, desired.Announced = nodes[i].Spec.ClusterID, kube.Prefixes(nodes[i].Spec.AnnouncedPodCIDRs)
			desired.Pods = append(desired.Pods, kube.Prefixes(nodes[i].Spec.ClusterPodCIDRs)...)
		}
	}
	if desired.ClusterID == "" || (len(known.Gateways) == 0 && len(tunnels) > 0) {
		return nil
	}
	for i := range nodes {
		n := &nodes[i]
		node := plan.Node{Name: n.Name, Endpoints: n.Status.Endpoints, Gateway: slices.Contains(known.Gateways, n.Name)}
		if key, err := plan.ParsePublicKey(n.Status.PublicKey); err == nil {
			node.PublicKey = key
		}
		if next, err := plan.ParsePublicKey(n.Status.NextPublicKey); err == nil {
			node.NextKey = next
		}
		node.PodCIDRs = kube.Prefixes(n.Status.PodCIDRs)
		if n.Name == cfg.Node {
			node.PodCIDRs = own
			if due := keyDue(n, cfg.KeyEvery); !due.IsZero() && !now.Before(due) {
				desired.ReplaceKey, desired.Regardless = node.PublicKey, now.Sub(due) >= keyPatience
			}
		}
		desired.Nodes = append(desired.Nodes, node)
	}
	announced := isAnnounced(nodes, cfg.Node)
	// The order in which peers came to be trusted decides which of two that
	// claim the same address has it.
	ordered := slices.SortedFunc(slices.Values(tunnels), func(a, b v1alpha1.Tunnel) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for i := range ordered {
		if isGone(&ordered[i].Spec, now) {
			continue
		}
		peer := peerOf(&ordered[i].Spec, now)
		if !announced {
			peer.Probed = nil // they do not know this node, and would not answer it
		}
		keys, ok := known.Keys[ordered[i].UID]
		peer.PresharedKey, peer.Spare, peer.KeyMissing = keys.PresharedKey, keys.SpareKeys, !ok
		desired.Peers = append(desired.Peers, peer)
		// Also the prefixes that the peer knows address by address.
		for _, p := range ordered[i].Spec.Local {
			desired.Pods = append(desired.Pods, kube.Prefixes([]string{p.Prefix})...)
		}
	}
	return desired
}

// keyDue returns when to replace the key of a node: when that is asked for, or when the key is old. The
// zero time means never. The age at which keys are replaced is reduced by up to a tenth, derived from the
// key, so that not all are replaced at once.
func keyDue(n *v1alpha1.FabricNode, every time.Duration) (due time.Time) {
	if n.Status.PublicKeySince == nil {
		return due
	}
	since := n.Status.PublicKeySince.Time
	if every > 0 {
		sum := sha256.Sum256([]byte(n.Name + " " + n.Status.PublicKey))
		due = since.Add(every - time.Duration(uint64(every)/10*uint64(binary.BigEndian.Uint16(sum[:]))>>16))
	}
	asked, err := time.Parse(time.RFC3339, n.Annotations[v1alpha1.AnnotationRotateKey])
	if err == nil && asked.After(since) && (due.IsZero() || asked.Before(due)) {
		due = asked
	}
	return due
}

// isGone reports whether all contracts of a tunnel have ended. The agent has deleted the Tunnel by
// then, unless the agent or the API server does not run.
func isGone(spec *v1alpha1.TunnelSpec, now time.Time) bool {
	return spec.InBand == nil && len(spec.ContractEnds) > 0 && !slices.ContainsFunc(spec.ContractEnds, func(e v1alpha1.ContractEnd) bool { return !isOver(e, now) })
}

// isOver reports whether a contract has ended, with a tolerance for clocks that differ.
func isOver(e v1alpha1.ContractEnd, now time.Time) bool {
	return !now.Before(e.Time.Add(peering.ExpirySkew))
}

func peerOf(spec *v1alpha1.TunnelSpec, now time.Time) plan.Peer {
	peer := plan.Peer{ClusterID: spec.PeerID, InBand: spec.InBand != nil}
	peer.Gateways, peer.Nodes = nodesOf(spec, spec.Gateways), nodesOf(spec, spec.Nodes)
	peer.Local, peer.Remote = Mappings(spec.Local, spec.LocalAliasBlocks), Mappings(spec.Remote, nil)
	peer.Local, peer.Transit = apart(peer.Local, spec.Transit)
	peer.RemoteBlocks = kube.Prefixes(spec.RemoteAliasBlocks)
	for _, n := range spec.ProbedNodes {
		peer.Probed = append(peer.Probed, plan.Probed{Node: n.Node, Addrs: kube.Addrs(n.Addresses)})
	}
	over := map[string]bool{}
	for _, e := range spec.ContractEnds {
		over[e.Contract] = isOver(e, now)
	}
	for _, e := range spec.Allow {
		if !over[e.Contract] && (e.Until == nil || !isOver(v1alpha1.ContractEnd{Time: *e.Until}, now)) {
			peer.Inbound = append(peer.Inbound, exposureOf(e))
		}
	}
	return peer
}

// apart separates the addresses of third clusters from the others for which the peer has aliases.
func apart(local []plan.Mapping, third []v1alpha1.TransitAddresses) (own []plan.Mapping, transit []plan.Transit) {
	of := map[netip.Prefix]string{}
	for _, t := range third {
		for _, a := range kube.Addrs(t.Addresses) {
			of[netip.PrefixFrom(a, a.BitLen())] = t.ClusterID
		}
	}
	for _, m := range local {
		if cluster, ok := of[m.Real]; ok {
			transit = append(transit, plan.Transit{Cluster: cluster, Mapping: m})
		} else {
			own = append(own, m)
		}
	}
	return own, transit
}

// nodesOf returns nodes of a peer. Pods that are known address by address are reached through
// gateways only.
func nodesOf(spec *v1alpha1.TunnelSpec, nodes []v1alpha1.Gateway) []plan.Gateway {
	var out []plan.Gateway
	split := func(p netip.Prefix) bool {
		return slices.ContainsFunc(spec.Remote, func(a v1alpha1.PrefixAlias) bool {
			q, err := netip.ParsePrefix(a.Prefix)
			return err == nil && a.Alias == "" && q.Overlaps(p)
		})
	}
	for _, g := range nodes {
		key, err := plan.ParsePublicKey(g.PublicKey)
		overlay, overlayErr := netip.ParseAddr(g.OverlayAddress)
		if err != nil || overlayErr != nil {
			continue // the agent does not write such a node
		}
		node := plan.Gateway{Node: g.Name, PublicKey: key, Endpoints: g.Endpoints, Overlay: overlay, Observed: observed(g.ObservedEndpoints), Pods: slices.DeleteFunc(kube.Prefixes(g.PodCIDRs), split)}
		if next, err := plan.ParsePublicKey(g.NextPublicKey); err == nil {
			node.NextKey = next
		}
		out = append(out, node)
	}
	return out
}

// observed parses the addresses at which a gateway is seen.
func observed(texts []string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, text := range texts {
		if e, err := netip.ParseAddrPort(text); err == nil {
			out = append(out, e)
		}
	}
	return out
}

// exposureOf converts an Exposure for the fabric. Malformed parts open
// nothing.
func exposureOf(e v1alpha1.Exposure) plan.Exposure {
	name := e.Contract + "/" + e.Namespace
	if e.DestinationPeerID != "" {
		name += "/" + e.DestinationPeerID
	}
	if e.HomePeerID != "" {
		name += "/of/" + e.HomePeerID
	}
	out := plan.Exposure{Name: name, Third: e.DestinationPeerID, AnySource: e.AnySource, Sources: kube.Addrs(e.From)}
	for _, to := range e.To {
		for _, a := range kube.Addrs(to.Addresses) {
			if to.AnyPort {
				out.Destinations = append(out.Destinations, plan.Destination{Addr: a})
				continue
			}
			for _, p := range to.Ports {
				if protocol, err := plan.ParseProtocol(string(p.Protocol)); err == nil && p.Port > 0 && p.Port <= math.MaxUint16 {
					out.Destinations = append(out.Destinations, plan.Destination{Addr: a, Protocol: protocol, Port: uint16(p.Port)})
				}
			}
		}
	}
	return out
}

// Mappings converts aliases of prefixes and of single addresses for the fabric. The aliases of single
// addresses are in the blocks.
func Mappings(aliases []v1alpha1.PrefixAlias, blocks []v1alpha1.AliasBlock) []plan.Mapping {
	var out []plan.Mapping
	for _, a := range aliases {
		prefix, err := netip.ParsePrefix(a.Prefix)
		alias, aliasErr := netip.ParsePrefix(a.Alias)
		if err == nil && aliasErr == nil {
			out = append(out, plan.Mapping{Real: prefix, Alias: alias})
		}
	}
	for _, b := range blocks {
		block, err := netip.ParsePrefix(b.Alias)
		if err != nil {
			continue
		}
		alias := block.Masked().Addr()
		for _, text := range b.Addresses {
			if !block.Contains(alias) {
				break
			}
			if own, err := netip.ParseAddr(text); err == nil {
				out = append(out, plan.Mapping{Real: netip.PrefixFrom(own, own.BitLen()), Alias: netip.PrefixFrom(alias, alias.BitLen())})
			}
			alias = alias.Next()
		}
	}
	return out
}

// NodeStatus returns the status of a FabricNode for a fabric, without the time.
func NodeStatus(s tunnel.Status, own *corev1.Node) v1alpha1.FabricNodeStatus {
	status := v1alpha1.FabricNodeStatus{
		Endpoints: nodeEndpoints(own, s.ListenPort), Backend: string(s.Backend),
	}
	for _, p := range s.PodCIDRs {
		status.PodCIDRs = append(status.PodCIDRs, p.String())
	}
	for _, a := range s.Sources {
		status.PodNetworkAddresses = append(status.PodNetworkAddresses, a.String())
	}
	status.ProbesEnabled = true
	status.Offloads, status.MissingOffloads = offloads(s)
	if s.PublicKey != (plan.PublicKey{}) {
		status.PublicKey = s.PublicKey.String()
	}
	if s.NextKey != (plan.PublicKey{}) {
		status.NextPublicKey, status.KeyRotationMessage = s.NextKey.String(), peering.Text(s.KeyWaits, peering.MaxMessageLen)
	}
	if s.Overlay.IsValid() {
		status.OverlayAddress = s.Overlay.String()
	}
	problems := slices.Clone(s.Problems)
	problem := func(format string, args ...any) {
		problems = append(problems, plan.Problem{Text: fmt.Sprintf(format, args...)})
	}
	first := problemOfEach(s)
	for _, p := range s.Peers {
		if p.Active {
			status.Paths = append(status.Paths, pathOf(p, first[p.Cluster]))
		}
	}
	for _, p := range standby(s.Peers) {
		path := pathOf(p, first[p.Cluster])
		path.Standby = true
		status.Paths = append(status.Paths, path)
	}
	for _, e := range s.Ends {
		status.EndToEnd = append(status.EndToEnd, endOf(e))
	}
	seen := observedGateways(s.Peers)
	if left := len(seen) - maxObservedGateways; left > 0 {
		seen = seen[:maxObservedGateways]
		problem("the observed addresses of %d gateways of peers are not in this status, which has %d", left, maxObservedGateways)
	}
	status.ObservedGateways = seen
	slices.SortFunc(status.Paths, func(a, b v1alpha1.FabricPath) int {
		return cmp.Or(cmp.Compare(a.PeerID, b.PeerID), cmp.Compare(a.Node, b.Node))
	})
	direct, left := directPaths(s.Peers)
	if left > 0 {
		problem("%d direct paths are not in this status, which has %d: they work all the same", left, maxDirect)
	}
	status.DirectPaths, status.Problems = direct, firstProblems(problems)
	status.Conditions = hopConditions(s.Peers, status.Paths, status.EndToEnd)
	return status
}

// offloads returns the names of the offloads that a device has, and of those that it lacks.
func offloads(s tunnel.Status) (has, lacks []string) {
	for _, name := range slices.Sorted(maps.Keys(s.Offloads)) {
		if s.Offloads[name] {
			has = append(has, string(name))
		} else {
			lacks = append(lacks, string(name))
		}
	}
	return has, lacks
}

// problemOfEach returns the first problem of each peer.
func problemOfEach(s tunnel.Status) map[string]string {
	out := map[string]string{}
	if s.Unfiltered != "" {
		for _, p := range s.Peers {
			if p.Remote {
				out[p.Cluster] = "this node passes no packets of other clusters, because it has no firewall rules for them: see its problems"
			}
		}
	}
	for _, p := range s.Problems {
		if out[p.Peer] == "" {
			out[p.Peer] = p.Text
		}
	}
	return out
}

// directPaths returns the direct paths in the order of their peers, and how many there are
// beyond those that a status has.
func directPaths(peers []tunnel.PeerStatus) (out []v1alpha1.FabricDirectPath, left int) {
	for _, p := range peers {
		if p.Direct || p.Entry || p.OnDemand {
			out = append(out, directOf(p))
		}
	}
	shown := min(len(out), maxDirect)
	return out[:shown], len(out) - shown
}

// firstProblems returns as many problems as a status has room for, with the number of the others. First come
// those of the node itself, then one of each peer in turn, so that no peer hides the problems of others.
func firstProblems(problems []plan.Problem) []string {
	type place struct {
		turn int
		text string
	}
	var ordered []place
	count := map[string]int{}
	for _, p := range problems {
		if p.Peer != "" {
			count[p.Peer]++
		}
		ordered = append(ordered, place{count[p.Peer], p.Text})
	}
	slices.SortStableFunc(ordered, func(a, b place) int { return cmp.Compare(a.turn, b.turn) })
	var texts []string
	for _, p := range ordered {
		texts = append(texts, p.text)
	}
	if left := len(texts) - maxProblems; left > 0 {
		return append(slices.Clone(texts[:maxProblems-1]), fmt.Sprintf("and %d more problems, which are listed when some of these are solved", left+1))
	}
	return texts
}

// observedGateways returns the gateways of peers that are not at an announced endpoint, with their
// observed addresses.
func observedGateways(peers []tunnel.PeerStatus) []v1alpha1.ObservedGateway {
	var out []v1alpha1.ObservedGateway
	for _, p := range peers {
		if p.Remote && !p.OnDemand && p.State == probe.PathUp && p.Way == tunnel.WayObserved {
			out = append(out, v1alpha1.ObservedGateway{PeerID: p.Cluster, PublicKey: p.PublicKey.String(), Endpoint: p.Endpoint.String()})
		}
	}
	return out
}

// standby returns the best path to each peer to whose gateways a node has tunnels and whose traffic it does
// not carry.
func standby(peers []tunnel.PeerStatus) []tunnel.PeerStatus {
	best := map[string]tunnel.PeerStatus{}
	for _, p := range peers {
		if !p.Remote || p.OnDemand || slices.ContainsFunc(peers, func(q tunnel.PeerStatus) bool { return q.Cluster == p.Cluster && q.Active }) {
			continue
		}
		if q, ok := best[p.Cluster]; !ok || q.State != probe.PathUp && p.State == probe.PathUp {
			best[p.Cluster] = p
		}
	}
	return slices.Collect(maps.Values(best))
}

func pathOf(p tunnel.PeerStatus, problem string) v1alpha1.FabricPath {
	path := v1alpha1.FabricPath{PeerID: p.Cluster, Node: p.Node, Endpoint: p.Endpoint.String(), ConnectionType: string(p.Way), Message: problem}
	if !p.Endpoint.IsValid() {
		path.Endpoint = ""
	}
	if p.Remote {
		path.PresharedKeyNumber, path.NextPresharedKeyStored = int64(min(p.KeyNumber, math.MaxInt64)), p.NextKey
	}
	at := " at UDP " + path.Endpoint
	switch {
	case path.Endpoint == "":
		at = ", which has no endpoint to dial and has not dialled this node,"
	case p.Way == tunnel.WayRelayed:
		at = " through the agents, which was tried last,"
	}
	switch p.State {
	case probe.PathUp:
		path.State = "Up"
		path.RoundTripMicroseconds = rounded(p.RTT).Microseconds()
		path.MTU, path.LargePacketsLost = int32(min(p.MTU, math.MaxInt32)), p.LargeLost
	case probe.PathDown:
		path.State = "Down"
		if path.Message == "" {
			path.Message = fmt.Sprintf("probes to gateway %s%s were lost since %s: check that the port is open both ways", p.Node, at, p.Since.UTC().Format(time.RFC3339))
		}
	default:
		path.State = "Unknown"
		if path.Message == "" {
			path.Message = fmt.Sprintf("no probe to gateway %s%s was answered yet", p.Node, at)
		}
	}
	return path
}

// directOf returns the status of a tunnel between the nodes of two pods. If it does not work that is not
// a problem: gateways carry its packets.
func directOf(p tunnel.PeerStatus) v1alpha1.FabricDirectPath {
	d := v1alpha1.FabricDirectPath{PeerID: p.Cluster, Node: p.Node, InUse: p.Direct || p.Entry, State: "Unknown", ConnectionType: string(p.Way)}
	if p.Endpoint.IsValid() {
		d.Endpoint = p.Endpoint.String()
	}
	switch {
	case p.State == probe.PathUp:
		d.State, d.RoundTripMicroseconds, d.MTU = "Up", rounded(p.RTT).Microseconds(), int32(min(p.MTU, math.MaxInt32))
		if !d.InUse {
			d.Message = "packets go through gateways until both nodes have announced the same pods to each other, and the tunnel has worked for a while"
		}
	case p.State == probe.PathDown:
		d.State = "Down"
		fallthrough
	default:
		d.Message = fmt.Sprintf("packets go through gateways: no probe to node %s is answered; to have them go directly, let UDP pass between the two nodes", p.Node)
	}
	return d
}

// rounded returns a round trip with two digits, so that the status does not change with each
// probe.
func rounded(d time.Duration) time.Duration {
	unit := time.Microsecond
	for d/unit >= 100 {
		unit *= 10
	}
	return d.Round(unit)
}

// nodeEndpoints returns where the other nodes of the cluster dial a node: internal addresses come
// before external ones.
func nodeEndpoints(n *corev1.Node, port int) []string {
	if port == 0 {
		return nil
	}
	var out []string
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && net.ParseIP(a.Address) != nil {
				out = append(out, net.JoinHostPort(a.Address, strconv.Itoa(port)))
			}
		}
	}
	if len(out) > 8 {
		out = out[:8]
	}
	return out
}
