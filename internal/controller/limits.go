package controller

import (
	"time"

	"github.com/entente-dev/entente/internal/store"
)

// Limits of clusters that introduce themselves. Making a cluster ID costs nothing,
// so what counts is places, by address (IPv6: one /64), and how long they are
// taken.
const (
	// MaxIntroductions is how many clusters can wait for an administrator, and
	// MaxIntroductionsPerAddress how many of them from one address.
	MaxIntroductions           = 32
	MaxIntroductionsPerAddress = 8
	// IntroductionLife is how long one waits.
	IntroductionLife = time.Hour
	// RevealTimeout is how long one may take to open its commitment.
	RevealTimeout = time.Minute
	// IntroductionBurst is how often one cluster can introduce itself at once, and
	// IntroductionPause how often in the long run.
	IntroductionBurst = 5
	IntroductionPause = 30 * time.Second

	// introductionsPause is what is asked for when there is no place.
	introductionsPause = 5 * time.Minute
)

// Limits of proofs that a cluster holds a group's secret. A run that does not end with a
// right confirmation counts as a failed guess, a run that is not over too. Those that this
// cluster answers and those that it begins count apart, so that whoever fails here does not
// by that keep it from proving to others; who is found at many addresses, and fails there
// too, does. In the long run that is 60 guesses an hour of each, 120
// in all, or a million a year, over all groups: it protects 16 random bytes, and no word of
// a dictionary. Each cluster of a group counts for itself.
const (
	// ProofTimeout is how long a run may take.
	ProofTimeout = 30 * time.Second
	// GuessBurst is how many runs of all clusters can fail at once, and GuessPause the time
	// after which one more can.
	GuessBurst = 32
	GuessPause = time.Minute
	// GuessBurstPerAddress and GuessPausePerAddress are those of one address (IPv6: one
	// /64), or of one endpoint that is dialled.
	GuessBurstPerAddress = 8
	GuessPausePerAddress = 5 * time.Minute
	// GuessBurstPerCluster and GuessPausePerCluster are those of one cluster ID.
	GuessBurstPerCluster = 4
	GuessPausePerCluster = 10 * time.Minute
	// ProvenBurst is how many runs of one cluster ID succeed at once, and ProvenPause the
	// time after which one more may: each may be a write.
	ProvenBurst = 16
	ProvenPause = time.Minute
	// GroupNewsBurst is how many failures of one group are reported at once, and
	// GroupNewsPause the time after which one more is.
	GroupNewsBurst = 4
	GroupNewsPause = time.Minute
)

// Times of the choice of a gateway. A gateway that dies is noticed by the other nodes'
// probes within 4 s and replaced gatewayPatience later.
const (
	// gatewayPatience is how long there must be evidence against a gateway until it is
	// replaced: a fabric that restarts, or a network that stops for a moment, moves
	// nothing.
	gatewayPatience = 5 * time.Second
	// gatewaySettles is how long a new gateway has for its tunnels to come up, twice as
	// long each time that it was of no use, maxGatewayMoves times.
	gatewaySettles  = 20 * time.Second
	maxGatewayMoves = 4
)

// peerWorkers is how many peers are looked at at once: what takes time is the API
// server's answers, one after the other.
const peerWorkers = 8

// Limits of calling other clusters about trust.
const (
	// trustWorkers is how many clusters are called at once.
	trustWorkers = 4
	// joinTimeout bounds a join or an introduction: several endpoints in turn.
	joinTimeout = 90 * time.Second
	// updateTimeout bounds giving a peer this cluster's roots.
	updateTimeout = 10 * time.Second
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
	// maxKeysNamed is how many keys of a Secret are named that lacks the one that is meant.
	maxKeysNamed = 4
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

// Limits of what discovery finds.
const (
	// maxHints is how many clusters are kept that discovery found and nobody decided
	// about, and maxHintsOfPlace how many of them one network or domain may bring.
	maxHints, maxHintsOfPlace = 256, 128
	// maxExpected is how many clusters come first with discovery, beyond maxHints: those
	// that policies list, then people's peers, then policies'.
	maxExpected = 256
	// maxPlaces is how many places are told of one cluster.
	maxPlaces = 16
	// hintsAtOnce is how many are made, and changed, with one look: of those that are
	// expected, and again of all others. sightingsPace is how often one may follow another.
	hintsAtOnce   = 16
	sightingsPace = time.Second
	// sightingsLook is how often is looked while nothing changes.
	sightingsLook = 30 * time.Second
	// missingAfter is for how long a cluster has to be missing at a place to be believed
	// gone, and maxLast of how many that is known.
	missingAfter = 2 * time.Minute
	maxLast      = 4096
	// hintStands is for how long a hint of a LAN stands at least: what says goodbye before
	// may be about to be joined, or come and go for ever.
	hintStands = time.Minute
	// hintCost is what a hint counts as: it is created, told where it is, and removed.
	hintCost = 2*store.WriteOverhead + 3<<10
	// changePace is how often what is known of one of them may change.
	changePace = time.Minute
	// seenPace is how often is told that a cluster was seen again.
	seenPace = 5 * time.Minute
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
	// maxHashes is how many hashes of trust bundles are remembered, so that those of
	// peers that were forgotten do not gather.
	maxHashes = 4096
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

// Limits of peering by a policy's spec.automatic.
const (
	// automaticCalls is how many clusters are called at once, automaticRate how many a
	// second in the long run and automaticBurst how many at once before that counts:
	// discovery may find any number that there are not.
	automaticCalls = 4
	automaticRate  = 2
	automaticBurst = 32
	// automaticTimeout bounds a call of one endpoint, and endpointsPerTry is how many are
	// called in turn.
	automaticTimeout = 10 * time.Second
	endpointsPerTry  = 2
	// firstSpread is within which the one of two clusters dials whose ID is the lower,
	// laterAfter and laterSpread when the other one does if nothing came of that.
	firstSpread = 500 * time.Millisecond
	laterAfter  = 3 * time.Second
	laterSpread = 3 * time.Second
	// automaticRetryMax is the longest pause after tries that failed, which begin with
	// trustRetryMin; up to half is added by chance. longPause is that after a refusal
	// that a person has to do something about.
	automaticRetryMax = 10 * time.Minute
	longPause         = 30 * time.Minute
	// maxFirstUse is how many clusters a policy trusts on first use: whoever is on the
	// network makes any number, and each gets what the policy lends to one.
	maxFirstUse = 64
	// endpointPause is how often one endpoint is called, whoever is said to be there.
	endpointPause = 5 * time.Second
	// maxTries is how many tries are remembered of clusters that are not found any more.
	maxTries = 1024
	// policyGone is for how long a policy has to be gone until what it made ends: to
	// replace it may be to delete and create it, as Helm does.
	policyGone = time.Minute
	// leftAfter is for how long a policy's peer that trusts this cluster no longer, and that
	// discovery does not find, stays known.
	leftAfter = 10 * time.Minute
	// vanishedAfter is for how long one stays known that no list names, that is neither
	// found nor connected, and with which nothing is agreed.
	vanishedAfter = 24 * time.Hour
	// automaticPace is the least time between two looks, automaticLook how often it is
	// looked where nothing happens.
	automaticPace = 250 * time.Millisecond
	// secretPause is how soon a group's Secret is read again that could not be read.
	secretPause   = 5 * time.Second
	automaticLook = time.Minute
)
