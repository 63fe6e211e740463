package probe

import (
	"github.com/entente-dev/entente/tunnel/plan"
)

// Limits on what others can make the prober do.
const (
	// answersPerSecond bounds what one peer can make us answer.
	answersPerSecond = 20
	// claimsMost bounds what a node of this cluster can make us keep.
	claimsMost = plan.MaxPeers
)

// MinMTU is the smallest size of packets: IPv6, and so the overlay, needs it.
const MinMTU = 1280
