package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
)

// Desired is the complete desired state of a node's fabric. All else is removed.
type Desired struct {
	// ClusterID is the ID of the home cluster. Required.
	ClusterID string
	// Node is the name of this node; it must be among Nodes. Required.
	Node string
	// Nodes are the nodes of the home cluster, this one included.
	Nodes []Node
	// Pods are the known prefixes of this cluster's pods. Routes of
	// the node to pods count only inside of them.
	Pods []netip.Prefix
	// Pool are the prefixes of the pool of aliases. A packet to an address in them that is not, or no
	// longer, an alias of a peer ends on this node: it never leaves in clear.
	Pool []netip.Prefix
	// Reserved are prefixes that the home cluster routes and that no alias may
	// overlap: services, node networks.
	Reserved []netip.Prefix
	// Announced are the prefixes of this node's pods that were announced to peers. These pods reach
	// the pods of peers directly, and are reached directly.
	Announced []netip.Prefix
	// ReplaceKey is the WireGuard key of this node to replace: another one takes its
	// place when all nodes that this one has tunnels with know it, or Regardless of that.
	// Zero, or another key than the node's, means that no key is replaced.
	ReplaceKey PublicKey
	Regardless bool
	// Relay says where the node relays the peer API for in-band peers.
	Relay Relay
	// Peers are the clusters to connect with, in the order in which they
	// came to be trusted: of two that claim the same address, the first has it and
	// the other is refused.
	Peers []Peer
}

// Relay says who reaches the relay of a gateway for its own cluster.
type Relay struct {
	// Listen are the node's own addresses at which it listens, From the addresses of its
	// cluster's agent and nodes. Only they reach it.
	Listen, From []netip.Addr
}

// Node is a node of the home cluster.
type Node struct {
	Name string
	// PublicKey is zero until the node's fabric has announced it; such a
	// node is left out. Ignored for this node.
	PublicKey PublicKey
	// NextKey is the key by which it will replace its own; zero means that it announced none. Ignored
	// for this node.
	NextKey PublicKey
	// Endpoints are where the node's device listens, "address:port", tried in
	// order of last success.
	Endpoints []string
	// PodCIDRs are the prefixes of the node's pods. For this node they are its
	// spec.podCIDRs: the fabric itself observes where its pods are.
	PodCIDRs []netip.Prefix
	// Gateway says that the node holds tunnels to the gateways of peers, and may carry the
	// traffic of others.
	Gateway bool
}

// Peer is a foreign cluster.
type Peer struct {
	// ClusterID of the peer. Required, unique.
	ClusterID string
	// PresharedKey of this peering. Zero means none.
	PresharedKey PresharedKey
	// Spare are the keys that the peer's gateways may use for a moment in its place.
	Spare SpareKeys
	// KeyMissing says that the preshared key cannot be read now. WireGuard peers
	// in the device keep their key; none are added, since a
	// tunnel without the key would be weaker than was agreed. Otherwise the
	// peer is handled as usual.
	KeyMissing bool
	// Gateways are the peer's nodes on which tunnels end.
	Gateways []Gateway
	// Nodes are other nodes of the peer, whose pods are reached directly where there is traffic.
	Nodes []Gateway
	// Local are our prefixes and single addresses, and the aliases under which the peer
	// knows them.
	Local []Mapping
	// Remote are the peer's prefixes and the aliases under which we know them, RemoteBlocks
	// the aliases of its single addresses.
	Remote       []Mapping
	RemoteBlocks []netip.Prefix
	// Transit are addresses of other peers that this one reaches through this cluster, or is
	// reached from.
	Transit []Transit
	// Probed are the nodes of the peer that probe ways end to end, and answer such probes.
	Probed []Probed
	// Inbound are the flows that the peer may open. Empty: none.
	Inbound []Exposure
	// InBand says that the peer API runs through the tunnel: the peer's gateways reach the
	// relay of each gateway here. Such a peer may have no prefixes.
	InBand bool
}

