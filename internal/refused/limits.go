package refused

import "time"

// Limits of what is kept and written about refused objects.
const (
	// maxObjects is how many objects of a peer are told apart for each reason; more are counted as that many.
	maxObjects = 256
	// maxExample is the longest message of a refusal in an event, in bytes; more is cut.
	maxExample = 600
	// reportEvery is the shortest time between two events of one peer and reason. The API server's events of one
	// object that differ only in their note become one within at most twelve minutes, with the first note.
	reportEvery = 15 * time.Minute
	// gather is how long refusals are gathered at least before the first event.
	gather = time.Minute
)
