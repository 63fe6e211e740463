package client

import "time"

// Limits of joining and introducing.
const (
	// joinDialTimeout is how long one endpoint may take to connect and to finish
	// the TLS handshake.
	joinDialTimeout = 10 * time.Second
	// joinCallTimeout is how long it may then take to answer.
	joinCallTimeout = 30 * time.Second
	// joinMaxMessage is the most bytes of an answer.
	joinMaxMessage = 64 << 10
	// skewWorthTelling is how far apart two clocks have to be to be mentioned.
	skewWorthTelling = 30 * time.Second
)
