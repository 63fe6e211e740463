package clock

import "time"

const (
	// maxApart is how far this node's clock may be from a witness.
	maxApart = time.Minute
	// settles is how long a clock has to stay as it was set to count as right. NTP corrects a wrong one sooner.
	settles = 30 * time.Minute
)
