package handback

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

// facts is everything on which the decision about a namespace depends.
type facts struct {
	now        time.Time
	offloading *v1alpha1.NamespaceOffloading
	pods       []corev1.Pod
	nodes      map[string]*corev1.Node // the virtual ones, by name
	jobs       map[types.UID]jobRules  // of Jobs whose pods may be evicted, as far as they were read
}

// decision is what to do about the pods of a namespace.
type decision struct {
	kept  []v1alpha1.PlacementBackoff
	evict []verdict
	stay  []verdict
}

// verdict is the decision about a pod, with its reason.
type verdict struct {
	pod *corev1.Pod
	why string
}

// decide decides which pods are handed back, and from where their controllers' next ones are kept
// away. It evicts none before placement knows that: the next pod would go where this one came from.
func decide(f *facts) decision {
	d := decision{kept: aged(f.offloading.Status.PlacementBackoffs, f.now)}
	after, then := policyOf(f.offloading.Spec.Unschedulable)
	for i := range f.pods {
		p := &f.pods[i]
		if d.comesBack(f, p) {
			d.evict = append(d.evict, verdict{p, "it may run anywhere again: the time during which it was kept away from a virtual node is over"})
			continue
		}
		waits := unscheduled(p)
		if then == v1alpha1.UnschedulableWait || waits == nil || f.now.Sub(waits.LastTransitionTime.Time) < after {
			continue
		}
		node := f.node(p.Spec.NodeName)
		if node == nil || !f.knowsJob(p) {
			continue
		}
		if why := d.mustStay(f, p, node); why != "" {
			d.stay = append(d.stay, verdict{p, why})
			continue
		}
		d.handBack(f.now, p, node)
	}
	d.evict = d.evict[:min(len(d.evict), maxEvictions)]
	return d
}

// handBack evicts a pod if its controller's next one is kept away from its virtual node already; if
// not, it records that it has to be.
func (d *decision) handBack(now time.Time, p *corev1.Pod, node *corev1.Node) {
	owner, name := metav1.GetControllerOfNoCopy(p), node.Labels[corev1.LabelHostname]
	i := slices.IndexFunc(d.kept, func(k v1alpha1.PlacementBackoff) bool { return k.OwnerUID == string(owner.UID) && k.Node == name })
	switch {
	case i >= 0 && !d.kept[i].Expired:
		if now.Sub(d.kept[i].Since.Time) >= placementLag {
			d.evict = append(d.evict, verdict{p, fmt.Sprintf("the provider behind %s has no node for it; the next one is kept away from there until %s",
				node.Name, d.kept[i].Until.UTC().Format(time.RFC3339))})
		}
		return
	case i < 0 && len(d.kept) >= maxKept:
		d.stay = append(d.stay, verdict{p, fmt.Sprintf("limit of %d reached: pairs of a controller of this namespace and a virtual node that its pods are kept away from", maxKept)})
		return
	case i < 0:
		d.kept = append(d.kept, v1alpha1.PlacementBackoff{OwnerUID: string(owner.UID), Kind: owner.Kind, Name: owner.Name, Node: name})
		i = len(d.kept) - 1
	}
	k := &d.kept[i]
	k.Count++
	k.Since, k.Until, k.Expired = metav1.NewTime(now), metav1.NewTime(now.Add(pause(k.Count))), false
}

// comesBack reports whether a pod waits for a node although the time during which it was kept away
// from a virtual one is over: its affinity cannot be changed, so another pod has to take its place.
// Its controller's new pods are no longer kept away, so that happens once.
func (d *decision) comesBack(f *facts, p *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil || p.Spec.NodeName != "" || p.Status.Phase != corev1.PodPending || p.DeletionTimestamp != nil {
		return false
	}
	if !f.knowsJob(p) || f.jobCounts(p) != "" {
		return false
	}
	return slices.ContainsFunc(d.kept, func(k v1alpha1.PlacementBackoff) bool {
		known := k.Until.Add(2 * placementLag) // to placement
		return k.Expired && k.OwnerUID == string(owner.UID) && !f.now.Before(known) && p.CreationTimestamp.Time.Before(known) && keptFrom(p, k.Node)
	})
}

