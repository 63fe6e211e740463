package ledger

import "time"

// How long what is counted may differ from what the cache shows.
const (
	// settles is how old a pod that the cache does not show has to be before the API server is
	// asked about it.
	settles = 5 * time.Second
	// reserved is longer than it takes to create a pod.
	reserved = 10 * time.Minute
)
