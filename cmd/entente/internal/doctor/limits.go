package doctor

import "time"

const (
	// maxNamedNodes is how many nodes are named of which the same is said.
	maxNamedNodes = 5
	// reportMaxAge is how old a node's report may be to count.
	reportMaxAge = 3 * time.Minute
)
