package middleware

import "time"

// Limits of peers and administrators alike.
const (
	// MaxHeader is the most bytes of a call's headers.
	MaxHeader = 64 << 10
	// MaxStreams is the most calls at once on one connection to gRPC.
	MaxStreams = 256
	// MaxTracked is how many addresses, peers or users a limiter keeps count of.
	MaxTracked = 10000
	// KeepaliveMin is how often a caller may probe a connection, and KeepaliveTimeout how
	// long the answer to a probe may take.
	KeepaliveMin     = 5 * time.Second
	KeepaliveTimeout = 10 * time.Second
	// ConnectionAge is how old a connection gets before its callers are asked to
	// dial again.
	ConnectionAge = 12 * time.Hour
	// HandshakeTimeout is how long setting up a connection may take.
	HandshakeTimeout = 10 * time.Second
	// DrainTimeout is how long calls may go on when the process is about to stop.
	DrainTimeout = 5 * time.Second
	// WriteTimeout is how long a reader may take to make room for what it asked for.
	WriteTimeout = 30 * time.Second
)

// Pauses that callers are asked for with transient errors.
const (
	// RetryConflict: until the concurrent change is written.
	RetryConflict = time.Second
	// RetryKubernetes: until the API server answers again.
	RetryKubernetes = 5 * time.Second
	// RetryStopping: until another agent leads.
	RetryStopping = 2 * time.Second
)
