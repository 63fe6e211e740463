package exposure

import "time"

const (
	// grace is how long after an agent's start a peer may reach what it could
	// reach before, because of a contract of which it is not known yet what it exposes:
	// the API server may be slow to answer, and the peer has no say in it.
	grace = 10 * time.Minute
	// maxUnknownPods is how many pods' addresses are kept, of each contract, that a
	// provider names and that are not known to be this cluster's, as after an agent's
	// start. It is as many as a contract can have.
	maxUnknownPods = 10_000
	// maxPodIPs is how many addresses of a pod, of each family, are read.
	maxPodIPs = 4
)
