package recent

import "time"

// Limits of what is remembered.
const (
	// responseLate is how much later than the watch the response to a create may come.
	responseLate = 200 * time.Millisecond
	// bindingLasts is how long the binding of a contract to a namespace is cached, and maxBindings how many of them
	// are.
	bindingLasts = 2 * time.Second
	maxBindings  = 4096
	// trialLasts is how long a pod is not tried if one like it would have been accepted, and maxTrials for how many
	// kinds of pods that is known.
	trialLasts = 10 * time.Second
	maxTrials  = 4096
	// maxGraves is how many pods that are gone are remembered. Beyond that the oldest of the peer with the most are
	// forgotten.
	maxGraves = 20_000
)
