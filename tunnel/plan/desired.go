package plan

import (
	"maps"
	"net/netip"
	"reflect"
	"slices"
)

// Desired is the complete desired state of a node's fabric: what it does not mention is
// removed.
type Desired struct {
	// ClusterID is the ID of the home cluster. Required.
	ClusterID string
	// Node is the name of this node; it must be among Nodes. Required.
	Node string
	// Nodes are the nodes of the home cluster, this one included.
	Nodes []Node
	// Pods are the prefixes that this cluster's pods are in, as far as they are known. Routes of
	// the node to pods count only inside of them.
	Pods []netip.Prefix
	// Pool are the prefixes that aliases come from. What is sent there and is no alias of a peer,
	// or not any more, ends on this node: it never leaves in clear.
	Pool []netip.Prefix
	// Reserved are prefixes that the home cluster routes and that no alias may
	// overlap: services, node networks.
	Reserved []netip.Prefix
	// Announced are the prefixes of this node's pods that peers were told. These reach the
	// pods of peers directly, and are reached so.
	Announced []netip.Prefix
	// ReplaceKey is the WireGuard key of this node that is to be replaced: another one takes its
	// place when all nodes that this one has tunnels with know it, or Regardless of that.
	// Zero, or a key that it has not, is none.
	ReplaceKey PublicKey
	Regardless bool
	// Relay is the node's relays of the peer API, which run where a peer is in-band.
	Relay Relay
	// Peers are the clusters to be connected with, in the order in which they
	// came to be trusted: of two that claim the same address, the first has it and
	// the other is refused.
	Peers []Peer
}

// Relay is who reaches the relay that a gateway has for its own cluster.
type Relay struct {
	// Listen are the node's own addresses at which it listens, From the addresses of its
	// cluster's agent and nodes. Nobody else reaches it.
	Listen, From []netip.Addr
}

// Node is a node of the home cluster.
type Node struct {
	Name string
	// PublicKey is zero while the node's fabric has not announced it; such a
	// node is left out. Ignored for this node.
	PublicKey PublicKey
	// NextKey is what it will replace its key by; zero if it said nothing. Ignored for
	// this node.
	NextKey PublicKey
	// Endpoints are where the node's device listens, "address:port", tried in
	// order of last success.
	Endpoints []string
	// PodCIDRs are the prefixes of the node's pods. Those of this node are its
	// spec.podCIDRs: where its pods are indeed the fabric sees for itself.
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
	// Spare is what the peer's gateways may use for a moment in its place.
	Spare SpareKeys
	// KeyMissing says that the preshared key cannot be read now. WireGuard peers
	// that the device has keep the key that they have; none are added, for a
	// tunnel without the key would be weaker than was agreed. All else of the
	// peer is as usual.
	KeyMissing bool
	// Gateways are the peer's nodes that tunnels end on.
	Gateways []Gateway
	// Nodes are other nodes of the peer, whose pods are reached directly where there is traffic.
	Nodes []Gateway
	// Local are our prefixes and single addresses, and the aliases under which the peer
	// knows them.
	Local []Mapping
	// Remote are the peer's prefixes and the aliases under which we know them, RemoteBlocks
	// the aliases of those of its addresses that are known one by one.
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
	// Number is that of the key in use. It is only told, in the status.
	Number uint64
	// Next and Previous are zero where there is none.
	Next, Previous PresharedKey
}

// Gateway is a node of a peer on which tunnels end.
type Gateway struct {
	// Node is its name in the peer's cluster.
	Node      string
	PublicKey PublicKey
	// NextKey is what it will replace its key by; zero if it said nothing.
	NextKey PublicKey
	// Endpoints are where to dial it, "host:port", tried in order of last
	// success. Empty if it can only dial us.
	Endpoints []string
	// Observed are where others see it: dialled after Endpoints, addresses of any kind.
	Observed []netip.AddrPort
	// Relay is where on this node's loopback it is reached through the agents, after all others.
	// Zero means that it is not.
	Relay netip.AddrPort
	// Overlay is its address inside the tunnel. Zero means what [Overlay] gives
	// for its cluster and name.
	Overlay netip.Addr
	// Pods are the prefixes of the pods on it that are reached directly, inside of the peer's
	// own. Those of others are reached through carriers only.
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

// Observed is what a plan depends on and the node observes itself.
type Observed struct {
	// Sources are addresses that the node itself owns among those of its pods,
	// at most one per family: what the node sends to peers comes from there.
	Sources []netip.Addr
	// Routed are the prefixes that the node has routes to without the fabric: others use them,
	// whatever the pool is.
	Routed []netip.Prefix
	// Carriers is who carries the traffic of each peer, by its cluster ID. Of a peer that is
	// missing it is the best gateway of each side.
	Carriers map[string]Carrier
	// Direct are the nodes of peers that this node has tunnels to, of [RemoteNodes].
	Direct []Direct
	// Counted are the aliases of pods on nodes that can be reached directly. Traffic to and from
	// them is counted. Sorted, none overlaps another.
	Counted []netip.Prefix
	// Proven is, by WireGuard key, the ID of the cluster that completed a handshake with
	// it and with that peering's preshared key.
	Proven map[PublicKey]string
	// InUse is, by overlay address, the key of a node that replaced its key, if it is the next one
	// that was announced: the announcement of that comes later.
	InUse map[netip.Addr]PublicKey
	// Turn grows with time: of clusters that announce the same key, and none of which has
	// proven it, another is tried in each.
	Turn uint64
}

// Equal says whether two observations are the same.
func (o Observed) Equal(p Observed) bool {
	return slices.Equal(o.Sources, p.Sources) && slices.Equal(o.Routed, p.Routed) && maps.Equal(o.Carriers, p.Carriers) &&
		reflect.DeepEqual(o.Direct, p.Direct) && slices.Equal(o.Counted, p.Counted) && maps.Equal(o.Proven, p.Proven) &&
		maps.Equal(o.InUse, p.InUse) && o.Turn == p.Turn
}

// Transit is a single address of a peer and what another peer calls it.
type Transit struct {
	// Cluster is the ID of the peer whose address it is.
	Cluster string
	// Real is the alias under which this cluster knows it, Alias what the other peer calls that.
	Mapping
}

// Carrier is who carries the traffic of a peer.
type Carrier struct {
	// Home is the home gateway that the traffic is sent to; empty is the best.
	Home string
	// Peer is the gateway of the peer that it goes to from there; empty is the best.
	Peer string
	// Claims says that this node told all others that it carries the traffic.
	Claims bool
}
