package market

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// pool is some of the nodes, which a policy offers by a name.
type pool struct {
	name string
	// value is the policy with the pool's nodes, limits, price and labels.
	value peering.Policy
	// tolerations is what pods on its nodes tolerate.
	tolerations []corev1.Toleration
}

// readPools reads the pools of a policy whose other fields are read. It calls fail for each invalid
// field.
func readPools(policy *peering.Policy, spec []v1alpha1.NodePool, fail func(what string, err error)) []pool {
	if len(spec) > peering.MaxPools {
		fail("pools", fmt.Errorf("%d pools, more than %d", len(spec), peering.MaxPools))
		return nil
	}
	out := make([]pool, 0, len(spec))
	for i := range spec {
		p := &spec[i]
		what := "pools " + p.Name
		value := *policy
		value.Nodes = make(map[string]string, len(p.NodeSelector))
		for key, v := range p.NodeSelector {
			value.Nodes[key] = string(v)
		}
		if p.Name == "" || len(value.Nodes) == 0 {
			fail(what, fmt.Errorf("a pool has a name and a nodeSelector"))
		}
		fail(what, peering.CheckPool(p.Name))
		fail(what+", nodeSelector", peering.CheckNodeSelector(value.Nodes))
		for _, other := range out {
			if other.name == p.Name || !labels.Conflicts(other.value.Nodes, value.Nodes) {
				fail(what, fmt.Errorf("a node may be in pool %s, too: the two name no label with different values", other.name))
			}
		}
		if p.Limits != nil {
			value.PercentOfFree, value.TotalPercent, value.OvercommitPercent = defaultPercent, 100, 100
			value.Ceilings, value.Total = nil, nil
			readLimits(&value, p.Limits, func(field string, err error) { fail(what+", "+field, err) })
			value.StorageClasses = offeredClasses(&value)
		}
		if p.Price != nil {
			value.Price = readPrices(p.Price, what+", price", fail)
		}
		value.NodeLabels = maps.Clone(policy.NodeLabels)
		if value.NodeLabels == nil {
			value.NodeLabels = map[string]string{}
		}
		maps.Copy(value.NodeLabels, p.NodeLabels)
		fail(what+", nodeLabels", peering.CheckNodeLabels(value.NodeLabels))
		tolerations, err := store.ReadTolerations(p.Tolerations)
		fail(what+", tolerations", err)
		out = append(out, pool{p.Name, value, tolerations})
	}
	for i := range out {
		out[i].value.OvercommitBeyond = policy.OvercommitPercent
		for _, other := range out {
			out[i].value.OvercommitBeyond = max(out[i].value.OvercommitBeyond, other.value.OvercommitPercent)
		}
	}
	return out
}

// In returns an ask and its policy, both with the nodes and limits of the pool that the ask names.
func (p *Policy) In(ask peering.Ask) (peering.Ask, peering.Policy, error) {
	value, err := p.Checked()
	switch {
	case err != nil, value.Accept == peering.Never:
		return ask, value, err
	case len(p.pools) == 0 && ask.Pool == "":
		return ask, value, nil
	}
	name := cmp.Or(ask.Pool, v1alpha1.DefaultPool)
	i := slices.IndexFunc(p.pools, func(p pool) bool { return p.name == name })
	switch {
	case i >= 0:
		value = p.pools[i].value
	case len(p.pools) == 0:
		return ask, value, peering.Refuse(peering.ReasonPolicyRefused, "", "the provider's policy %q offers no pools to this peer: ask for none", value.Name)
	case ask.Pool == "":
		return ask, value, peering.Refuse(peering.ReasonPolicyRefused, "", "the provider's policy %q offers pools of its nodes: ask for one of %s", value.Name, p.poolNames())
	default:
		return ask, value, peering.Refuse(peering.ReasonPolicyRefused, "", "the provider's policy %q offers no pool %s to this peer, but %s", value.Name, ask.Pool, p.poolNames())
	}
	if err := value.CheckNodes(ask.NodeSelector); err != nil {
		return ask, value, err
	}
	if labels.Conflicts(ask.NodeSelector, value.Nodes) {
		return ask, value, peering.Refuse(peering.ReasonPolicyRefused, "", "no node of the provider's pool %s can have the labels %s",
			name, strings.TrimSuffix(selectorKey(ask.NodeSelector), ","))
	}
	selector := maps.Clone(value.Nodes)
	maps.Copy(selector, ask.NodeSelector)
	ask.NodeSelector = selector
	return ask, value, nil
}

// Tolerations returns what the pods of a contract on nodes with these labels tolerate: kept, which it
// was signed with, and those of the pool of these nodes. So a contract keeps running as it was signed,
// whatever happens to the pool, and also when the nodes get a taint and the pool a toleration of it.
func (p *Policy) Tolerations(kept []corev1.Toleration, nodes map[string]string) []corev1.Toleration {
	if p.err != nil {
		return kept
	}
	for i := range p.pools {
		if hasLabels(nodes, p.pools[i].value.Nodes) {
			return joined(kept, p.pools[i].tolerations)
		}
	}
	return kept
}

// joined returns the tolerations of both.
func joined(a, b []corev1.Toleration) []corev1.Toleration {
	out := slices.Clone(a)
	for _, t := range b {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

func (p *Policy) poolNames() string {
	names := make([]string, len(p.pools))
	for i, p := range p.pools {
		names[i] = p.name
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// beyond returns the policy of a pool for a level that has other nodes, too: what all nodes have free
// bounds the ask, and the amounts of storage, which belongs to no node.
func beyond(p peering.Policy) peering.Policy {
	storage := func(limits peering.Resources) peering.Resources {
		out := peering.Resources{}
		for name, amount := range limits {
			if peering.StorageClass(name) != "" {
				out[name] = amount
			}
		}
		return out
	}
	p.Ceilings, p.Total = storage(p.Ceilings), storage(p.Total)
	p.PercentOfFree, p.TotalPercent, p.OvercommitPercent = 100, 100, p.OvercommitBeyond
	return p
}

// offeredPools returns what a peer is offered of each pool, by name, as many pools as an offer has
// room for.
func (m *Market) offeredPools(peer peering.ClusterID, selected *Policy) []peering.OfferedPool {
	if selected.err != nil || selected.Value.Accept == peering.Never {
		return nil
	}
	var out []peering.OfferedPool
	size := 0
	for _, p := range selected.pools {
		offered := peering.OfferedPool{Name: p.name, Price: p.value.Price}
		ask, policy, err := selected.In(peering.Ask{RequestID: "offer", Pool: p.name})
		if err == nil {
			policy.Approved = true
			offered.NodeLabels = m.described(peer, policy, ask.NodeSelector)
			var g peering.Grant
			if g, err = m.Decide(peer, ask, policy, ""); err == nil {
				offered.Resources, offered.Price = g.Resources, g.Price
			}
		}
		if size += offered.Size(); size > peering.MaxPoolsSize {
			break
		}
		out = append(out, offered)
	}
	slices.SortFunc(out, func(a, b peering.OfferedPool) int { return strings.Compare(a.Name, b.Name) })
	return out
}
