package services

import "time"

// Limits and pauses.
const (
	// importPause is for how long what a peer says of a Service is gathered before it is
	// written.
	importPause = 500 * time.Millisecond
	// importLook is how often an ImportedService is compared with what is there though
	// nothing happened.
	importLook = 5 * time.Minute
	// watchAgainMin and watchAgainMax bound the pause before Services are watched again
	// whose stream ended.
	watchAgainMin = time.Second
	watchAgainMax = time.Minute
	// exportGather is for how long changes of Services and EndpointSlices are gathered,
	// and exposePause the least time between two looks at what is open because of them.
	exportGather = 100 * time.Millisecond
	exposePause  = time.Second
	// exposeLook is how often what is open is looked at though nothing happened.
	exposeLook = 30 * time.Second
)
