package agent

import "time"

const (
	// maxVerified is of how many contracts the agent remembers that their signatures
	// were verified: each object of a peer asks for its contract.
	maxVerified = 512
	// certificateAgain is when the certificate of the nodes' metrics is written again, if it could
	// not be.
	certificateAgain = 30 * time.Second
	// awaitPause is how often an API server that does not answer is asked again when the agent
	// starts, awaitTimeout for how long an answer is waited for, and awaitSay how often that is logged.
	awaitPause   = 2 * time.Second
	awaitTimeout = 5 * time.Second
	awaitSay     = 30 * time.Second
	// placementTimeout bounds a question of the API server about a pod, maxPlacementConnections
	// is how many connections ask at a time, and maxPlacementHeader what their headers have, in bytes.
	placementTimeout        = 5 * time.Second
	maxPlacementConnections = 256
	maxPlacementHeader      = 16 << 10
	// podsPause is how long events of pods are gathered before their contract, and the
	// peer, are looked at.
	podsPause = 100 * time.Millisecond
	// usePause is how long what pods use of a contract is gathered before it is counted.
	usePause = time.Second
	// observedPause is how long what peers say of where this cluster is seen is gathered
	// before all are told.
	observedPause = 2 * time.Second
	// keysLook is the least time between two reads of the Secret with the tunnels' keys, which
	// gateways that ask for their datagrams to be carried cause.
	keysLook = 2 * time.Second
	// maxRelays is how many addresses of relays of this cluster's gateways are tried for one
	// connection to a peer, relayDialTimeout how long one may take to be connected to, and
	// relayAnswers how long it may then take to reach the peer.
	maxRelays        = 8
	relayDialTimeout = 1500 * time.Millisecond
	relayAnswers     = 5 * time.Second
	// hostsLook is how often it is asked which addresses are this cluster's own, for the sake of
	// hosts that are exported.
	hostsLook = 10 * time.Second
	// fingerprintBytes is how many bytes of the hash of the trust bundle are published.
	fingerprintBytes = 8
)
