package vk

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// conditionTooManyObjects says that some of what a node's pods need is not sent to the provider, because the
// contract has no room for it.
const conditionTooManyObjects corev1.NodeConditionType = "entente.dev/TooManyObjects"

// excess is why some wanted objects are not sent; its zero value means that all are.
type excess struct {
	why   string
	since time.Time // when the reason came, or went
}

// set sets why some objects are not sent, and reports whether a reason came or went.
func (e *excess) set(why string, now time.Time) bool {
	changed := (e.why == "") != (why == "")
	if changed {
		e.since = now
	}
	e.why = why
	return changed
}

// condition is the node's condition about objects that are not sent.
func (e *excess) condition() corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: conditionTooManyObjects, Status: corev1.ConditionFalse, Reason: "ObjectsSent",
		Message: "there is room for all that is to be sent to the provider", LastTransitionTime: metav1.NewTime(e.since),
	}
	if e.why != "" {
		c.Status, c.Reason = corev1.ConditionTrue, "ObjectsNotSent"
		c.Message = "pods, or what they need, wait until there is room: " + e.why
	}
	return c
}

// SetExcess sets why the mirror does not keep all wanted objects; "" means that it does.
func (n *Node) SetExcess(why string) {
	n.mu.Lock()
	changed := n.excess.set(why, time.Now())
	c, node := n.excess.condition(), n.node
	n.mu.Unlock()
	if !changed {
		return
	}
	n.log.Info("objects of the contract", "reason", c.Reason, "message", c.Message)
	n.nodePoke.Notify()
	if why != "" && node != nil {
		n.recorder.Event(node, corev1.EventTypeWarning, c.Reason, c.Message)
	}
}
