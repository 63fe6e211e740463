package allow

import "time"

// Limits of what a Tunnel opens.
const (
	// MaxExposures is how many exposures a Tunnel has at most, one for each offloaded namespace of a contract, as
	// in the custom resource.
	MaxExposures = 256
	// MaxExposed is how many addresses and ports, in all, the exposures of a Tunnel
	// list.
	MaxExposed = 20_000
	// maxDirect is how many of them may be for pods of one other peer.
	maxDirect = 4096
	// maxOpenedFlows is how many flows, each to a port of an address, a Tunnel opens at most where namespaces open
	// something to others: half of what a node takes of a peer.
	maxOpenedFlows = 1 << 15
	// maxPorts is how many ports a destination has at most, as in the custom resource.
	maxPorts = 1000
)

// Limits of ExternalHosts.
const (
	// maxExternalHosts is how many of them are accepted: each costs a peer two aliases at most.
	maxExternalHosts = 256
	// maxHostClusters is how many clusters the status of a host lists, as in the custom resource.
	maxHostClusters = 256
	// hostRecheck is how often it is checked whether a host may still be exported: nodes and Services come and go.
	hostRecheck = time.Minute
	// listRecheck is when a host that is not in the list yet is reconciled again.
	listRecheck = time.Second
)
