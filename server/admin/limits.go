package admin

import "time"

// Limits of what callers of the admin API may ask of this process.
const (
	// MaxBody is the most bytes of one message to the admin API, and of a REST body.
	MaxBody = 256 << 10
	// MaxAnswer is the most bytes of one message of a REST response.
	MaxAnswer = 4 << 20
	// SmallBody is the largest body that any call may have. Of larger ones UserLargeBodies
	// may be in use of one caller, and MaxLargeBodies in all: JSON takes more when it is
	// decoded. BodyTimeout is how long a body may take to come.
	SmallBody       = 4 << 10
	UserLargeBodies = 8
	MaxLargeBodies  = 32
	BodyTimeout     = 10 * time.Second
	// MaxBodyMessages is how many messages, of SmallBody each, may be sent to reflection, the one
	// method that takes several.
	MaxBodyMessages = 256
	// HealthName is the longest name of a service whose health any caller can ask for.
	// HealthWatches is how many watches of health one address may have, and HealthWatch how long
	// each goes on.
	HealthName    = 256
	HealthWatches = 16
	HealthWatch   = 10 * time.Minute
	// LoopbackConnections is how many connections to the admin API there may be from loopback,
	// which is where those forwarded through the API server come from. MaxConnections is how many
	// from other addresses, and ConnectionsPerAddress how many of them from one address. When all
	// are taken, the oldest one of the address with most is closed for an address with fewer.
	LoopbackConnections   = 256
	MaxConnections        = 256
	ConnectionsPerAddress = 32
	// MaxStreams is the most calls at once on one connection.
	MaxStreams = 64

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

	// UnaryTimeout is how long a unary call of an administrator may take. Joining
	// dials each endpoint of a token in turn.
	UnaryTimeout = 2 * time.Minute
	// KeepaliveTime is after how much silence a connection is probed.
	KeepaliveTime = 10 * time.Second

	// DefaultTokenTTL and MaxTokenTTL is how long a token can be redeemed.
	DefaultTokenTTL = 15 * time.Minute
	MaxTokenTTL     = 15 * time.Minute
	// MaxNetworkPaths and MaxNetworkNodes is how many paths and nodes one response has, and
	// MaxNetworkPlans for how many peers one call plans.
	MaxNetworkPaths = 2000
	MaxNetworkNodes = 500
	MaxNetworkPlans = 100
	// DefaultPageSize and MaxPageSize is how many rows a page has.
	DefaultPageSize = 100
	MaxPageSize     = 500
	// FabricFresh is how old a fabric's report on a tunnel may be to count. A fabric reports at
	// least once a minute.
	FabricFresh = 3 * time.Minute
)

// Limits of watches and of the work that an administrator's call may cause.
const (
	// UserWatches is how many watches one administrator may have open at once.
	UserWatches = 16
	// WatchCheck is how often it is checked whether the caller of a watch is still allowed. While
	// the API server does not respond, a watch goes on for WatchGrace.
	WatchCheck = 30 * time.Second
	WatchGrace = 5 * time.Minute
	// WatchPause is how long changes are gathered before peers are read again, and WatchRefresh
	// how often they are read because some of their fields depend on the time alone.
	WatchPause   = 200 * time.Millisecond
	WatchRefresh = 30 * time.Second
	// WatchQueue is how many events wait for a reader before its watch is ended.
	WatchQueue = 1024
	// MaxPolicyTests is how many peers a policy is tested for.
	MaxPolicyTests = 500
	// MaxDecidedRequests is how many of a peer's requests are kept as approved, and
	// as denied: the same as in the definition of ForeignCluster.
	MaxDecidedRequests = 64
	// MaxProblems is how many problems GetInfo returns, a line each.
	MaxProblems = 100
	// MaxDNSDomains is how many domains GetInfo has.
	MaxDNSDomains = 100
)

// Limits of offloading a namespace.
const (
	// unoffloadWait is how long an offload waits for the unoffload before it to end.
	unoffloadWait = 20 * time.Second
	// placementWait is how long an offload waits for the namespace's new pods to be placed by it.
	placementWait = 2 * time.Second
	// unoffloadPoll is how often either is checked.
	unoffloadPoll = 50 * time.Millisecond
)
