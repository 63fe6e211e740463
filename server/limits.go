package server

import "time"

// Limits of what callers may ask of this process.
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
	// UnaryTimeout is how long a unary call of a peer may take.
	UnaryTimeout = 30 * time.Second
	// MaxSessionsPerPeer is how many exchanges of states a peer can have open, and
	// how many watches of its offer: the one that works and the one that takes
	// over.
	MaxSessionsPerPeer = 2
	// OfferPause is the least time between two messages of a peer's offer, and
	// OfferSmallPause where no amount changed by OfferSmallPercent. Whether there is
	// anything at all is told at once.
	OfferPause        = time.Second
	OfferSmallPause   = 30 * time.Second
	OfferSmallPercent = 5
	// MaxStatements is how many statements of use one answer has.
	MaxStatements = 64
	// TrustCheck is how often the caller of a stream is checked to be trusted
	// still.
	TrustCheck = 2 * time.Second

	// ConnectionBuffer is how many bytes are gathered before they are written to a
	// connection of a peer, which only a connection that writes holds; ReadBuffer how many
	// are read at once where less was asked for, which each holds.
	ConnectionBuffer = 8 << 10
	ReadBuffer       = 1 << 10
	// StreamWindow is how many bytes of a call of a peer may wait for its handler, and
	// ConnectionWindow how many may be under way on a connection. gRPC would let them
	// grow to 16 MiB for each call.
	StreamWindow     = 256 << 10
	ConnectionWindow = 1 << 20
	// PeerUnread is how many bytes of messages gRPC may hold of one peer that no
	// handler has read, StrangerUnread of the strangers from one address, and
	// AllUnread of all callers together. What frames cost besides what is in them
	// counts. Beyond a limit the calls that hold the most are ended, those of
	// strangers before those of peers.
	PeerUnread     = 64 << 20
	StrangerUnread = 4 << 20
	AllUnread      = 128 << 20
	// CallUnread is the same of one call. It is the largest message, and a full
	// StreamWindow behind it in frames that cost four times what they carry, with
	// room to spare.
	CallUnread = 4 << 20
	// EndTimeout is how long gRPC may take to let go of a call that was ended, before
	// the call's connection is closed. It takes a moment.
	EndTimeout = 5 * time.Second
	// PeerRefused is how many calls a peer's connection may have refused before it is
	// cut off, and StrangerRefused a stranger's: gRPC keeps something of each until the
	// connection ends.
	PeerRefused     = 8192
	StrangerRefused = 1024

	// PeerKeepalive is after how much silence a peer's connection is probed: its session
	// or TCP notice sooner that it is gone, and one that rests says something each 2 min.
	PeerKeepalive = 5 * time.Minute
	// ConnectionGrace is how long the streams of a connection may go on that is too old.
	ConnectionGrace = 30 * time.Minute
)

// Limits of an OffloadService, by contract unless said otherwise.
const (
	// offloadMaxInFlight and offloadMaxInFlightBytes bound what was read from a
	// stream and is not carried out; beyond that nothing is read.
	offloadMaxInFlight      = 128
	offloadMaxInFlightBytes = 16 << 20
	// offloadMaxWork is how many objects of one peer, over all its contracts, are
	// applied at once, and how many deleted: what it has the API server do at once
	// delays others.
	offloadMaxWork = 16
	// offloadMaxEvents is how many events wait to be sent; the oldest goes first.
	offloadMaxEvents = 256
	// offloadSendTimeout is how long one message may wait for a slow reader,
	// before the stream is cut off.
	offloadSendTimeout = 30 * time.Second
	// offloadOpenTimeout is how long a stream may take to say what it wants.
	offloadOpenTimeout = 10 * time.Second
	// offloadApplyTimeout is how long one object may take here.
	offloadApplyTimeout = 90 * time.Second
	// offloadRecheck is how often an open stream is asked whether its contract
	// still is open.
	offloadRecheck = 2 * time.Second
	// offloadMaxStreams is how many logs, execs and port-forwards one peer may
	// have open at once, over all its contracts.
	offloadMaxStreams = 128
	// offloadChunk is how many bytes of a log, a process or a connection cross in
	// one message.
	offloadChunk = 32 << 10
	// offloadStdinChunk is the largest piece of input taken, as in the proto.
	offloadStdinChunk = 64 << 10
	// offloadMaxCommand is how many words a command may have, and
	// offloadMaxCommandLen how many bytes in all.
	offloadMaxCommand    = 1024
	offloadMaxCommandLen = 256 << 10
)
