package controller

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases/stored"
	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/presharedkeys"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
)

// States is the state that this cluster sends to each peer, and the record of what they send.
type States struct {
	Client    client.Client
	Namespace string
	// Self is this cluster's ID.
	Self peering.ClusterID
	// Endpoints is where this cluster's peer API can be dialled, best first.
	Endpoints func() []string
	// PodCIDRs overrides the prefixes in spec.podCIDRs of nodes, and what is learnt.
	PodCIDRs []netip.Prefix
	// Learn returns the prefixes of pods besides spec.podCIDRs of nodes. Nil means that there are none.
	Learn func(context.Context) (LearntPods, error)
	// Reserved returns the prefixes of Services, which no pods have.
	Reserved Reserved
	// Aggregate returns at most the given number of prefixes that contain all of prefixes and none of avoid, and
	// how many of prefixes they do not contain.
	Aggregate func(prefixes []netip.Prefix, most int, avoid []netip.Prefix) ([]netip.Prefix, int)
	// KeyShare returns this cluster's share of the preshared key with a number of the tunnel to a peer, the same at each
	// call.
	KeyShare func(peer peering.ClusterID, number uint64) peering.PresharedKeyShare
	// KeyEvery is how long a preshared key is used before it is replaced; 0 means forever.
	KeyEvery time.Duration
	Now      func() time.Time
	// Exchange derives the preshared keys of in-band tunnels. Required if there are any.
	Exchange *inband.Exchange
	// Offering returns whether this cluster offers a peer anything now. Nil leaves that unsaid.
	Offering func(peer peering.ClusterID) peering.Offering
	// Capabilities lists what this cluster can do for a peer beyond the protocol's revision. Nil means nothing.
	Capabilities func(peer peering.ClusterID) []string
	// Running returns which pods this cluster runs for others, for a peer of all; see peering.Network. Nil means none.
	Running func(ctx context.Context, peer *v1alpha1.ForeignCluster, all []v1alpha1.ForeignCluster) ([]peering.TransitAddresses, error)
	// Versions knows the version of the fabric's Secret, as a cache of metadata does. If it is nil the Secret is
	// read whenever a peer sends its share of a key.
	Versions client.Reader

	// SessionAddress returns where a peer's end of the session with it is seen; the zero Addr if that shows
	// nothing. Nil means that it never does.
	SessionAddress func(peer peering.ClusterID) netip.Addr
	// Observed is called after a peer reported that it sees this cluster elsewhere than before, which is news for
	// all peers. Nil does nothing.
	Observed func()
	// Budget bounds what is written here because of what peers send. Required.
	Budget *store.WriteBudget

	keys fabricKeys

	mu sync.Mutex
	// observed is when a peer last changed where it sees this cluster.
	observed map[peering.ClusterID]time.Time
	// gone is when it was last recorded of a peer over its budget that pods are gone there.
	gone map[peering.ClusterID]time.Time
}

// State returns the state that this cluster currently sends to a peer, except for the fields that count and time
// messages.
func (s *States) State(ctx context.Context, peer peering.ClusterID) (peering.PeerState, error) {
	state := peering.PeerState{Protocol: peering.Protocol, Endpoints: s.Endpoints()}
	contracts, err := store.ContractsWith(ctx, s.Client, peer, client.UnsafeDisableDeepCopy) // they are only read
	if err != nil {
		return state, err
	}
	state.Contracts, _ = contractStates(contracts)
	if s.Offering != nil {
		state.Offering = s.Offering(peer)
	}
	if s.Capabilities != nil {
		state.Capabilities = s.Capabilities(peer)
	}
	fc, err := store.Cached(ctx, s.Client, peer)
	if err != nil || fc == nil {
		return state, err
	}
	state.BundleHash = trust.KnownHash(fc)
	wanted := slices.ContainsFunc(contracts, wantsTunnel)
	if fc.Spec.InBand != nil {
		state.Endpoints = nil // an in-band peer cannot use them
	} else if !wanted {
		return state, nil
	}
	nodes, err := s.fabricNodes(ctx)
	if err != nil {
		return state, err
	}
	if state.Network, err = s.network(ctx, fc, nodes); err != nil {
		return state, err
	}
	if !wanted {
		state.Network = &peering.Network{Gateways: state.Network.Gateways}
	}
	keys := presharedkeys.OfGateways(nodes, peer, fc.Status.PresharedKey, s.Now())
	state.Network.PresharedKeyShare, state.Network.Rotation = presharedkeys.Announce(fc.Status.PresharedKey, keys, s.shares(peer))
	if fc.Spec.InBand != nil && state.Network.Rotation.Number == 0 {
		state.Network.PresharedKeyShare = peering.PresharedKeyShare{} // the first key does not follow from shares
	}
	return state, nil
}

