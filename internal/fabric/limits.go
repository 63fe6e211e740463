package fabric

import "time"

const (
	// lanStatusBurst is how many reports a fabric writes at once, lanStatusPace the time
	// after which one more can be: a LAN may change all the time.
	lanStatusBurst = 30
	lanStatusPace  = 10 * time.Second
	// conflictLasts is for how long another machine announces what is this cluster's until
	// that is told, and conflictEnds after how long it is not any more.
	conflictLasts = 90 * time.Second
	conflictEnds  = 5 * time.Minute
	// preflightEvery is how often a node checks itself, and at once if its device changed.
	preflightEvery = 5 * time.Second
	// keyPatience is how long nodes that do not know this node's next key are waited for before
	// it is used all the same. Between this node and them packets are lost then, until they hear
	// of it. A peer that says nothing must not keep a key as it is.
	keyPatience = 24 * time.Hour
	// inBandLook is how often it is looked whether the relays listen, and whether the ways that
	// they use are down; listenPatience is for how long they may not listen until that is told:
	// their address inside the tunnels comes with the device.
	inBandLook     = time.Second
	listenPatience = 10 * time.Second
	// relayTry is how long a gateway of a peer may take to be connected to before the next one
	// is tried, relayDial how long this cluster's agent may take.
	relayTry  = 1500 * time.Millisecond
	relayDial = 3 * time.Second
	// maxState is how many bytes a file of what the node keeps for a restart has.
	maxState = 16 << 20
	// savedLife is for how long after the API server last answered a fabric that was restarted
	// does what it kept. One that runs, and has read the API server once, has no such limit:
	// contracts end all the same.
	savedLife = 24 * time.Hour
	// savedAgain is how old what is kept becomes before it is written again though only the
	// time has changed, savePause how long two writes are apart.
	savedAgain = time.Hour
	savePause  = 5 * time.Second
	// metricsRetry is how soon it is tried again to serve metrics where the port is taken.
	metricsRetry = 30 * time.Second
	// leaveMost is how long it may take until other gateways carry what this one did, before it
	// stops.
	leaveMost = 6 * time.Second
	// maxProblems is how many problems a FabricNode has, as in the custom resource.
	maxProblems = 32
	// maxRelays is how many addresses of relays a FabricNode has, as in the custom resource.
	maxRelays = 8
	// maxLANConflicts is how many such are told.
	maxLANConflicts = 8
	// maxDirect is how many tunnels to nodes of peers are told, as in the custom resource.
	maxDirect = 256
	// maxObservedGateways is of how many gateways of peers is told where they are seen, as in the
	// custom resource.
	maxObservedGateways = 256
	// relayPort is the UDP port on loopback at which gateways of peers are reached through the
	// agents, if it is free.
	relayPort = 7449
	// relayWanted is for how long a gateway of a peer is not reached by itself before there is
	// a link to the agent, relayUnwanted for how long all are before it ends, and relayLook how
	// often that is looked at. The link is there before the tunnel is tried through it.
	relayWanted   = time.Second
	relayUnwanted = 30 * time.Second
	relayLook     = 500 * time.Millisecond
)
