package controller

import (
	"time"
)

// peerWorkers is how many peers are reconciled concurrently: most of the time goes into
// sequential requests to the API server.
const peerWorkers = 8

// Limits of ending trust, and of how a peer ends it.
const (
	// denialTimeout is how long notifying a denied peer may take; then its connections are
	// closed.
	denialTimeout = 2 * time.Second
	// joinSettles is how long it may take after a join until both sides know of it.
	joinSettles = 10 * time.Second
	// settleLook is how often a peer that last refused before the join is checked after
	// that.
	settleLook = 2 * time.Second
	// forgetWait is how long a peer that is being forgotten, and that has no session, may take
	// to come back and be notified that its contracts are closed.
	forgetWait = 10 * time.Second
	// forgottenAfter is for how long a peer has to refuse this cluster as untrusted until
	// contracts with it end. It is as long as Kubernetes leaves pods on an unreachable node,
	// and time to undo a mistake there.
	forgottenAfter = 5 * time.Minute
	// refusedApart is how far apart refusals have to be to count separately: as many as make
	// forgottenAfter count as that time without a break.
	refusedApart = 30 * time.Second
	// maxWhy is the most bytes that an event has of why there is no session.
	maxWhy = 300
	// refusedAgain is how often it is checked then whether the peer refused again.
	refusedAgain = 15 * time.Second
	// sessionDead is how long a session that the peer closed can seem to be up: longer than it
	// takes to detect a dead path.
	sessionDead = 20 * time.Second
	// maxNamedNamespaces is how many namespaces a message names.
	maxNamedNamespaces = 3
	// maxSkew is how far clocks may differ before a condition reports it.
	maxSkew = time.Minute
)

// Limits of what peers make this cluster write: bytes of whole objects, as etcd keeps each
// revision for 5 to 10 minutes.
const (
	// keyCost is how many bytes a write of the tunnels' keys counts as: those of a few hundred
	// peers.
	keyCost = 32 << 10
	// usePause is the least time between two writes of a contract's status for what is in
	// use of it, how its node is, and its statements.
	usePause = 5 * time.Second
	// maxPeerMessage is how many bytes of a peer's message on why a contract ends are kept.
	maxPeerMessage = 256
)

// Limits of preshared keys.
const (
	// keyLeast is how old a key has to be before it is replaced because the peer wants that.
	keyLeast = time.Minute
	// keyPatience is how long gateways whose fabrics are silent are waited for before a
	// key is replaced, or the one before is forgotten. If one of them carries traffic it has
	// no tunnel from then on.
	keyPatience = 24 * time.Hour
)

// Limits of contracts.
const (
	// maxPreviews is how many providers are asked for previews concurrently.
	maxPreviews = 8
	// contractWorkers is how many contracts, and how many PeeringRequests, are reconciled
	// concurrently: a peer that is slow to answer delays its own.
	contractWorkers = 8
	// fetchAgain is how long to wait before a peer is asked again for a revision or for
	// statements that it reported and did not return.
	fetchAgain = 15 * time.Second
	// useGather is how long changes of the pods on a virtual node are gathered before its contract
	// is reconciled, endGather of one that is ending.
	useGather = time.Second
	endGather = 250 * time.Millisecond
	// maxVerified is of how many contracts it is remembered that their signatures were verified.
	maxVerified = 512
	// drainSlack is by how much a peer has to move an end forward for that to be written.
	drainSlack = 5 * time.Second
	// closedKept is for how long a contract with a price is kept after it closed, and maxClosed
	// how many of each peer.
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
	// unsureLook is how often it is checked, after a start, whether it is known by now what
	// contracts expose.
	unsureLook = time.Second
)

// Limits of the alias pool.
const (
	// nodeNet4 and nodeNet6 is how long the prefix around a node's address is that no
	// alias is taken from, and nodeNetMost4 and nodeNetMost6 how short at most the one
	// that holds the addresses of all nodes.
	nodeNet4     = 24
	nodeNet6     = 64
	nodeNetMost4 = 16
	nodeNetMost6 = 48
)
