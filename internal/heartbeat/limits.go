package heartbeat

// Limits of what a peer can make this side read.
const (
	// maxReceivedRate is how many states a second are read from a peer in the long run, and maxReceivedBurst how
	// many at once. Flow control delays the others.
	maxReceivedRate  = 4
	maxReceivedBurst = 16
)
