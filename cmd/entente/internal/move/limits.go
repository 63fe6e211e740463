package move

import "time"

const (
	// maxRestarts is how often a container of a copy may end before the command gives up.
	maxRestarts = 5
	// maxStatus is how many bytes a pod may say of how far it is.
	maxStatus = 16 << 10
	// maxRecord is how many bytes a record may have.
	maxRecord = 256 << 10
	// askTimeout is how long a pod may take to say how far it is.
	askTimeout = 20 * time.Second
)
