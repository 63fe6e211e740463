package paced

import "time"

// Limits of requests to the API server for peers.
const (
	// maxRequests is how many reads, creates and dry runs are made for one peer each second, and
	// maxRequestsBurst how many at once: a new pod takes four.
	maxRequests      = 500
	maxRequestsBurst = 20_000
)

// The budget of what the agent writes into etcd for peers. etcd has 2 GiB by default and keeps
// what is written for 5 to 10 minutes.
const (
	// budgetBurst is how many bytes can be written at once for all peers together, budgetPeerBurst
	// how many for one, and budgetRate how many each second in the long run. Three peers that use
	// all of theirs leave another its budgetPeerBurst.
	budgetBurst     = 400 << 20
	budgetPeerBurst = 80 << 20
	budgetRate      = 512 << 10
	// budgetWriteBytes is what a write counts besides the bytes of the object.
	budgetWriteBytes = 2 << 10
	// budgetPodStarts is how often other components write a pod while it starts.
	budgetPodStarts = 4
	// budgetWaitMin and budgetWaitMax bound the pause before a write that has to wait
	// is tried again, and patience is how long a write waits before it is refused.
	budgetWaitMin = 20 * time.Millisecond
	budgetWaitMax = 10 * time.Second
	patience      = 5 * time.Second
)
