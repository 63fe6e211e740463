package agent

import "time"

// Limits of what follows from pods that cross.
const (
	// exposureKept is how long after an agent's start a peer may reach what it could
	// reach before, because of a contract of which it is not known yet what it exposes:
	// the API server may be slow to answer, and the peer has no say in it.
	exposureKept = 10 * time.Minute
	// podsPause is how long events of pods are gathered before their contract, and the
	// peer, are looked at.
	podsPause = 100 * time.Millisecond
	// maxHeardPods is how many pods' addresses are kept, of each contract, that a
	// provider names after an agent's start before it is known which pods are this
	// cluster's. It is as many as a contract can have.
	maxHeardPods = 20_000
)
