package names

import "time"

// Limits on the queries of consumers' pods. Packets beyond a limit are dropped, so that nothing is
// sent to an address that did not ask.
const (
	// maxConcurrent is how many UDP queries are handled at once.
	maxConcurrent = 4096
	// queryRate and queryBurst bound the queries of one consumer, all its pods together: per
	// second, and at once.
	queryRate  = 2000
	queryBurst = 4000
	// workPerQuery is how many endpoints and ports may be read for one query: an answer that needs
	// more counts as several.
	workPerQuery = 100
	// maxForwards is how many queries of one consumer may wait for the node's resolvers at once,
	// and maxForwardsInAll how many of all consumers.
	maxForwards      = 128
	maxForwardsInAll = 1024
	// maxUnknown is how many queries from addresses that are not yet known as those of a consumer's
	// pod wait, for unknownPatience, and maxUnknownPerAddress how many from one address: a new
	// pod's first query may arrive before its address is known.
	maxUnknown           = 1024
	maxUnknownPerAddress = 16
	unknownPatience      = 4 * time.Second
	// maxQuery is the largest query over UDP.
	maxQuery = 4096
	// maxReplyUDP is the largest answer over UDP, whatever the client offers: it crosses any
	// network unfragmented. Clients ask for longer answers over TCP.
	maxReplyUDP = 1232
	// maxReply is the largest answer over TCP.
	maxReply = 65535
	// maxRecordsUDP and maxRecords are how many records a name of home has in an answer
	// over UDP and over TCP.
	maxRecordsUDP = 100
	maxRecords    = 2000
	// maxAliases is how many aliases one answer follows, one to the next: more are taken for a
	// loop.
	maxAliases = 8
	// maxReverse is how many names one address has.
	maxReverse = 16
)

// Limits of TCP.
const (
	// maxConns is how many connections there are, maxConnsPerConsumer how many from all pods of one
	// consumer or from all unknown addresses together, and maxConnsPerAddress how many from one
	// address.
	maxConns            = 512
	maxConnsPerConsumer = 128
	maxConnsPerAddress  = 16
	// maxQueriesPerConn is how many queries one connection may carry.
	maxQueriesPerConn = 256
	// connIdle is how long a connection may take to send its next query, and to receive an answer.
	connIdle = 8 * time.Second
)

// Limits on names that are not home's, and on the answers of the node's resolvers.
const (
	// upstreamTimeout is how long one resolver may take, forwardTimeout all of them.
	upstreamTimeout = 2 * time.Second
	forwardTimeout  = 4500 * time.Millisecond
	// cacheBytes is how many bytes of answers are cached for all consumers, and
	// cacheBytesPerConsumer how many for one.
	cacheBytes            = 32 << 20
	cacheBytesPerConsumer = 1 << 20
	// maxCached is the largest answer that is cached; cacheLife bounds how long, and negativeLife
	// how long for a negative answer.
	maxCached    = 4096
	cacheLife    = 5 * time.Minute
	negativeLife = 30 * time.Second
)

// drain is how long the server goes on answering when it shuts down: other nodes send queries here
// until they know.
const drain = 5 * time.Second
