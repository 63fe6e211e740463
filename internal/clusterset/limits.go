package clusterset

import "time"

// Limits and pauses.
const (
	// gather is for how long what is said of a Service is gathered before it is written.
	gather = 300 * time.Millisecond
	// lookAgain is how often each Service is compared with what is there though nothing
	// happened.
	lookAgain = 10 * time.Minute
	// servedAgain is how often it is looked whether the API server has the kinds, as long as
	// it has not.
	servedAgain = time.Minute
)
