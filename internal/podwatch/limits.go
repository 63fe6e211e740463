package podwatch

import "time"

const (
	// maxLeft is how many recently deleted pods of a contract are remembered, and leftKept how
	// long: longer than it takes to list to a consumer what it has here.
	maxLeft  = 256
	leftKept = 5 * time.Minute
	// maxLeftBytes bounds their last statuses together. Of older pods only outlines of these are remembered: how the pods
	// ended.
	maxLeftBytes = 1 << 20
)
