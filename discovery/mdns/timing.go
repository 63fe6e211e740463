package mdns

import "time"

// Times of RFC 6762, after their sections.
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
	// 8.2: the loser of two probes waits this long.
	probeDefer = time.Second
	// 8.1: after this many conflicts
	conflictCount = 15
	// within this time
	conflictWindow = 10 * time.Second
	// each further try waits this long.
	conflictPause = 5 * time.Second

	// 8.3: this many announcements, with this first gap, and each next gap twice as long.
	announcements = 3
	announceGap   = time.Second

	// 6: answers that other hosts may have, too, wait this long, and up to that.
	answerMin = 20 * time.Millisecond
	answerMax = 120 * time.Millisecond
	// 7.2: the same when more known answers follow.
	moreMin = 400 * time.Millisecond
	moreMax = 500 * time.Millisecond
	// 6: a record is multicast once in this time,
	repeatGap = time.Second
	// or in this time when it is defended against a probe.
	defendGap = 250 * time.Millisecond
	// 6.7: the highest TTL in an answer for a simple resolver.
	ttlLegacy = 10 * time.Second

	// 5.2: the first question waits this long, and up to that,
	queryMin = 20 * time.Millisecond
	queryMax = 120 * time.Millisecond
	// the next one this long, each following one twice that,
	queryGap = time.Second
	// up to this.
	queryGapMax = time.Hour
	// 7.3: a question that is due within this time is not asked if another host asks it.
	queryNear = time.Second

	// 10.5: a record is forgotten when this many questions for it
	poofCount = 2
	// had no answer in this time.
	poofWindow = 10 * time.Second

	// How often a full cache asks for all instances,
	crowdGap = 30 * time.Second
	// and how long they have to answer: that is four questions.
	crowdWait = 10 * time.Second

	// How long a sent packet is remembered, to recognise it when it comes back.
	echoWindow = 2 * time.Second
)