func (s *States) shares(peer peering.ClusterID) func(number uint64) peering.PresharedKeyShare {
	return func(number uint64) peering.PresharedKeyShare { return s.KeyShare(peer, number) }
}

// fabricNodes returns what the nodes report. Callers only read it.
func (s *States) fabricNodes(ctx context.Context) ([]v1alpha1.FabricNode, error) {
	var nodes v1alpha1.FabricNodeList
	if err := s.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	return nodes.Items, nil
}

// contractStates returns the states of contracts to send to a peer: as many as it accepts, those in force first.
// left is how many more there are.
func contractStates(contracts []v1alpha1.Contract) (out []peering.ContractState, left int) {
	sorted := make([]*v1alpha1.Contract, 0, len(contracts))
	for i := range contracts {
		if !store.Released(&contracts[i]) {
			sorted = append(sorted, &contracts[i])
		}
	}
	sortContracts(sorted)
	left = max(len(sorted)-peering.MaxContracts, 0)
	sorted = sorted[:len(sorted)-left]
	slices.SortFunc(sorted, func(a, b *v1alpha1.Contract) int { return cmp.Compare(a.Name, b.Name) })
	for _, c := range sorted {
		state := peering.ContractState{
			ID: c.Name, Revision: uint64(max(c.Spec.Revision, 0)), Phase: peering.ParsePhase(c.Status.Phase), Message: c.Status.Message,
			DrainUntil: store.TimeOf(c.Status.DrainUntil),
		}
		if n := len(c.Status.Statements); n > 0 && c.Spec.Role == v1alpha1.ContractProvider {
			state.Statement = uint64(max(c.Status.Statements[n-1].Sequence, 0))
		}
		out = append(out, state)
	}
	return out, left
}

func (s *States) network(ctx context.Context, fc *v1alpha1.ForeignCluster, nodes []v1alpha1.FabricNode) (*peering.Network, error) {
	var tunnel v1alpha1.Tunnel
	if err := s.Client.Get(ctx, client.ObjectKey{Name: fc.Name}, &tunnel); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("tunnel to %s: %w", fc.Name, err)
	}
	if tunnel.Spec.PeerID != fc.Spec.ClusterID {
		tunnel.Spec = v1alpha1.TunnelSpec{}
	}
	prefixes, _, err := s.Prefixes(ctx)
	if err != nil {
		return nil, err
	}
	network := networkOf(fc, prefixes, nodes, tunnel.Spec, s.Now())
	if err := s.dropUnreadyProbes(ctx, network); err != nil {
		return nil, err
	}
	return network, s.addObservations(ctx, fc, nodes, network)
}

