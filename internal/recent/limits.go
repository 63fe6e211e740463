package recent

import "time"

// Limits of what is remembered.
const (
	// answerLate is how much later than the watch the answer to a create may come.
	answerLate = 200 * time.Millisecond
	// holdLasts is for how long it is not asked again whether a contract holds a namespace, and
	// maxHolds how many of these are known.
	holdLasts = 2 * time.Second
	maxHolds  = 4096
	// trialLasts is for how long a pod is not tried if one like it would have been taken, and
	// maxTrials how many kinds of pods that is known of.
	trialLasts = 10 * time.Second
	maxTrials  = 4096
	// maxGraves is how many pods that went are remembered. Beyond that those of the
	// peer go first that has the most.
	maxGraves = 20_000
)
