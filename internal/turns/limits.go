package turns

import "time"

const (
	// compareGather is how long changes of one thing are gathered before it is compared.
	compareGather = 50 * time.Millisecond
	// compareInterval is how often everything is compared if nothing changed, and compareWorkers for how many peers
	// at once.
	compareInterval = 5 * time.Minute
	compareWorkers  = 4
)
