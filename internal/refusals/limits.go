package refusals

import "time"

// Limits of refusals.
const (
	// Passes is how long a refusal that mostly passes by itself is not shown.
	Passes = 15 * time.Second
)
