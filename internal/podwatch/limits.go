package podwatch

import "time"

const (
	// maxLeft is how many pods of a contract are remembered that went a moment ago,
	// and leftKept for how long: longer than it takes to tell a consumer what is held.
	maxLeft  = 256
	leftKept = 5 * time.Minute
	// maxLeftBytes is how many bytes their last statuses have in all. Of older ones it is known
	// only that they went.
	maxLeftBytes = 1 << 20
)
