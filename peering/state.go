package peering

import (
	"log/slog"
	"net/netip"
	"time"
)

// PeerState is everything that one cluster currently says to one peer: the PeerState
// of the session.
type PeerState struct {
	// Sequence grows with each message of a stream.
	Sequence uint64
	// SentAt is when it was sent, by the sender's clock.
	SentAt time.Time
	// Protocol is the newest protocol revision that the sender speaks.
	Protocol uint32
	// Capabilities is what it can do beyond that.
	Capabilities []string
	// Endpoints is where its peer API can be dialled now, as host:port.
	Endpoints []string
	// Network is its end of the tunnel; nil while no contract wants one.
	Network *Network
	// Contracts is the contracts with the receiver that the sender holds.
	Contracts []ContractState
	// EchoSequence is the sequence of the newest message that the sender received.
	EchoSequence uint64
	// BundleHash is the hash of the receiver's trust bundle as the sender holds it;
	// zero is unset.
	BundleHash Hash
	// Offering is whether the sender offers the receiver anything by WatchOffer.
	Offering Offering
	// Patience is for how long the sender waits for the receiver's next state; 0 if it
	// did not say.
	Patience time.Duration
}

// Offering is whether a cluster offers another anything.
type Offering uint8

const (
	// OfferingUnknown means that it did not say, or in terms that are not known here.
	OfferingUnknown Offering = iota
	// OfferingNothing means neither resources nor Services.
	OfferingNothing
	// OfferingSomething means resources, Services or both.
	OfferingSomething
)

// CapabilityCarry is what a cluster names that carries sessions between the receiver and other
// peers of its own.
const CapabilityCarry = "carry"

// Network is one side's end of the tunnel.
type Network struct {
	// Gateways is the nodes that speak WireGuard to the peer.
	Gateways []Gateway
	// Nodes is other nodes, which do for their own pods only.
	Nodes []Gateway
	// Prefixes is the sender's pod prefixes, as it uses them itself.
	Prefixes []netip.Prefix
	// Aliases is, for each prefix of the receiver, the alias under which the
	// sender knows it.
	Aliases []Alias
	// Addresses is the sender's addresses that need an alias each, sorted: those that no
	// alias of the receiver covers, and from or to which flows may be.
	Addresses []netip.Addr
	// Blocks is the aliases of such addresses of the receiver.
	Blocks []AliasBlock
	// Transit is addresses of third clusters that the receiver may reach through the sender.
	Transit []TransitAddresses
	// Through is the clusters that the sender agrees to reach, and to be reached by, through
	// the receiver.
	Through []ClusterID
	// PresharedHalf is the sender's half of the preshared key; zero is unset.
	PresharedHalf PresharedHalf
	// Rotation is how the preshared key is replaced; nil from a sender that keeps the first.
	Rotation *KeyRotation
	// Observations is where the sender sees gateways of the receiver.
	Observations []Observation
	// ReceiverAddress is where the sender sees the receiver's end of their session; the
	// zero Addr is unset.
	ReceiverAddress netip.Addr
}

// KeyRotation is one side's word on the preshared keys of a tunnel, which are numbered.
type KeyRotation struct {
	// Number is that of the key in use, of which Network.PresharedHalf is a half.
	Number uint64
	// NextHalf is the sender's half of the key with the next number; zero offers none.
	NextHalf PresharedHalf
	// Held is the number of the newest key that all gateways of the sender have, and Used
	// the least number of one that a gateway of the sender uses.
	Held, Used uint64
}

// PresharedHalf is one side's half of a tunnel's preshared key. It does not show
// itself in logs.
type PresharedHalf [32]byte

// String hides the bytes.
func (PresharedHalf) String() string { return "(hidden)" }

// GoString hides the bytes.
func (PresharedHalf) GoString() string { return "(hidden)" }

// LogValue hides the bytes.
func (PresharedHalf) LogValue() slog.Value { return slog.StringValue("(hidden)") }

// IsZero says whether the half is unset.
func (h PresharedHalf) IsZero() bool { return h == PresharedHalf{} }

// Gateway is a node that speaks WireGuard to other clusters.
type Gateway struct {
	// Name is the node's name, for people.
	Name string
	// PublicKey is its Curve25519 public key.
	PublicKey [32]byte
	// NextPublicKey is the key by which it is about to replace that one; zero if it is not.
	NextPublicKey [32]byte
	// Endpoints is where it listens, as host:port, best first.
	Endpoints []string
	// Overlay is its IPv6 address inside the tunnel.
	Overlay netip.Addr
	// Pods is the prefixes of pods on it that the peer's nodes reach directly.
	Pods []netip.Prefix
	// Observed is where other clusters see it.
	Observed []netip.AddrPort
	// Sources is its own addresses among its pods', from and at which end-to-end probes are
	// sent and answered; one of each family at most.
	Sources []netip.Addr
}

// Observation is where a gateway of another cluster is seen.
type Observation struct {
	// PublicKey is the gateway's Curve25519 public key.
	PublicKey [32]byte
	// Endpoint is the source of what came from it.
	Endpoint netip.AddrPort
}

// Observable says whether a host of another network can be at an address, so that it
// means something to say that it was seen there.
func Observable(a netip.Addr) bool {
	return a.IsGlobalUnicast() && a.Zone() == "" && !(a.Is4() && a.As4()[0] == 0)
}

// TransitAddresses is addresses of a third cluster, by the sender's names, sorted.
type TransitAddresses struct {
	Cluster   ClusterID
	Addresses []netip.Addr
}

// Alias is another name for a prefix, of the same length and family.
type Alias struct {
	// Prefix is the prefix as its owner uses it.
	Prefix netip.Prefix
	// Alias is the prefix as the sender uses it.
	Alias netip.Prefix
}

// AliasBlock is aliases of single addresses, which follow each other.
type AliasBlock struct {
	// Alias is the prefix that they fill, as the sender uses it.
	Alias netip.Prefix
	// Addresses is what each address of it stands for, as its owner uses it; the zero Addr
	// is what stands for nothing.
	Addresses []netip.Addr
}

// ContractState is one side's word on one contract.
type ContractState struct {
	// ID is the contract's.
	ID string
	// Revision is what the sender holds.
	Revision uint64
	// Phase is the state it is in at the sender.
	Phase Phase
	// Message is why it is draining or closed.
	Message string
	// DrainUntil is when draining ends; zero unless it is draining.
	DrainUntil time.Time
	// Statement is the sequence number of the provider's newest statement of use;
	// 0 for none, and from a consumer.
	Statement uint64
}
