package automatic

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
)

// useInput is everything that the use of peers by automatic policies follows from.
type useInput struct {
	rules      []policyRule
	all        []v1alpha1.ForeignCluster
	requests   []v1alpha1.PeeringRequest
	offloading []v1alpha1.NamespaceOffloading
	// namespaces is those that exist and are not being deleted.
	namespaces map[string]bool
	// gone is as in peerInput.
	gone func(policy string) (bool, time.Time)
}

// usePlan is what to do about PeeringRequests and NamespaceOffloadings.
type usePlan struct {
	create      []*v1alpha1.PeeringRequest
	change      []requestChange
	remove      []*v1alpha1.PeeringRequest
	offload     []*v1alpha1.NamespaceOffloading
	stopOffload []*v1alpha1.NamespaceOffloading
	// handOver is the objects that belong to an administrator from now on, like the peer that they are for.
	handOver  []client.Object
	leftAlone []leftAlone
}

type requestChange struct {
	request *v1alpha1.PeeringRequest
	spec    v1alpha1.PeeringRequestSpec
}

// leftAlone is an object that a policy would make and that another owner made.
type leftAlone struct{ policy, what string }

// planUse decides what is asked of the peers of automatic policies. Each peer is asked by a request of its own: one
// with a clusterSelector would ask all and take the cheapest.
func planUse(v useInput) usePlan {
	awaited := func(policy string) bool { gone, _ := v.gone(policy); return !gone }
	var out usePlan
	wanted := map[string]*v1alpha1.PeeringRequest{}
	rules := make(map[string]*policyRule, len(v.rules))
	for i := range v.rules {
		rules[v.rules[i].name] = &v.rules[i]
	}
	trusted, taken := make(map[string]*metav1.Condition, len(v.all)), map[string]bool{}
	for i := range v.all {
		fc := &v.all[i]
		taken[fc.Name] = takenOver(fc)
		if c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted); c != nil && c.Status == metav1.ConditionTrue {
			trusted[fc.Name] = c
		}
		if rule := rules[store.PeerOfPolicy(fc)]; rule != nil && rule.Uses() && rule.stillTrusts(fc) && inTrust(fc) {
			want := requestFor(rule, fc)
			wanted[want.Name] = want
		}
	}
	for i := range v.requests {
		r := &v.requests[i]
		policy := store.MadeByPolicy(r)
		want := wanted[r.Name]
		delete(wanted, r.Name)
		switch {
		case policy == "", !strings.HasPrefix(r.Name, requestPrefix): // an administrator's, whatever its labels say
			if want != nil {
				out.leftAlone = append(out.leftAlone, leftAlone{want.Labels[v1alpha1.LabelAutomatic], "PeeringRequest " + r.Name})
			}
		case !r.DeletionTimestamp.IsZero():
		case want == nil && taken[r.Spec.ForeignCluster]:
			out.handOver = append(out.handOver, r)
		case want == nil && rules[policy] == nil && awaited(policy): // it may be back in a moment
		case want == nil, want.Spec.ForeignCluster != r.Spec.ForeignCluster, want.Labels[v1alpha1.LabelAutomatic] != policy:
			out.remove = append(out.remove, r)
		case outlived(r, trusted[r.Spec.ForeignCluster]):
			out.remove = append(out.remove, r) // and asked again by the next reconciliation
		case !equality.Semantic.DeepEqual(want.Spec.Resources, r.Spec.Resources), !equality.Semantic.DeepEqual(want.Spec.PriceCeiling, r.Spec.PriceCeiling):
			out.change = append(out.change, requestChange{r, want.Spec})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		// A peer that does not trust this cluster is not asked.
		if want := wanted[name]; trusted[want.Spec.ForeignCluster] != nil {
			out.create = append(out.create, want)
		}
	}
	planOffloading(v, rules, awaited, &out)
	slices.SortFunc(out.leftAlone, func(a, b leftAlone) int { return cmp.Or(cmp.Compare(a.policy, b.policy), cmp.Compare(a.what, b.what)) })
	return out
}

