package vk

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/losses"
	"github.com/entente-dev/entente/internal/podstatus"
)

func losingTaint() corev1.Taint {
	return corev1.Taint{Key: api.TaintLosingPods, Value: "true", Effect: corev1.TaintEffectNoSchedule}
}

// isLosingPods reports whether the node takes no new pods at all: most of the offloaded namespaces are closed, and no
// other has a pod at the provider that stays. So a tenant whose pods end by their own specs taints no node that others use,
// however many namespaces it has. node is the node as it is in the API: until it is known which namespaces are
// offloaded, that does not change. n.mu is held.
func (n *Node) isLosingPods(node *corev1.Node, now time.Time) bool {
	if !n.synced {
		return node != nil && slices.Contains(node.Spec.Taints, losingTaint())
	}
	open, closed := map[string]bool{}, 0
	for name, s := range n.exported {
		switch {
		case s.PodsStay:
		case now.Before(n.losses.Closed(name)):
			closed++
		default:
			open[name] = true
		}
	}
	return closed > len(open) && !slices.ContainsFunc(n.localPods(), func(p *corev1.Pod) bool { return open[p.Namespace] && stays(p, now) })
}

// stays reports whether a pod has run at the provider for so long that its end would not count as a loss.
func stays(p *corev1.Pod, now time.Time) bool {
	c := podstatus.Condition(p.Status.Conditions, api.PodOffloaded)
	return c != nil && c.Status == corev1.ConditionTrue && now.Sub(c.LastTransitionTime.Time) > losses.Young &&
		!podstatus.Terminal(p.Status.Phase) && p.DeletionTimestamp == nil
}

// lostPod counts a pod that the provider lost, and closes its namespace at one too many. Neither pods
// that ran for a while count, nor those that ended by themselves.
func (n *Node) lostPod(ctx context.Context, pod *corev1.Pod) {
	now := time.Now()
	taken := podstatus.Condition(pod.Status.Conditions, api.PodOffloaded)
	if taken != nil && now.Sub(taken.LastTransitionTime.Time) > losses.Young {
		return
	}
	n.mu.Lock()
	st := n.podState(podRef(pod))
	if st.lost {
		n.mu.Unlock()
		return
	}
	st.lost = true
	closes := n.losses.Add(pod.Namespace, now)
	message, node := n.losses.Message(pod.Namespace), n.node
	n.mu.Unlock()
	if !closes {
		return
	}
	n.log.Warn("new pods of a namespace wait", "namespace", pod.Namespace, "reason", message)
	n.nodePoke.Notify()
	if node == nil {
		return
	}
	n.recorder.Event(node, corev1.EventTypeWarning, "PodsLost", message)
	if err := n.repairObject(ctx, node); err != nil {
		n.log.Warn("taint the node", "err", err) // tried again by repairNode
	}
}

// endedUnasked reports whether a status ends a pod that its owner then replaces at once, without a
// limit: one with restart policy Always, or one that failed by a disruption, which a Job may be
// configured not to count.
func endedUnasked(pod *corev1.Pod, status *corev1.PodStatus) bool {
	if !podstatus.Terminal(status.Phase) || podstatus.Terminal(pod.Status.Phase) {
		return false
	}
	c := podstatus.Condition(status.Conditions, corev1.DisruptionTarget)
	return pod.Spec.RestartPolicy == corev1.RestartPolicyAlways || pod.Spec.RestartPolicy == "" ||
		status.Phase == corev1.PodFailed && c != nil && c.Status == corev1.ConditionTrue
}
