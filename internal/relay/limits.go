package relay

import "time"

const (
	// maxConns is how many connections a relay has at once, and maxAccountConns how many of
	// them one sender has.
	maxConns        = 512
	maxAccountConns = 8
	// bufferSize is how many bytes are read from one connection and not yet written to the other, in
	// each direction.
	bufferSize = 16 << 10
	// openTimeout is how long it may take until both ends of a connection are open.
	openTimeout = 10 * time.Second
	// idleTimeout ends a connection over which nothing passes, in either direction. Sessions
	// have keepalives that are much more frequent.
	idleTimeout = 2 * time.Minute
	// acceptPause is the pause after a connection could not be accepted, as when there are
	// no file descriptors left.
	acceptPause = 100 * time.Millisecond
	// maxUnproven is how many connections a Listener has that have not proven their peer yet,
	// and maxUnprovenOfAddress how many of them come from one address.
	maxUnproven          = 256
	maxUnprovenOfAddress = 32
	// maxPeerLen is how long a cluster ID in a request may be, in bytes.
	maxPeerLen = 64
	// maxKeys is how many keys of a peer are accepted: of the preshared key in use, the next and the previous one.
	maxKeys = 3
)
