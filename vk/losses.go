package vk

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podstatus"
)

// conditionLosingPods says that the provider took pods and lost them soon after, so that the node
// takes no new ones for a while.
const conditionLosingPods corev1.NodeConditionType = "entente.dev/LosingPods"

// losses counts the pods that the provider took and soon lost. Controllers at home replace such
// pods at once, without end. After maxLosses of them the node is closed to new pods, each time for
// twice as long.
type losses struct {
	count float64   // losses that are not forgiven yet
	at    time.Time // when count was right
	last  time.Time // when a pod was lost
	// closed is the time until which the node takes no pods, and pause is how long that is.
	closed time.Time
	pause  time.Duration
}

// add counts a lost pod, and reports whether the node closes now.
func (l *losses) add(now time.Time) bool {
	if now.Before(l.closed) {
		return false // it went before the node closed
	}
	if !l.last.IsZero() && now.Sub(l.last) >= lossesForgotten {
		l.count, l.pause = 0, 0
	}
	l.count = max(l.count-now.Sub(l.at).Seconds()/lossForgiven.Seconds(), 0) + 1
	l.at, l.last = now, now
	if l.count <= maxLosses-1 {
		return false
	}
	l.pause = min(max(2*l.pause, minLossPause), maxLossPause)
	l.closed = now.Add(l.pause)
	l.count, l.at = maxLosses-lossesAgain, l.closed
	return true
}

// isClosed reports whether the node takes no new pods.
func (l *losses) isClosed(now time.Time) bool { return now.Before(l.closed) }

// message is the condition's message. Its last word is the time at which the node opens again: restore reads
// it there.
func (l *losses) message() string {
	return fmt.Sprintf("the provider took pods and lost them within %s, so controllers would replace them without end; new pods are taken again after %s",
		youngPod, l.closed.UTC().Format(time.RFC3339))
}

// condition is the node's condition about lost pods.
func (l *losses) condition(now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: conditionLosingPods, Status: corev1.ConditionFalse, Reason: "PodsStay",
		Message: "the provider keeps the pods that it takes", LastTransitionTime: metav1.NewTime(l.closed),
	}
	if l.isClosed(now) {
		c.Status, c.Reason, c.Message = corev1.ConditionTrue, "PodsLost", l.message()
		c.LastTransitionTime = metav1.NewTime(l.closed.Add(-l.pause))
	}
	return c
}

// restore continues from the condition that an earlier process wrote, so that a restart does not
// open a node. Only how often it had closed is lost.
func (l *losses) restore(c corev1.NodeCondition, now time.Time) {
	if c.Type != conditionLosingPods || c.Status != corev1.ConditionTrue {
		return
	}
	closed, err := time.Parse(time.RFC3339, c.Message[strings.LastIndex(c.Message, " ")+1:])
	if err != nil {
		return
	}
	if closed.After(now.Add(maxLossPause)) {
		closed = now.Add(maxLossPause)
	}
	pause := min(max(closed.Sub(c.LastTransitionTime.Time), minLossPause), maxLossPause)
	*l = losses{count: maxLosses - lossesAgain, at: closed, last: now, closed: closed, pause: pause}
}

func losingTaint() corev1.Taint {
	return corev1.Taint{Key: api.TaintLosingPods, Value: "true", Effect: corev1.TaintEffectNoSchedule}
}

// lostPod counts a pod that the provider lost, and closes the node at one too many. Neither pods
// that ran for a while count, nor those that ended by themselves.
func (n *Node) lostPod(ctx context.Context, pod *corev1.Pod) {
	now := time.Now()
	taken := podstatus.Condition(pod.Status.Conditions, api.PodOffloaded)
	if taken != nil && now.Sub(taken.LastTransitionTime.Time) > youngPod {
		return
	}
	n.mu.Lock()
	st := n.podState(podRef(pod))
	if st.lost {
		n.mu.Unlock()
		return
	}
	st.lost = true
	closes := n.losses.add(now)
	message, node := n.losses.message(), n.node
	n.mu.Unlock()
	if !closes {
		return
	}
	n.log.Warn("the node takes no new pods", "reason", message)
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
