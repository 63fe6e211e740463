package market

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Market is everything that decisions on peers' requests depend on, at one moment. It is
// built once for all peers and not changed afterwards.
type Market struct {
	Supply   Supply
	Policies []Policy
	Peers    map[peering.ClusterID]*v1alpha1.ForeignCluster
	// RuntimeClasses and StorageClasses are those that the cluster has.
	RuntimeClasses, StorageClasses []string
	reservations                   []Reservation
	// Exports is the Services that each policy exports, by the policy's name.
	Exports map[string]Exported

	// everywhere is the nodes to which pods of any contract can come: those without taints, and those
	// whose taints some contract's pods tolerate. all is their capacity, without what is reserved for single
	// peers and by single policies.
	everywhere []bool
	all        peering.Capacity
	byPolicy   map[string]peering.Resources
	byPeer     map[peering.ClusterID]peering.Resources
}

// Reservation is what a contract grants or an advertisement promises.
type Reservation struct {
	Peer peering.ClusterID
	// policy is the one that selects the peer now; empty if no policy does.
	policy   string
	Contract string
	Amounts  peering.Resources
	// Selector is the labels of the nodes on which it runs.
	Selector map[string]string
	// Tolerations is what its pods tolerate as it was signed, without what the policy has added
	// since.
	Tolerations []corev1.Toleration
	// on is the key of the nodes to which its pods can come.
	on string
}

// New sums up reservations. Of those of one contract on the same nodes the larger amount
// counts: its current and its next revision are never in force at once, and pods that
// its next revision has no room for keep running.
func New(m Market, all []Reservation) (*Market, error) {
	m.byPolicy, m.byPeer = map[string]peering.Resources{}, map[peering.ClusterID]peering.Resources{}
	m.all = peering.Capacity{Reserved: peering.Resources{}, RuntimeClasses: m.RuntimeClasses, StorageClasses: m.StorageClasses}
	index := map[string]int{}
	for _, h := range all {
		if fc := m.Peers[h.Peer]; fc != nil {
			if l, err := Selecting(m.Policies, fc); err == nil {
				h.policy = l.Value.Name
				h.Tolerations = l.Tolerations(h.Tolerations, h.Selector)
			}
		}
		key := h.Contract + "/" + selectorKey(h.Selector)
		at, ok := index[key]
		if !ok {
			at = len(m.reservations)
			index[key] = at
			h.Amounts = most(h.Amounts, amounts(m.Supply.used[h.Contract]))
			m.reservations = append(m.reservations, h)
			continue
		}
		m.reservations[at].Amounts = most(m.reservations[at].Amounts, h.Amounts)
		m.reservations[at].Tolerations = joined(m.reservations[at].Tolerations, h.Tolerations)
	}
	var err error
	sum := func(to, amounts peering.Resources) peering.Resources {
		if err != nil {
			return to
		}
		total, addErr := to.Add(amounts)
		if addErr != nil {
			err = fmt.Errorf("sum up what is reserved: %w", addErr)
		}
		return total
	}
	for _, h := range m.reservations {
		m.all.Reserved = sum(m.all.Reserved, h.Amounts)
		m.byPeer[h.Peer] = sum(m.byPeer[h.Peer], h.Amounts)
		if h.policy != "" {
			m.byPolicy[h.policy] = sum(m.byPolicy[h.policy], h.Amounts)
		}
	}
	if err != nil {
		return nil, err
	}
	m.findEverywhere()
	m.all.Free = m.Supply.free(m.everywhere, m.reserving())
	return &m, nil
}

// most returns the larger of each of two amounts.
func most(a, b peering.Resources) peering.Resources {
	out := a.Clone()
	for name, q := range b {
		if q.Cmp(out[name]) > 0 {
			out[name] = q
		}
	}
	return out
}

func selectorKey(selector map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		b.WriteString(k + "=" + selector[k] + ",")
	}
	return b.String()
}

