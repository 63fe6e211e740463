package server

import "time"

// Limits of callers.
const (
	// MaxMessage is the most bytes of one message of the peer API: an offloaded
	// object and its envelope.
	MaxMessage = 2 << 20

	// StrangerRate, StrangerBurst and StrangerCalls bound the calls of clusters
	// that are not trusted, by IP address (by /64 for IPv6).
	StrangerRate  = 5
	StrangerBurst = 30
	StrangerCalls = 16
	// PeerRate, PeerBurst and PeerCalls bound the calls of one trusted peer.
	PeerRate  = 200
	PeerBurst = 1000
	PeerCalls = 256
	// fenceAskEvery is how often a consumer that has a fence is asked whether it is there.
	fenceAskEvery = 5 * time.Second
	// UnaryTimeout is how long a unary call of a peer may take.
	UnaryTimeout = 30 * time.Second
	// MaxSessionsPerPeer is how many state exchanges a peer can have open, and how many watches of
	// its offer and of exported Services: the current one and the one that takes over.
	MaxSessionsPerPeer = 2
	// OfferPause is the least time between two messages of a peer's offer, and
	// OfferSmallPause where no amount changed by OfferSmallPercent. A change of whether
	// there is anything at all is sent at once.
	OfferPause        = time.Second
	OfferSmallPause   = 30 * time.Second
	OfferSmallPercent = 5
	// ExportPause is the least time between two changes of the Services that a peer
	// imports, and ExportCheck how often it is checked that the peer still may import them.
	ExportPause = 200 * time.Millisecond
	ExportCheck = 2 * time.Second
	// CarryOpenTimeout is how long a call that carries a connection may take to name its target.
	CarryOpenTimeout = 5 * time.Second
	// MaxStatements is how many statements of use one response has.
	MaxStatements = 64
	// TrustCheck is how often open streams are checked to be of trusted callers.
	TrustCheck = 2 * time.Second

	// ConnectionBuffer is the size of the write buffer of a peer's connection, which exists
	// only while it writes; ReadBuffer is that of its read buffer, which each connection
	// has.
	ConnectionBuffer = 8 << 10
	ReadBuffer       = 1 << 10
	// StreamWindow and ConnectionWindow are the flow control windows of calls and
	// connections of peers. gRPC would let them grow to 16 MiB for each call.
	StreamWindow     = 256 << 10
	ConnectionWindow = 1 << 20
	// PeerUnread is how many bytes of messages of one peer gRPC may hold that no
	// handler has read, StrangerUnread of the strangers from one address, and
	// AllUnread of all callers together. The overhead of frames counts. Beyond a limit
	// the calls with the most are ended, those of strangers before those of peers.
	PeerUnread     = 64 << 20
	StrangerUnread = 4 << 20
	AllUnread      = 128 << 20
	// CallUnread is the same limit for one call. It is the largest message, and a full
	// StreamWindow behind it in frames that cost four times what they carry, with
	// room to spare.
	CallUnread = 4 << 20
	// EndTimeout is how long gRPC may take to release a call that was ended, before
	// the call's connection is closed. It takes milliseconds.
	EndTimeout = 5 * time.Second
	// PeerRefused is how many refused calls a peer's connection may have before it is
	// closed, and StrangerRefused a stranger's: gRPC keeps some memory of each until the
	// connection ends.
	PeerRefused     = 8192
	StrangerRefused = 1024

	// PeerKeepalive is after how much silence a peer's connection is probed: its session
	// or TCP notices a dead peer sooner, and an idle session has a heartbeat each 2 min.
	PeerKeepalive = 5 * time.Minute
	// ConnectionGrace is how long streams may continue on a connection past its maximum age.
	ConnectionGrace = 30 * time.Minute
)

// Limits of an OffloadService, by contract unless said otherwise.
const (
	// offloadMaxInFlight and offloadMaxInFlightBytes limit messages that were read from a
	// stream and are not carried out yet; beyond that nothing is read.
	offloadMaxInFlight      = 128
	offloadMaxInFlightBytes = 16 << 20
	// offloadMaxWork is how many objects of one peer, over all its contracts, are
	// applied at once, and how many deleted: its concurrent requests to the API server
	// delay others.
	offloadMaxWork = 16
	// offloadMaxRemembered is how many bytes of large Services are remembered for one peer, over all its contracts, so
	// that it can send changes of them, and offloadMaxRememberedAll for all peers. Services beyond that are sent whole.
	offloadMaxRemembered    = 8 << 20
	offloadMaxRememberedAll = 32 << 20
	// offloadMaxEvents is how many events wait to be sent; the oldest goes first.
	offloadMaxEvents = 256
	// offloadMaxLastBytes is how many bytes the last statuses of pods that are gone may have while
	// they wait to be sent. Beyond it only the fact is sent that a pod is gone.
	offloadMaxLastBytes = 8 << 20
	// offloadSendTimeout is how long one message may wait for a slow reader before the
	// stream ends.
	offloadSendTimeout = 30 * time.Second
	// offloadOpenTimeout is how long a stream may take to send its first message.
	offloadOpenTimeout = 10 * time.Second
	// offloadApplyTimeout is how long applying one object may take.
	offloadApplyTimeout = 90 * time.Second
	// offloadRecheck is how often it is checked whether the contract of an open stream is
	// still open.
	offloadRecheck = 2 * time.Second
	// offloadMaxStreams is how many logs, execs and port-forwards one peer may
	// have open at once, over all its contracts.
	offloadMaxStreams = 128
	// offloadMetricsTimeout is how long a response with the metrics of pods may take.
	offloadMetricsTimeout = 15 * time.Second
	// offloadChunk is the most bytes of a log, a process or a connection in one message.
	offloadChunk = 32 << 10
	// offloadStdinChunk is the largest piece of input taken, as in the proto.
	offloadStdinChunk = 64 << 10
	// offloadMaxCommand is how many words a command may have, and
	// offloadMaxCommandLen how many bytes in all.
	offloadMaxCommand    = 1024
	offloadMaxCommandLen = 256 << 10
)
