package dnssd

import "time"

// Limits on what is read from domains. Records beyond a limit are left out, and the domain's state
// counts them.
const (
	// MaxDomains is how many domains are browsed.
	MaxDomains = 1024
	// MaxInstances is how many instances of a domain are kept. Known ones stay when more appear.
	MaxInstances = 64
	// maxTargets is how many hosts of an instance are used, those of the best priority.
	maxTargets = 4
	// maxAddresses is how many addresses of a host and address family are used.
	maxAddresses = 4
	// maxStrings is how many TXT records of an instance are read, which should have one.
	maxStrings = 4
	// maxAliases is how many CNAME records are followed for a question.
	maxAliases = 8
	// maxProblems is how many problems of a domain are reported one by one.
	maxProblems = 16
	// maxProblem bounds the text of one problem.
	maxProblem = 256
)

// Limits on a message.
const (
	// udpSize bounds an answer over UDP, as announced by EDNS0: it crosses any network unfragmented
	// (DNS flag day 2020). Longer answers come over TCP.
	udpSize = 1232
	// maxAnswerRecords, maxAuthorityRecords and maxExtraRecords are how many records of each
	// section are read.
	maxAnswerRecords    = 512
	maxAuthorityRecords = 32
	maxExtraRecords     = 256
	// maxUnrelated is how many packets that do not answer the query are ignored before the query is
	// sent over TCP: an attacker may be guessing.
	maxUnrelated = 16
)

// Times. Those from answers are kept within bounds.
const (
	// minTTL and maxTTL bound how long an answer is valid: whatever the zone says, a question is
	// asked no more often than that.
	minTTL = 30 * time.Second
	maxTTL = time.Hour
	// maxNegativeTTL bounds how long a negative answer is valid (RFC 2308); minTTL is its lower
	// bound, too.
	maxNegativeTTL = 15 * time.Minute
	// maxJitter bounds the random delay after an answer's end before its question is asked again,
	// which is up to a tenth of the TTL.
	maxJitter = 30 * time.Second
	// grace is how long an answer is kept after its question was due again, while no resolver
	// answers (RFC 8767).
	grace = 2 * time.Minute
	// retryMin and retryMax bound the pause after a question that no resolver answered.
	retryMin = 5 * time.Second
	retryMax = 5 * time.Minute
)

// Limits on queries.
const (
	// maxConcurrent is how many questions are asked at once.
	maxConcurrent = 16
	// maxPerDomain is how many of these may be of one domain, so that one with slow servers does
	// not delay the others.
	maxPerDomain = 4
	// maxResolvers is how many resolvers are used.
	maxResolvers = 8
	// udpTimeout and tcpTimeout are how long one resolver may take.
	udpTimeout = 2 * time.Second
	tcpTimeout = 4 * time.Second
	// lookupTimeout is how long all of them may take.
	lookupTimeout = 12 * time.Second
	// rounds is how many times each resolver is tried.
	rounds = 2
	// deadMin and deadMax bound how long a resolver that did not respond is tried last.
	deadMin = 5 * time.Second
	deadMax = 2 * time.Minute
	// resolvConfPause is the shortest pause between two checks of /etc/resolv.conf for changes.
	resolvConfPause = 5 * time.Second
	// maxResolvConf is how many bytes of it are read.
	maxResolvConf = 64 << 10
)

// Limits on publishing.
const (
	// MinPublishTTL and MaxPublishTTL bound the TTL of records that are published.
	MinPublishTTL = 30 * time.Second
	MaxPublishTTL = 24 * time.Hour
	// DefaultTTL is the TTL of RFC 6763 section 10 and RFC 6762 for records that name a host.
	DefaultTTL = 2 * time.Minute
	// refreshEvery is how often the published records are checked.
	refreshEvery = 15 * time.Minute
	// updateRetryMin and updateRetryMax bound the pause after an update that failed.
	updateRetryMin = 10 * time.Second
	updateRetryMax = 30 * time.Minute
	// updateTimeout is how long an update with all its queries may take.
	updateTimeout = 30 * time.Second
	// maxRenames is how many names are tried.
	maxRenames = 16
	// maxRaces is how many times an update is repeated because the zone changed in between.
	maxRaces = 3
	// fudge is how many seconds clocks may differ (RFC 8945 section 10).
	fudge = 300
	// minSecret and maxSecret bound the length of a key, and maxKeyFile that of a file with one.
	minSecret  = 16
	maxSecret  = 512
	maxKeyFile = 4 << 10
)
