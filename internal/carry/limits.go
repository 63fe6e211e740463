package carry

import "time"

const (
	// MaxData is the most bytes of a connection in one message.
	MaxData = 16 << 10
	// messageCost is how many bytes a message counts besides its own.
	messageCost = 256
	// maxCarried is how many connections a Carrier has at once, maxCarriedOfPeer how many of
	// them end at one peer: any two peers need one.
	maxCarried       = 64
	maxCarriedOfPeer = 8
	// askRate and askBurst bound how often a second a peer may ask for a connection.
	askRate  = 1
	askBurst = 16
	// maxAccounts is how many peers without connections are remembered.
	maxAccounts = 1024
	// openTimeout is how long it may take until the far end accepts.
	openTimeout = 5 * time.Second
	// idleTimeout ends a connection over which nothing passes, in either direction. Sessions
	// have keepalives that are much more frequent.
	idleTimeout = 2 * time.Minute
	// recheck is how often it is checked whether a connection may still be carried.
	recheck = 2 * time.Second
	// maxAccepted is how many connections a Listener has at once, maxAcceptedOfThird how many
	// of them one third peer carries.
	maxAccepted        = 128
	maxAcceptedOfThird = 16
)
