package heartbeat

// Limits of what a peer can make this side read.
const (
	// MaxReceivedRate is how many states a second are read from a peer in the long
	// run. What comes faster waits in the peer: flow control holds it.
	MaxReceivedRate = 4
	// MaxReceivedBurst is how many are read at once.
	MaxReceivedBurst = 16
)
