package vk

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// reasonFenced is the reason of a pod that the provider stopped, as agreed, because this cluster
// was silent.
const reasonFenced = "Fenced"

// Asked records that the provider probes this cluster, and is about to get a response.
func (n *Node) Asked() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fences.Asked()
}

// isFenced reports whether the provider has stopped a pod because this cluster was silent. If not
// yet, it requeues the pod for the time when it has. n.mu is held.
func (n *Node) isFenced(pod *corev1.Pod) bool {
	if n.link.responds() || n.exported[pod.Namespace].Loss.Action != peering.LossFence {
		return false
	}
	left, ok := n.fences.Over(pod.Namespace)
	if ok && left > 0 {
		n.podQueue.AddAfter(string(pod.UID), left+time.Millisecond)
	}
	return ok && left <= 0
}

// mayHaveFenced reports whether the provider, which no longer has a pod, may have stopped it
// because this cluster was silent.
func (n *Node) mayHaveFenced(pod *corev1.Pod) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := podstatus.Condition(pod.Status.Conditions, api.PodOffloaded)
	return taken != nil && n.fences.Stopped(pod.Namespace, time.Since(taken.LastTransitionTime.Time))
}

// fence ends a pod at home that the provider has stopped, so that it can run elsewhere. Should the
// provider still have it, it is asked to end it once it is back.
func (n *Node) fence(ctx context.Context, p podPlan) error {
	if !p.st.wanted && !p.wasTaken() {
		return n.finalise(ctx, p) // it was deleted, and is not known to have run
	}
	const message = "the provider did not answer for as long as was agreed, and so does not run the pod"
	n.warn(p, reasonFenced, message)
	status := podstatus.Failed(p.pod, p.st.remote, n.addresses(), reasonFenced, message, metav1.Now())
	podstatus.SetCondition(&status, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reasonFenced, Message: message,
	}, metav1.Now())
	return n.endPod(ctx, p, status)
}
