package userspace

import "time"

// Limits of the tunnel process.
const (
	// maxControls is how many control connections are answered at a time.
	maxControls = 16
	// maxPackets is the number of packets that are in the process at a time. Each has a buffer
	// of 64 KiB.
	maxPackets = 1024
	// maxRefusedPeers is for how many peers packets that the cipher refused are counted, more than
	// a device has, and maxReport the length in bytes of the report that the fabric reads.
	maxRefusedPeers = 4096
	maxReport       = 1 << 20
)

// Timers.
const (
	// SessionLife is how long a WireGuard session can be used after its handshake; a live peer renews
	// it after 120 s.
	SessionLife = 180 * time.Second
	// answerTimeout bounds one report.
	answerTimeout = 5 * time.Second
	// reviveAfter is the pause before a deleted device is created again.
	reviveAfter = 500 * time.Millisecond
	// reliefEvery is how often buffers are checked while many are in use, listIdleEvery how often
	// the peers without a session are listed then.
	reliefEvery   = 20 * time.Millisecond
	listIdleEvery = time.Second
	// handoverMost is how long the process waits for its fabric to hand over its peers, and handoverCheck
	// how often it checks that.
	handoverMost  = 12 * time.Second
	handoverCheck = 20 * time.Millisecond
)
