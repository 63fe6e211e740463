package vk

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// link is the state of the connection to the provider.
type link struct {
	up   bool
	ever bool // it was up since this process started
	// lost is when the provider ceased to respond: since then it is not up, or silent.
	lost time.Time
	// silent means that it is up, but a probe of the provider got no response.
	silent bool
}

// responds reports whether the provider can be reached.
func (l *link) responds() bool { return l.up && !l.silent }

// set sets the link's state and reports whether it changed.
func (l *link) set(up bool, now time.Time) bool {
	if l.up == up {
		return false
	}
	if !up && !l.silent {
		l.lost = now
	}
	l.up, l.silent = up, false
	l.ever = l.ever || up
	return true
}

// setSilent sets when the oldest probe without a response was sent, zero if there is none, and
// reports whether that changed anything.
func (l *link) setSilent(since time.Time) bool {
	if silent := !since.IsZero(); l.up && silent != l.silent {
		l.silent, l.lost = silent, since
		return true
	}
	return false
}

// shown reports whether the node is shown as connected, and until when if nothing changes; a zero
// time means indefinitely. wasReady is whether the node was Ready before this process started.
func (l link) shown(now, started time.Time, wasReady bool, startGrace, lossGrace time.Duration) (up bool, until time.Time) {
	switch {
	case l.responds():
		return true, time.Time{}
	case l.ever:
		until = l.lost.Add(lossGrace)
	case wasReady:
		until = started.Add(startGrace)
	}
	if now.Before(until) {
		return true, until
	}
	return false, time.Time{}
}

// podsLostAt is when the pods of a provider that does not respond are no longer shown as ready.
// That is later while the tunnel to them passes traffic: then they most likely serve, and only
// their state is not known.
func (l link) podsLostAt(started time.Time, startGrace time.Duration, tunnel bool) time.Time {
	grace := podLossGrace
	if tunnel {
		grace = podLossGraceTunnel
	}
	if !l.ever {
		return started.Add(max(grace, startGrace))
	}
	return l.lost.Add(grace)
}

// Network is the state of the tunnel to the provider.
type Network struct {
	// Wanted reports whether the contract has a tunnel.
	Wanted bool
	// Up reports whether traffic passes, Known whether that is known.
	Up, Known bool
	// Reason and Message say why not.
	Reason, Message string
}

// tunnel is the state of the tunnel, and its history.
type tunnel struct {
	Network
	ever  bool      // it was up since this process started
	since time.Time // when it last changed
}

// set sets the tunnel's state and reports whether it changed.
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

// condition is the node's condition NetworkUnavailable. While it is True, Kubernetes schedules no
// pods to the node. For a new tunnel it stays False for tunnelStartGrace.
func (t *tunnel) condition(now, started time.Time) corev1.NodeCondition {
	c := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: t.Reason, Message: t.Message,
		LastTransitionTime: metav1.NewTime(t.since),
	}
	switch {
	case t.since.IsZero():
		c.Status, c.Message = corev1.ConditionUnknown, "the state of the tunnel is not known yet"
	case !t.Wanted:
		c.Reason, c.Message = "NoTunnel", "the contract has no tunnel, so home and these pods do not reach each other"
	case t.Up:
	case !t.Known, !t.ever && now.Before(started.Add(tunnelStartGrace)):
		c.Status = corev1.ConditionUnknown
	default:
		c.Status = corev1.ConditionTrue
	}
	c.Reason = cmp.Or(c.Reason, "TunnelNotKnown")
	return c
}

// SetNetwork sets the state of the tunnel.
func (n *Node) SetNetwork(is Network) {
	n.mu.Lock()
	changed := n.tunnel.set(is, time.Now())
	lost := !n.link.responds()
	n.mu.Unlock()
	if !changed {
		return
	}
	n.nodePoke.Notify()
	if lost {
		n.reconcilePods()
	}
}

// SetSilence sets when the oldest probe to which the provider, though connected, has not responded
// was sent; zero if there is none.
func (n *Node) SetSilence(since time.Time) {
	n.mu.Lock()
	changed := n.link.setSilent(since)
	n.mu.Unlock()
	if changed {
		n.log.Info("peer", "silent", !since.IsZero())
		n.nodePoke.Notify()
		n.reconcilePods()
	}
}

// reconcilePods reconciles all pods again.
func (n *Node) reconcilePods() {
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
