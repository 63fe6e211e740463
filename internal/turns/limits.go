package turns

import "time"

const (
	// compareGather is for how long changes of one thing are gathered before it is compared.
	compareGather = 50 * time.Millisecond
	// compareInterval is how often all is compared though nothing changed, and
	// compareWorkers for how many peers it is done at once.
	compareInterval = 5 * time.Minute
	compareWorkers  = 4
)
