package podstreams

import "time"

// Limits on errors of port-forwards.
const (
	// problemTimeout is how long a port-forward that ended may take to send the reason.
	problemTimeout = 5 * time.Second
	// maxProblem bounds that reason.
	maxProblem = 1024
)
