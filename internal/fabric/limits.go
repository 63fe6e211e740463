package fabric

import "time"

const (
	// lanStatusBurst is how many reports a fabric writes at once, lanStatusPace the time
	// after which it may write one more: a LAN may change all the time.
	lanStatusBurst = 30
	lanStatusPace  = 10 * time.Second
	// conflictLasts is for how long another machine announces this cluster's name or ID until
	// that is reported, and conflictEnds for how long it is reported after it ended.
	conflictLasts = 90 * time.Second
	conflictEnds  = 5 * time.Minute
	// preflightEvery is how often a node checks itself. It also does so at once if its device changed.
	preflightEvery = 5 * time.Second
	// keyPatience is how long this node waits for nodes that do not know its next key before
	// it uses that key. Then packets between it and them are lost until they know the key. A silent peer
	// must not prevent the replacement of a key.
	keyPatience = 24 * time.Hour
	// inBandCheckEvery is how often the fabric checks whether the relays listen, and whether the ways that
	// they use are down; listenPatience is for how long they may not listen until that is reported:
	// their address inside the tunnels comes with the device.
	inBandCheckEvery = time.Second
	listenPatience   = 10 * time.Second
	// relayTry is how long a connection to a gateway of a peer may take before the next one
	// is tried, relayDial how long one to this cluster's agent may take.
	relayTry  = 1500 * time.Millisecond
	relayDial = 3 * time.Second
	// maxState is the size of a file that the node keeps for a restart, in bytes.
	maxState = 16 << 20
	// savedLife is for how long after the API server last answered a restarted fabric uses its saved
	// plan. A fabric that has read the API server since it started has no such limit:
	// contracts end all the same.
	savedLife = 24 * time.Hour
	// savedAgain is the age at which the saved plan is written again though only the
	// time has changed, savePause the pause between two writes.
	savedAgain = time.Hour
	savePause  = 5 * time.Second
	// metricsRetry is the pause before metrics are served again where the port was taken.
	metricsRetry = 30 * time.Second
	// leaveMost is how long the handover to other gateways may take before this one stops.
	leaveMost = 6 * time.Second
	// maxProblems is how many problems a FabricNode has, as in the custom resource.
	maxProblems = 32
	// maxHopMessages is how many peers and nodes a condition of a FabricNode explains; it counts the others.
	maxHopMessages = 3
	// maxRelays is how many addresses of relays a FabricNode has, as in the custom resource.
	maxRelays = 8
	// maxLANConflicts is how many conflicts on LANs a status has.
	maxLANConflicts = 8
	// maxDirect is how many tunnels to nodes of peers a FabricNode has, as in the custom resource.
	maxDirect = 256
	// maxObservedGateways is the number of gateways of peers whose observed addresses a FabricNode has,
	// as in the custom resource.
	maxObservedGateways = 256
	// relayPort is the UDP port on loopback at which gateways of peers are reached through the
	// agents, if it is free.
	relayPort = 7449
	// relayLinkAfter is for how long a gateway of a peer is not reached directly before the fabric makes
	// a link to the agent, relayUnlinkAfter for how long all are before it ends the link, and
	// relayCheckEvery how often it checks that. The link exists before the tunnel is tried through it.
	relayLinkAfter   = time.Second
	relayUnlinkAfter = 30 * time.Second
	relayCheckEvery  = 500 * time.Millisecond
)
