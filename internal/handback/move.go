package handback

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

// misplaced reports whether a pod runs where its namespace's strategy and selector would not put a
// new one; node is its virtual node, or nil if it is on another kind of node.
func misplaced(o *v1alpha1.NamespaceOffloadingSpec, p *corev1.Pod, node *corev1.Node) bool {
	selected := node != nil && selects(o.ClusterSelector, node)
	switch placement.StrategyOf(p, o) {
	case v1alpha1.StrategyLocal:
		return node != nil
	case v1alpha1.StrategyRemote:
		return !selected
	case v1alpha1.StrategyLocalAndRemote:
		return node != nil && !selected
	}
	return false
}

// selects reports whether a selector selects a virtual node. A latency that is not known yet does
// not count against a node.
func selects(s *metav1.LabelSelector, node *corev1.Node) bool {
	if _, measured := node.Labels[v1alpha1.LabelLatency]; !measured {
		s = placement.ByPeer(s)
	}
	return placement.Selects(s, node.Labels)
}

// candidates returns the pods that may not run where they do, if the policy moves them; those that
// are not ready, and so serve no one, come first.
func candidates(f *facts) (out []*corev1.Pod) {
	if f.offloading.Spec.Misplaced != v1alpha1.MisplacedMove {
		return nil
	}
	for i := range f.pods {
		p := &f.pods[i]
		owner := metav1.GetControllerOfNoCopy(p)
		if p.Spec.NodeName == "" || ended(p) || owner != nil && owner.Kind == "DaemonSet" {
			continue
		}
		node := f.nodes[p.Spec.NodeName]
		if node == nil && strings.HasSuffix(p.Spec.NodeName, v1alpha1.VirtualNodeSuffix) {
			continue // its node is being created again, or removed
		}
		if misplaced(&f.offloading.Spec, p, node) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, func(a, b *corev1.Pod) int {
		switch {
		case serves(a) == serves(b):
			return 0
		case serves(b):
			return -1
		}
		return 1
	})
	return out
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func serves(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// notReplaced returns why a pod's controller would not replace it, or should not have to; "" if it may. job is why that
// is so if it is a Job.
func notReplaced(p *corev1.Pod, job string) string {
	if why := notMadeAgain(p, job); why != "" {
		return why
	}
	if slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }) {
		return "it has a volume, which stays where it is"
	}
	return ""
}

// notMadeAgain is notReplaced for pods whose volumes are where they should run.
func notMadeAgain(p *corev1.Pod, job string) string {
	owner := metav1.GetControllerOfNoCopy(p)
	switch {
	case owner == nil:
		return "it has no controller that would create another: delete it and create it again, and it runs elsewhere"
	case ofJob(owner) && job != "":
		return job
	case !ofJob(owner) && owner.Kind != "ReplicaSet" && owner.Kind != "StatefulSet" && owner.Kind != "ReplicationController":
		return fmt.Sprintf("it is not known whether its %s would create another: delete it, and another may run elsewhere", owner.Kind)
	}
	return ""
}

// notMoved returns why a pod is not moved; "" if it is. It needs the whole pod, not the cache's reduced one.
func notMoved(o *v1alpha1.NamespaceOffloadingSpec, p *corev1.Pod) string {
	if why := notReplaced(p, countsAsFailed+deleteIt); why != "" {
		return why
	}
	if placement.StrategyOf(p, o) == v1alpha1.StrategyRemote && !placement.Crosses(&p.Spec) {
		return "it cannot run in another cluster"
	}
	return ""
}

// gentle bounds how many pods of a controller are moved at a time, even without a disruption
// budget: none while a quarter of them, and at least one, does not serve.
type gentle map[types.UID]*served

type served struct{ pods, out int }

func gentleWith(pods []corev1.Pod) gentle {
	g := gentle{}
	for i := range pods {
		p := &pods[i]
		owner := metav1.GetControllerOfNoCopy(p)
		if owner == nil || ended(p) {
			continue
		}
		if g[owner.UID] == nil {
			g[owner.UID] = &served{}
		}
		if g[owner.UID].pods++; !serves(p) {
			g[owner.UID].out++
		}
	}
	return g
}

// take reports whether one more pod may be moved, and counts it.
func (g gentle) take(p *corev1.Pod) bool {
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil || !serves(p) {
		return true
	}
	s := g[owner.UID]
	if s.out >= max(1, s.pods/4) {
		return false
	}
	s.out++
	return true
}
