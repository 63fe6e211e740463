package agent

import "time"

// Limits of what follows from pods that cross.
const (
	// maxVerified is of how many contracts the agent remembers that their signatures
	// were verified: each object of a peer asks for its contract.
	maxVerified = 512
	// exposureGrace is how long after an agent's start a peer may reach what it could
	// reach before, because of a contract of which it is not known yet what it exposes:
	// the API server may be slow to answer, and the peer has no say in it.
	exposureGrace = 10 * time.Minute
	// podsPause is how long events of pods are gathered before their contract, and the
	// peer, are looked at.
	podsPause = 100 * time.Millisecond
	// maxUnknownPods is how many pods' addresses are kept, of each contract, that a
	// provider names after an agent's start before it is known which pods are this
	// cluster's. It is as many as a contract can have.
	maxUnknownPods = 10_000
)

// Limits of discovery on LANs.
const (
	// lanReportLate is after how long without a report the fabric of a node counts as silent:
	// what it found is believed for a while then, but not what it lacks.
	lanReportLate = 3 * time.Minute
	// lanReportExpires is for how long at most what a silent fabric found is believed.
	lanReportExpires = 10 * time.Minute
	// lanStatusBurst is how many reports a fabric writes at once, lanStatusPace the time
	// after which one more can be: a LAN may change all the time.
	lanStatusBurst = 30
	lanStatusPace  = 10 * time.Second
	// maxLANInterfaces and maxLANFound are how many network interfaces, and how many
	// clusters, the fabric of a node reports, as in the custom resource.
	maxLANInterfaces = 16
	maxLANFound      = 256
	// conflictLasts is for how long another machine announces what is this cluster's until
	// that is told, and conflictEnds after how long it is not any more.
	conflictLasts = 90 * time.Second
	conflictEnds  = 5 * time.Minute
	// maxLANConflicts is how many such are told.
	maxLANConflicts = 8
	// maxInterfaceName is the most bytes of the name of an interface (Linux' IFNAMSIZ
	// without its end), maxClusterName those of what a cluster calls itself.
	maxInterfaceName = 15
	maxClusterName   = 64
	// maxDiscoveryText is the most bytes of a problem.
	maxDiscoveryText = 512
	// fingerprintBytes is how many bytes of the hash of the trust bundle are published.
	fingerprintBytes = 8
)

// Limits of publishing in DNS.
const (
	// publishLook is how often is looked whether what is published has to change.
	publishLook = 10 * time.Second
	// maxPublications is how many places are remembered in which this cluster is, or was
	// and could not be removed.
	maxPublications = 8
	// publishText is the most bytes of a text on how it went: an event takes 1024.
	publishText = 768
	// publishLookup is how long a look-up of the server's name may take, and
	// publishServers how many of its addresses are tried.
	publishLookup  = 5 * time.Second
	publishServers = 2
	// unpublishWait is how long an uninstall waits for a DNS server.
	unpublishWait = 30 * time.Second
)
