package market

import "time"

// Limits of requests, and defaults of a policy's fields, as in the custom
// resource.
const (
	// maxSelectors is how many different sets of nodes contracts may have, by labels and tolerations.
	maxSelectors = 64
	// StartSkew is how far a contract's begin, or a statement's end, may differ from this
	// clock.
	StartSkew = 10 * time.Minute
	// defaultPercent is the most percent of what is free that one peer gets.
	defaultPercent = 50
	// defaultDuration is how long a contract lasts.
	defaultDuration = 365 * 24 * time.Hour
	// defaultNotice is how long pods may keep running when this cluster ends a contract early.
	defaultNotice = time.Hour
	// defaultStatementPeriod is how long a statement of use covers.
	defaultStatementPeriod = time.Hour
	// minDuration is the shortest contract that is signed unless spec.duration asks for
	// a shorter one.
	minDuration = 5 * time.Minute
	// maxCandidates is how many providers a PeeringRequest compares at most.
	maxCandidates = 64
)
