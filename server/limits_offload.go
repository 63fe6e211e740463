package server

import "time"

// Limits of an OffloadService, by contract unless said otherwise.
const (
	// offloadMaxObjects is how many objects a contract may have here.
	offloadMaxObjects = 20_000
	// offloadMaxInFlight and offloadMaxInFlightBytes bound what was read from a
	// stream and is not carried out; beyond that nothing is read.
	offloadMaxInFlight      = 128
	offloadMaxInFlightBytes = 16 << 20
	// offloadMaxPods is how many pods of a stream are applied or deleted at once.
	offloadMaxPods = 16
	// offloadMaxEvents is how many events wait to be sent; the oldest goes first.
	offloadMaxEvents = 256
	// offloadSendTimeout is how long one message may wait for a slow reader,
	// before the stream is cut off.
	offloadSendTimeout = 30 * time.Second
	// offloadOpenTimeout is how long a stream may take to say what it wants.
	offloadOpenTimeout = 10 * time.Second
	// offloadApplyTimeout is how long one object may take here.
	offloadApplyTimeout = 90 * time.Second
	// offloadRecheck is how often an open stream is asked whether its contract
	// still is open.
	offloadRecheck = 2 * time.Second
	// offloadMaxStreams is how many logs, execs and port-forwards one peer may
	// have open at once, over all its contracts.
	offloadMaxStreams = 128
	// offloadChunk is how many bytes of a log, a process or a connection cross in
	// one message.
	offloadChunk = 32 << 10
	// offloadStdinChunk is the largest piece of input taken, as in the proto.
	offloadStdinChunk = 64 << 10
	// offloadMaxCommand is how many words a command may have, and
	// offloadMaxCommandLen how many bytes in all.
	offloadMaxCommand    = 1024
	offloadMaxCommandLen = 256 << 10
)
