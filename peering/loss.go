package peering

import "time"

// LossAction is what happens to pods while the provider that runs them does not respond.
type LossAction string

// What happens to pods while the provider that runs them does not respond.
const (
	// LossKeep leaves them bound: they most likely go on running there. It is the default.
	LossKeep LossAction = "Keep"
	// LossEvict lets Kubernetes evict them after a while, so that their owners create others,
	// which may then run beside those at the provider.
	LossEvict LossAction = "Evict"
	// LossFence ends them at home once the provider, as agreed, has stopped them by itself.
	LossFence LossAction = "Fence"
)

const (
	// DefaultLossAfter is after how long pods are evicted or fenced by default: as long as
	// Kubernetes leaves pods on a lost node.
	DefaultLossAfter = 5 * time.Minute
	// MinFence is the shortest fence: in that time an agent of the provider can be replaced and
	// the session come up again, so that nothing is stopped.
	MinFence = 3 * time.Minute
	// MaxFence is the longest one.
	MaxFence = 24 * time.Hour
)

// Loss is what happens to the pods of a namespace while their provider does not respond.
type Loss struct {
	Action LossAction
	// After is after how long, for LossEvict and LossFence; 0 means DefaultLossAfter.
	After time.Duration
}

// Tolerates returns for how long a pod tolerates a node that is not ready before Kubernetes
// evicts it. ever means without an end.
func (l Loss) Tolerates() (d time.Duration, ever bool) {
	if l.Action != LossEvict {
		return 0, true
	}
	return l.after(), false
}

// Fence returns after how long of silence the provider has to have stopped the pods; 0 means never.
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
