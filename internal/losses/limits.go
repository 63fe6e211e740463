package losses

import "time"

// Limits of losses.
const (
	// A pod counts as a loss of its namespace if the provider loses it, or ends it unasked, within Young of
	// taking it. Each forgivenEach, one loss is forgiven. At Max the provider gets no new pods of the namespace
	// for MinPause, which doubles up to MaxPause each time that MaxAgain more are lost; after forgottenAfter
	// without a loss, all are forgotten.
	Young          = 10 * time.Minute
	Max            = 10
	forgivenEach   = time.Minute
	MaxAgain       = 3
	MinPause       = time.Minute
	MaxPause       = 30 * time.Minute
	forgottenAfter = time.Hour
	// NodeCondition names maxShown of the namespaces that are closed: a restart of the agent opens the others.
	maxShown = 32
)
