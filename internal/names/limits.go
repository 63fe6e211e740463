package names

import "time"

// Limits of what pods of consumers may ask of the resolver. Packets beyond a limit
// are dropped, so that nothing is sent to an address that did not ask.
const (
	// maxConcurrent is how many UDP queries are worked on at once.
	maxConcurrent = 4096
	// queryRate and queryBurst bound the queries of one consumer, all its pods
	// together: each second, and at once.
	queryRate  = 2000
	queryBurst = 4000
	// workPerQuery is how many endpoints and ports may be looked at for one query: an
	// answer that takes more counts as several.
	workPerQuery = 100
	// maxForwards is how many queries of one consumer wait for the node's resolvers at
	// once, and maxForwardsInAll those of all consumers.
	maxForwards      = 128
	maxForwardsInAll = 1024
	// maxUnknown is how many queries of addresses that are no consumer's pod, yet, wait
	// for unknownPatience to become one, and maxUnknownPerAddress how many of one
	// address: a new pod's first query may be sooner than the news of its address.
	maxUnknown           = 1024
	maxUnknownPerAddress = 16
	unknownPatience      = 4 * time.Second
	// maxQuery is the largest query over UDP.
	maxQuery = 4096
	// maxReplyUDP is the largest answer over UDP, whatever the client offers: it
	// crosses any network in one piece. What is longer is asked for over TCP.
	maxReplyUDP = 1232
	// maxReply is the largest answer over TCP.
	maxReply = 65535
	// maxRecordsUDP and maxRecords are how many records a name of home has in an answer
	// over UDP and over TCP.
	maxRecordsUDP = 100
	maxRecords    = 2000
	// maxAliases is how many Services that stand for another name one answer follows,
	// one to the next: more are a loop.
	maxAliases = 8
	// maxReverse is how many names one address has.
	maxReverse = 16
)

// Limits of TCP.
const (
	// maxConns is how many connections there are, maxConnsPerConsumer of all pods of one
	// consumer and of all that are no consumer's, maxConnsPerAddress of one address.
	maxConns            = 512
	maxConnsPerConsumer = 128
	maxConnsPerAddress  = 16
	// maxQueriesPerConn is how many queries one connection carries.
	maxQueriesPerConn = 256
	// connIdle is how long a connection may take for its next query, and to take an
	// answer.
	connIdle = 8 * time.Second
)

// Limits of names that are not home's, and of what the node's resolvers say.
const (
	// upstreamTimeout is how long one resolver may take, forwardTimeout all of them.
	upstreamTimeout = 2 * time.Second
	forwardTimeout  = 4500 * time.Millisecond
	// cacheBytes is how many bytes of answers are kept for all consumers, and
	// cacheBytesPerConsumer for one.
	cacheBytes            = 32 << 20
	cacheBytesPerConsumer = 1 << 20
	// maxCached is the largest answer that is kept, cacheLife how long at most, and
	// negativeLife how long at most that there is no such name.
	maxCached    = 4096
	cacheLife    = 5 * time.Minute
	negativeLife = 30 * time.Second
)

// drain is how long the server goes on to answer when it is to end: other nodes
// still send queries here until they know.
const drain = 5 * time.Second