// addObservations adds where the peer, and this cluster, are seen, and which other peers both have.
func (s *States) addObservations(ctx context.Context, fc *v1alpha1.ForeignCluster, nodes []v1alpha1.FabricNode, network *peering.Network) error {
	var peers v1alpha1.ForeignClusterList
	if err := s.Client.List(ctx, &peers, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list foreign clusters: %w", err)
	}
	network.Direct = transit.IDs(transit.Direct(fc, peers.Items))
	if s.Running != nil {
		var err error
		if network.Running, err = s.Running(ctx, fc, peers.Items); err != nil {
			return err
		}
	}
	network.Observations, _ = observations(nodes, fc.Spec.ClusterID) // that not all are is in the Network condition
	if s.SessionAddress != nil {
		network.ReceiverAddress = s.SessionAddress(peering.ClusterID(fc.Spec.ClusterID))
	}
	for i := range network.Gateways {
		g := &network.Gateways[i]
		if at := slices.IndexFunc(nodes, func(n v1alpha1.FabricNode) bool { return n.Name == g.Name }); at >= 0 {
			g.Observed = observedAt(&nodes[at], fc.Spec.ClusterID, peers.Items)
		}
	}
	return nil
}

// networkOf returns what this cluster announces to a peer about its end of the tunnel.
func networkOf(fc *v1alpha1.ForeignCluster, prefixes []netip.Prefix, nodes []v1alpha1.FabricNode, tunnel v1alpha1.TunnelSpec, now time.Time) *peering.Network {
	network := &peering.Network{Prefixes: prefixes}
	nodes = slices.SortedFunc(slices.Values(nodes), func(a, b v1alpha1.FabricNode) int { return cmp.Compare(a.Name, b.Name) })
	for i := range nodes {
		n := &nodes[i]
		key, err := base64.StdEncoding.DecodeString(n.Status.PublicKey)
		overlay, overlayErr := netip.ParseAddr(n.Status.OverlayAddress)
		if err != nil || len(key) != 32 || overlayErr != nil || !overlay.Is6() {
			continue
		}
		g := peering.Gateway{Name: n.Name, PublicKey: [32]byte(key), Endpoints: slices.Clone(n.Spec.Endpoints), Overlay: overlay}
		if next, err := base64.StdEncoding.DecodeString(n.Status.NextPublicKey); err == nil && len(next) == len(key) {
			g.NextPublicKey = [32]byte(next)
		}
		g.Pods = kube.Prefixes(n.Spec.AnnouncedPodCIDRs)
		if n.Status.ProbesEnabled && !gateways.Silent(n, now) { // a node that is gone does not respond
			g.Sources = endsOf(n)
		}
		switch {
		case n.Spec.Gateway:
			network.Gateways = append(network.Gateways, g)
		case len(g.Pods) > 0:
			network.Nodes = append(network.Nodes, g)
		}
	}
	network.Gateways = network.Gateways[:min(len(network.Gateways), peering.MaxGateways)]
	network.Nodes = network.Nodes[:min(len(network.Nodes), peering.MaxNodes)]
	given := stored.Allocation(fc.Status.Aliases, fc.Status.AliasBlocks)
	for _, a := range given.Prefixes {
		network.Aliases = append(network.Aliases, peering.Alias{Prefix: a.Prefix, Alias: a.Alias})
	}
	for _, b := range given.Blocks {
		block := peering.AliasBlock{Alias: b.Alias}
		for _, slot := range b.Slots {
			block.Addresses = append(block.Addresses, slot.Addr)
		}
		network.Blocks = append(network.Blocks, block)
	}
	if fc.Status.Network != nil { // it announced which prefixes it has aliases for
		network.Addresses, _ = ownAddresses(tunnel.Allow, nodes, fc.Status.Network)
		network.Transit = transit.ToWire(tunnel.Transit)
	}
	network.Through, network.Opened = transit.IDs(transit.Through(fc)), transit.Opened(tunnel.Allow)
	return network
}

// Reserved returns prefixes that are in use besides those of pods and nodes. A nil Reserved returns none.
type Reserved func(context.Context) ([]netip.Prefix, error)

func (r Reserved) now(ctx context.Context) ([]netip.Prefix, error) {
	if r == nil {
		return nil, nil
	}
	return r(ctx)
}

// FromNodes is the source of prefixes that are spec.podCIDRs of nodes, and FromValues of those that are configured.
const (
	FromNodes  = "spec.podCIDRs of Nodes"
	FromValues = "cluster.podCIDRs"
)

