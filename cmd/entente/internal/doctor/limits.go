package doctor

import "time"

const (
	// maxNamedNodes is how many nodes with the same finding are named.
	maxNamedNodes = 5
	// maxNamedServices is how many Services of a namespace are named.
	maxNamedServices = 5
	// pageSize is how many pods and Services are listed at a time.
	pageSize = 500
	// reportMaxAge is the age up to which a node's report counts.
	reportMaxAge = 3 * time.Minute
	// probeTimeout is how long a webhook of the agent may take to answer, with the time that another agent needs to lead.
	probeTimeout = 15 * time.Second
)
