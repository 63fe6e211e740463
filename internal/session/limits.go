package session

import "time"

// Limits of what a stranger or a peer can make this side spend.
const (
	// maxHandshakes is the most TLS handshakes under way at once, over TCP, in-band and carried ones separately, and
	// maxHandshakesPerIP of them from one address (IPv6: one /64). More from one address are dropped
	// before a byte is read. For one more in all the oldest of the busiest address in the busiest network (a /24,
	// IPv6: a /48) is cut, and none from where a trusted peer was last connected while these are at most half.
	maxHandshakes      = 128
	maxHandshakesPerIP = 32
	// handshakeTimeout bounds a handshake from the first byte to the verdict.
	handshakeTimeout = 10 * time.Second
	// acceptRate and acceptBurst bound new connections from one address, a second.
	acceptRate  = 15
	acceptBurst = 60
	// maxAddresses is the most addresses that are counted separately.
	maxAddresses = 4096

	// warnRate and warnBurst bound the warnings a second that strangers can cause.
	warnRate  = 0.1
	warnBurst = 5

	// maxSessions is the most sessions, hence of connected peers.
	maxSessions = 1024
	// maxDirect is the most h2 connections of trusted peers, and maxDirectPerPeer of
	// one peer.
	maxDirect        = 512
	maxDirectPerPeer = 16
	// maxStrangers is the most h2 connections of clients that are not trusted, and
	// maxStrangersPerIP of them from one address (IPv6: one /64). For one more in all, the oldest of
	// the busiest address in the busiest network is closed. strangerLife is how long such a connection
	// lasts, strangerBytes the most bytes that are read from it: joining takes a tenth of that.
	maxStrangers      = 64
	maxStrangersPerIP = 16
	strangerLife      = time.Minute
	strangerBytes     = 512 << 10

	// maxStreams is the most yamux streams of one session; each carries gRPC, which
	// multiplexes calls in turn, so an honest peer needs one or two.
	maxStreams = 16
	// acceptBacklog is the most streams that wait to be accepted.
	acceptBacklog = maxStreams
	// streamWindow is the most bytes that a stream buffers for a slow reader.
	streamWindow = 1 << 20
	// burstBytes is how much has to come on a stream, without a pause of burstPause,
	// for its buffer to be kept.
	burstBytes = 64 << 10
	burstPause = time.Second
	// streamRate and streamBurst bound the streams that a peer opens a second, pingRate and
	// pingBurst the pings that it sends.
	streamRate  = 4
	streamBurst = 64
	pingRate    = 4
	pingBurst   = 32

	// joinMost is the most bytes of a frame that is written at once, header and body.
	joinMost = 4 << 10

	// maxControl is the most bytes of a control message, maxProofCerts the most
	// certificates in one. controlRate and controlBurst bound how many a peer sends a
	// second.
	maxControl    = 24 << 10
	maxProofCerts = 16
	controlRate   = 4
	controlBurst  = 32
	// measureInterval is the longest pause between two measurements of the round trip and
	// of the peer's clock.
	measureInterval = 30 * time.Second
	// The keepalive of a session: quietAfter is after how long without a message on the
	// control stream the peer is probed, quietAfterDialled where this side dialled, so that
	// mostly that side probes and the other answers. answerTimeout is how long the answer may
	// take: a lost peer is noticed within 15 s. answerBehind is how long it may take while
	// other bytes come from the peer, which share a connection that may be slow.
	// quietAttended is quietAfter for peers whose answers are needed now, as for the
	// readiness of pods that they run; see Manager.Attend.
	quietAfterDialled = 9 * time.Second
	quietAfter        = 10 * time.Second
	quietAttended     = 2 * time.Second
	answerTimeout     = 5 * time.Second
	answerBehind      = 30 * time.Second
	// TCP's keepalive of an h2 connection: idle time, interval, and how many unanswered
	// probes end it.
	tcpIdle     = 10 * time.Second
	tcpInterval = 5 * time.Second
	tcpProbes   = 3
	// expiryGrace is how long a connection outlives the certificate that the peer
	// last showed on it.
	expiryGrace = 5 * time.Second
	// lateTimer is how late a session's timer fires if this process did not run, and so did not
	// read what came either.
	lateTimer = time.Second
	// minTimerPause keeps the timers of sessions and certificates from spinning.
	minTimerPause = 10 * time.Millisecond

	// callBuffer is how many bytes gRPC gathers before it writes them to a session.
	// It reads without a buffer: what came is in memory already.
	callBuffer = 8 << 10
	// callHeaders is the most bytes of headers, and of trailers, that a response of a peer may
	// have, callMessage the most of a message in it. callWindow is how many bytes of a call's
	// responses may wait for the caller, callsWindow of all calls of a session: gRPC would let
	// each call have 16 MiB.
	callHeaders = 64 << 10
	callMessage = 2 << 20
	callWindow  = 256 << 10
	callsWindow = 1 << 20

	// idleAfter is after how long without a call gRPC's client connection is closed.
	idleAfter = 15 * time.Second

	// writeTimeout is how long a write may take.
	writeTimeout = 10 * time.Second
	// openTimeout is how long the peer may take to accept a stream, or to open the
	// control stream.
	openTimeout = 10 * time.Second
	// closeTimeout is how long a half-closed stream is kept.
	closeTimeout = 30 * time.Second
	// aliveTimeout is how long an old session may take to prove itself alive when a
	// new one comes in.
	aliveTimeout = 2 * time.Second

	// connectTimeout bounds a TCP connect to one endpoint, name lookup included.
	connectTimeout = 5 * time.Second
	// inBandTimeout bounds a connect through a tunnel: several gateways of this cluster may be
	// tried, each of which tries several of the peer.
	inBandTimeout = 10 * time.Second
	// backoffMin to backoffMax is the pause between rounds of dialling, growing by
	// backoffFactor, give or take backoffJitter.
	backoffMin    = time.Second
	backoffMax    = 30 * time.Second
	backoffFactor = 1.6
	backoffJitter = 0.2
	// directFirst is for how long a peer is dialled before third peers are asked to carry
	// the session, yieldThird how much longer the higher cluster ID waits with that.
	// thirdTries is how many of them are asked in a round, and thirdTimeout how long one may
	// take. One through which it failed is not asked for thirdBackoffMin, twice that after
	// each failure, to thirdBackoffMax.
	directFirst     = 4 * time.Second
	yieldThird      = 3 * time.Second
	thirdTries      = 2
	thirdTimeout    = 5 * time.Second
	thirdBackoffMin = 5 * time.Second
	thirdBackoffMax = 5 * time.Minute
	// stableAfter is how long a session has to last for the pause to start over.
	stableAfter = 10 * time.Second
	// alsoTries is how many of the endpoints that others name of a peer are tried after a
	// round in which its own failed.
	alsoTries = 2
	// yieldDelay is how much later the higher cluster ID dials, so that both seldom
	// dial at once.
	yieldDelay = 250 * time.Millisecond
)