// LearntPods is where pods have their addresses besides spec.podCIDRs of nodes, as the cluster itself shows.
type LearntPods struct {
	Prefixes []netip.Prefix
	// Sources is where they, and those of nodes, were learnt, in words. LeftOut says which other prefixes do not count,
	// and why.
	Sources, LeftOut []string
	// Advice is what to set because pods are outside of all of these; empty if none is, or nothing particular is known.
	Advice string
}

// PodPrefixes is this cluster's pod prefixes as it announces them to peers.
type PodPrefixes struct {
	// Prefixes is sorted.
	Prefixes []netip.Prefix
	// Omitted is how many prefixes are left out because there are too many.
	Omitted int
	// Sources, LeftOut and Advice are as in LearntPods.
	Sources, LeftOut []string
	Advice           string
}

// Prefixes returns this cluster's pod prefixes as it announces them to peers, sorted, and how many of the nodes'
// prefixes are left out because there are too many.
func (s *States) Prefixes(ctx context.Context) (out []netip.Prefix, left int, err error) {
	p, err := s.PodPrefixes(ctx)
	return p.Prefixes, p.Omitted, err
}

// PodPrefixes returns this cluster's pod prefixes: those that are configured, or else those of its nodes, which a new
// node has at once, and what is learnt.
func (s *States) PodPrefixes(ctx context.Context) (out PodPrefixes, err error) {
	avoid, err := s.Reserved.now(ctx)
	if err != nil {
		return PodPrefixes{}, err
	}
	if len(s.PodCIDRs) > 0 {
		out.Prefixes, out.Omitted = s.Aggregate(s.PodCIDRs, peering.MaxPrefixes, avoid)
		out.Sources = []string{FromValues}
		return out, nil
	}
	var nodes corev1.NodeList
	// The list is only read, every few seconds.
	if err := s.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return PodPrefixes{}, fmt.Errorf("list nodes: %w", err)
	}
	avoid = slices.Clone(avoid)
	var own []netip.Prefix
	for i := range nodes.Items {
		if nodes.Items[i].Labels[v1alpha1.LabelVirtualNode] != "" {
			continue
		}
		avoid = append(avoid, nodeAddresses(&nodes.Items[i])...)
		own = append(own, kube.Prefixes(nodes.Items[i].Spec.PodCIDRs)...)
	}
	var learnt LearntPods
	if s.Learn != nil {
		if learnt, err = s.Learn(ctx); err != nil {
			return PodPrefixes{}, err
		}
	}
	out.Sources, out.LeftOut, out.Advice = learnt.Sources, learnt.LeftOut, learnt.Advice
	out.Prefixes, out.Omitted = s.joined(learnt.Prefixes, own, avoid)
	return out, nil
}

// joined returns as many prefixes as a message has room for: those that were learnt, and those of nodes outside of
// them. Many of one do not widen the other.
func (s *States) joined(learnt, own, avoid []netip.Prefix) ([]netip.Prefix, int) {
	if len(learnt) == 0 {
		return s.Aggregate(own, peering.MaxPrefixes, avoid)
	}
	most := peering.MaxPrefixes
	if len(own) > 0 {
		most /= 2
	}
	pools, left := s.Aggregate(learnt, most, avoid)
	own = slices.DeleteFunc(own, func(p netip.Prefix) bool { return cidr.Of(pools...).Covers(p) })
	nodes, more := s.Aggregate(own, peering.MaxPrefixes-len(pools), avoid)
	return cidr.Of(slices.Concat(pools, nodes)...), left + more
}

// nodeAddresses returns the addresses of a node.
func nodeAddresses(n *corev1.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range n.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return out
}

