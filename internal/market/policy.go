package market

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Policy is a PeeringPolicy, read.
type Policy struct {
	Spec     *v1alpha1.PeeringPolicySpec
	selector labels.Selector
	Value    peering.Policy
	// pools is the parts of the nodes that it offers by name; without any it offers all nodes.
	pools []pool
	// Exports is the Services that its peers may import.
	Exports []export
	// set selects the namespaces that its peers share; nil means none.
	set labels.Selector
	// problems is everything that is wrong with it, and err the same as an error. It then still selects peers, and
	// offers them nothing.
	problems []string
	err      error
}

// ReadPolicies reads policies, and sorts them by precedence: a policy with automatic decides
// about the clusters that it peered with, whatever others select.
func ReadPolicies(list []v1alpha1.PeeringPolicy) []Policy {
	out := make([]Policy, 0, len(list))
	for i := range list {
		out = append(out, readPolicy(&list[i]))
	}
	slices.SortFunc(out, func(a, b Policy) int {
		if a, b := a.Spec.Automatic != nil, b.Spec.Automatic != nil; a != b {
			if a {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Value.Name, b.Value.Name)
	})
	return out
}

// DefaultNodeSelectorKeys is the labels by which consumers may choose among nodes if a policy does not say: what kind of
// machines they are, and where. The definition of PeeringPolicies and the chart have the same.
func DefaultNodeSelectorKeys() []string {
	return []string{
		corev1.LabelArchStable, corev1.LabelOSStable, corev1.LabelTopologyRegion, corev1.LabelTopologyZone,
		"nvidia.com/gpu.product", "amd.com/gpu.product-name", "gpu.intel.com/product",
	}
}

func readPolicy(p *v1alpha1.PeeringPolicy) Policy {
	out := Policy{Spec: &p.Spec, Value: peering.Policy{
		Name: p.Name, PercentOfFree: defaultPercent, TotalPercent: 100, OvercommitPercent: 100,
		Duration: defaultDuration, Notice: defaultNotice, StatementPeriod: defaultStatementPeriod,
		Network: true, PodSecurity: peering.PodSecurity(cmp.Or(p.Spec.PodSecurity, "baseline")),
		NodeLabels: p.Spec.NodeLabels, Renewable: p.Spec.Renewal != v1alpha1.RenewalNever,
		RuntimeClasses: p.Spec.RuntimeClasses, StorageClasses: p.Spec.StorageClasses,
		NodeSelectorKeys: p.Spec.NodeSelectorKeys,
	}}
	policy := &out.Value
	if policy.NodeSelectorKeys == nil {
		policy.NodeSelectorKeys = DefaultNodeSelectorKeys()
	}
	switch p.Spec.Accept {
	case v1alpha1.AcceptAutomatic, "":
		policy.Accept = peering.Automatic
	case v1alpha1.AcceptAfterApproval:
		policy.Accept = peering.AfterApproval
	case v1alpha1.AcceptNever:
	}
	if a := p.Spec.Automatic; a != nil && !a.Provides() {
		policy.Accept = peering.Never
	}
	for to, from := range map[*time.Duration]*metav1.Duration{
		&policy.Duration: p.Spec.ContractDuration, &policy.Notice: p.Spec.Notice, &policy.StatementPeriod: p.Spec.StatementPeriod,
	} {
		if from != nil {
			*to = from.Duration
		}
	}
	fail := func(what string, err error) {
		if err != nil {
			out.problems = append(out.problems, what+": "+err.Error())
		}
	}
	var err error
	checkDurations(policy, fail)
	readLimits(policy, &p.Spec.Limits, fail)
	policy.OvercommitBeyond = policy.OvercommitPercent
	policy.StorageClasses = offeredClasses(policy)
	policy.Price = readPrices(p.Spec.Price, "price", fail)
	policy.LimitRange = readLimitRange(p.Spec.LimitRange, fail)
	fail("nodeLabels", peering.CheckNodeLabels(p.Spec.NodeLabels))
	out.Exports, err = readExports(p.Spec.Services)
	fail("services", err)
	if set := p.Spec.ClusterSet; set != nil {
		out.set, err = readClusterSet(set)
		fail("clusterSet.namespaceSelector", err)
	}
	policy.Exports = len(out.Exports) > 0 || out.set != nil
	out.pools = readPools(policy, p.Spec.Pools, fail)
	out.selector = readSelector(p.Spec.ClusterSelector, fail)
	if len(out.problems) > 0 {
		out.err = errors.New(strings.Join(out.problems, "; "))
	}
	return out
}

// readLimits reads how much a policy offers. It calls fail for each invalid field.
func readLimits(policy *peering.Policy, limits *v1alpha1.PolicyLimits, fail func(what string, err error)) {
	set := func(to *int, from *int32) {
		if from != nil {
			*to = int(*from)
		}
	}
	set(&policy.PercentOfFree, limits.PercentOfFree)
	set(&policy.OvercommitPercent, limits.OvercommitPercent)
	var err error
	policy.Ceilings, err = store.Resources(limits.Resources)
	fail("limits.resources", err)
	checkNames("limits.resources", policy.Ceilings.Names(), fail)
	if limits.Total != nil {
		set(&policy.TotalPercent, limits.Total.PercentOfFree)
		policy.Total, err = store.Resources(limits.Total.Resources)
		fail("limits.total.resources", err)
		checkNames("limits.total.resources", policy.Total.Names(), fail)
	}
}

// offeredClasses returns the storage classes that a policy names, and those of which it
// limits an amount, sorted.
func offeredClasses(policy *peering.Policy) []string {
	out := slices.Clone(policy.StorageClasses)
	for _, limits := range []peering.Resources{policy.Ceilings, policy.Total} {
		for _, name := range limits.Names() {
			if class := peering.StorageClass(name); class != "" {
				out = append(out, class)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// selects reports whether the policy applies to a cluster, if no earlier one does.
func (p *Policy) selects(fc *v1alpha1.ForeignCluster) bool {
	s := p.Spec
	if s.Automatic != nil {
		return store.PeerOfPolicy(fc) == p.Value.Name
	}
	if store.PeerOfPolicy(fc) != "" {
		return false // not even while that policy is replaced, or no longer automatic
	}
	return p.selector.Matches(labels.Set(fc.Labels)) &&
		(len(s.ClusterIDs) == 0 || slices.Contains(s.ClusterIDs, fc.Spec.ClusterID)) &&
		(len(s.Names) == 0 || fc.NameConfirmed() && slices.Contains(s.Names, fc.Name)) &&
		(len(s.Sources) == 0 || slices.Contains(s.Sources, store.FoundBy(fc)))
}

// Selecting returns the policy that decides about a cluster: the first that
// selects it.
func Selecting(policies []Policy, fc *v1alpha1.ForeignCluster) (*Policy, error) {
	i := slices.IndexFunc(policies, func(p Policy) bool { return p.selects(fc) })
	if i < 0 {
		return nil, peering.Errorf(peering.ReasonPolicyRefused, "no PeeringPolicy of the provider selects this cluster: its administrator has to create one")
	}
	return &policies[i], nil
}

// Unconfirmed names a policy that would decide about a cluster if its name were
// confirmed; empty means none.
func Unconfirmed(policies []Policy, fc *v1alpha1.ForeignCluster) string {
	confirmed := fc.DeepCopy()
	metav1.SetMetaDataAnnotation(&confirmed.ObjectMeta, v1alpha1.AnnotationNameConfirmed, "true")
	now, _ := Selecting(policies, fc)
	if then, _ := Selecting(policies, confirmed); then != nil && then != now {
		return then.Value.Name
	}
	return ""
}

// Checked returns the policy as a value.
func (p *Policy) Checked() (peering.Policy, error) {
	if p.err != nil {
		return peering.Policy{}, &peering.Error{
			Reason:  peering.ReasonPolicyRefused,
			Message: fmt.Sprintf("the provider's policy %q is invalid; its administrator has to correct it", p.Value.Name),
			Err:     p.err,
		}
	}
	return p.Value, nil
}

// readClusterSet returns the selector of a cluster set's namespaces.
func readClusterSet(set *v1alpha1.ClusterSet) (labels.Selector, error) {
	if set.NamespaceSelector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(set.NamespaceSelector)
}

// HasSet reports whether peers of this policy share any namespace.
func (p *Policy) HasSet() bool { return p.set != nil && p.err == nil }

// Shares reports whether peers of this policy share a namespace. own is the agent's.
func (p *Policy) Shares(n *corev1.Namespace, own string) bool {
	return p.HasSet() && !Closed(n, own) && p.set.Matches(labels.Set(n.Labels))
}
