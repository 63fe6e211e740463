package usage

import "time"

const (
	// MaxKept is how many statements of use, and periods of this cluster's own count,
	// a Contract keeps.
	MaxKept = 32
	// maxKeptBytes is how much text the statements of a Contract may have.
	maxKeptBytes = 256 << 10
	// agreeWithin is by how many percent a statement and this cluster's own count may
	// differ: a change of use is seen at different moments on the two sides.
	agreeWithin = 1
	// agreeSlack is how long all that a contract grants may be in use before that is
	// more than two sides may differ by anyway.
	agreeSlack = time.Second
)
