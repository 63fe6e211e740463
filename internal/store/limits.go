package store

import "time"

const (
	// MaxTokens is how many tokens may be outstanding.
	MaxTokens = 64
	// MaxTokenTTL is how long a token can be redeemed at most.
	MaxTokenTTL = 15 * time.Minute
	// maxEarlier is how many envelopes of earlier revisions a Contract keeps, besides
	// that of the one before, and maxEarlierBytes how much text they may be: an
	// object's annotations may have 256 KiB in all.
	maxEarlier      = 16
	maxEarlierBytes = 64 << 10
	// editTries is how often a write is tried that something else got in the way of.
	editTries = 5
)