// SpareKeys are the preshared keys before and after the one in use. While a key is replaced one
// side uses the next one first: it takes effect with the next handshake, within three minutes.
type SpareKeys struct {
	// Number is that of the key in use. It is only reported, in the status.
	Number uint64
	// Next and Previous are zero where that key does not exist.
	Next, Previous PresharedKey
	// First is set while the two clusters look for a key that both have, because one of them lost its later ones:
	// it is the key that each derives from what administrators exchanged, and both sides try all that they have.
	First PresharedKey
}

// Gateway is a node of a peer on which tunnels end.
type Gateway struct {
	// Node is its name in the peer's cluster.
	Node      string
	PublicKey PublicKey
	// NextKey is the key by which it will replace its own; zero means that it announced none.
	NextKey PublicKey
	// Endpoints are where to dial it, "host:port", tried in order of last
	// success. Empty if it can only dial us.
	Endpoints []string
	// Observed are the addresses at which others see it, of any kind. They are dialled after Endpoints.
	Observed []netip.AddrPort
	// Relay is the address on this node's loopback at which it is reached through the agents, dialled
	// last. Zero means that it cannot be reached so.
	Relay netip.AddrPort
	// Overlay is its address inside the tunnel. Zero means what [Overlay] gives
	// for its cluster and name.
	Overlay netip.Addr
	// Pods are the prefixes of the pods on it that are reached directly, inside of the peer's
	// own. Pods in other prefixes are reached through carriers only.
	Pods []netip.Prefix
}

// Probed is a node of a peer with its own addresses among its pods', by the aliases under which
// we know them, one of each family at most.
type Probed struct {
	Node  string
	Addrs []netip.Addr
}

// Mapping is a prefix and the alias under which the other side knows it. Both
// are equal when nothing needs to be translated.
type Mapping struct{ Real, Alias netip.Prefix }

// Reals returns the prefixes without their aliases.
func Reals(list []Mapping) (out []netip.Prefix) {
	for _, m := range list {
		out = append(out, m.Real)
	}
	return out
}

// Observed is the part of a plan's input that the node observes itself.
type Observed struct {
	// Sources are addresses that the node itself owns among those of its pods,
	// at most one per family: the node sends to peers from them.
	Sources []netip.Addr
	// Routed are the prefixes to which the node has routes of others than the fabric. They are in use
	// even if they are in the pool.
	Routed []netip.Prefix
	// Carriers are the gateways that carry the traffic of each peer, by its cluster ID. For a peer that
	// is missing they are the best gateway of each side.
	Carriers map[string]Carrier
	// Direct are those of [RemoteNodes] to which this node has tunnels.
	Direct []Direct
	// Counted are the aliases of pods on nodes that can be reached directly. Traffic to and from
	// them is counted. Sorted, without overlaps.
	Counted []netip.Prefix
	// Proven is, by WireGuard key, the ID of the cluster that completed a handshake with
	// it and with that peering's preshared key.
	Proven map[PublicKey]string
	// InUse is, by overlay address, the key of a node that has replaced its key by the announced next
	// one and has not announced that yet.
	InUse map[netip.Addr]PublicKey
	// Turn grows with time. Of several clusters that announce the same key, while none has
	// proven it, another one is tried in each turn.
	Turn uint64
}

// Equal reports whether two observations are the same.
func (o Observed) Equal(p Observed) bool {
	return slices.Equal(o.Sources, p.Sources) && slices.Equal(o.Routed, p.Routed) && maps.Equal(o.Carriers, p.Carriers) &&
		reflect.DeepEqual(o.Direct, p.Direct) && slices.Equal(o.Counted, p.Counted) && maps.Equal(o.Proven, p.Proven) &&
		maps.Equal(o.InUse, p.InUse) && o.Turn == p.Turn
}

// Transit is a single address of a peer with the alias that another peer has for it.
type Transit struct {
	// Cluster is the ID of the peer whose address it is.
	Cluster string
	// Real is the alias under which this cluster knows it, Alias the other peer's alias for that.
	Mapping
}

// Carrier is the pair of gateways that carry the traffic of a peer.
type Carrier struct {
	// Home is the home gateway to which the traffic is sent; empty means the best.
	Home string
	// Peer is the gateway of the peer to which Home sends it; empty means the best.
	Peer string
	// Claims says that this node announces that it carries the traffic.
	Claims bool
}
