package agent

import "time"

const (
	// maxVerified is for how many contracts the agent caches that their signatures were verified: each object of a
	// peer needs its contract.
	maxVerified = 512
	// certificateAgain is when the certificate of the nodes' metrics is written again after a failure.
	certificateAgain = 30 * time.Second
	// awaitPause is how often an API server that does not respond is asked again when the agent starts,
	// awaitTimeout how long it may take to respond, and awaitLogPause how often that is logged.
	awaitPause    = 2 * time.Second
	awaitTimeout  = 5 * time.Second
	awaitLogPause = 30 * time.Second
	// podsPause is how long events of pods are gathered before their contract, and the peer, are reconciled.
	podsPause = 100 * time.Millisecond
	// exposurePause is the least time between two reconciliations of a peer because of what is open to it, which read
	// all of that. It is as short as the least time between two writes of a Tunnel.
	exposurePause = 300 * time.Millisecond
	// usePause is how long what pods use of a contract is gathered before it is counted.
	usePause = time.Second
	// observedPause is how long reports of where this cluster is seen are gathered before they are sent to all
	// peers.
	observedPause = 2 * time.Second
	// keysPause is the least time between two reads of the Secret with the tunnels' keys, caused by gateways that
	// ask the agent to carry their datagrams, and by connections to and from in-band peers.
	keysPause = 2 * time.Second
	// maxRelays is how many addresses of relays of this cluster's gateways are tried for one connection to a peer,
	// relayDialTimeout how long connecting to one may take, and relayTimeout how long that relay may then take to
	// reach the peer.
	maxRelays        = 8
	relayDialTimeout = 1500 * time.Millisecond
	relayTimeout     = 5 * time.Second
	// hostsPause is how often this cluster's own addresses are read, to check hosts that are exported.
	hostsPause = 10 * time.Second
	// fingerprintBytes is how many bytes of the hash of the trust bundle are published.
	fingerprintBytes = 8
)
