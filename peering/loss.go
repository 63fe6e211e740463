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
)

// DefaultLossAfter is after how long pods are evicted where nothing else is said: as long as
// Kubernetes leaves pods on a node that is lost.
const DefaultLossAfter = 5 * time.Minute

// Loss is what becomes of the pods of a namespace while their provider does not answer.
type Loss struct {
	Action LossAction
	// After is when, for LossEvict; 0 is DefaultLossAfter.
	After time.Duration
}

// Tolerates returns for how long a pod tolerates that its node is not ready, before Kubernetes
// evicts it; ever is without an end.
func (l Loss) Tolerates() (d time.Duration, ever bool) {
	if l.Action != LossEvict {
		return 0, true
	}
	if l.After <= 0 {
		return DefaultLossAfter, false
	}
	return l.After, false
}
