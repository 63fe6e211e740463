package market

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/peering"
)

// level is a set of nodes whose capacity an ask has to fit into.
type level struct {
	have peering.Capacity
	// beyond says that they include nodes outside the ask's pool.
	beyond bool
}

// policy returns the policy as it applies to the level.
func (l level) policy(p peering.Policy) peering.Policy {
	if l.beyond {
		return beyond(p)
	}
	return p
}

// tolerations returns what the pods of a peer's next contract on nodes with these labels tolerate.
func (m *Market) tolerations(peer peering.ClusterID, selector map[string]string) []corev1.Toleration {
	_, l, err := m.PolicyOf(peer)
	if err != nil {
		return nil
	}
	return l.Tolerations(nil, selector)
}

// findEverywhere finds the nodes to which pods of the contracts can come.
func (m *Market) findEverywhere() {
	m.everywhere = m.Supply.matching(nil, nil)
	seen := map[string]bool{}
	for i := range m.reservations {
		h := &m.reservations[i]
		h.on = nodesKey(h.Selector, h.Tolerations)
		if len(h.Tolerations) > 0 && !seen[h.on] {
			seen[h.on] = true
			m.everywhere, _ = union(m.everywhere, m.Supply.matching(h.Selector, h.Tolerations))
		}
	}
}

// nodesKey returns the same key for the same labels and tolerations.
func nodesKey(selector map[string]string, tolerations []corev1.Toleration) string {
	keys := []string{selectorKey(selector)}
	for _, t := range tolerations {
		keys = append(keys, strings.Join([]string{t.Key, string(t.Operator), t.Value, string(t.Effect)}, " "))
	}
	slices.Sort(keys[1:])
	return strings.Join(keys, "; ")
}

// levels returns the sets of nodes that an ask has to fit into, each: all nodes to which any pods can come, those
// to which its own can, and the nodes of its pool. A contract counts on a level if it can run nowhere else. If
// nodes of contracts overlap the ask's, or the pool's, the ask has to fit into their union, too.
func (m *Market) levels(peer peering.ClusterID, policy peering.Policy, selector map[string]string, except string) ([]level, error) {
	tolerated := m.tolerations(peer, selector)
	own := m.Supply.matching(selector, tolerated)
	all, everywhere := m.all, m.everywhere
	all.ReservedForPeer, all.ReservedByPolicy = m.byPeer[peer], m.byPolicy[policy.Name]
	for _, h := range m.reservations {
		if except != "" && h.Contract == except {
			all = all.Without(h.Amounts)
		}
	}
	if more, ok := union(everywhere, own); ok {
		everywhere, all.Free = more, m.Supply.free(more, m.reserving())
	}
	levels := []level{{all, len(policy.Nodes) > 0}}
	if len(selector) == 0 && slices.Equal(own, everywhere) {
		return levels, nil
	}
	if len(selector) > 0 && !slices.Contains(own, true) {
		return nil, peering.Refuse(peering.ReasonCapacityExhausted, "",
			"no node of the provider that takes pods of this contract has the labels %s", strings.TrimSuffix(selectorKey(selector), ","))
	}
	others := m.others()
	if _, has := others[nodesKey(selector, tolerated)]; !has && len(others) >= maxSelectors {
		return nil, peering.Refuse(peering.ReasonCapacityExhausted, "",
			"limit of %d different sets of nodes in contracts reached", maxSelectors)
	}
	pool := m.Supply.matching(policy.Nodes, tolerated)
	for _, in := range sets(own, pool, others) {
		wider := !within(in, pool)
		if slices.Equal(in, everywhere) && wider == levels[0].beyond {
			continue
		}
		have, err := m.level(in, slices.Equal(in, pool), others, peer, policy, except)
		if err != nil {
			return nil, err
		}
		levels = append(levels, level{have, wider})
	}
	return levels, nil
}

// others returns the nodes to which pods of the contracts can come, by their keys.
func (m *Market) others() map[string][]bool {
	out := map[string][]bool{}
	for _, h := range m.reservations {
		if _, ok := out[h.on]; !ok {
			out[h.on] = m.Supply.matching(h.Selector, h.Tolerations)
		}
	}
	return out
}

// sets returns the nodes of an ask, those of its pool, and the unions of either with the nodes of other contracts
// that overlap them, each once.
func sets(own, pool []bool, others map[string][]bool) [][]bool {
	out := [][]bool{own}
	add := func(set []bool) {
		if !slices.ContainsFunc(out, func(has []bool) bool { return slices.Equal(has, set) }) {
			out = append(out, set)
		}
	}
	add(pool)
	for _, base := range [][]bool{own, pool} {
		for _, key := range slices.Sorted(maps.Keys(others)) {
			if both, ok := overlap(base, others[key]); ok {
				add(both)
			}
		}
	}
	return out
}

// level returns the capacity of a set of nodes; pool says that they are those of the policy's pool. others is
// the nodes of the contracts. A contract on any nodes takes room on a level, and counts against no pool's limits.
// A contract with the labels of a pool counts against its limits even if it can run on other nodes: its tolerations
// may no longer be those of the pool.
func (m *Market) level(in []bool, pool bool, others map[string][]bool, peer peering.ClusterID, policy peering.Policy, except string) (peering.Capacity, error) {
	have := peering.Capacity{
		Free:           m.Supply.free(in, m.reserving()),
		RuntimeClasses: m.RuntimeClasses, StorageClasses: m.StorageClasses,
		Reserved: peering.Resources{}, ReservedForPeer: peering.Resources{}, ReservedByPolicy: peering.Resources{},
	}
	inside := make(map[string]bool, len(others))
	for key, nodes := range others {
		inside[key] = within(nodes, in)
	}
	for _, h := range m.reservations {
		if h.Contract == except {
			continue
		}
		limited := inside[h.on] && (len(h.Selector) > 0 || len(policy.Nodes) == 0) ||
			pool && len(policy.Nodes) > 0 && hasLabels(h.Selector, policy.Nodes)
		for sum, counts := range map[*peering.Resources]bool{
			&have.Reserved: inside[h.on], &have.ReservedForPeer: limited && h.Peer == peer, &have.ReservedByPolicy: limited && h.policy == policy.Name,
		} {
			if !counts {
				continue
			}
			total, err := sum.Add(h.Amounts)
			if err != nil {
				return peering.Capacity{}, err
			}
			*sum = total
		}
	}
	return have, nil
}

// within reports whether a has nodes, all of which b has.
func within(a, b []bool) bool {
	some := false
	for i := range a {
		if a[i] && !b[i] {
			return false
		}
		some = some || a[i]
	}
	return some
}

// union returns the nodes of both, and whether those are more than a.
func union(a, b []bool) (both []bool, more bool) {
	both = slices.Clone(a)
	for i := range b {
		more = more || b[i] && !a[i]
		both[i] = a[i] || b[i]
	}
	return both, more
}

// overlap returns the union of two sets of nodes, and whether they overlap and it is
// more than a.
func overlap(a, b []bool) (both []bool, more bool) {
	shared := false
	for i := range b {
		shared = shared || a[i] && b[i]
	}
	both, more = union(a, b)
	return both, shared && more
}
