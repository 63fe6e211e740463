package controller

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/aliases"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/presharedkeys"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// tunnel writes the Tunnel to a peer as its contracts and the peer API require it, and keeps the aliases in the
// peer's status.
func (r *Peers) tunnel(ctx context.Context, s *PeerSnapshot) (tunnelState, error) {
	fc := s.Peer
	wanted := slices.ContainsFunc(s.Contracts, wantsTunnel)
	if !wanted {
		r.recall(fc.UID, func(m *peerMemory) {
			r.replaceAliases(m, fc, aliases.Allocation{})
			m.planned = false
		})
		fc.Status.Aliases, fc.Status.AliasBlocks = nil, nil
	}
	if !wanted && !isInBand(fc) {
		if err := r.dropTunnel(ctx, fc); err != nil || fc.Status.Network == nil {
			return tunnelState{}, err
		}
	}
	// The peer may still announce its share of a key when no contract wants a tunnel.
	r.recall(fc.UID, func(m *peerMemory) { m.tunnelGone = false })
	if !wanted && !isInBand(fc) {
		return tunnelState{}, nil
	}
	var first time.Duration
	if isInBand(fc) {
		problem, left, err := r.keepInBandKey(ctx, s)
		if problem != "" || err != nil {
			return tunnelState{keyProblem: problem}, err
		}
		first = left
	}
	if !wanted {
		return r.tunnelFor(ctx, fc, tunnelInput{peer: fc, first: first})
	}
	in := tunnelInput{peer: fc, wanted: true, nodes: s.FabricNodes, first: first}
	var beyond int
	in.ends, beyond = contractEnds(s.Contracts)
	cut := omitted(s, beyond)
	var err error
	if in.exposed, err = r.Exposed(ctx, peering.ClusterID(fc.Spec.ClusterID)); err != nil {
		return tunnelState{}, fmt.Errorf("what %s may reach: %w", fc.Name, err)
	}
	if in.local, in.left, err = r.prefixes(ctx, fc); err != nil {
		return tunnelState{}, err
	}
	s.PodsOutside = gateways.PodsOutside(r.OwnPod, in.local, s.FabricNodes)
	var all v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return tunnelState{}, fmt.Errorf("list foreign clusters: %w", err)
	}
	in.agreed, in.left = transit.Agreed(fc, all.Items), append(in.left, cut...)
	in.direct, in.there = transit.AgreedDirect(fc, all.Items), r.PodAddress
	return r.tunnelFor(ctx, fc, in)
}

// keepInBandKey stores the first key of the tunnel to an in-band peer where it is needed, or returns why there is none,
// and after which time it will be needed; 0 if that is not known.
func (r *Peers) keepInBandKey(ctx context.Context, s *PeerSnapshot) (problem string, left time.Duration, err error) {
	key, err := r.States.InBandKey(s.Peer)
	if err != nil {
		return err.Error(), 0, nil //nolint:nilerr // an administrator has to see to it
	}
	first := presharedkeys.First{Key: key[:]}
	first.Offer, left = offersFirst(s.Peer, s.Now)
	if has := s.Peer.Status.PresharedKey; has != nil {
		first.Agreed = s.Session.Up != nil && presharedkeys.Number(*has) > 0
	}
	return "", left, r.States.storeKeys(ctx, peering.ClusterID(s.Peer.Spec.ClusterID), first)
}

func (r *Peers) tunnelFor(ctx context.Context, fc *v1alpha1.ForeignCluster, in tunnelInput) (tunnelState, error) {
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	err := r.Client.Get(ctx, client.ObjectKeyFromObject(tunnel), tunnel)
	if client.IgnoreNotFound(err) != nil {
		return tunnelState{}, fmt.Errorf("tunnel to %s: %w", fc.Name, err)
	}
	exists := err == nil && tunnel.Spec.PeerID == fc.Spec.ClusterID
	in.current, in.exists = tunnel.Spec, exists
	spec, state := planTunnelWrite(in)
	switch {
	case isInBand(fc):
		spec = r.InBand.carry(spec, fc)
	case spec == nil:
		return state, nil
	default:
		spec.InBand = nil
	}
	spec.Gateways = dialable(spec.Gateways, r.MayDial)
	state.first = in.first
	state.later, err = r.writeTunnel(ctx, fc, tunnel, *spec)
	if apierrors.IsInvalid(err) {
		state.lacks = joinTexts([]string{state.lacks, "what should open cannot be written, and what should close was written: " + peering.Text(err.Error(), maxWhy)})
		err = nil
	}
	return state, err
}

// prefixes assigns aliases to the peer's prefixes and returns this cluster's pod prefixes. left says what has no
// alias.
func (r *Peers) prefixes(ctx context.Context, fc *v1alpha1.ForeignCluster) (local []netip.Prefix, left []string, err error) {
	local, omitted, err := r.States.Prefixes(ctx)
	if err != nil {
		return nil, nil, err
	}
	if omitted > 0 {
		left = append(left, beyondPrefixes(omitted))
	}
	if fc.Status.Network != nil {
		lacks, err := r.planAliases(ctx, fc, local)
		if err != nil {
			return nil, nil, err
		}
		left = append(left, lacks)
	}
	return local, left, nil
}

