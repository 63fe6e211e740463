package server

import "time"

// Limits of what callers may ask of this process.
const (
	// MaxMessage is the most bytes of one message of the peer API: an offloaded
	// object and its envelope.
	MaxMessage = 2 << 20
	// MaxAdminMessage is the most bytes of one message of the admin API, and of a
	// REST body.
	MaxAdminMessage = 1 << 20
	// MaxHeader is the most bytes of a call's headers.
	MaxHeader = 64 << 10
	// MaxStreams is the most calls at once on one connection.
	MaxStreams = 1024

	// StrangerRate, StrangerBurst and StrangerCalls bound the calls of clusters
	// that are not trusted, by IP address (by /64 for IPv6).
	StrangerRate  = 5
	StrangerBurst = 30
	StrangerCalls = 16
	// PeerRate, PeerBurst and PeerCalls bound the calls of one trusted peer.
	PeerRate  = 200
	PeerBurst = 1000
	PeerCalls = 2000
	// AddressRate, AddressBurst and AddressCalls bound the calls to the admin API
	// from one IP address, before the caller is known. Callers that come through
	// the API server's port-forwarding share one address.
	AddressRate  = 100
	AddressBurst = 400
	AddressCalls = 256
	// UserRate, UserBurst and UserCalls bound the calls of one administrator.
	UserRate  = 20
	UserBurst = 100
	UserCalls = 64
	// MaxTracked is how many addresses, peers or users a limiter keeps count of.
	MaxTracked = 10000

	// UnaryTimeout is how long a unary call of a peer may take.
	UnaryTimeout = 30 * time.Second
	// AdminTimeout is how long a unary call of an administrator may take. Joining
	// dials each endpoint of a token in turn.
	AdminTimeout = 2 * time.Minute
	// MaxSessionsPerPeer is how many exchanges of states a peer can have open: the
	// one that works and the one that takes over.
	MaxSessionsPerPeer = 2
	// TrustCheck is how often the caller of a stream is checked to be trusted
	// still.
	TrustCheck = 2 * time.Second

	// KeepaliveTime is after how much silence a connection is probed, and
	// KeepaliveTimeout how long the answer may take.
	KeepaliveTime    = 10 * time.Second
	KeepaliveTimeout = 10 * time.Second
	// KeepaliveMin is how often a caller may probe.
	KeepaliveMin = 5 * time.Second
	// ConnectionAge is how old a connection gets before its callers are asked to
	// dial again, and ConnectionGrace how long its streams may then go on.
	ConnectionAge   = 12 * time.Hour
	ConnectionGrace = 30 * time.Minute
	// HandshakeTimeout is how long setting up a connection may take.
	HandshakeTimeout = 10 * time.Second
	// DrainTimeout is how long calls may go on when the process is about to stop.
	DrainTimeout = 5 * time.Second

	// DefaultTokenTTL and MaxTokenTTL is how long a token can be redeemed.
	DefaultTokenTTL = 15 * time.Minute
	MaxTokenTTL     = 15 * time.Minute
	// DefaultPageSize and MaxPageSize is how many peers a page has.
	DefaultPageSize = 100
	MaxPageSize     = 500
	// MaxBearerToken is the most bytes of a bearer token that are looked at.
	MaxBearerToken = 16 << 10
	// ClientCARefresh is how often the cluster's client CA is read again.
	ClientCARefresh = time.Minute
	// FabricFresh is how old a fabric's word on a tunnel may be to count. It
	// writes at least each minute.
	FabricFresh = 3 * time.Minute
)

// Pauses that are asked for with errors that pass.
const (
	retryCapacity   = time.Minute
	retryConflict   = time.Second
	retryKubernetes = 5 * time.Second
	retryStopping   = 2 * time.Second
	retryPending    = 15 * time.Second
)
