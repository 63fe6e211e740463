package vk

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podstatus"
)

// conditionLosingPods says that the provider took pods of some namespaces and lost them soon after, so that
// it gets no new ones of these for a while.
const conditionLosingPods corev1.NodeConditionType = "entente.dev/LosingPods"

// losses counts, by namespace, the pods that the provider took and soon lost. Controllers at home replace such
// pods at once, without end. Pods can also end because of their own spec, which cannot be told from a lie of the
// provider. So a namespace that loses pods waits, and keeps no other from sending its own.
type losses struct {
	of map[string]*namespaceLosses
	// since is when the first of the namespaces closed that are closed now, and until when all are open again.
	since, until time.Time
}

// namespaceLosses counts the lost pods of a namespace. After maxLosses of them it is closed: the provider gets no
// new pods of it for a while, each time for twice as long.
type namespaceLosses struct {
	count float64   // losses that are not forgiven yet
	at    time.Time // when count was right
	last  time.Time // when a pod was lost
	// closed is the time until which the namespace is closed, and pause is how long that is.
	closed time.Time
	pause  time.Duration
}

// add counts a lost pod, and reports whether its namespace closes now.
func (l *losses) add(namespace string, now time.Time) bool {
	maps.DeleteFunc(l.of, func(_ string, of *namespaceLosses) bool { return now.Sub(of.last) >= lossesForgotten })
	of := l.of[namespace]
	if of == nil {
		of = &namespaceLosses{at: now}
		l.put(namespace, of)
	}
	if !of.add(now) {
		return false
	}
	if !now.Before(l.until) {
		l.since = now
	}
	l.until = later(l.until, of.closed)
	return true
}

func (l *losses) put(namespace string, of *namespaceLosses) {
	if l.of == nil {
		l.of = map[string]*namespaceLosses{}
	}
	l.of[namespace] = of
}

func (l *namespaceLosses) add(now time.Time) bool {
	if now.Before(l.closed) {
		return false // it went before the namespace closed
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

// closed is the time until which a namespace is closed; it is past if it is open.
func (l *losses) closed(namespace string) time.Time {
	if of := l.of[namespace]; of != nil {
		return of.closed
	}
	return time.Time{}
}

// allClosed returns the namespaces that are closed, sorted.
func (l *losses) allClosed(now time.Time) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(l.of)) {
		if now.Before(l.closed(name)) {
			out = append(out, name)
		}
	}
	return out
}

// message says why pods of a namespace wait.
func (l *losses) message(namespace string) string {
	return fmt.Sprintf("the provider took pods of namespace %s and lost or ended them within %s, so controllers would replace them without end; new ones are sent again after %s",
		namespace, youngPod, l.closed(namespace).UTC().Format(time.RFC3339))
}

// condition is the node's condition about lost pods. An agent that is restarted reads in it which namespaces are
// closed: see restore.
func (l *losses) condition(now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: conditionLosingPods, Status: corev1.ConditionFalse, Reason: "PodsStay",
		Message: "the provider keeps the pods that it takes", LastTransitionTime: metav1.NewTime(l.until),
	}
	var list []string
	for _, name := range l.allClosed(now) {
		of := l.of[name]
		list = append(list, fmt.Sprintf("%s (closed for %s until %s)", name, of.pause, of.closed.UTC().Format(time.RFC3339)))
	}
	if len(list) == 0 {
		return c
	}
	more := ""
	if n := len(list) - maxClosedShown; n > 0 {
		list, more = list[:maxClosedShown], fmt.Sprintf(", and %d more", n)
	}
	c.Status, c.Reason, c.LastTransitionTime = corev1.ConditionTrue, "PodsLost", metav1.NewTime(l.since)
	c.Message = fmt.Sprintf("the provider took pods of these namespaces and lost or ended them within %s, so controllers would replace them without end; new ones wait: %s%s",
		youngPod, strings.Join(list, ", "), more)
	return c
}

// closedShown finds a namespace in the message of condition.
const closedShown = `([a-z0-9-]+) \(closed for (\S+) until (\S+)\)`

// restore continues from the condition that an earlier process wrote, so that a restart does not open a
// namespace.
func (l *losses) restore(c corev1.NodeCondition, now time.Time) {
	if c.Type != conditionLosingPods || c.Status != corev1.ConditionTrue {
		return
	}
	for _, shown := range regexp.MustCompile(closedShown).FindAllStringSubmatch(c.Message, -1) {
		pause, errPause := time.ParseDuration(shown[2])
		closed, errClosed := time.Parse(time.RFC3339, shown[3])
		if errPause != nil || errClosed != nil {
			continue
		}
		if most := now.Add(maxLossPause); closed.After(most) {
			closed = most
		}
		l.put(shown[1], &namespaceLosses{
			count: maxLosses - lossesAgain, at: closed, last: now, closed: closed, pause: min(max(pause, minLossPause), maxLossPause),
		})
		l.since, l.until = c.LastTransitionTime.Time, later(l.until, closed)
	}
}

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
		case now.Before(n.losses.closed(name)):
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
	return c != nil && c.Status == corev1.ConditionTrue && now.Sub(c.LastTransitionTime.Time) > youngPod &&
		!podstatus.Terminal(p.Status.Phase) && p.DeletionTimestamp == nil
}

// lostPod counts a pod that the provider lost, and closes its namespace at one too many. Neither pods
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
	closes := n.losses.add(pod.Namespace, now)
	message, node := n.losses.message(pod.Namespace), n.node
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