// takenOver reports whether a ForeignCluster is an administrator's, and trusted: taking it over from a policy ends
// nothing that the policy made for it.
func takenOver(fc *v1alpha1.ForeignCluster) bool { return inTrust(fc) && store.PeerOfPolicy(fc) == "" }

// inTrust reports whether a ForeignCluster is trusted, and will stay so.
func inTrust(fc *v1alpha1.ForeignCluster) bool {
	return fc.DeletionTimestamp.IsZero() && fc.Spec.TrustBundle != "" && fc.Spec.Decision != v1alpha1.DecisionDenied
}

// outlived reports whether the provider ended what a request was for and trust was made again since: then the
// request may be made again. If trust lasted all the time the end was final.
func outlived(r *v1alpha1.PeeringRequest, trusted *metav1.Condition) bool {
	accepted := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionAccepted)
	return trusted != nil && accepted != nil && accepted.Reason == store.ReasonEndedByProvider && !trusted.LastTransitionTime.Before(&accepted.LastTransitionTime)
}

func planOffloading(v useInput, rules map[string]*policyRule, awaited func(string) bool, out *usePlan) {
	wanted := map[string]string{}
	for i := range v.rules {
		rule := &v.rules[i]
		for _, ns := range rule.Namespaces {
			switch first, taken := wanted[ns]; {
			case !rule.Uses() || !v.namespaces[ns]:
			case taken:
				out.leftAlone = append(out.leftAlone, leftAlone{rule.name, "namespace " + ns + ", which the policy " + first + " offloads,"})
			default:
				wanted[ns] = rule.name
			}
		}
	}
	serves := map[string]bool{} // by policy, whether one that was taken over runs its namespaces
	for i := range v.all {
		if takenOver(&v.all[i]) {
			serves[v.all[i].Labels[v1alpha1.LabelNamespacesOf]] = true
		}
	}
	for i := range v.offloading {
		o := &v.offloading[i]
		policy := store.MadeByPolicy(o)
		want, is := wanted[o.Namespace]
		delete(wanted, o.Namespace)
		switch {
		case policy == "":
			if is {
				out.leftAlone = append(out.leftAlone, leftAlone{want, "the NamespaceOffloading of namespace " + o.Namespace})
			}
		case !o.DeletionTimestamp.IsZero():
		case !is && rules[policy] == nil && awaited(policy):
		case want == policy:
		case serves[policy]:
			out.handOver = append(out.handOver, o)
		default:
			out.stopOffload = append(out.stopOffload, o)
		}
	}
	for _, ns := range slices.Sorted(maps.Keys(wanted)) {
		out.offload = append(out.offload, &v1alpha1.NamespaceOffloading{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: v1alpha1.NamespaceOffloadingName, Labels: labelsOf(wanted[ns])},
			Spec: v1alpha1.NamespaceOffloadingSpec{ClusterSelector: &metav1.LabelSelector{
				MatchLabels: map[string]string{v1alpha1.LabelNamespacesOf: wanted[ns]},
			}},
		})
	}
}

func labelsOf(policy string) map[string]string {
	return map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelAutomatic: policy}
}

// requestPrefix precedes a ForeignCluster's name in the name of its request.
const requestPrefix = "automatic-"

// requestFor is the request of a policy to one of its peers.
func requestFor(rule *policyRule, fc *v1alpha1.ForeignCluster) *v1alpha1.PeeringRequest {
	return &v1alpha1.PeeringRequest{
		ObjectMeta: metav1.ObjectMeta{Name: requestPrefix + fc.Name, Labels: labelsOf(rule.name)},
		Spec: v1alpha1.PeeringRequestSpec{
			ForeignCluster: fc.Name, Resources: rule.Resources, PriceCeiling: rule.PriceCeiling,
		},
	}
}
