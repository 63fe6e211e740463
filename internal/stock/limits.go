package stock

// Limits of what a consumer can have in this cluster.
const (
	// What one consumer may have here, by all its contracts together, and how many Services all consumers: a
	// Service takes an address, of which there may be 4,096, and its ports and endpoints rules on every node.
	maxNamespaces    = 256
	maxConfigs       = 5_000
	maxServices      = 1_150
	maxAllServices   = 3_450
	maxPorts         = 4_000
	maxPeerEndpoints = 20_000
	maxEndpointPorts = 60_000
	maxSlices        = 5_000
	maxPods          = 10_000
	// The size of one consumer's NetworkPolicies here: network plugins make rules of each block on every node, for
	// each pod that a policy selects.
	maxPolicies = 500
	maxBlocks   = 20_000
	// maxContractBytes is how many bytes the objects of one contract may have here, maxPeerBytes those of one
	// consumer, and MaxBytes those of all together. Objects that are made from an object count with it: a pod and a
	// Service count twice.
	maxContractBytes = 64 << 20
	maxPeerBytes     = 128 << 20
	MaxBytes         = 256 << 20
	// maxPeerPodBytes is how many bytes the pods of one consumer may have, which count
	// twice, too.
	maxPeerPodBytes = 64 << 20
	// reserved is which part of each of these, the number of namespaces aside, only namespaces take that have less than is
	// free: an eighth. So one namespace cannot leave the others of its cluster without room.
	reserved = 8
)
