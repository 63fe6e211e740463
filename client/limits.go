package client

import "time"

// Limits of joining and introducing.
const (
	// joinDialTimeout is how long one endpoint may take to connect and to finish
	// the TLS handshake.
	joinDialTimeout = 10 * time.Second
	// joinCallTimeout is how long it may then take to answer.
	joinCallTimeout = 30 * time.Second
	// joinPatience is for how long joining is tried again where the issuer has too many
	// at once, with pauses of up to joinPauseMin, growing to joinPauseMax, beyond what it
	// asks for.
	joinPatience = 30 * time.Second
	joinPauseMin = 250 * time.Millisecond
	joinPauseMax = 4 * time.Second
	// joinMaxMessage is the most bytes of an answer.
	joinMaxMessage = 64 << 10
	// skewWorthTelling is how far apart two clocks have to be to be mentioned.
	skewWorthTelling = 30 * time.Second
)

// Limits of what a peer says when it is asked about contracts.
const (
	// maxStatements is how many statements a peer may return at once.
	maxStatements = 64
	// exportRate is how many messages of a peer's exported Services are read a second, and
	// exportBurst how many at once: all that may be imported, as one has them at first.
	exportRate  = 100
	exportBurst = 512
	// offerRate is how many messages of a peer's offer are read a second: it should
	// say no more than one.
	offerRate = 2
	// offerBurst is how many of them are read at once.
	offerBurst = 4
	// podMetricsTimeout is how long a provider may take to say what pods use: who asks a
	// kubelet waits no longer.
	podMetricsTimeout = 8 * time.Second
)

// Limits of logs that are followed.
const (
	// maxLine is the most bytes that are kept of a line that has not ended.
	maxLine = 256 << 10
	// followPatience is for how long a log that broke is opened again, each followAgain; followOverlap is how
	// much of what was read may come again.
	followPatience = 30 * time.Second
	followAgain    = 500 * time.Millisecond
	followOverlap  = 10 * time.Second
)

// Limits of connections that third peers carry.
const (
	// maxCarryData is the most bytes in one message of such a connection.
	maxCarryData = 16 << 10
)

// Limits of lists of the admin API.
const (
	// pageSize is how many rows of a list are asked for at once: as many as the agent gives.
	pageSize = 500
	// maxPages is the most pages of a list.
	maxPages = 200
)
