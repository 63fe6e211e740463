// Package losses counts the pods that a provider took and soon lost, by namespace, and decides which namespaces
// wait because of that.
package losses

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition says that the provider took pods of some namespaces and lost them soon after, so that
// it gets no new ones of these for a while.
const Condition corev1.NodeConditionType = "entente.dev/LosingPods"

// Losses counts, by namespace, the pods that the provider took and soon lost. Controllers at home replace such
// pods at once, without end. Pods can also end because of their own spec, which cannot be told from a lie of the
// provider. So a namespace that loses pods waits, and keeps no other from sending its own.
type Losses struct {
	of map[string]*namespaceLosses
	// since is when the first of the namespaces closed that are closed now, and until when all are open again.
	since, until time.Time
}

// namespaceLosses counts the lost pods of a namespace. After Max of them it is closed: the provider gets no
// new pods of it for a while, each time for twice as long.
type namespaceLosses struct {
	count float64   // losses that are not forgiven yet
	at    time.Time // when count was right
	last  time.Time // when a pod was lost
	// closed is the time until which the namespace is closed, and pause is how long that is.
	closed time.Time
	pause  time.Duration
}

// Add counts a lost pod, and reports whether its namespace closes now.
func (l *Losses) Add(namespace string, now time.Time) bool {
	maps.DeleteFunc(l.of, func(_ string, of *namespaceLosses) bool { return now.Sub(of.last) >= forgottenAfter })
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

func (l *Losses) put(namespace string, of *namespaceLosses) {
	if l.of == nil {
		l.of = map[string]*namespaceLosses{}
	}
	l.of[namespace] = of
}

func (l *namespaceLosses) add(now time.Time) bool {
	if now.Before(l.closed) {
		return false // it went before the namespace closed
	}
	l.count = max(l.count-now.Sub(l.at).Seconds()/forgivenEach.Seconds(), 0) + 1
	l.at, l.last = now, now
	if l.count <= Max-1 {
		return false
	}
	l.pause = min(max(2*l.pause, MinPause), MaxPause)
	l.closed = now.Add(l.pause)
	l.count, l.at = Max-MaxAgain, l.closed
	return true
}

// Closed is the time until which a namespace is closed; it is past if it is open.
func (l *Losses) Closed(namespace string) time.Time {
	if of := l.of[namespace]; of != nil {
		return of.closed
	}
	return time.Time{}
}

// allClosed returns the namespaces that are closed, sorted.
func (l *Losses) allClosed(now time.Time) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(l.of)) {
		if now.Before(l.Closed(name)) {
			out = append(out, name)
		}
	}
	return out
}

// Message says why pods of a namespace wait.
func (l *Losses) Message(namespace string) string {
	return fmt.Sprintf("the provider took pods of namespace %s and lost or ended them within %s, so controllers would replace them without end; new ones are sent again after %s",
		namespace, Young, l.Closed(namespace).UTC().Format(time.RFC3339))
}

// NodeCondition is the node's condition about lost pods. An agent that is restarted reads in it which namespaces are
// closed: see Restore.
func (l *Losses) NodeCondition(now time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: Condition, Status: corev1.ConditionFalse, Reason: "PodsStay",
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
	if n := len(list) - maxShown; n > 0 {
		list, more = list[:maxShown], fmt.Sprintf(", and %d more", n)
	}
	c.Status, c.Reason, c.LastTransitionTime = corev1.ConditionTrue, "PodsLost", metav1.NewTime(l.since)
	c.Message = fmt.Sprintf("the provider took pods of these namespaces and lost or ended them within %s, so controllers would replace them without end; new ones wait: %s%s",
		Young, strings.Join(list, ", "), more)
	return c
}

// closedShown finds a namespace in the message of NodeCondition.
const closedShown = `([a-z0-9-]+) \(closed for (\S+) until (\S+)\)`

// Restore continues from the condition that an earlier process wrote, so that a restart does not open a
// namespace.
func (l *Losses) Restore(c corev1.NodeCondition, now time.Time) {
	if c.Type != Condition || c.Status != corev1.ConditionTrue {
		return
	}
	for _, shown := range regexp.MustCompile(closedShown).FindAllStringSubmatch(c.Message, -1) {
		pause, errPause := time.ParseDuration(shown[2])
		closed, errClosed := time.Parse(time.RFC3339, shown[3])
		if errPause != nil || errClosed != nil {
			continue
		}
		if most := now.Add(MaxPause); closed.After(most) {
			closed = most
		}
		l.put(shown[1], &namespaceLosses{
			count: Max - MaxAgain, at: closed, last: now, closed: closed, pause: min(max(pause, MinPause), MaxPause),
		})
		l.since, l.until = c.LastTransitionTime.Time, later(l.until, closed)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
