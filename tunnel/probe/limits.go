package probe

import (
	"github.com/entente-dev/entente/tunnel/plan"
)

// Limits on what others can make the prober do.
const (
	// answersPerSecond bounds what one peer can make us answer.
	answersPerSecond = 20
	// wordsPerSecond is how often in a second what one peer says is acted upon at once, where
	// it says something else each time.
	wordsPerSecond = 5
	// claimsMost bounds what a node of this cluster can make us keep.
	claimsMost = plan.MaxPeers
)

// Sizes of packets inside the tunnel, in bytes.
const (
	// MinMTU is the smallest MTU of a device that has IPv6, as the overlay does, and the size of
	// packets that IPv6 needs to pass (RFC 8200).
	MinMTU = 1280
	// LeastMTU is the smallest size that is tried: IPv4 makes do with less.
	LeastMTU = 576
)
