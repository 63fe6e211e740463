package sightings

import (
	"time"

	"github.com/entente-dev/entente/internal/store"
)

// Limits of what discovery finds.
const (
	// maxHints is how many clusters without a decision are kept that discovery found, and
	// maxHintsOfPlace how many of them may come from one network or domain.
	maxHints, maxHintsOfPlace = 256, 128
	// maxExpected is how many clusters are expected, and so kept beyond maxHints: those that
	// policies list, then administrators' peers, then policies'.
	maxExpected = 256
	// maxPlaces is how many places are kept of one cluster.
	maxPlaces = 16
	// hintsAtOnce is how many hints are created, and changed, in one pass: of expected clusters,
	// and again of all others. sightingsPace is the least time between passes.
	hintsAtOnce   = 16
	sightingsPace = time.Second
	// resyncInterval is the time between passes while nothing changes.
	resyncInterval = 30 * time.Second
	// missingAfter is for how long a cluster has to be missing at a place to count as gone, and
	// maxLast for how many clusters that is tracked.
	missingAfter = 2 * time.Minute
	maxLast      = 4096
	// minHintLife is for how long a hint of a LAN is kept at least: a cluster that says goodbye
	// before may be about to be joined, or come and go for ever.
	minHintLife = time.Minute
	// hintCost is what a hint costs of the budget: it is created, updated with its endpoints, and
	// removed.
	hintCost = 2*store.WriteOverhead + 3<<10
	// changePace is the least time between changes of one hint.
	changePace = time.Minute
	// seenPace is how often the time is written at which a cluster was last seen.
	seenPace = 5 * time.Minute
)
