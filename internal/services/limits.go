package services

import "time"

// Limits and pauses.
const (
	// importPause is how long a peer's states of a Service are gathered before they are written.
	importPause = 500 * time.Millisecond
	// importInterval is how often an ImportedService is reconciled if nothing happened.
	importInterval = 5 * time.Minute
	// watchAgainMin and watchAgainMax bound the pause before a watch whose stream ended is started again.
	watchAgainMin = time.Second
	watchAgainMax = time.Minute
	// exportGather is how long changes of Services and EndpointSlices are gathered, and exposePause the least time
	// between two updates of what is open because of them.
	exportGather = 100 * time.Millisecond
	exposePause  = time.Second
	// exposeInterval is how often what is open is updated if nothing happened.
	exposeInterval = 30 * time.Second
)
