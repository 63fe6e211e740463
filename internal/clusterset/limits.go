package clusterset

import "time"

// Limits and pauses.
const (
	// gather is how long states of a Service are gathered before they are written.
	gather = 300 * time.Millisecond
	// resyncInterval is how often each Service is reconciled if nothing happened.
	resyncInterval = 10 * time.Minute
	// servedAgain is how often it is checked whether the API server has the kinds, until it has.
	servedAgain = time.Minute
)
