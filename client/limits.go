package client

import "time"

// Limits of joining and introducing.
const (
	// joinDialTimeout is how long one endpoint may take to connect and to finish
	// the TLS handshake.
	joinDialTimeout = 10 * time.Second
	// joinCallTimeout is how long it may then take to respond.
	joinCallTimeout = 30 * time.Second
	// joinPatience is for how long joining is tried again if the issuer has too many calls at
	// once, with pauses of up to joinPauseMin, growing to joinPauseMax, beyond what it asks for.
	joinPatience = 30 * time.Second
	// joinStartPatience is for how long joining is tried again if connections are refused.
	joinStartPatience = 10 * time.Second
	joinPauseMin      = 250 * time.Millisecond
	joinPauseMax      = 4 * time.Second
	// joinMaxMessage is the most bytes of a response.
	joinMaxMessage = 64 << 10
	// skewReported is by how much two clocks have to differ for an error to say so.
	skewReported = 30 * time.Second
)

// Limits of a peer's responses about contracts.
const (
	// maxStatements is how many statements a peer may return at once.
	maxStatements = 64
	// exportRate is how many messages of a peer's exported Services are read a second, and
	// exportBurst how many at once: at first all Services that may be imported.
	exportRate  = 100
	exportBurst = 512
	// offerRate is how many messages of a peer's offer are read a second: it should send at most
	// one.
	offerRate = 2
	// offerBurst is how many of them are read at once.
	offerBurst = 4
	// podMetricsTimeout is how long a provider may take to return what pods use: clients of a
	// kubelet wait no longer.
	podMetricsTimeout = 8 * time.Second
)

// Limits of logs that are followed.
const (
	// maxLine is the most bytes that are kept of an incomplete line.
	maxLine = 256 << 10
	// followPatience is for how long opening a log that broke is tried again, each followAgain.
	// followOverlap is from how long before the last line it is read again.
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
	// pageSize is how many rows of a list are asked for at once, which is the agent's limit.
	pageSize = 500
	// maxPages is the most pages of a list.
	maxPages = 200
)
