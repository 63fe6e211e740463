package vk

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Network is how the tunnel to the provider fares.
type Network struct {
	// Wanted says whether the contract has a tunnel.
	Wanted bool
	// Up says whether traffic passes, Known whether that is known.
	Up, Known bool
	// Reason and Message say why not.
	Reason, Message string
}

// tunnel is what is known of the tunnel.
type tunnel struct {
	Network
	ever  bool      // it was up since this process started
	since time.Time // since when it is as it is
}

// set notes how the tunnel fares and says whether that is news.
func (t *tunnel) set(is Network, now time.Time) bool {
	if t.Network == is {
		return false
	}
	if t.Up != is.Up || t.Wanted != is.Wanted || t.since.IsZero() {
		t.since = now
	}
	t.Network, t.ever = is, t.ever || is.Up
	return true
}

// condition is the node's condition NetworkUnavailable. While it is True, Kubernetes
// puts no pods on the node. A tunnel that is only being made has some time for that.
func (t *tunnel) condition(now, started time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: t.Reason, Message: t.Message,
		LastTransitionTime: metav1.NewTime(t.since),
	}
	switch {
	case t.since.IsZero():
		c.Status, c.Message = corev1.ConditionUnknown, "how the tunnel fares is not known yet"
	case !t.Wanted:
		c.Reason, c.Message = "NoTunnel", "the contract has no tunnel, so home and these pods do not reach each other"
	case t.Up:
	case !t.Known, !t.ever && now.Before(started.Add(tunnelStartGrace)):
		c.Status = corev1.ConditionUnknown
	default:
		c.Status = corev1.ConditionTrue
	}
	if c.Reason == "" {
		c.Reason = "TunnelNotKnown"
	}
	return c
}

// SetNetwork says how the tunnel fares.
func (n *Node) SetNetwork(is Network) {
	n.mu.Lock()
	changed := n.tunnel.set(is, time.Now())
	lost := !n.link.answers()
	n.mu.Unlock()
	if !changed {
		return
	}
	n.pokeNode()
	if lost {
		n.lookAtPods()
	}
}

// SetSilence says since when the provider, though connected, has owed an answer; zero
// if it owes none.
func (n *Node) SetSilence(since time.Time) {
	n.mu.Lock()
	changed := n.link.owes(since)
	n.mu.Unlock()
	if changed {
		n.log.Info("peer", "silent", !since.IsZero())
		n.pokeNode()
		n.lookAtPods()
	}
}

// lookAtPods has all pods reconciled.
func (n *Node) lookAtPods() {
	n.mu.Lock()
	synced := n.synced
	n.mu.Unlock()
	if !synced {
		return
	}
	for _, p := range n.localPods() {
		n.podQueue.Add(string(p.UID))
	}
}
