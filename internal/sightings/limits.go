package sightings

import (
	"time"

	"github.com/entente-dev/entente/internal/store"
)

// Limits of what discovery finds.
const (
	// maxHints is how many clusters are kept that discovery found and nobody decided
	// about, and maxHintsOfPlace how many of them one network or domain may bring.
	maxHints, maxHintsOfPlace = 256, 128
	// maxExpected is how many clusters come first with discovery, beyond maxHints: those
	// that policies list, then people's peers, then policies'.
	maxExpected = 256
	// maxPlaces is how many places are told of one cluster.
	maxPlaces = 16
	// hintsAtOnce is how many are made, and changed, with one look: of those that are
	// expected, and again of all others. sightingsPace is how often one may follow another.
	hintsAtOnce   = 16
	sightingsPace = time.Second
	// sightingsLook is how often is looked while nothing changes.
	sightingsLook = 30 * time.Second
	// missingAfter is for how long a cluster has to be missing at a place to be believed
	// gone, and maxLast of how many that is known.
	missingAfter = 2 * time.Minute
	maxLast      = 4096
	// hintStands is for how long a hint of a LAN stands at least: what says goodbye before
	// may be about to be joined, or come and go for ever.
	hintStands = time.Minute
	// hintCost is what a hint counts as: it is created, told where it is, and removed.
	hintCost = 2*store.WriteOverhead + 3<<10
	// changePace is how often what is known of one of them may change.
	changePace = time.Minute
	// seenPace is how often is told that a cluster was seen again.
	seenPace = 5 * time.Minute
)
