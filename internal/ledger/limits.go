package ledger

import "time"

// How long the count may differ from the cache.
const (
	// confirmAfter is how old a pod that is not in the cache has to be before the API server is
	// asked about it.
	confirmAfter = 5 * time.Second
	// reserved is the same for a pod that is being created: longer than that can take.
	reserved = 10 * time.Minute
)
