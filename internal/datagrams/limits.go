package datagrams

import "time"

const (
	// MaxDatagram is the longest datagram that is carried, in bytes. Longer ones are lost, and
	// the tunnel finds out the size that passes.
	MaxDatagram = 9216
	// MaxBatch is how many bytes of frames one message has at most.
	MaxBatch = 64 << 10
	// maxQueued is how many bytes of datagrams a queue has, maxWait how long each waits.
	// Beyond these the oldest are lost. Each datagram counts for queuedOverhead bytes besides its own.
	maxQueued      = 512 << 10
	maxWait        = 250 * time.Millisecond
	queuedOverhead = 128
	// datagramCost is what a datagram costs besides its bytes where rates are limited, so that
	// many small ones are limited too.
	datagramCost = 256
	// handshakeRate and handshakeBurst are how many handshakes a second a peer can begin with
	// this cluster's gateways: each makes WireGuard compute.
	handshakeRate  = 20
	handshakeBurst = 100
	// shareFor is for how long after a datagram a peer counts among those that share the rate for
	// all peers.
	shareFor = 2 * time.Second

	// maxLinks is how many connections gateways have to the agent at once. maxUnproven is the number
	// of further ones that have not proven themselves, maxUnprovenOfOne that from one address.
	maxLinks         = 4096
	maxUnproven      = 64
	maxUnprovenOfOne = 8
	// maxKeys is how many keys of a peer are accepted: of the preshared key in use, the next and the previous one.
	maxKeys = 3
	// helloTimeout bounds the exchange before datagrams.
	helloTimeout = 5 * time.Second
	// dialTimeout bounds a gateway's connect to the agent.
	dialTimeout = 5 * time.Second
	// aliveEvery is how often each side of a link sends a keepalive, aliveTimeout how long
	// the other waits for one. A write may take as long.
	aliveEvery   = 5 * time.Second
	aliveTimeout = 15 * time.Second
	// retryMin to retryMax is the pause before a link, or a call to a peer, that failed is
	// tried again.
	retryMin = time.Second
	retryMax = 5 * time.Second
	// idleAfter is after how long without a datagram the call to a peer ends.
	idleAfter = 30 * time.Second
	// MaxSockets is the number of gateways of peers for which a node has an address on loopback.
	MaxSockets = 1024
	// socketBuffer is how many bytes of datagrams the kernel keeps for a socket.
	socketBuffer = 1 << 20
)
