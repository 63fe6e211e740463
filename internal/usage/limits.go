package usage

import "time"

const (
	// MaxKept is how many statements of use, and periods of this cluster's own count,
	// a Contract keeps.
	MaxKept = 32
	// maxKeptBytes is how much text the statements of a Contract may have.
	maxKeptBytes = 256 << 10
	// agreeWithin is by how many percent a statement and this cluster's own count may
	// differ: the two sides observe a change of use at different moments.
	agreeWithin = 1
	// agreeSlack is the time for which the two sides may differ by all that the contract
	// grants, whatever the percentage.
	agreeSlack = time.Second
)
