package tunnel

import "time"

// Limits on what comes from outside. What exceeds one is refused by [Plan] with
// the limit's name.
const (
	// maxPeers is the number of clusters that a node peers with.
	maxPeers = 512
	// maxNodes is the number of nodes of the home cluster.
	maxNodes = 5000
	// maxNodePrefixes is the number of pod prefixes of one node of the home cluster. A
	// kubelet runs 110 pods unless it is told otherwise, and few network plugins give each
	// one of its own.
	maxNodePrefixes = 256
	// maxGateways is the number of gateways that one peer announces.
	maxGateways = 64
	// maxEndpoints is the number of endpoints of one WireGuard peer.
	maxEndpoints = 8
	// maxEndpointLen is the length of one endpoint, in bytes.
	maxEndpointLen = 261
	// maxPrefixes is the number of prefixes that one peer maps, each way.
	maxPrefixes = 16
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
	// many to tell, coverMost by how many at most.
	coverStep = 4
	coverMost = 8
	// minMTU is the smallest device MTU: IPv6, and so the overlay, needs it.
	minMTU = 1280
	// maxMTU is the largest device MTU.
	maxMTU = 65535 - wireGuardOverhead
	// maxControls is how many control connections the tunnel process answers at a
	// time.
	maxControls = 16
	// maxPackets is the number of packets that are in the tunnel process at a time. Each
	// has a buffer of 64 KiB.
	maxPackets = 1024
)

// wireGuardOverhead is what the tunnel adds to a packet when the outer packet
// is IPv6: 40 IP + 8 UDP + 32 transport header and tag.
const wireGuardOverhead = 80

// Timers.
const (
	// keepalive holds NAT mappings open and makes a peer with an endpoint
	// handshake without waiting for traffic.
	keepalive = 25 * time.Second
	// silence is how long nothing may come from a peer that is probed each
	// second before another endpoint is tried: its WireGuard answers data with
	// a keepalive within 10 s, even when nobody answers probes.
	silence = 15 * time.Second
	// sessionLife is how long a WireGuard session can be used after its
	// handshake; a live peer renews it after 120 s.
	sessionLife = 180 * time.Second
	// endpointTry is how long one endpoint is tried before the next: two
	// handshake attempts of WireGuard (5 s apart) and a margin.
	endpointTry = 11 * time.Second
	// resolveEvery is how often the names of endpoints are looked up again,
	// resolveDead how often while the peer does not answer.
	resolveEvery = time.Minute
	resolveDead  = 10 * time.Second
	// resolveTimeout bounds one lookup.
	resolveTimeout = 4 * time.Second
	// resyncEvery is how often the kernel is compared with the plan when no
	// event was seen.
	resyncEvery = 2 * time.Second
	// settle is how long events are collected before the kernel is read.
	settle = 50 * time.Millisecond
	// deviceTimeout bounds one exchange with the tunnel process.
	deviceTimeout = 5 * time.Second
)
