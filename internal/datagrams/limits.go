package datagrams

import "time"

const (
	// MaxDatagram is the longest datagram that is carried, in bytes. What is longer is lost, and
	// the tunnel finds out what passes.
	MaxDatagram = 9216
	// MaxBatch is how many bytes of frames cross in one message.
	MaxBatch = 64 << 10
	// maxQueued is how many bytes of datagrams wait in one place, maxWait how long each does.
	// Beyond these the oldest are lost. What is in a datagram's way besides its bytes counts
	// queuedOverhead.
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
	// shareFor is for how long a peer that had datagrams carried counts among those that share
	// what there is for all.
	shareFor = 2 * time.Second

	// maxLinks is how many connections gateways have to the agent at once. maxUnproven is how
	// many there are besides that have not proven themselves, maxUnprovenOfOne from one address.
	maxLinks         = 4096
	maxUnproven      = 64
	maxUnprovenOfOne = 8
	// helloTimeout bounds the exchange before datagrams.
	helloTimeout = 5 * time.Second
	// dialTimeout bounds a gateway's connect to the agent.
	dialTimeout = 5 * time.Second
	// aliveEvery is how often each side of a link says that it is there, aliveTimeout how long
	// the other waits for that. A write takes as long at most.
	aliveEvery   = 5 * time.Second
	aliveTimeout = 15 * time.Second
	// retryMin to retryMax is the pause before a link, or a call to a peer, that failed is
	// tried again.
	retryMin = time.Second
	retryMax = 5 * time.Second
	// idleAfter is after how long without a datagram the call to a peer ends.
	idleAfter = 30 * time.Second
	// MaxSockets is for how many gateways of peers a node has an address on loopback.
	MaxSockets = 1024
	// socketBuffer is how many bytes of datagrams the kernel keeps for a socket.
	socketBuffer = 1 << 20
)