func (m *Market) reserving() func(contract string) bool {
	reserving := make(map[string]bool, len(m.reservations))
	for _, h := range m.reservations {
		reserving[h.Contract] = true
	}
	return func(contract string) bool { return reserving[contract] }
}

// PolicyOf returns the policy that decides about a peer.
func (m *Market) PolicyOf(peer peering.ClusterID) (*v1alpha1.ForeignCluster, *Policy, error) {
	fc := m.Peers[peer]
	if fc == nil {
		return nil, nil, peering.Errorf(peering.ReasonPeerNotTrusted, "this cluster does not know cluster %s", peer)
	}
	l, err := Selecting(m.Policies, fc)
	return fc, l, err
}

// Decide decides what a peer gets for an ask. What is reserved for the contract except
// counts as free.
func (m *Market) Decide(peer peering.ClusterID, ask peering.Ask, policy peering.Policy, except string) (peering.Grant, error) {
	// First, since a refusal by levels would reveal which labels exist.
	if err := policy.CheckNodes(ask.NodeSelector); err != nil && policy.Accept != peering.Never {
		return peering.Grant{}, err
	}
	levels, err := m.levels(peer, policy, ask.NodeSelector, except)
	if err != nil {
		return peering.Grant{}, err
	}
	policy.NodeLabels = m.nodeLabels(peer, policy, ask.NodeSelector)
	if _, named := ask.Resources[peering.Pods]; !named && len(levels) > 1 {
		// As much as there is on every level, of all resources that are not named or of pods;
		// below once more, for its price.
		free := ask
		free.PriceCeiling = peering.Money{}
		for i, l := range levels {
			g, err := peering.Decide(free, l.policy(policy), l.have)
			if err != nil {
				return peering.Grant{}, err
			}
			if i == 0 {
				ask.Resources = g.Resources
			}
			ask.Resources = least(ask.Resources, g.Resources)
		}
	}
	var g peering.Grant
	for _, l := range levels {
		if g, err = peering.Decide(ask, l.policy(policy), l.have); err != nil {
			return peering.Grant{}, err
		}
	}
	return g, nil
}

// Amend decides on the next revision of a contract, whose own amounts count as
// free, and returns when it ends at the latest; zero leaves that to the grant. It
// lasts as long as the policy allows from now. A revision that only gives back, or changes
// nothing, does not end earlier, and keeps what the contract has, whatever the
// policy says now. If the policy does not renew, no revision ends later than the
// contract.
func (m *Market) Amend(peer peering.ClusterID, ask peering.Ask, policy peering.Policy, old peering.Terms, now time.Time) (peering.Grant, time.Time, error) {
	left := old.NotAfter.Sub(now).Truncate(time.Second)
	_, fits := ask.Resources.Fits(old.Resources)
	alike := maps.Equal(ask.NodeSelector, old.NodeSelector) && slices.Equal(ask.RuntimeClasses, old.RuntimeClasses) && ask.Network == old.Network
	longest := policy.Duration
	if alike && fits {
		longest = max(longest, left)
	}
	if !policy.Renewable {
		longest = min(longest, left)
	}
	wanted := longest
	if ask.Duration > 0 {
		wanted = min(ask.Duration, longest)
	}
	same := alike && sameAmounts(ask.Resources, old.Resources)
	var err error
	if wanted > left {
		longer := ask
		longer.Duration, policy.Duration = wanted, longest
		var g peering.Grant
		if g, err = m.Decide(peer, longer, policy, old.ContractID); err == nil || ask.Duration > 0 {
			return g, time.Time{}, err
		}
	}
	switch {
	case same && err != nil:
		return peering.Grant{}, time.Time{}, err
	case same && !policy.Renewable && policy.Accept != peering.Never:
		return peering.Grant{}, time.Time{}, peering.Refuse(peering.ReasonPolicyRefused, "", "the provider's policy %q does not renew contracts", policy.Name)
	}
	more := peering.Resources{}
	for name, q := range ask.Resources {
		if q.Cmp(old.Resources[name]) > 0 || !maps.Equal(ask.NodeSelector, old.NodeSelector) {
			more[name] = q
		}
	}
	policy.Duration = left
	if len(more) > 0 {
		grown := ask
		// No more pods than these are asked for.
		grown.Resources, grown.PriceCeiling = more.KeepUnnamed(peering.Resources{peering.Pods: peering.Whole(0)}), peering.Money{}
		if _, err := m.Decide(peer, grown, policy, old.ContractID); err != nil {
			return peering.Grant{}, time.Time{}, err
		}
	}
	policy.NodeLabels = m.nodeLabels(peer, policy, ask.NodeSelector)
	policy.Ceilings, policy.Total = nil, nil
	policy.PercentOfFree, policy.TotalPercent, policy.OvercommitPercent = 100, 100, 100
	policy.Duration, ask.Duration = revised(ask.Duration, min(wanted, left), left), 0
	g, err := peering.Decide(ask, policy, peering.Capacity{
		Free: ask.Resources, RuntimeClasses: m.RuntimeClasses, StorageClasses: m.StorageClasses,
	})
	return g, old.NotAfter, err
}