// keptFrom reports whether a pod's node affinity keeps it away from a virtual node.
func keptFrom(p *corev1.Pod, node string) bool {
	a := p.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(t.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
			return equality.Semantic.DeepEqual(e, placement.NotOn(node))
		})
	})
}

// aged returns the entries that are still remembered, as they are at now.
func aged(all []v1alpha1.PlacementBackoff, now time.Time) []v1alpha1.PlacementBackoff {
	var out []v1alpha1.PlacementBackoff
	for _, k := range all {
		if now.Before(k.Until.Add(max(k.Until.Sub(k.Since.Time), 3*placementLag))) {
			k.Expired = !now.Before(k.Until.Time)
			out = append(out, k)
		}
	}
	return out
}

func pause(times int32) time.Duration {
	return min(firstPause<<min(max(times, 1)-1, 16), maxPause)
}

func policyOf(u *v1alpha1.Unschedulable) (time.Duration, v1alpha1.UnschedulableAction) {
	after, then := defaultAfter, v1alpha1.UnschedulableHandBack
	if u != nil && u.After != nil {
		after = u.After.Duration
	}
	if u != nil && u.Action != "" {
		then = u.Action
	}
	return after, then
}

// unscheduled returns the condition that says that a pod's provider took it but has no node for it,
// or nil. Its time is when the provider took the pod.
func unscheduled(p *corev1.Pod) *corev1.PodCondition {
	if p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodPending {
		return nil
	}
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.PodOffloaded })
	if i < 0 || p.Status.Conditions[i].Status != corev1.ConditionTrue || p.Status.Conditions[i].Reason != corev1.PodReasonUnschedulable {
		return nil
	}
	return &p.Status.Conditions[i]
}

// node returns a virtual node whose provider responds, or nil. If it does not, the state of its
// pods is not known.
func (f *facts) node(name string) *corev1.Node {
	if n := f.nodes[name]; n != nil && ready(n) {
		return n
	}
	return nil
}

func ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// knowsJob reports whether a pod is not a Job's, or that Job was read.
func (f *facts) knowsJob(p *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(p)
	if !ofJob(owner) {
		return true
	}
	_, is := f.jobs[owner.UID]
	return is
}

// jobCounts returns why the Job of a pod might count it as failed if it is evicted; "" if it is not a Job's.
func (f *facts) jobCounts(p *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(p)
	if !ofJob(owner) {
		return ""
	}
	return f.jobs[owner.UID].counts(p)
}

// mustStay returns why a pod is not handed back, or "": no controller would create another, its
// owner would lose something, or the other could run nowhere.
func (d *decision) mustStay(f *facts, p *corev1.Pod, at *corev1.Node) string {
	if why := notReplaced(p, f.jobCounts(p)); why != "" {
		return why
	}
	if placement.AbroadOnly(&p.Spec) && !d.otherNode(f, p, at) {
		return "it may run abroad only, and no other virtual node takes it"
	}
	return ""
}

// otherNode reports whether another virtual node would take the next pod, by its labels: one of
// another provider, or of another pool of the same one.
func (d *decision) otherNode(f *facts, p *corev1.Pod, at *corev1.Node) bool {
	owner, wants := metav1.GetControllerOfNoCopy(p), nodeaffinity.GetRequiredNodeAffinity(p)
	for _, n := range f.nodes {
		if n.Name == at.Name || n.Spec.Unschedulable || !ready(n) || slices.ContainsFunc(d.kept, func(k v1alpha1.PlacementBackoff) bool {
			return !k.Expired && k.OwnerUID == string(owner.UID) && k.Node == n.Labels[corev1.LabelHostname]
		}) {
			continue
		}
		if matches, err := wants.Match(n); err == nil && matches {
			return true
		}
	}
	return false
}
