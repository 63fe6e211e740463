package tunnel

import (
	"net/netip"
	"time"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// Backend is the implementation of WireGuard that moves the packets.
type Backend string

// The backends.
const (
	BackendKernel    Backend = "kernel"
	BackendUserspace Backend = "userspace"
)

// Status is the observed state of a fabric.
type Status struct {
	// PublicKey of this node's device. Zero until the device exists.
	PublicKey plan.PublicKey
	// NextKey is the key that will replace PublicKey; zero while it is not replaced. KeyWaits is
	// what the replacement waits for.
	NextKey  plan.PublicKey
	KeyWaits string
	// ListenPort is the UDP port of the device.
	ListenPort int
	// Backend is empty until there is a device.
	Backend Backend
	// MTU of the device.
	MTU int
	// Offloads are those of the device and its socket.
	Offloads userspace.Offloads
	// Overlay is this node's address inside the tunnels.
	Overlay netip.Addr
	// PodCIDRs are the prefixes of this node's pods. Nil means that they were not read yet.
	PodCIDRs []netip.Prefix
	// Sources are the node's own addresses among those of its pods, one of each
	// family at most.
	Sources []netip.Addr
	// Peers are the home nodes and remote gateways that this node has tunnels
	// with, sorted by cluster and node.
	Peers []PeerStatus
	// Ends are the results of end-to-end probes of each peer whose nodes answer some, sorted by cluster.
	Ends []EndStatus
	// Switches is how often the way of this node to a peer changed from one pair of gateways to
	// another, by the peer's cluster ID.
	Switches map[string]uint64
	// Unfiltered is why no packets pass between this node and other clusters: it has no firewall rules
	// for them, and cannot write them. Empty means that it has.
	Unfiltered string
	// Problems are the current problems, worst first.
	Problems []plan.Problem
}

// EndStatus is the result of this node's end-to-end probes of a peer: whether packets pass from its pods
// to pods on the nodes of the peer.
type EndStatus struct {
	Cluster string
	probe.EndStatus
}

// Counters are the kernel's counters on a node.
type Counters struct {
	firewall.Totals
	// Received and Sent are packets of the device, decrypted. ReceiveErrors are those that it
	// refused; a device of the kernel counts those that its cipher refuses.
	Received, Sent, ReceiveErrors uint64
}

// PeerStatus is the observed state of one WireGuard peer.
type PeerStatus struct {
	Cluster, Node string
	PublicKey     plan.PublicKey
	// Endpoint is where a packet of the peer last came from, or where it is being dialled.
	Endpoint netip.AddrPort
	// Way is how packets get there; empty without an endpoint.
	Way Way
	// LastHandshake is zero before the first handshake.
	LastHandshake time.Time
	// Received and Sent count bytes, those of WireGuard included.
	Received, Sent int64
	// State of the path to it, since Since, with its smoothed round trip.
	State probe.PathState
	Since time.Time
	RTT   time.Duration
	// Probes is how many probes were sent to it, Times the round trips of those that were
	// answered, since this process knows it.
	Probes uint64
	Times  probe.Times
	// MTU is the size of packets that pass the way to it; zero while that is unknown.
	MTU int
	// LargeLost says that the way is up, and packets of [probe.LeastMTU] do not pass, or, to a
	// cluster whose pods have IPv6, those of [probe.MinMTU].
	LargeLost bool
	// Remote says that it is a node of another cluster.
	Remote bool
	// KeyNumber is the number of the preshared key that is used with it, and NextKey says
	// that the next preshared key is known.
	KeyNumber uint64
	NextKey   bool
	// Active says that traffic to aliases of peers goes this way: to the
	// gateway of the peer that is in use, or to the home node that carries it.
	Active bool
	// OnDemand says that the tunnel exists only for the pods on both of its nodes, Direct that
	// packets to pods on the other node go through it past the carriers.
	OnDemand, Direct bool
	// Entry says that packets to pods on other nodes of its cluster, unless they go directly, go to it
	// past the gateway of this cluster.
	Entry bool
}
