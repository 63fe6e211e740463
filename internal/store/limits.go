package store

import "time"

const (
	// MaxTokens is how many tokens may be outstanding.
	MaxTokens = 64
	// MaxTokenTTL is how long a token can be redeemed at most.
	MaxTokenTTL = 15 * time.Minute
	// editTries is how often a write is tried that something else got in the way of.
	editTries = 5
)
