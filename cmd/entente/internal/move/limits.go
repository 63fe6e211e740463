package move

import "time"

const (
	// maxRestarts is how often a container of a copy may restart before the command gives up.
	maxRestarts = 5
	// maxStatus is the maximum size of a pod's progress report, in bytes.
	maxStatus = 16 << 10
	// maxRecord is the maximum size of a record, in bytes.
	maxRecord = 256 << 10
	// askTimeout is how long a pod may take to report its progress.
	askTimeout = 20 * time.Second
)
