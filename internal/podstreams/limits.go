package podstreams

import "time"

// Limits of what a pod says.
const (
	// lastWordTimeout is how long a port-forward that ended may take to say why.
	lastWordTimeout = 5 * time.Second
	// maxProblem is how long what it then says may be.
	maxProblem = 1024
)
