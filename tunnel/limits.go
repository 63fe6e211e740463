package tunnel

import "time"

// Limits of the device and its peers.
const (
	// maxMTU is the largest device MTU.
	maxMTU = 65535 - wireGuardOverhead
	// directMost is how many nodes of peers have tunnels at a time for the pods on them, those
	// between two gateways apart. One in use is probed five times a second. Half of them are
	// for gateways at which traffic with other nodes enters, as far as they need it, and half for
	// other nodes.
	directMost = 64
)

// wireGuardOverhead is what the tunnel adds to a packet when the outer packet
// is IPv6: 40 IP + 8 UDP + 32 transport header and tag.
const wireGuardOverhead = 80

// Timers.
const (
	// silence is how long a peer that is probed each second may be silent
	// before another endpoint is tried: its WireGuard answers data with
	// a keepalive within 10 s, even when its fabric answers no probes.
	silence = 15 * time.Second
	// detourAfter is for how long the path to a peer that worked has to be down, with nothing received
	// since, until the peer is tried elsewhere too, and detourTry how long at each endpoint. A tunnel
	// process that restarts and a gateway that takes over mostly need less.
	detourAfter = 2 * time.Second
	detourTry   = time.Second
	// endpointTry is how long one endpoint is tried before the next: two
	// handshake attempts of WireGuard (5 s apart) and a margin. endpointQuick is how long in the
	// first rounds, in which each begins with a handshake.
	endpointTry   = 11 * time.Second
	endpointQuick = 3 * time.Second
	// relayAfter is for how long a peer that never answered is dialled before the agents
	// are asked to relay.
	relayAfter = 6 * time.Second
	// betterFirst is how soon better ways to a peer that came to be reached through the agents are
	// tried, betterMin to betterMax the pauses between such trials, betterAsked the least pause
	// when the peer tries, too, and betterBusy how long a trial waits for a moment without
	// traffic, since it can cost some packets, except the first betterNew trials of new candidates.
	betterFirst = 2 * time.Second
	betterMin   = 10 * time.Second
	betterMax   = 5 * time.Minute
	betterAsked = 3 * time.Second
	betterBusy  = time.Minute
	betterNew   = 3
	// betterWindow is for how long packets take a way that is tried, or up to betterWindows times that
	// until one was sent. betterWatch is for how long to check then whether they arrived, and
	// betterCheckEvery how often. betterDelay is for how long packets through the agents are delayed
	// once there is a better way; then the way is proven, by a probe each betterTries checks.
	betterWindow     = 5 * time.Millisecond
	betterWindows    = 4
	betterWatch      = time.Second
	betterCheckEvery = 10 * time.Millisecond
	betterTries      = 20
	betterDelay      = 150 * time.Millisecond
	// resolveEvery is how often the names of endpoints are looked up again,
	// resolveDead how often while the peer does not answer.
	resolveEvery = time.Minute
	resolveDead  = 10 * time.Second
	// resolveTimeout bounds one lookup.
	resolveTimeout = 4 * time.Second
	// resyncEvery is how often the kernel is compared with the plan when no
	// event was seen.
	resyncEvery = 2 * time.Second
	// rereadEvery is how often links, addresses, routes and rules are read without an event.
	rereadEvery = 10 * time.Second
	// reportEvery is how often the tunnel process is asked for its report, refusedLogEvery how often packets of
	// a peer that the cipher refused are logged.
	reportEvery     = 2 * time.Second
	refusedLogEvery = 10 * time.Minute
	// gatherFor is how long events are collected before the kernel is read.
	gatherFor = 50 * time.Millisecond
	// rekeyCountdown is how long in advance this node announces that it replaces its key,
	// rekeyEvery how often, and rekeyLast how long before the replacement it checks the confirmations.
	rekeyCountdown = 300 * time.Millisecond
	rekeyEvery     = 50 * time.Millisecond
	rekeyLast      = 50 * time.Millisecond
	// rekeyKnown is for how long another node's confirmation that it knows the next
	// key counts, rekeyAgain the pause before others are asked again.
	rekeyKnown = 10 * time.Second
	rekeyAgain = 2 * time.Second
	// rekeyTrial is how long another node's next key may be in use without a handshake until its
	// old one is used again, and rekeyRest for how long this node does not follow it after that.
	rekeyTrial = 2 * time.Second
	rekeyRest  = 10 * time.Minute
	// rekeyLate is how late a node may be with its next key. If it is later it calls the replacement
	// off, since others would follow too early, unless they have followed by then. rekeyShake is how long a
	// handshake with a next key may take before it is begun again: if both sides begin in the same moment
	// neither completes it.
	rekeyLate  = 20 * time.Millisecond
	rekeyShake = 150 * time.Millisecond
	// rekeySoon is how long a pass waits for another node that replaces its key, rekeyPaused how long after
	// that passes do not wait.
	rekeySoon   = 200 * time.Millisecond
	rekeyPaused = time.Second
	// leaveCheckEvery is how often a gateway that is about to stop checks whether others carry the peers
	// that it carried, and leaveLinger for how long it goes on after that, for packets on their way.
	leaveCheckEvery = 20 * time.Millisecond
	leaveLinger     = time.Second
	// demoteMost is how long a node may go on as a gateway after it ceased to be one, and count as one at other nodes.
	demoteMost = 6 * time.Second
	// deviceTimeout bounds one exchange with the tunnel process.
	deviceTimeout = 5 * time.Second
)
