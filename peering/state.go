package peering

import (
	"log/slog"
	"net/netip"
	"time"
)

// PeerState is the current state that one cluster sends to one peer: the PeerState of the
// session.
type PeerState struct {
	// Sequence grows with each message of a stream.
	Sequence uint64
	// SentAt is when it was sent, by the sender's clock.
	SendTime time.Time
	// Protocol is the newest protocol revision that the sender speaks.
	Protocol uint32
	// Capabilities are what it can do beyond that.
	Capabilities []string
	// Endpoints is where its peer API can be dialled now, as host:port.
	Endpoints []string
	// Network is its end of the tunnel, nil while no contract includes one.
	Network *Network
	// Contracts are the contracts with the receiver that the sender has.
	Contracts []ContractState
	// EchoSequence is the sequence of the newest message that the sender received.
	EchoSequence uint64
	// BundleHash is the hash of the receiver's trust bundle as the sender has it; zero means
	// unset.
	BundleHash Hash
	// Offering is whether the sender offers the receiver anything by WatchOffer.
	Offering Offering
	// HeartbeatTimeout is for how long the sender waits for the receiver's next state; 0 means unset.
	HeartbeatTimeout time.Duration
}

// Offering is whether a cluster offers another anything.
type Offering uint8

const (
	// OfferingUnknown means that it was not sent, or has a value that is not known here.
	OfferingUnknown Offering = iota
	// OfferingNothing means neither resources nor Services.
	OfferingNothing
	// OfferingSomething means resources, Services or both.
	OfferingSomething
)

// CapabilityCarry is the capability of a cluster that carries sessions between the receiver and
// other peers of its own.
const CapabilityCarry = "carry"

// Network is one side's end of the tunnel.
type Network struct {
	// Gateways are the nodes with WireGuard tunnels to the peer.
	Gateways []Gateway
	// Nodes are other nodes, which have tunnels only for their own pods.
	Nodes []Gateway
	// Prefixes are the sender's pod prefixes, as it uses them itself.
	Prefixes []netip.Prefix
	// Aliases has, for each prefix of the receiver, the alias that the sender uses for it.
	Aliases []Alias
	// Addresses are the sender's addresses that need an alias each, sorted: those that no alias of
	// the receiver covers and that may be the source or destination of packets.
	Addresses []netip.Addr
	// Blocks are the aliases of such addresses of the receiver.
	Blocks []AliasBlock
	// Transit are addresses of third clusters that the receiver may reach through the sender.
	Transit []TransitAddresses
	// Through are the clusters that the sender agrees to reach, and to be reached by, through the
	// receiver.
	Through []ClusterID
	// Direct are those of Through with which the sender peers itself.
	Direct []ClusterID
	// Opened are the sender's own addresses of pods that it runs for third clusters, by these, and
	// that the receiver's pods of the same clusters reach directly.
	Opened []TransitAddresses
	// Running are the sender's own addresses of pods that it runs for third clusters, by these, as
	// far as these named the receiver's pods of the same namespaces to it.
	Running []TransitAddresses
	// PresharedKeyShare is the sender's share of the preshared key; zero means unset.
	PresharedKeyShare PresharedKeyShare
	// Rotation is how the preshared key is replaced; nil from a sender that keeps the first.
	Rotation *KeyRotation
	// Observations are the endpoints at which the sender observes gateways of the receiver.
	Observations []Observation
	// ReceiverAddress is the address of the receiver's end of their session, as the sender
	// observes it; the zero Addr means unset.
	ReceiverAddress netip.Addr
}

// KeyRotation is one side's state of the preshared keys of a tunnel, which are numbered.
type KeyRotation struct {
	// Number is the number of the key in use, of which Network.PresharedKeyShare is a share.
	Number uint64
	// NextKeyShare is the sender's share of the key with the next number; zero means unset.
	NextKeyShare PresharedKeyShare
	// NewestInstalled is the number of the newest key that all gateways of the sender have, and
	// OldestInUse the lowest number of a key that one of them uses.
	NewestInstalled, OldestInUse uint64
}

// PresharedKeyShare is one side's share of a tunnel's preshared key. It does not show
// itself in logs.
type PresharedKeyShare [32]byte

// String hides the bytes.
func (PresharedKeyShare) String() string { return "(hidden)" }

// GoString hides the bytes.
func (PresharedKeyShare) GoString() string { return "(hidden)" }

// LogValue hides the bytes.
func (PresharedKeyShare) LogValue() slog.Value { return slog.StringValue("(hidden)") }

// IsZero reports whether the share is unset.
func (h PresharedKeyShare) IsZero() bool { return h == PresharedKeyShare{} }

// Gateway is a node with WireGuard tunnels to other clusters.
type Gateway struct {
	// Name is the node's name, for people.
	Name string
	// PublicKey is its Curve25519 public key.
	PublicKey [32]byte
	// NextPublicKey is the key that is about to replace PublicKey; zero means unset.
	NextPublicKey [32]byte
	// Endpoints is where it listens, as host:port, best first.
	Endpoints []string
	// Overlay is its IPv6 address inside the tunnel.
	Overlay netip.Addr
	// Pods are the prefixes of pods on it that the peer's nodes reach directly.
	Pods []netip.Prefix
	// Observed are the endpoints at which other clusters observe it.
	Observed []netip.AddrPort
	// Sources are its own addresses among its pods', which send and answer end-to-end probes; one
	// of each family at most.
	Sources []netip.Addr
}

// Observation is the endpoint at which a gateway of another cluster is observed.
type Observation struct {
	// PublicKey is the gateway's Curve25519 public key.
	PublicKey [32]byte
	// Endpoint is the source of its packets.
	Endpoint netip.AddrPort
}

// Observable reports whether a host of another network can have an address, so that an
// observation of it can be right.
func Observable(a netip.Addr) bool {
	return a.IsGlobalUnicast() && a.Zone() == "" && !(a.Is4() && a.As4()[0] == 0)
}

// TransitAddresses are addresses of a third cluster, as the sender uses them, sorted.
type TransitAddresses struct {
	Cluster   ClusterID
	Addresses []netip.Addr
	// Namespaces has those of them that may be reached directly, by the sender's namespaces.
	Namespaces []TransitNamespace
}

// TransitNamespace is all pods of a namespace of the sender in one third cluster.
type TransitNamespace struct {
	Name string
	// Pods is sorted by Address.
	Pods []TransitPod
}

// TransitPod is an address of a pod in a third cluster: as the sender uses it, and the pod's own.
type TransitPod struct{ Address, There netip.Addr }

// Alias is a prefix that is used in place of another one of the same length and family.
type Alias struct {
	// Prefix is the prefix as its owner uses it.
	Prefix netip.Prefix
	// Alias is the prefix as the sender uses it.
	Alias netip.Prefix
}

// AliasBlock is a block of consecutive aliases of single addresses.
type AliasBlock struct {
	// Alias is the prefix that they fill, as the sender uses it.
	Alias netip.Prefix
	// Addresses has the address for each alias, as its owner uses it; the zero Addr means that an
	// alias is unused.
	Addresses []netip.Addr
}

// ContractState is one side's state of one contract.
type ContractState struct {
	// ID is the contract's.
	ID string
	// Revision is the revision that the sender has.
	Revision uint64
	// Phase is its phase at the sender.
	Phase Phase
	// Message is why it is draining or closed.
	Message string
	// DrainUntil is when draining ends, zero unless it is draining.
	DrainUntil time.Time
	// Statement is the sequence number of the provider's newest statement of use; 0 without a
	// statement, and from a consumer.
	Statement uint64
}
