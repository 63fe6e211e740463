package transit

import (
	"time"

	"github.com/entente-dev/entente/peering"
)

// Limits of what a peer names, and of addresses that it opens for pods of others, and takes back.
const (
	// flapPause is for how long one that was taken back and comes again does not count. After flapsAllowed times, as when a
	// container starts again, it doubles each time, up to flapPauseMost.
	flapPause     = 10 * time.Second
	flapsAllowed  = 3
	flapPauseMost = 10 * time.Minute
	// flapForget is for how long one has to be open, or taken back, to count as one that never came again.
	flapForget = 30 * time.Minute
	// maxTakenBack is of how many of a peer that were taken back it is known when they were.
	maxTakenBack = 4 * peering.MaxDirect
	// namedLasts is for how long a namespace counts as named after it was. It is long, as each change of what follows
	// has another peer write its record of this cluster.
	namedLasts = time.Hour
)
