package probe

import (
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Limits on what others can make the prober do, and on what it does at a time.
const (
	// answersPerSecond bounds what one peer can make us answer.
	answersPerSecond = 20
	// wordsPerSecond is how often in a second what one peer says is acted upon at once, where
	// it says something else each time.
	wordsPerSecond = 5
	// claimsMost bounds what a node of this cluster can make us keep.
	claimsMost = plan.MaxPeers
	// rekeysPerSecond bounds the words about keys that one peer is listened to, and rekeyMost
	// how long before it replaces a key it may say so.
	rekeysPerSecond = 40
	rekeyMost       = 2 * time.Second
	// roundMost is how many probes are sent at a time, or a few more, though more are due: the
	// device has room for 500 packets, and the socket for less than 300 answers. proberBuffer is
	// room for the answers that come while this process has no processor.
	roundMost    = 64
	proberBuffer = 1 << 20
)

// Limits of end-to-end probes, so that they disturb nothing.
const (
	// endEvery is how often a peer is probed end to end, endsPerSecond how many peers a node
	// probes in a second, and endsOfCluster how many nodes of a cluster probe the same peer in
	// one. Nodes of which a probe was lost are probed beside that, two for each peer.
	endEvery      = time.Second
	endsPerSecond = 8
	endsOfCluster = 32
	// endTells is how many changes of what they say of a peer are told at once, endTellEvery after
	// how long one more is: peers decide what is answered, and each node writes what it is told.
	// endGather is for how long changes are gathered that leave the state as it is.
	endTells     = 12
	endTellEvery = 10 * time.Second
	endGather    = 5 * time.Second
)

// Sizes of packets inside the tunnel, in bytes.
const (
	// MinMTU is the smallest MTU of a device that has IPv6, as the overlay does, and the size of
	// packets that IPv6 needs to pass (RFC 8200).
	MinMTU = 1280
	// LeastMTU is the smallest size that is tried: IPv4 makes do with less.
	LeastMTU = 576
)

// RekeyMargin is how much later than a node replaces its key the others follow. In between what
// they send to it arrives, and what it sends to them waits in its device; sooner, what it
// sends is dropped. WireGuard keeps 128 packets for each peer.
const RekeyMargin = 60 * time.Millisecond
