package probe

import (
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Limits on the work that others can cause, and on the work at a time.
const (
	// answersPerSecond bounds what one peer can make us answer.
	answersPerSecond = 20
	// changesPerSecond bounds the changes of one peer's announcements to which this node reacts at
	// once in a second.
	changesPerSecond = 5
	// claimsMost bounds the claims that are kept of a node of this cluster.
	claimsMost = plan.MaxPeers
	// rekeysPerSecond bounds the messages about keys that are read from one peer, and rekeyMost
	// how long in advance a peer may announce that it replaces a key.
	rekeysPerSecond = 40
	rekeyMost       = 2 * time.Second
	// rekeyOffPause is for how long a node that called the replacement of its key off is not followed. It tries again
	// after two seconds. rekeyPatience is for how long nodes that are about to replace their keys can keep this
	// one from replacing its own, however many they are: some may announce it again and again.
	rekeyOffPause = 1500 * time.Millisecond
	rekeyPatience = 10 * time.Minute
	// roundMost is about how many probes are sent at a time, though more are due: the
	// device has room for 500 packets, and the socket for less than 300 answers. proberBuffer is
	// room for the answers that arrive while this process is not scheduled.
	roundMost    = 64
	proberBuffer = 1 << 20
)

// Limits of end-to-end probes, which must not disturb other traffic.
const (
	// endEvery is how often a peer is probed end to end, endsPerSecond how many peers a node
	// probes in a second, and endsOfCluster how many nodes of a cluster probe the same peer in
	// one. Two nodes of each peer that lost probes are probed in addition.
	endEvery      = time.Second
	endsPerSecond = 8
	endsOfCluster = 32
	// endReports is how many changes of a peer's status are reported at once, endReportEvery after
	// how long one more may be: peers decide what they answer, and each node writes its status to
	// the API server. endGather is for how long changes are gathered that leave the state as it is.
	endReports     = 12
	endReportEvery = 10 * time.Second
	endGather      = 5 * time.Second
)

// Sizes of packets inside the tunnel, in bytes.
const (
	// MinMTU is the smallest MTU of a device that has IPv6, as the overlay does, and the size of
	// packets that IPv6 needs to pass (RFC 8200).
	MinMTU = 1280
	// LeastMTU is the smallest size that is tried: IPv4 can work with less than MinMTU.
	LeastMTU = 576
)

// RekeyMargin is how long the other nodes wait before they follow a node that replaced its key. In
// that time what they send to it arrives, and what it sends to them waits in its device. If they
// followed before it, its packets would be dropped. WireGuard keeps 128 packets for each peer.
const RekeyMargin = 60 * time.Millisecond
