package plan

import "time"

// Limits on input from outside. [Plan] refuses input beyond a limit, and names the
// limit.
const (
	// MaxPeers is the number of clusters that a node peers with.
	MaxPeers = 512
	// maxNodes is the number of nodes of the home cluster.
	maxNodes = 5000
	// MaxNodePrefixes is the number of pod prefixes of one node of the home cluster. A
	// kubelet runs 110 pods by default, and few network plugins allocate a prefix for each.
	MaxNodePrefixes = 256
	// maxGateways is the number of gateways that one peer announces.
	maxGateways = 64
	// maxRemoteNodes is the number of nodes beside its gateways that one peer announces.
	maxRemoteNodes = 64
	// MaxDirectPods is the number of prefixes of one node's pods that are announced to peers, and
	// maxDirectPrefixes that of all nodes of all peers.
	MaxDirectPods     = 16
	maxDirectPrefixes = 1 << 14
	// maxProbed is the number of nodes of one peer that may probe this node end to end, and
	// maxEnds how many of these one node probes.
	maxProbed = maxGateways + maxRemoteNodes
	maxEnds   = 64
	// MaxEndProbes is the number of end-to-end probes of one peer that a node takes in a
	// second. Where all nodes of a large cluster probe one node it gets some 100.
	MaxEndProbes = 128
	// MaxEndpoints is the number of endpoints of one WireGuard peer.
	MaxEndpoints = 8
	// maxObserved is the number of places where one WireGuard peer is seen.
	maxObserved = 4
	// maxEndpointLen is the length of one endpoint, in bytes.
	maxEndpointLen = 261
	// maxPrefixes and maxAddresses are the numbers of our prefixes, and of our single addresses,
	// for which one peer has aliases, and maxAliases is the number of prefixes of its aliases here.
	maxPrefixes  = 16
	maxAddresses = 4096
	maxAliases   = 16 + 128
	// maxInbound is the number of sources and destinations, together, of the flows
	// that one peer may open; a destination that sources of several exposures
	// reach counts for each combination of exposures.
	maxInbound = 1 << 16
	// maxClasses is the number of classes of sources of one peer: sets of exposures
	// that name the same sources. Each is a chain, of which a packet passes at most
	// two.
	maxClasses = 512
	// minBits4 is the shortest IPv4 prefix that may be mapped.
	minBits4 = 8
	// minBits6 is the shortest IPv6 prefix that may be mapped.
	minBits6 = 32
	// coverStep is by how many bits prefixes are widened at a time when there are too
	// many to announce, coverMost by how many at most.
	coverStep = 4
	coverMost = 8
)

// keepalive keeps NAT mappings open and makes a peer with an endpoint
// handshake without waiting for traffic.
const keepalive = 25 * time.Second
