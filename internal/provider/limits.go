package provider

import "time"

// Limits of what is reserved for peers, and of reading what can be offered.
const (
	// AdvertisedFor is how long an advertisement can be signed.
	AdvertisedFor = time.Minute
	// MaxAdvertised is how many advertisements may be unsigned, of all peers.
	MaxAdvertised = 1024
	// MaxAdvertisedPerPeer is how many of them one peer may have.
	MaxAdvertisedPerPeer = 32
	// MaxContractsPerPeer is how many contracts one peer may have, including closed
	// ones until what they made is removed and the peer knows of their end.
	MaxContractsPerPeer = 64
	// startAhead is how long before its begin a contract may be signed at the provider,
	// where it is in force then: use before it begins is not counted. Honest consumers
	// begin a minute before they sign.
	startAhead = time.Minute
	// maxRequests is how many requests of a peer can wait for an administrator, as
	// in the custom resource.
	maxRequests = 8
	// maxDropped is of how many dropped requests of a peer the IDs are kept, as in the custom resource, so that
	// no other request gets them. A peer can have 8 requests an hour dropped.
	maxDropped = 64
	// requestTTL is how long a request waits without being repeated.
	requestTTL = time.Hour
	// requestPause is the least time between two changes of a peer's pending
	// requests.
	requestPause = time.Second
	// offerDebounce is how long changes are gathered before peers' offers are
	// computed again.
	offerDebounce = 100 * time.Millisecond
	// refreshShare is how many times the duration of the last refresh they are gathered at least, up to
	// refreshMost: a large cluster whose pods change all the time spends a fiftieth of the time on refreshes.
	refreshShare = 49
	refreshMost  = 5 * time.Second
	// refreshPause is the least time between two refreshes, as pods that change at once are many changes. A
	// single change waits for offerDebounce.
	refreshPause = 400 * time.Millisecond
	// classesPause is how old the lists of runtime and storage classes may be.
	classesPause = 30 * time.Second
	// lapsePause is how often lapsed advertisements are dropped while no request comes.
	lapsePause = 5 * time.Second
	// sweepPause is how often denied and abandoned requests are dropped.
	sweepPause = time.Minute
	// cacheLag is how long the cache may lack a contract that was just signed before
	// the API server is asked about it.
	cacheLag = 5 * time.Second
	// grantedTimeout is how long the API server may take to return such a contract.
	grantedTimeout = 2 * time.Second
	// maxProblems is the most bytes of what is wrong with a policy that its status has.
	maxProblems = 4096
)