// beyondPrefixes says that there are more pod prefixes than can be announced to a peer.
func beyondPrefixes(omitted int) string {
	return fmt.Sprintf("%d pod prefixes of this cluster's nodes have no way to the peer, which can be sent %d: set cluster.podCIDRs in the chart's values to a prefix that contains them all", omitted, peering.MaxPrefixes)
}

// tunnelInput is everything that decides about the Tunnel to a peer.
type tunnelInput struct {
	// wanted: a contract wants the tunnel.
	wanted bool
	peer   *v1alpha1.ForeignCluster
	local  []netip.Prefix
	nodes  []v1alpha1.FabricNode
	// current is the Tunnel as it is, exists whether there is one for this peer.
	current v1alpha1.TunnelSpec
	exists  bool
	exposed []allow.Exposed
	// ends is when the contracts are over.
	ends []v1alpha1.ContractEnd
	// left is what is known to have no path through it.
	left []string
	// agreed is the IDs of the clusters whose traffic may pass between the peer and them through this one.
	agreed []string
	// direct is those of agreed whose pods the peer may reach directly, and there returns the address that a pod of
	// this cluster in one of them has there.
	direct []string
	there  func(third peering.ClusterID, alias netip.Addr) (netip.Addr, bool)
	// first is after which time the first key may be needed; 0 if that is not known.
	first time.Duration
}

// passed returns the addresses of third clusters for which the peer should have aliases, and what is left out of
// them. While not all of them are known, the current ones stay.
func (in tunnelInput) passed(room int) ([]v1alpha1.TransitAddresses, string) {
	by := map[string][]netip.Addr{}
	add := func(third string, addrs ...netip.Addr) {
		if slices.Contains(in.agreed, third) {
			by[third] = append(by[third], addrs...)
		}
	}
	for _, e := range in.exposed {
		add(e.Third, e.Known...)
		for _, d := range e.To {
			add(e.Third, d.Addr)
		}
		if e.Unknown && in.exists {
			for _, t := range in.current.Transit {
				add(t.ClusterID, transit.Addresses([]v1alpha1.TransitAddresses{t})...)
			}
		}
	}
	out, left := transit.List(by, room)
	transit.AddNamespaces(out, in.passedDirectly())
	if left > 0 {
		return out, fmt.Sprintf("%d addresses of third clusters have no way to the peer, which can be sent %d addresses: offload fewer namespaces to it", left, peering.MaxAddresses)
	}
	return out, ""
}

// passedDirectly returns the pods of this cluster that the peer may reach directly, by their cluster and namespace. An
// invalid address there means that it is not known.
func (in tunnelInput) passedDirectly() map[string]map[string][]peering.TransitPod {
	out := map[string]map[string][]peering.TransitPod{}
	unsure := in.exists && slices.ContainsFunc(in.exposed, func(e allow.Exposed) bool { return e.Unknown })
	for _, third := range in.direct {
		out[third] = map[string][]peering.TransitPod{}
		for _, e := range in.exposed {
			for _, a := range e.Known {
				if e.Third == third {
					there, _ := in.there(peering.ClusterID(third), a)
					out[third][e.Namespace] = append(out[third][e.Namespace], peering.TransitPod{Address: a, There: there})
				}
			}
		}
		for _, t := range in.current.Transit {
			for _, ns := range t.Namespaces {
				if unsure && t.ClusterID == third {
					out[third][ns.Name] = append(out[third][ns.Name], transit.Pods(ns)...)
				}
			}
		}
	}
	return out
}

// openTo returns exposures without those of third clusters that have not agreed.
func (in tunnelInput) openTo(opens []v1alpha1.Exposure) []v1alpha1.Exposure {
	return slices.DeleteFunc(slices.Clone(opens), func(e v1alpha1.Exposure) bool {
		return e.DestinationPeerID != "" && !slices.Contains(in.agreed, e.DestinationPeerID)
	})
}

