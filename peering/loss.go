package peering

import "time"

// LossAction is what becomes of pods while the provider that runs them does not answer.
type LossAction string

// What becomes of pods while the provider that runs them does not answer.
const (
	// LossKeep leaves them bound: they most likely go on running there. It is the default.
	LossKeep LossAction = "Keep"
	// LossEvict has Kubernetes evict them after a while, so that their owners make others, which
	// may then run beside those at the provider.
	LossEvict LossAction = "Evict"
	// LossFence ends them at home once the provider, as agreed, has stopped them by itself.
	LossFence LossAction = "Fence"
)

const (
	// DefaultLossAfter is after how long pods are evicted or fenced where nothing else is said: as
	// long as Kubernetes leaves pods on a node that is lost.
	DefaultLossAfter = 5 * time.Minute
	// MinFence is the shortest fence: an agent of the provider may be replaced by another, and the
	// session made again, without that anything is stopped.
	MinFence = 3 * time.Minute
	// MaxFence is the longest one.
	MaxFence = 24 * time.Hour
)

// Loss is what becomes of the pods of a namespace while their provider does not answer.
type Loss struct {
	Action LossAction
	// After is when, for LossEvict and LossFence; 0 is DefaultLossAfter.
	After time.Duration
}

// Tolerates returns for how long a pod tolerates that its node is not ready, before Kubernetes
// evicts it; ever is without an end.
func (l Loss) Tolerates() (d time.Duration, ever bool) {
	if l.Action != LossEvict {
		return 0, true
	}
	return l.after(), false
}

// Fence returns after how long of silence the provider has to have stopped the pods; 0 is never.
func (l Loss) Fence() time.Duration {
	if l.Action != LossFence {
		return 0
	}
	return l.after()
}

func (l Loss) after() time.Duration {
	if l.After <= 0 {
		return DefaultLossAfter
	}
	return l.After
}
