package controller

import (
	"time"
)

// peerWorkers is how many peers are reconciled concurrently: most of the time goes into
// sequential requests to the API server.
const peerWorkers = 8

// Limits of ending trust, and of how a peer ends it.
const (
	// denialTimeout is how long notifying a denied peer may take; after it the peer's connections are closed.
	denialTimeout = 2 * time.Second
	// joinGrace is how long it may take after a join until both sides know of it.
	joinGrace = 10 * time.Second
	// joinRecheck is how often a peer that last refused before the join is checked after joinGrace.
	joinRecheck = 2 * time.Second
	// forgetWait is how long a peer that is being forgotten and has no session may take to come back and be
	// notified that its contracts are closed.
	forgetWait = 10 * time.Second
	// forgottenAfter is how long a peer has to refuse this cluster as untrusted until contracts with it end. It is
	// as long as Kubernetes leaves pods on an unreachable node, and leaves time to undo a mistake there.
	forgottenAfter = 5 * time.Minute
	// refusedApart is how far apart refusals have to be to count separately: as many as fit into forgottenAfter
	// count as much as that time without a break.
	refusedApart = 30 * time.Second
	// maxWhy is the most bytes of the reason for a missing session that an event carries.
	maxWhy = 300
	// refusedAgain is how often it is checked, after a refusal, whether the peer refused again.
	refusedAgain = 15 * time.Second
	// sessionDead is how long a session that the peer closed can seem to be up: longer than detecting a dead path
	// takes.
	sessionDead = 20 * time.Second
	// maxNamedNamespaces is how many namespaces a message names.
	maxNamedNamespaces = 3
	// maxSkew is how far clocks may differ before a condition reports it.
	maxSkew = time.Minute
)

// Limits of what peers make this cluster write. They count bytes of whole objects, as etcd keeps each revision for
// 5 to 10 minutes.
const (
	// keyCost is how many bytes a write of the tunnels' keys counts as: the keys of a few hundred peers.
	keyCost = 32 << 10
	// usePause is the least time between two writes of a contract's status for its use, the state of its node, and
	// its statements.
	usePause = 5 * time.Second
	// maxPeerMessage is how many bytes of a peer's message on why a contract ends are kept.
	maxPeerMessage = 256
)

// firstKeyAfter is for how long the tunnel to an in-band peer has to be down before its first key is offered: the
// peer, or this cluster, may have lost the later ones. A session of WireGuard has ended long before.
const firstKeyAfter = 10 * time.Minute

// Limits of contracts.
const (
	// maxPreviews is how many providers are asked for previews concurrently.
	maxPreviews = 8
	// contractWorkers is how many contracts, and how many PeeringRequests, are reconciled concurrently: a peer that
	// is slow to respond delays its own.
	contractWorkers = 8
	// fetchAgain is how long to wait before a peer is asked again for a revision or for statements that it reported
	// and did not return.
	fetchAgain = 15 * time.Second
	// useGather is how long changes of the pods on a virtual node are gathered before its contract is reconciled,
	// endGather the same for a contract that is ending.
	useGather = time.Second
	endGather = 250 * time.Millisecond
	// maxVerified is for how many contracts it is cached that their signatures were verified.
	maxVerified = 512
	// drainSlack is by how much a peer has to move an end forward for the change to be written.
	drainSlack = 5 * time.Second
	// closedKept is how long a contract with a price is kept after it closed, and maxClosed how many are kept of
	// each peer.
	closedKept = 30 * 24 * time.Hour
	maxClosed  = 32
	// maxOrphans is how many contracts of one peer that this cluster does not have are resolved
	// at a time.
	maxOrphans = 4
	// maxSightings is how many such contracts are remembered.
	maxSightings = 1024
)

// Limits of what a Tunnel opens; the API server limits the size of objects.
const (
	// tunnelPause is the least time between two writes of a Tunnel that open something.
	tunnelPause = time.Second
	// closePause is the least time between two writes of a Tunnel that close something: each has all that is open, and
	// while many pods end each of them closes something.
	closePause = 300 * time.Millisecond
	// exposureRecheck is how often it is checked, after a start, whether the exposure of all contracts is known.
	exposureRecheck = time.Second
)

// Limits of the alias pool.
const (
	// nodeNet4 and nodeNet6 are the lengths of the prefix around a node's address from which no alias is taken, and
	// nodeNetMost4 and nodeNetMost6 the shortest lengths of a prefix that contains the addresses of all nodes.
	nodeNet4     = 24
	nodeNet6     = 64
	nodeNetMost4 = 16
	nodeNetMost6 = 48
)
