package exposure

import "time"

const (
	// grace is how long after an agent's start a peer may reach what it could reach before, because of a contract
	// whose exposure is not known yet: the API server may be slow to respond, and the peer has no influence on it.
	grace = 10 * time.Minute
	// maxUnknownPods is of how many pods, of each contract, the addresses are kept that a provider sends for pods
	// not known to be this cluster's, as after an agent's start. It is as many as a contract can have.
	maxUnknownPods = 10_000
	// maxPodIPs is how many addresses of a pod, of each family, are read.
	maxPodIPs = 4
)
