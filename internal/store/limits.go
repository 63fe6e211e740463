package store

import "time"

const (
	// MaxTokens is how many tokens may be outstanding.
	MaxTokens = 64
	// MaxTokenTTL is the longest time for which a token can be redeemed.
	MaxTokenTTL = 15 * time.Minute
	// forgottenKept is for how long a forgotten cluster is refused when it introduces itself because of former
	// trust: after that it counts as a stranger, but no policy trusts again what an administrator forgot.
	// maxForgotten is how many such clusters are recorded; those that administrators forgot are kept first.
	forgottenKept = 30 * 24 * time.Hour
	maxForgotten  = 4096
	// maxEarlier is how many envelopes of earlier revisions a Contract keeps, besides the previous one, and
	// maxEarlierBytes how much text they may be: an object's annotations may have 256 KiB in all.
	maxEarlier      = 16
	maxEarlierBytes = 64 << 10
	// maxTolerations is how many tolerations a pool of nodes has.
	maxTolerations = 8
)

// Limits of what peers make this cluster write. They count bytes of whole objects, as etcd keeps each revision for
// 5 to 10 minutes.
const (
	// PeerWriteBytes is how many bytes a second one peer may cause to be written in the long run, and
	// peerWriteBurst how many at once.
	PeerWriteBytes = 32 << 10
	PeerWriteBurst = 4 << 20
	// allWriteBytes and allWriteBurst are the same for all peers together.
	allWriteBytes = 256 << 10
	allWriteBurst = 48 << 20
	// WriteOverhead is what a write costs besides the object's text.
	WriteOverhead = 4 << 10
)