// revised returns the duration of a revision that does not end later than its contract,
// which has left to run. The duration counts from the revision's begin, which clock skew may
// put before now, so a revision that keeps the end gets that much more; the end itself
// bounds it.
func revised(asked, wanted, left time.Duration) time.Duration {
	if wanted < left {
		return wanted
	}
	if left += StartSkew; asked > 0 {
		return min(asked, left)
	}
	return left
}

func sameAmounts(a, b peering.Resources) bool { return maps.Equal(a.Strings(), b.Strings()) }

// Lessened returns the grant of a contract less what an ask gives back. It fails if the ask
// asks for anything else. The ask is the consumer's own, without the labels of its pool: the
// pool may have other nodes now, or be gone.
func Lessened(old peering.Terms, ask peering.Ask, now time.Time) (peering.Grant, bool) {
	left := old.NotAfter.Sub(now).Truncate(time.Second)
	if _, fits := ask.Resources.Fits(old.Resources); !fits || len(ask.Resources) == 0 || sameAmounts(ask.Resources, old.Resources) ||
		ask.Duration > left+StartSkew || ask.Pool != old.Pool || !hasLabels(old.NodeSelector, ask.NodeSelector) || ask.Network != old.Network ||
		!slices.Equal(ask.RuntimeClasses, old.RuntimeClasses) || len(ask.StorageClasses) > 0 {
		return peering.Grant{}, false
	}
	g := peering.Grant{Clauses: old.Clauses}
	wanted := left
	if ask.Duration > 0 {
		wanted = min(ask.Duration.Truncate(time.Second), left)
	}
	g.Resources, g.Duration = ask.Resources.Clone(), revised(ask.Duration.Truncate(time.Second), wanted, left)
	return g, g.Duration >= time.Second
}

// least returns the smaller of each of the amounts that both have.
func least(a, b peering.Resources) peering.Resources {
	out := peering.Resources{}
	for name, q := range a {
		if other, ok := b[name]; ok {
			out[name] = q.Min(other)
		}
	}
	return out
}

// nodeLabels returns the labels of a virtual node: those that its nodes have in common among
// architecture, operating system and the labels by which peers may choose, those of the policy,
// and those that were asked for.
func (m *Market) nodeLabels(peer peering.ClusterID, policy peering.Policy, selector map[string]string) map[string]string {
	in := m.Supply.matching(selector, m.tolerations(peer, selector))
	out := map[string]string{}
	show := func(key, value string, over bool) {
		if _, ok := out[key]; ok && over || !ok && len(out) < peering.MaxNodeLabels {
			out[key] = value
		}
	}
	for _, key := range []string{corev1.LabelArchStable, corev1.LabelOSStable} {
		if value := m.Supply.common(in, key); value != "" {
			out[key] = value
		}
	}
	maps.Copy(out, policy.NodeLabels)
	for _, key := range slices.Sorted(maps.Keys(selector)) {
		show(key, selector[key], true)
	}
	for _, key := range policy.NodeSelectorKeys {
		if value := m.Supply.common(in, key); value != "" {
			show(key, value, false)
		}
	}
	return out
}