// planTunnelWrite returns the Tunnel to write for the contracts, and what it waits for or lacks. It is nil while
// there is none to write.
func planTunnelWrite(in tunnelInput) (*v1alpha1.TunnelSpec, tunnelState) {
	if !in.wanted {
		return nil, tunnelState{}
	}
	has := in.current
	if !in.exists {
		has = v1alpha1.TunnelSpec{}
	}
	opens, closed := allow.Plan(in.exposed, in.openTo(has.Allow))
	var own []netip.Addr
	if in.peer.Status.Network != nil {
		var beyond int
		if own, beyond = ownAddresses(opens, in.nodes, in.peer.Status.Network); beyond > 0 {
			in.left = append(in.left, fmt.Sprintf("%d addresses of this cluster have no way to the peer, which can be sent %d one by one: offload fewer namespaces or smaller Services to it, or have it widen network.aliasPool",
				beyond, peering.MaxAddresses))
		}
	}
	passed, omitted := in.passed(peering.MaxAddresses - len(own))
	in.left = append(in.left, omitted)
	spec, waits := PlanTunnel(in.peer, in.local, own, passed, &has)
	state := tunnelState{unsure: slices.ContainsFunc(in.exposed, func(e allow.Exposed) bool { return e.Unknown })}
	if spec == nil {
		state.waits = joinTexts(append(in.left, waits))
		if !in.exists {
			return nil, state
		}
		// What exists stays: a peer that announces less is not a peer that is gone. Only this cluster decides what
		// is open, so that is always as it is now.
		spec = has.DeepCopy()
	}
	spec.Allow, spec.ContractEnds = opens, in.ends
	if state.waits == "" {
		state.lacks = joinTexts(append(in.left, waits, closed))
	}
	return spec, state
}

// tunnelState is the outcome of writing the Tunnel of a peer.
type tunnelState struct {
	// waits is what the whole tunnel waits for, lacks what is left out of it.
	waits, lacks string
	// keyProblem is why an in-band tunnel has no key; empty if it has one.
	keyProblem string
	// unsure: the exposure of some contract is not known.
	unsure bool
	// later is when what has to open can be written; 0 if nothing waits.
	later time.Duration
	// first is after which time the first key may be needed; 0 if that is not known.
	first time.Duration
}

// again is when to write it again.
func (t tunnelState) again() time.Duration {
	again := restInterval
	if t.unsure {
		again = min(again, exposureRecheck)
	}
	for _, after := range []time.Duration{t.later, t.first} {
		if after > 0 {
			again = min(again, after)
		}
	}
	return again
}

// omitted says which of a peer's contracts and gateways exceed what nodes and the peer are sent. endless is how
// many contracts' ends nodes do not know.
func omitted(s *PeerSnapshot, endless int) []string {
	var out []string
	if endless > 0 {
		out = append(out, fmt.Sprintf("only the first %d contracts with the peer expire without the agent: %d more close when the agent closes them; end some", peering.MaxContracts, endless))
	}
	if _, left := contractStates(s.Contracts); left > 0 {
		out = append(out, fmt.Sprintf("%d contracts are not reported to the peer, which accepts %d: end some", left, peering.MaxContracts))
	}
	if _, left := observations(s.FabricNodes, s.Peer.Spec.ClusterID); left > 0 {
		out = append(out, fmt.Sprintf("where %d of the peer's gateways are seen is not sent to it, as it accepts %d: run fewer gateways there", left, peering.MaxObservations))
	}
	return out
}

// contractEnds returns, sorted, when the contracts that want a tunnel are over: when each has drained. Of too many
// it returns those that end last, for the tunnel ends with the last one; left is how many more there are.
func contractEnds(contracts []v1alpha1.Contract) (out []v1alpha1.ContractEnd, left int) {
	for i := range contracts {
		c := &contracts[i]
		if !wantsTunnel(*c) {
			continue
		}
		out = append(out, v1alpha1.ContractEnd{Contract: c.Name, Time: store.EndOf(c)})
	}
	if left = max(len(out)-peering.MaxContracts, 0); left > 0 {
		slices.SortFunc(out, func(a, b v1alpha1.ContractEnd) int {
			return cmp.Or(b.Time.Compare(a.Time.Time), cmp.Compare(a.Contract, b.Contract))
		})
		out = out[:peering.MaxContracts]
	}
	slices.SortFunc(out, func(a, b v1alpha1.ContractEnd) int { return cmp.Compare(a.Contract, b.Contract) })
	return out, left
}

// joinTexts joins texts that are not empty, without duplicates.
func joinTexts(texts []string) string {
	texts = slices.DeleteFunc(union(nil, texts), func(t string) bool { return t == "" })
	return strings.Join(texts, "; ")
}

// dropTunnel removes the tunnel to a peer, its key and its aliases. Calling it again costs nothing.
func (r *Peers) dropTunnel(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	gone := false
	r.recall(fc.UID, func(m *peerMemory) {
		gone, m.planned = m.tunnelGone, false
		r.replaceAliases(m, fc, aliases.Allocation{})
	})
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	if gone && apierrors.IsNotFound(r.Client.Get(ctx, client.ObjectKeyFromObject(tunnel), tunnel)) {
		return nil
	}
	if err := r.Client.Delete(ctx, tunnel); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop the tunnel to %s: %w", fc.Name, err)
	}
	_, err := store.EditSecret(ctx, r.Client, r.States.secretKey(), func(data map[string][]byte) bool {
		return presharedkeys.Drop(data, fc.Spec.ClusterID)
	})
	if err == nil {
		r.recall(fc.UID, func(m *peerMemory) { m.tunnelGone = true })
	}
	return err
}
