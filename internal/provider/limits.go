package provider

import "time"

// Limits of what peers can have held back for them, and of looking at what there is.
const (
	// AdvertisedFor is how long an advertisement can be signed.
	AdvertisedFor = time.Minute
	// MaxAdvertised is how many advertisements may stand, of all peers.
	MaxAdvertised = 1024
	// MaxAdvertisedPerPeer is how many of them one peer may hold.
	MaxAdvertisedPerPeer = 32
	// MaxContractsPerPeer is how many contracts one peer may hold, closed ones
	// included until nothing stands because of them and the peer knows.
	MaxContractsPerPeer = 64
	// startAhead is how long before its begin a contract may be signed at the provider,
	// where it is in force then: what is used before it begins is not counted. Consumers
	// that are honest begin a minute before they sign.
	startAhead = time.Minute
	// maxRequests is how many requests of a peer can wait for an administrator, as
	// in the custom resource.
	maxRequests = 8
	// requestLife is how long one waits that is not repeated.
	requestLife = time.Hour
	// requestPause is the least time between two changes of the requests that a
	// peer has waiting.
	requestPause = time.Second
	// offerDebounce is how long changes are gathered before peers' offers are
	// computed again.
	offerDebounce = 100 * time.Millisecond
	// refreshShare is how many times as long as a look took they are gathered at least, up to refreshMost,
	// so that a large cluster whose pods change all the time looks a fiftieth of it.
	refreshShare = 49
	refreshMost  = 5 * time.Second
	// refreshPause is the least time between two looks, as pods that change at once are many changes. One
	// that comes alone waits for offerDebounce.
	refreshPause = 400 * time.Millisecond
	// classesPause is how old what is known of runtime and storage classes may be.
	classesPause = 30 * time.Second
	// lapsePause is how often offers that lapsed are looked for while nobody asks.
	lapsePause = 5 * time.Second
	// sweepPause is how often requests are looked for that wait for nothing.
	sweepPause = time.Minute
	// recentSettle is how old a contract may be that the cache does not show before
	// the API server is asked about it.
	recentSettle = 5 * time.Second
	// grantedPatience is how long the API server may take to show such a contract.
	grantedPatience = 2 * time.Second
)