// described returns the labels of a virtual node, whether or not anything is left for one: nodes of contracts in force
// have these. It is nil where there are no nodes, and where a policy offers nothing to anybody.
func (m *Market) described(peer peering.ClusterID, policy peering.Policy, selector map[string]string) map[string]string {
	if policy.Accept == peering.Never || !slices.Contains(m.Supply.matching(selector, m.tolerations(peer, selector)), true) {
		return nil
	}
	return m.nodeLabels(peer, policy, selector)
}

// Offer returns what a peer is offered now.
func (m *Market) Offer(peer peering.ClusterID) peering.Offer {
	out := peering.Offer{Services: m.ExportsTo(peer).services}
	fc, l, err := m.PolicyOf(peer)
	if err != nil {
		out.Message = messageOf(err)
		return out
	}
	ask, policy, err := l.In(peering.Ask{RequestID: "offer"})
	out.Pools = m.offeredPools(peer, l)
	if err == nil {
		policy.Approved = true
		out.NodeLabels = m.described(peer, policy, ask.NodeSelector)
		var g peering.Grant
		if g, err = m.Decide(peer, ask, policy, ""); err == nil {
			out.Available, out.Resources, out.Price, out.Duration = true, g.Resources, g.Price, g.Duration
			m.describe(&out, policy, m.Supply.matching(ask.NodeSelector, m.tolerations(peer, ask.NodeSelector)))
		}
	}
	if err != nil {
		out.Message = messageOf(err)
	}
	if policy.Accept == peering.AfterApproval && (err == nil || len(out.Pools) > 0) {
		// It changes with each decision, so that a consumer that waits for one asks again then.
		approval := fmt.Sprintf("an administrator of the provider approves each request; of this cluster's, %d were approved and %d denied",
			len(fc.Spec.ApprovedRequests), len(fc.Spec.DeniedRequests))
		out.Message = strings.TrimPrefix(out.Message+"; "+approval, "; ")
	}
	return out
}

// describe adds architectures and storage classes to an offer, of the nodes that are in.
func (m *Market) describe(out *peering.Offer, policy peering.Policy, in []bool) {
	out.Architectures = m.Supply.architectures(in)
	out.Architectures = out.Architectures[:min(len(out.Architectures), peering.MaxArchitectures)]
	for _, class := range m.StorageClasses {
		if slices.Contains(policy.StorageClasses, class) && len(out.StorageClasses) < peering.MaxStorageClasses {
			out.StorageClasses = append(out.StorageClasses, class)
		}
	}
}

// messageOf returns the text of a decision's error for the peer, without internal errors.
func messageOf(err error) string {
	if e, ok := errors.AsType[*peering.Error](err); ok {
		return e.Message
	}
	return "the provider cannot decide now"
}

// Explain returns what bounds each resource of an ask: the tightest bound of all
// levels.
func (m *Market) Explain(peer peering.ClusterID, ask peering.Ask) []string {
	_, l, err := m.PolicyOf(peer)
	if err != nil || l.err != nil {
		return nil
	}
	ask, policy, err := l.In(ask)
	if err != nil {
		return nil
	}
	levels, err := m.levels(peer, policy, ask.NodeSelector, ask.ContractID)
	if err != nil {
		return nil
	}
	tightest := map[string]peering.Bound{}
	for _, level := range levels {
		for _, b := range peering.Explain(ask, level.policy(policy), level.have) {
			if was, ok := tightest[b.Resource]; !ok || b.Granted.Cmp(was.Granted) < 0 {
				tightest[b.Resource] = b
			}
		}
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(tightest)) {
		out = append(out, tightest[name].String())
	}
	return out
}