// Observe records what a peer sends: what has to outlive the session goes into its ForeignCluster, the tunnel's key
// into the fabric's Secret. A *LaterError says that the peer caused too many writes; its newest state has to be
// observed then. Only that pods are gone is recorded at once.
func (s *States) Observe(ctx context.Context, peer peering.ClusterID, state peering.PeerState) error {
	fc, err := store.Cached(ctx, s.Client, peer)
	if err != nil {
		return err
	}
	if fc == nil {
		return fmt.Errorf("cluster %s is no longer known here", peer)
	}
	if fc.Spec.InBand == nil && len(state.Endpoints) > 0 && !slices.Equal(state.Endpoints, fc.Spec.Endpoints) {
		before := fc.DeepCopy()
		fc.Spec.Endpoints = state.Endpoints
		if err := s.Budget.Take(peer, fc); err != nil {
			return s.recordGone(ctx, before, state.Network, err)
		}
		if err := store.Patch(ctx, s.Client, before, fc); err != nil {
			return err
		}
	}
	before := fc.DeepCopy()
	fc.Status.Protocol = int32(min(state.Protocol, 1<<30))
	var now time.Time
	if state.Network != nil {
		now = s.Now()
	}
	fc.Status.Network = networkFromWire(state.Network, before.Status.Network, now)
	if fc.Status.Network != nil {
		fc.Status.Network.InBandHash = inBandHash(fc.Spec.InBand)
	}
	moved, later := s.paceObserved(peer, before.Status.Network, fc.Status.Network)
	fc.Status.Contracts = contractsFromWire(state.Contracts)
	fc.Status.BundleHash = ""
	if state.BundleHash != (peering.Hash{}) {
		fc.Status.BundleHash = state.BundleHash.String()
	}
	if !equality.Semantic.DeepEqual(before.Status, fc.Status) {
		if err := s.Budget.Take(peer, fc); err != nil {
			return s.recordGone(ctx, before, state.Network, err)
		}
		// The reconciler writes other fields of the status, so the two cannot undo each other; what a stale cache
		// hides is corrected by the next record.
		if err := store.PatchStatus(ctx, s.Client, before, fc); err != nil {
			return err
		}
	}
	if moved && s.Observed != nil {
		s.Observed()
	}
	if !announcesKey(state.Network, fc.Spec.InBand != nil) {
		return later
	}
	return cmp.Or(s.observeKey(ctx, peer, fc, state.Network), later)
}

// announcesKey reports whether an announcement says which key the peer uses. The first key of an in-band tunnel needs
// no share.
func announcesKey(n *peering.Network, inBand bool) bool {
	switch {
	case n == nil:
		return false
	case inBand && (n.Rotation == nil || n.Rotation.Number == 0):
		return true
	}
	return !n.PresharedKeyShare.IsZero()
}

// observeKey records the preshared key of the tunnel to a peer that follows from both sides' announcements.
func (s *States) observeKey(ctx context.Context, peer peering.ClusterID, fc *v1alpha1.ForeignCluster, announced *peering.Network) error {
	var first []byte
	if fc.Spec.InBand != nil {
		key, err := s.InBandKey(fc)
		if err != nil {
			return nil //nolint:nilerr // condition InBand says so
		}
		first = key[:]
	}
	nodes, err := s.fabricNodes(ctx)
	if err != nil {
		return err
	}
	now := s.Now()
	gateways := presharedkeys.OfGateways(nodes, peer, fc.Status.PresharedKey, now)
	due := presharedkeys.Due(fc, s.KeyEvery)
	status, ring := presharedkeys.Situation{
		Self: s.Self, Peer: peer, Current: fc.Status.PresharedKey, Announced: announced, Rotate: !due.IsZero() && !now.Before(due),
		Gateways: gateways, Share: s.shares(peer), First: first, Now: now,
	}.Decide()
	if err := s.storeKeys(ctx, peer, ring); err != nil {
		return err
	}
	if !equality.Semantic.DeepEqual(fc.Status.PresharedKey, &status) {
		before := fc.DeepCopy()
		fc.Status.PresharedKey = &status
		if err := s.Budget.Take(peer, fc); err != nil {
			return err
		}
		if err := store.PatchStatus(ctx, s.Client, before, fc); err != nil {
			return err
		}
	}
	if left := presharedkeys.TooYoung(status, announced.Rotation, now); left > 0 {
		return &store.LaterError{After: left} // the peer may announce nothing else until then
	}
	return nil
}

