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
	// MaxAdminBody is the most bytes of one message to the admin API, and of a REST
	// body, and MaxAdminBodyMessages how many messages one call may send. All of them
	// take one; reflection takes more.
	MaxAdminBody         = 256 << 10
	MaxAdminBodyMessages = 256
	// AdminUnread is how many bytes may be held for callers of the admin API from one
	// address, who need not be known yet, and AdminAllUnread for all. adminGrowth times
	// what was sent counts, since JSON grows by being decoded, and at least
	// adminBodyLeast for each call, or adminBodyTaken once its message was taken.
	// AdminBodyTimeout is how long a message may take to come. When all is full, what is
	// not taken of the address that holds the most is cut off for one that holds less.
	AdminUnread      = 24 << 20
	AdminAllUnread   = 96 << 20
	adminGrowth      = 32
	adminBodyLeast   = 64 << 10
	adminBodyTaken   = 16 << 10
	AdminBodyTimeout = 10 * time.Second
	// HealthName is the longest name of a service whose health can be asked for, by
	// anybody. HealthWatches is how many watches of health one address may have, and
	// HealthWatch how long each goes on.
	HealthName    = 256
	HealthWatches = 16
	HealthWatch   = 10 * time.Minute
	// AdminLoopback is how many connections to the admin API there may be from loopback:
	// from who forwards a port through the API server. AdminConnections is how many from
	// other addresses, and AdminConnectionsPerAddress how many of them from one address.
	// When all are taken, the oldest one of the address that has the most is closed for
	// an address that has fewer.
	AdminLoopback              = 256
	AdminConnections           = 256
	AdminConnectionsPerAddress = 32
	// MaxHeader is the most bytes of a call's headers.
	MaxHeader = 64 << 10
	// MaxStreams is the most calls at once on one connection, and AdminStreams on
	// one to the admin API.
	MaxStreams   = 256
	AdminStreams = 64

	// StrangerRate, StrangerBurst and StrangerCalls bound the calls of clusters
	// that are not trusted, by IP address (by /64 for IPv6).
	StrangerRate  = 5
	StrangerBurst = 30
	StrangerCalls = 16
	// PeerRate, PeerBurst and PeerCalls bound the calls of one trusted peer.
	PeerRate  = 200
	PeerBurst = 1000
	PeerCalls = 256
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

	// KeepaliveTime is after how much silence an administrator's connection is probed,
	// PeerKeepalive after how much that of a peer: its session or TCP notice sooner that
	// it is gone, and one that rests says something each 2 min. KeepaliveTimeout is how
	// long the answer may take.
	KeepaliveTime    = 10 * time.Second
	PeerKeepalive    = 5 * time.Minute
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
	// DefaultPageSize and MaxPageSize is how many rows a page has.
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

// Limits of watches and of what an administrator's call may set going.
const (
	// UserWatches is how many watches one administrator may have open at once.
	UserWatches = 16
	// WatchCheck is how often the caller of a watch is checked to be allowed still.
	// While the API server cannot say, a watch goes on for WatchGrace.
	WatchCheck = 30 * time.Second
	WatchGrace = 5 * time.Minute
	// WatchPause is how long changes are gathered before peers are looked at again,
	// and WatchRefresh how often they are looked at for what changes by time alone.
	WatchPause   = 200 * time.Millisecond
	WatchRefresh = 30 * time.Second
	// WatchQueue is how many events wait for a reader before it is given up.
	WatchQueue = 1024
	// WriteTimeout is how long a reader may take to make room for what it asked for.
	WriteTimeout = 30 * time.Second

	// MaxPolicyTests is how many peers a policy is tested for.
	MaxPolicyTests = 500
	// MaxDecidedRequests is how many of a peer's requests are kept as approved, and
	// as denied: the same as in the definition of ForeignCluster.
	MaxDecidedRequests = 64
	// MaxProblems is how many lines GetInfo has of what is not as it should be.
	MaxProblems = 100
)

// Pauses that are asked for with errors that pass.
const (
	// retryConflict: until whoever was faster is done.
	retryConflict = time.Second
	// retryKubernetes: until the API server answers again.
	retryKubernetes = 5 * time.Second
	// retryStopping: until another agent leads.
	retryStopping = 2 * time.Second
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

// Limits of offloading a namespace.
const (
	// unoffloadWait is how long an offload waits for the unoffload before it to end.
	unoffloadWait = 20 * time.Second
	// placementWait is how long an offload waits for the namespace's new pods to be placed by it.
	placementWait = 2 * time.Second
	// unoffloadPoll is how often either is looked at.
	unoffloadPoll = 50 * time.Millisecond
)
