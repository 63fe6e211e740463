package vk

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// undecidedRetry is the pause before a pod that waits for Config.Undecided is reconciled again, though Decided was not
// called. Nothing is written to the pod before.
const undecidedRetry = time.Second

// undecided returns why a pod must not be sent yet; what is "" if it may be. It is for pods that were not sent.
func (n *Node) undecided(pod *corev1.Pod, sent *corev1.Pod) missing {
	if n.cfg.Undecided == nil {
		return missing{}
	}
	uid, now := string(pod.UID), time.Now()
	n.mu.Lock()
	since, was := n.waitsSince[uid]
	if !was {
		since = now
		n.waitsSince[uid] = now // first, so that a call of Decided from now on is not missed
	}
	n.mu.Unlock()
	why := n.cfg.Undecided(pod.Namespace, sent.Labels)
	if why == "" {
		n.mu.Lock()
		delete(n.waitsSince, uid)
		n.mu.Unlock()
		return missing{}
	}
	return missing{reason: reasonUndecided, what: why, soon: now.Sub(since) < undecidedRetry}
}

// Decided reconciles the pods that wait for Config.Undecided.
func (n *Node) Decided() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid := range n.waitsSince {
		n.podQueue.Add(uid)
	}
}