// secretKey is the key of v1alpha1.FabricSecret.
func (s *States) secretKey() client.ObjectKey {
	return client.ObjectKey{Namespace: s.Namespace, Name: v1alpha1.FabricSecret}
}

// networkFromWire converts a peer's network, whose form was checked when it was received. The planner of the tunnel
// decides what of it can be used: no part of it is a reason to end a session.
func networkFromWire(n *peering.Network, before *v1alpha1.PeerNetwork, now time.Time) *v1alpha1.PeerNetwork {
	if n == nil {
		return nil // no contract wants a tunnel
	}
	before = cmp.Or(before, &v1alpha1.PeerNetwork{})
	out := &v1alpha1.PeerNetwork{Gateways: nodesFromWire(n.Gateways), Nodes: nodesFromWire(n.Nodes), Observations: observationsFromWire(n.Observations, before.Observations, now)}
	out.Transit, out.Through = transit.FromWire(n.Transit), transit.Texts(n.Through)
	out.Opened, out.Direct, out.Running = transit.FromWire(n.Opened), transit.Texts(n.Direct), transit.FromWire(n.Running)
	if n.ReceiverAddress.IsValid() {
		out.OwnAddress = n.ReceiverAddress.String()
	}
	out.Prefixes, out.Addresses = wire.Texts(n.Prefixes), wire.Texts(n.Addresses)
	for _, a := range n.Aliases {
		out.Aliases = append(out.Aliases, v1alpha1.PrefixAlias{Prefix: a.Prefix.String(), Alias: a.Alias.String()})
	}
	for _, b := range n.Blocks {
		block := v1alpha1.AliasBlock{Alias: b.Alias.String(), Addresses: make([]string, len(b.Addresses))}
		for i, a := range b.Addresses {
			if a.IsValid() {
				block.Addresses[i] = a.String()
			}
		}
		out.AliasBlocks = append(out.AliasBlocks, block)
	}
	return out
}

func nodesFromWire(nodes []peering.Gateway) []v1alpha1.Gateway {
	var out []v1alpha1.Gateway
	for _, g := range nodes {
		node := v1alpha1.Gateway{
			Name: g.Name, PublicKey: base64.StdEncoding.EncodeToString(g.PublicKey[:]), Endpoints: g.Endpoints, OverlayAddress: g.Overlay.String(), ObservedEndpoints: wire.Texts(g.Observed),
		}
		if g.NextPublicKey != [32]byte{} {
			node.NextPublicKey = base64.StdEncoding.EncodeToString(g.NextPublicKey[:])
		}
		node.PodCIDRs, node.ProbeAddresses = wire.Texts(g.Pods), wire.Texts(g.Sources)
		out = append(out, node)
	}
	return out
}

func contractsFromWire(states []peering.ContractState) []v1alpha1.PeerContract {
	var out []v1alpha1.PeerContract
	for _, c := range states {
		if c.Phase == peering.PhaseUnspecified {
			continue // of a newer protocol: unknown here
		}
		report := v1alpha1.PeerContract{
			ID: c.ID, Revision: int64(min(c.Revision, peering.MaxRevision)), Phase: c.Phase.String(), Message: peering.Text(c.Message, maxPeerMessage),
			StatementSequence: int64(min(c.Statement, peering.MaxRevision)),
		}
		if !c.DrainUntil.IsZero() {
			report.DrainUntil = &metav1.Time{Time: c.DrainUntil.Truncate(time.Second)}
		}
		out = append(out, report)
	}
	slices.SortFunc(out, func(a, b v1alpha1.PeerContract) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func wantsTunnel(c v1alpha1.Contract) bool { return store.Unverified(&c).Desired().Tunnel }
