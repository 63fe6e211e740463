package market

import "time"

// Limits of what is asked for, and what holds where a policy does not say, as in the
// custom resource.
const (
	// maxSelectors is how many different sets of nodes contracts may want, by labels and taints.
	maxSelectors = 64
	// StartSkew is how far a contract's begin, or a statement's end, may differ from this
	// clock.
	StartSkew = 10 * time.Minute
	// defaultPercent is the most percent of what is free that one peer gets.
	defaultPercent = 50
	// defaultDuration is how long a contract lasts.
	defaultDuration = 365 * 24 * time.Hour
	// defaultNotice is how long pods may run on when this cluster ends it early.
	defaultNotice = time.Hour
	// defaultStatementPeriod is how long a statement of use covers.
	defaultStatementPeriod = time.Hour
	// minDuration is the shortest contract that is signed unless spec.duration asks for
	// a shorter one.
	minDuration = 5 * time.Minute
	// maxCandidates is how many providers a PeeringRequest compares at most.
	maxCandidates = 64
)
