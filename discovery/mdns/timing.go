package mdns

import "time"

// The times that RFC 6762 gives. Sections are in front.
const (
	// 10: the TTL of records with a host's name in name or data,
	ttlHost = 120 * time.Second
	// and of all others.
	ttlOther = 75 * time.Minute
	// 10.1, 10.2: how long a record lives after its goodbye, or after others flushed it.
	grace = time.Second

	// 8.1: at most this before the first probe,
	probeDelay = 250 * time.Millisecond
	// this between them and after the last,
	probeGap = 250 * time.Millisecond
	// and so many.
	probes = 3
	// 8.2: who loses against another's probe waits so long.
	probeDefer = time.Second
	// 8.1: after so many conflicts
	conflictCount = 15
	// in so long
	conflictWindow = 10 * time.Second
	// each further try waits so long.
	conflictPause = 5 * time.Second

	// 8.3: so many announcements, the first gap of so long, each next one twice that.
	announcements = 3
	announceGap   = time.Second

	// 6: answers that others may give too wait this long, and up to that.
	answerMin = 20 * time.Millisecond
	answerMax = 120 * time.Millisecond
	// 7.2: the same when more known answers follow.
	moreMin = 400 * time.Millisecond
	moreMax = 500 * time.Millisecond
	// 6: a record is multicast once in so long,
	repeatGap = time.Second
	// or in so long when it is defended against a probe.
	defendGap = 250 * time.Millisecond
	// 6.7: the most TTL in an answer for a simple resolver.
	ttlLegacy = 10 * time.Second

	// 5.2: the first question waits this long, and up to that,
	queryMin = 20 * time.Millisecond
	queryMax = 120 * time.Millisecond
	// the next one so long, each following one twice that,
	queryGap = time.Second
	// but never more.
	queryGapMax = time.Hour
	// 7.3: a question that is due within so long is not asked if another asks it.
	queryNear = time.Second

	// 10.5: a record is forgotten when so many questions for it
	poofCount = 2
	// had no answer in so long.
	poofWindow = 10 * time.Second

	// How often it is asked who is still there when there is no room for others,
	crowdGap = 30 * time.Second
	// and how long they have to answer: that is four questions.
	crowdWait = 10 * time.Second

	// How long a packet that was sent is remembered, to know it when it comes back.
	echoWindow = 2 * time.Second
)
