package paced

import "time"

// Limits of what peers have the API server asked.
const (
	// maxAsks is how often it is asked for one peer each second, by reads, creates and dry
	// runs, and maxAsksBurst how often at once: a pod that comes takes four.
	maxAsks      = 500
	maxAsksBurst = 20_000
)

// The budget of what peers make the agent write into etcd, which has 2 GiB by default
// and keeps what is written for 5 to 10 minutes.
const (
	// budgetBurst is how many bytes all peers together can have written at once,
	// budgetPeerBurst how many one, and budgetRate how many each second in the long
	// run. Three that take all they can leave another its budgetPeerBurst.
	budgetBurst     = 400 << 20
	budgetPeerBurst = 80 << 20
	budgetRate      = 512 << 10
	// budgetWriteBytes is what a write counts besides the bytes of the object.
	budgetWriteBytes = 2 << 10
	// budgetPodStarts is how often others write a pod while it starts.
	budgetPodStarts = 4
	// budgetWaitMin and budgetWaitMax bound the pause before a write that has to wait
	// is tried again, and patience is how long an object waits until its consumer is
	// told.
	budgetWaitMin = 20 * time.Millisecond
	budgetWaitMax = 10 * time.Second
	patience      = 5 * time.Second
)
