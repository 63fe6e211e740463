package dnssd

import "time"

// Limits of what is read of domains. What is beyond a count is left out, and the
// domain's state says how much.
const (
	// MaxDomains is the most domains that are browsed.
	MaxDomains = 1024
	// MaxInstances is the most instances of a domain. Those that are known stay when more
	// appear.
	MaxInstances = 64
	// maxTargets is the most hosts of an instance, those of the best priority.
	maxTargets = 4
	// maxAddresses is the most addresses of a host and address family.
	maxAddresses = 4
	// maxStrings is the most TXT records of an instance, which should have one.
	maxStrings = 4
	// maxAliases is the most CNAME records that are followed for a question.
	maxAliases = 8
	// maxProblems is the most problems of a domain that are told one by one.
	maxProblems = 16
	// maxProblem is the most bytes of the text of one problem.
	maxProblem = 256
)

// Limits of a message.
const (
	// udpSize is the most bytes of an answer over UDP, as EDNS0 announces: it crosses any
	// network in one piece (DNS flag day 2020). What is longer comes over TCP.
	udpSize = 1232
	// maxAnswerRecords, maxAuthorityRecords and maxExtraRecords are the most records of
	// each section that are read.
	maxAnswerRecords    = 512
	maxAuthorityRecords = 32
	maxExtraRecords     = 256
	// maxStrays is the most packets that are no answer to the query before TCP is asked:
	// somebody guesses.
	maxStrays = 16
)

// Times. Which the answer says are held within bounds.
const (
	// minTTL and maxTTL bound for how long an answer is in force: a question is asked no
	// more often, whatever the zone says.
	minTTL = 30 * time.Second
	maxTTL = time.Hour
	// maxNegativeTTL bounds for how long it is taken that there is nothing (RFC 2308),
	// which has minTTL for a lower bound, too.
	maxNegativeTTL = 15 * time.Minute
	// maxJitter is the most that a question is asked later than its answer's end, a tenth
	// of the TTL otherwise.
	maxJitter = 30 * time.Second
	// grace is for how long an answer is kept after it was to be asked for again, while
	// no resolver answers (RFC 8767).
	grace = 2 * time.Minute
	// retryMin and retryMax bound the pause after a question that no resolver answered.
	retryMin = 5 * time.Second
	retryMax = 5 * time.Minute
)

// Limits of asking.
const (
	// maxConcurrent is how many questions are asked at once.
	maxConcurrent = 16
	// maxPerDomain is how many of them are of one domain: one whose servers are slow does
	// not hold up the others.
	maxPerDomain = 4
	// maxResolvers is the most resolvers that are used.
	maxResolvers = 8
	// udpTimeout and tcpTimeout are how long one resolver may take.
	udpTimeout = 2 * time.Second
	tcpTimeout = 4 * time.Second
	// lookupTimeout is how long all of them may take.
	lookupTimeout = 12 * time.Second
	// rounds is how many times the list of resolvers is gone through.
	rounds = 2
	// deadMin and deadMax bound for how long a resolver that was silent is asked last.
	deadMin = 5 * time.Second
	deadMax = 2 * time.Minute
	// resolvConfPause is how often at most it is seen whether /etc/resolv.conf changed.
	resolvConfPause = 5 * time.Second
	// maxResolvConf is the most bytes that are read of it.
	maxResolvConf = 64 << 10
)

// Limits of publishing.
const (
	// MinPublishTTL and MaxPublishTTL bound the TTL of records that are published.
	MinPublishTTL = 30 * time.Second
	MaxPublishTTL = 24 * time.Hour
	// DefaultTTL is what RFC 6763 section 10 and RFC 6762 have for records that name a
	// host.
	DefaultTTL = 2 * time.Minute
	// refreshEvery is how often it is seen whether the records are still there.
	refreshEvery = 15 * time.Minute
	// updateRetryMin and updateRetryMax bound the pause after an update that failed.
	updateRetryMin = 10 * time.Second
	updateRetryMax = 30 * time.Minute
	// updateTimeout is how long an update with all its queries may take.
	updateTimeout = 30 * time.Second
	// maxRenames is the most names that are tried.
	maxRenames = 16
	// maxRaces is how many times an update is made again because the zone changed in
	// between.
	maxRaces = 3
	// fudge is by how many seconds clocks may differ (RFC 8945 section 10).
	fudge = 300
	// minSecret and maxSecret are the least and the most bytes of a key, and maxKeyFile
	// the most of a file with one.
	minSecret  = 16
	maxSecret  = 512
	maxKeyFile = 4 << 10
)
