package controller

import (
	"time"
)

// peerWorkers is how many peers are looked at at once: what takes time is the API
// server's answers, one after the other.
const peerWorkers = 8

// Limits of ending trust, and of what a peer says of it.
const (
	// denialTimeout is how long a peer that was denied may take to hear of it; then
	// it is cut off.
	denialTimeout = 2 * time.Second
	// joinSettles is how long the two sides of a join may take to both know of it.
	joinSettles = 10 * time.Second
	// settleLook is how often it is looked after that whether a peer that was last
	// heard of before the join knows of it.
	settleLook = 2 * time.Second
	// forgetWait is how long a peer that is being forgotten, and that there is no
	// session with, may take to come back and hear that its contracts are over.
	forgetWait = 10 * time.Second
	// forgottenAfter is for how long a peer has to refuse this cluster as one that it
	// does not trust until contracts with it are over. It is as long as Kubernetes
	// leaves pods on a node that it does not hear of, and time to undo a mistake there.
	forgottenAfter = 5 * time.Minute
	// refusedApart is how far apart refusals have to be that count one by one: as many
	// as make forgottenAfter are as good as that time without a break.
	refusedApart = 30 * time.Second
	// maxWhy is the most bytes of why there is no session that an event says.
	maxWhy = 300
	// refusedAgain is how often it is looked then whether the peer refused again.
	refusedAgain = 15 * time.Second
	// sessionDead is how long a session can seem to be up that the peer has cut: longer
	// than it takes to notice a dead path.
	sessionDead = 20 * time.Second
	// maxSkew is how far clocks may differ without a word about it.
	maxSkew = time.Minute
)

// Limits of what peers make this cluster write of what they say: bytes of whole
// objects, as etcd keeps each revision for 5 to 10 minutes.
const (
	// keyCost is what a write of the tunnels' keys counts as: those of a few hundred
	// peers.
	keyCost = 32 << 10
	// usePause is the least time between two writes of a contract's status for what is in
	// use of it, how its node is, and its statements.
	usePause = 5 * time.Second
	// maxPeerMessage is how much is kept of what a peer says of why a contract ends.
	maxPeerMessage = 256
)

// Limits of what follows from a peer's word on contracts.
const (
	// maxPreviews is how many of them are asked at once.
	maxPreviews = 8
	// contractWorkers is how many contracts, and how many PeeringRequests, are looked
	// at at once: a peer that is slow to answer holds up its own.
	contractWorkers = 8
	// fetchAgain is how long to wait before a peer is asked again for a revision or
	// for statements that it said it has and did not give.
	fetchAgain = 15 * time.Second
	// drainSlack is by how much a peer has to end earlier for that to be news.
	drainSlack = 5 * time.Second
	// closedKept is for how long a contract that cost something is kept after it is
	// over, and maxClosed how many of each peer.
	closedKept = 30 * 24 * time.Hour
	maxClosed  = 32
	// maxKept is how many statements of use, and periods of this cluster's own count,
	// a Contract keeps.
	maxKept = 32
	// maxKeptBytes is how much text the statements of a Contract may have.
	maxKeptBytes = 256 << 10
	// maxOrphans is how many contracts of one peer that this cluster does not hold are
	// looked after at a time.
	maxOrphans = 4
	// maxSightings is how many such contracts are remembered.
	maxSightings = 1024
)

// Limits of what a Tunnel opens; the object has to fit into the API server.
const (
	// maxExposures is how many exposures a Tunnel has at most, one for each offloaded
	// namespace of a contract, as in the custom resource.
	maxExposures = 256
	// maxExposed is how many addresses and ports, in all, the exposures of a Tunnel
	// list.
	maxExposed = 20_000
	// maxPorts is how many ports a destination has at most, as in the custom resource.
	maxPorts = 1000
	// tunnelPause is the least time between two writes of a Tunnel that open something.
	tunnelPause = time.Second
	// unsureLook is how often it is looked, after a start, whether it is known by now
	// what contracts expose.
	unsureLook = time.Second
)

// Limits of the alias pool.
const (
	// aliasShare is how much of the alias pool one peer can have, of each family: one
	// part in so many.
	aliasShare = 2
	// nodeNet4 and nodeNet6 is how long the prefix around a node's address is that no
	// alias is taken from, and nodeNetMost4 and nodeNetMost6 how short at most the one
	// that holds the addresses of all nodes.
	nodeNet4     = 24
	nodeNet6     = 64
	nodeNetMost4 = 16
	nodeNetMost6 = 48
)

// maxOffloadingMessage is how long the message of a NamespaceOffloading is at most.
const maxOffloadingMessage = 1024
