package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FabricSecret is the Secret with the tunnels' preshared keys. It is the only one of the agent's secrets that the
// fabric can read. The key in use is named by the peer's cluster ID; with one of the suffixes it is its number in
// decimal, the next key, the previous one, and the first one: that of an in-band peer, while the two sides look for a
// key that both have.
const (
	FabricSecret      = "entente-fabric"
	FabricKeyNumber   = ".number"
	FabricKeyNext     = ".next"
	FabricKeyPrevious = ".previous"
	FabricKeyFirst    = ".first"
)

// FabricCertificate is the Secret with the certificate with which nodes serve their metrics. It is for
// entente-fabric and entente-fabric.NAMESPACE.svc.
const FabricCertificate = "entente-fabric-metrics"

// The conditions of a FabricNode, one for each hop.
const (
	// ConditionCarrier: the nodes of this cluster that carry this node's traffic with peers respond through its
	// tunnels to them. It is absent on a node that carries all of it itself.
	ConditionCarrier = "Carrier"
	// ConditionPeerGateways: gateways of all peers respond through this node's tunnels to them. It is absent on a
	// node that has none.
	ConditionPeerGateways = "PeerGateways"
	// ConditionEndToEnd: packets pass from the network of this node's pods to that of the peers' pods.
	ConditionEndToEnd = "EndToEnd"
)

// The reasons of these conditions. That of EndToEnd may also be ReasonPodsUnreachable.
const (
	// ReasonProbesAnswered: the condition is True.
	ReasonProbesAnswered = "ProbesAnswered"
	// ReasonNoAnswerYet: the condition is Unknown, as no probe was answered since the tunnel is there, a moment ago.
	ReasonNoAnswerYet = "NoAnswerYet"
	// ReasonPathDown: probes through the tunnel are lost.
	ReasonPathDown = "PathDown"
	// ReasonStandbyDown: as ReasonPathDown, through a tunnel that would be used if another gateway were gone.
	ReasonStandbyDown = "StandbyDown"
	// ReasonLargePacketsLost: large packets are lost, and small ones pass.
	ReasonLargePacketsLost = "LargePacketsLost"
)

// FabricNode is a node of this cluster as the fabric on it sees it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fn,categories=entente
// +kubebuilder:printcolumn:name="Gateway",type=boolean,JSONPath=`.spec.gateway`
// +kubebuilder:printcolumn:name="Backend",type=string,JSONPath=`.status.backend`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoints[0]`
// +kubebuilder:printcolumn:name="Seen",type=date,JSONPath=`.status.observedAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Key-Age",type=date,JSONPath=`.status.publicKeySince`,priority=1
// +kubebuilder:printcolumn:name="Overlay",type=string,JSONPath=`.status.overlayAddress`,priority=1
// +kubebuilder:printcolumn:name="Problem",type=string,JSONPath=`.status.problems[0]`,priority=1
// +kubebuilder:printcolumn:name="Finding",type=string,JSONPath=`.status.preflight.findings[0].reason`,priority=1
type FabricNode struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the agent asks of the node.
	// +optional
	Spec FabricNodeSpec `json:"spec,omitempty"`
	// status is what the fabric on the node reports.
	// +optional
	Status FabricNodeStatus `json:"status,omitempty"`
}

// FabricNodeSpec is what the agent asks of the node.
type FabricNodeSpec struct {
	// clusterID is this cluster's ID, from which the node's overlay address is
	// derived.
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// gateway says whether the node has tunnels to other clusters, and may carry the traffic of other nodes. The
	// nodes agree on which gateway carries a peer's traffic.
	// +optional
	Gateway bool `json:"gateway,omitempty"`
	// endpoints is where other clusters dial the node, as announced to them: host:port, best first. It is the
	// Node's annotation entente.dev/endpoint, otherwise what was configured for all gateways, otherwise where its
	// Service can be dialled, otherwise the Node's own addresses. A node that is not a gateway has some only if it
	// is announced to other clusters.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Endpoints []string `json:"endpoints,omitempty"`
	// announcedPodCIDRs is the prefixes of pods on the node that are announced to other clusters, so that their
	// nodes reach these directly and not through gateways.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	AnnouncedPodCIDRs []string `json:"announcedPodCIDRs,omitempty"`
	// clusterPodCIDRs is the prefixes of all pods of this cluster, as other clusters know them: the node looks for
	// its pods in them.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	ClusterPodCIDRs []string `json:"clusterPodCIDRs,omitempty"`
	// clusterPodCIDRSources is where these were learnt: cluster.podCIDRs of the chart's values, or else the
	// objects of the network plugin, of kubeadm and of Nodes.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	ClusterPodCIDRSources []string `json:"clusterPodCIDRSources,omitempty"`
	// clusterPodCIDRAdvice is what to set because pods are outside of these, in a cloud whose network plugin gives
	// them addresses that no object lists.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ClusterPodCIDRAdvice string `json:"clusterPodCIDRAdvice,omitempty"`
	// ciliumHostRouting is how Cilium forwards packets of pods, by its ConfigMap: BPF, past nftables, or Legacy. It is
	// empty if that is not known.
	// +optional
	// +kubebuilder:validation:Enum=BPF;Legacy
	CiliumHostRouting string `json:"ciliumHostRouting,omitempty"`
	// ciliumSettings is the settings of that ConfigMap that say so.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	CiliumSettings string `json:"ciliumSettings,omitempty"`
	// serviceCIDRs is the prefixes of this cluster's Services, as far as they are known: those
	// of its ServiceCIDR objects, and what was configured.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	ServiceCIDRs []string `json:"serviceCIDRs,omitempty"`
	// endpointProblems is why configured endpoints are not announced to other clusters, such as a Service that has
	// no load balancer yet, and what of the node exceeds the limits of an announcement.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	EndpointProblems []string `json:"endpointProblems,omitempty"`
}

// How Cilium forwards packets of pods: by programs in the kernel, past nftables, or as other packets.
const (
	HostRoutingBPF    = "BPF"
	HostRoutingLegacy = "Legacy"
)

// FabricNodeStatus is what the fabric on the node reports.
type FabricNodeStatus struct {
	// publicKey is the node's Curve25519 public key, base64.
	// +optional
	PublicKey string `json:"publicKey,omitempty"`
	// publicKeySince is when that key was first used.
	// +optional
	PublicKeySince *metav1.Time `json:"publicKeySince,omitempty"`
	// nextPublicKey is the key that replaces publicKey once all nodes with which the node has tunnels know it. It
	// is set while the key is being replaced: because of its age, or because of the annotation
	// entente.dev/rotate-key.
	// +optional
	NextPublicKey string `json:"nextPublicKey,omitempty"`
	// keyRotationMessage is what the replacement waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	KeyRotationMessage string `json:"keyRotationMessage,omitempty"`
	// endpoints is where the other nodes of this cluster dial the node's WireGuard, as
	// host:port, best first: its own addresses, internal ones first.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Endpoints []string `json:"endpoints,omitempty"`
	// overlayAddress is the node's IPv6 address inside tunnels.
	// +optional
	OverlayAddress string `json:"overlayAddress,omitempty"`
	// podCIDRs is the prefixes of the node's pods, by the node's own routes if these show them and otherwise by the
	// Node's spec.podCIDRs.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// podNetworkAddresses is the addresses among its pods' that the node itself has, at most one of each family:
	// peers know the node, and what has no alias of its own, by them.
	// +optional
	// +kubebuilder:validation:MaxItems=2
	PodNetworkAddresses []string `json:"podNetworkAddresses,omitempty"`
	// probesEnabled says that the fabric sends and answers end-to-end probes at podNetworkAddresses, which are then
	// announced to peers.
	// +optional
	ProbesEnabled bool `json:"probesEnabled,omitempty"`
	// backend is kernel or userspace.
	// +optional
	Backend string `json:"backend,omitempty"`
	// offloads is the offloads in use by WireGuard in user space: TUNTCP and TUNUDP at the TUN device, UDPSend and
	// UDPReceive at its socket. Without them tunnels are slower.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	Offloads []string `json:"offloads,omitempty"`
	// missingOffloads is those of these that the node's kernel or network card does not have.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	MissingOffloads []string `json:"missingOffloads,omitempty"`
	// paths has the state of each tunnel of this node.
	// +optional
	// +listType=map
	// +listMapKey=peerID
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=600
	Paths []FabricPath `json:"paths,omitempty"`
	// directPaths has the state of each tunnel of this node to a node of another cluster for the pods on both: those
	// through which packets bypass the gateways, and those that are being tried.
	// +optional
	// +listType=map
	// +listMapKey=peerID
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=256
	DirectPaths []FabricDirectPath `json:"directPaths,omitempty"`
	// endToEnd has, for each peer, whether packets pass from this node's pods' network to that of the peer's nodes,
	// by probes that take the path of pods' packets.
	// +optional
	// +listType=map
	// +listMapKey=peerID
	// +kubebuilder:validation:MaxItems=512
	EndToEnd []FabricEndToEnd `json:"endToEnd,omitempty"`
	// conditions has one condition for each hop of packets from this node's pods to those of peers: Carrier, through the
	// tunnels to the nodes of this cluster that carry traffic with peers, PeerGateways, through this node's own
	// tunnels to gateways of peers, and EndToEnd, from pods' network to pods' network. A condition is absent if
	// there is no such hop from this node. Each names the peers and nodes for which it is not True, and what to do.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGateways is where the node sees gateways of peers that are not at an announced endpoint, because
	// address translation hides them. It is sent to the peers.
	// +optional
	// +listType=map
	// +listMapKey=peerID
	// +listMapKey=publicKey
	// +kubebuilder:validation:MaxItems=256
	ObservedGateways []ObservedGateway `json:"observedGateways,omitempty"`
	// problems is what is wrong on this node, where, and what to do next.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Problems []string `json:"problems,omitempty"`
	// observedAt is when the fabric last wrote this. It writes at least each
	// minute.
	// +optional
	ObservedAt metav1.Time `json:"observedAt,omitempty"`
	// relays is where this cluster's agent reaches in-band peers through the node, as address:port. There are none
	// if it is not a gateway, or no peer is in-band.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=64
	Relays []string `json:"relays,omitempty"`
	// preflight is what on the node blocks packets of tunnels, apart from the tunnels themselves: also before there
	// are any. It is unset until the fabric has checked.
	// +optional
	Preflight *FabricPreflight `json:"preflight,omitempty"`
}

// FabricPreflight is the result of the fabric's check of its node.
type FabricPreflight struct {
	// findings is what is wrong, worst first. It is empty if nothing is.
	// +optional
	// +listType=map
	// +listMapKey=reason
	// +kubebuilder:validation:MaxItems=32
	Findings []FabricFinding `json:"findings,omitempty"`
	// overlaps is the parts of the alias pool that are in other use on the node, such as a network of its cloud or
	// of a VPN. No new alias is assigned there.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=64
	Overlaps []string `json:"overlaps,omitempty"`
}

// FabricFinding is something that is wrong on a node.
type FabricFinding struct {
	// reason says what is wrong, in CamelCase. docs/troubleshooting.md explains each.
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`
	// severity is Error if packets of pods do not pass or are misrouted, Warning if some may not pass, and Info if
	// the node does not show that.
	// +kubebuilder:validation:Enum=Error;Warning;Info
	Severity string `json:"severity"`
	// message is what is wrong, and where.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
	// remedy is what to do.
	// +kubebuilder:validation:MaxLength=1024
	Remedy string `json:"remedy"`
}

// ObservedGateway is where a gateway of a peer is seen.
type ObservedGateway struct {
	// peerID is the peer's cluster ID.
	PeerID string `json:"peerID"`
	// publicKey is the gateway's Curve25519 public key, base64.
	// +kubebuilder:validation:MaxLength=44
	PublicKey string `json:"publicKey"`
	// endpoint is the source of its packets, as address:port.
	// +kubebuilder:validation:MaxLength=64
	Endpoint string `json:"endpoint"`
}

// FabricPath is a node's tunnel to one peer.
type FabricPath struct {
	// peerID is the peer's cluster ID. It is this cluster's own ID if the node reaches peers through another node,
	// a gateway.
	PeerID string `json:"peerID"`
	// node is the name of the node at the other end.
	// +kubebuilder:default=""
	Node string `json:"node"`
	// standby says that this node does not carry the peer's traffic now, and would if the current gateway were
	// gone.
	// +optional
	Standby bool `json:"standby,omitempty"`
	// state is Up, Down or Unknown, by probes answered inside the tunnel.
	State string `json:"state"`
	// message is why, and what to do next.
	// +optional
	Message string `json:"message,omitempty"`
	// roundTripMicroseconds is the smoothed round trip, with two digits so that it does not change all the time. It
	// is unset until it is measured.
	// +optional
	RoundTripMicroseconds int64 `json:"roundTripMicroseconds,omitempty"`
	// mtu is the size in bytes of the packets that pass the tunnel there and back.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// presharedKeyNumber is the number of the preshared key that the node uses for a peer.
	// +optional
	PresharedKeyNumber int64 `json:"presharedKeyNumber,omitempty"`
	// nextPresharedKeyStored says that the node has the next one as well.
	// +optional
	NextPresharedKeyStored bool `json:"nextPresharedKeyStored,omitempty"`
	// largePacketsLost says that the tunnel is up and packets of 576 bytes do not pass it, or, to a cluster whose
	// pods have IPv6, packets of 1280 bytes, which IPv6 requires.
	// +optional
	LargePacketsLost bool `json:"largePacketsLost,omitempty"`
	// endpoint is the peer's endpoint in use; an address on the node's own loopback if connectionType is Relayed.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// connectionType is how packets get there: Direct, at an endpoint that the peer announces; Observed, where the
	// peer is seen on the outside of an address translation; or Relayed, through the agents and their session, if
	// UDP does not pass.
	// +optional
	// +kubebuilder:validation:Enum=Direct;Observed;Relayed
	ConnectionType string `json:"connectionType,omitempty"`
}

// FabricDirectPath is a node's tunnel to a node of another cluster, for the pods on both.
type FabricDirectPath struct {
	// peerID is the peer's cluster ID.
	PeerID string `json:"peerID"`
	// node is the name of the node at the other end.
	Node string `json:"node"`
	// inUse says that packets for pods on the other node, or, if that is a gateway, on other nodes of its cluster go through it. If
	// not, they go through gateways of both clusters.
	// +optional
	InUse bool `json:"inUse,omitempty"`
	// state is Up, Down or Unknown, by probes answered inside the tunnel.
	State string `json:"state"`
	// message is why it is not in use.
	// +optional
	Message string `json:"message,omitempty"`
	// roundTripMicroseconds is the smoothed round trip, with two digits. It is unset until it is measured.
	// +optional
	RoundTripMicroseconds int64 `json:"roundTripMicroseconds,omitempty"`
	// mtu is the size in bytes of the packets that pass the tunnel there and back.
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// endpoint is the other node's endpoint in use.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// connectionType is how packets get there, as that of a path.
	// +optional
	// +kubebuilder:validation:Enum=Direct;Observed;Relayed
	ConnectionType string `json:"connectionType,omitempty"`
}

// FabricEndToEnd is the result of a node's end-to-end probes of a peer.
type FabricEndToEnd struct {
	// peerID is the peer's cluster ID.
	PeerID string `json:"peerID"`
	// state is the state of the worst path to a node of the peer: Up; LargePacketsLost, if small probes are
	// answered and those of the size that the routes allow are not, of IPv6 not even those of 1280 bytes; Blocked,
	// if the node at the other end answers, and does not forward packets to its pods; Down, if probes are lost; or
	// Unknown, in the first minute, until one is answered.
	// +kubebuilder:validation:Enum=Up;LargePacketsLost;Blocked;Down;Unknown
	State string `json:"state"`
	// node is the node of the peer at the end of that path, if it is not Up.
	// +optional
	Node string `json:"node,omitempty"`
	// message is what is wrong, and what to check.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// FabricNodeList is a list of FabricNodes.
//
// +kubebuilder:object:root=true
type FabricNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []FabricNode `json:"items"`
}

// Tunnel is what the fabric has to do for one peer: a function of the contracts with it and of what both sides
// announced over the session. Only the agent writes it. Its preshared key is in the Secret "entente-fabric", under
// the cluster ID.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=entente
// +kubebuilder:printcolumn:name="Peer",type=string,JSONPath=`.spec.foreignCluster`
// +kubebuilder:printcolumn:name="Gateway",type=string,JSONPath=`.spec.gateways[0].endpoints[0]`
// +kubebuilder:printcolumn:name="Local",type=string,JSONPath=`.spec.local[0].prefix`
// +kubebuilder:printcolumn:name="Remote",type=string,JSONPath=`.spec.remote[0].prefix`
// +kubebuilder:printcolumn:name="Remote-Alias",type=string,JSONPath=`.spec.remote[0].alias`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Tunnel struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the fabric has to do.
	Spec TunnelSpec `json:"spec"`
}

// TunnelSpec is what the fabric has to do for one peer.
type TunnelSpec struct {
	// foreignCluster is the name of the ForeignCluster.
	ForeignCluster string `json:"foreignCluster"`
	// peerID is the peer's cluster ID.
	PeerID string `json:"peerID"`
	// gateways is the peer's nodes with WireGuard.
	// +kubebuilder:validation:MaxItems=64
	Gateways []Gateway `json:"gateways"`
	// nodes is other nodes of the peer, whose pods are reached directly if there is traffic with them.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Nodes []Gateway `json:"nodes,omitempty"`
	// local is this cluster's pod prefixes, each with the alias under which the peer knows it. One without an alias
	// is known address by address: see localAliasBlocks. Like remote it is empty if no contract wants a tunnel,
	// which then exists for the peer API alone.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Local []PrefixAlias `json:"local,omitempty"`
	// remote is the peer's pod prefixes, each with the alias under which this
	// cluster knows it. One without an alias is known address by address, by aliases in
	// remoteAliasBlocks.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Remote []PrefixAlias `json:"remote,omitempty"`
	// localAliasBlocks is single addresses of this cluster, each with the alias under which the peer knows it, if
	// their prefix has none.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	LocalAliasBlocks []AliasBlock `json:"localAliasBlocks,omitempty"`
	// remoteAliasBlocks is the prefixes in which single addresses of the peer have aliases
	// here.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	RemoteAliasBlocks []string `json:"remoteAliasBlocks,omitempty"`
	// transit is which addresses in localAliasBlocks belong to pods in third clusters, by the aliases under which
	// this cluster knows them.
	// +optional
	// +listType=map
	// +listMapKey=clusterID
	// +kubebuilder:validation:MaxItems=16
	Transit []TransitAddresses `json:"transit,omitempty"`
	// probedNodes is nodes of the peer that probe paths end to end, and answer such probes.
	// +optional
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=128
	ProbedNodes []ProbedNode `json:"probedNodes,omitempty"`
	// allow is what the peer may reach here. Nothing else is open.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Allow []Exposure `json:"allow,omitempty"`
	// contractEnds is when each contract that wants the tunnel is over, together with what was open because of it.
	// Nodes obey it also while they reach no API server; after the last one there is no tunnel, except for the peer
	// API of an in-band peer. Absent means no end.
	// +optional
	// +listType=map
	// +listMapKey=contract
	// +kubebuilder:validation:MaxItems=256
	ContractEnds []ContractEnd `json:"contractEnds,omitempty"`
	// inBand runs the peer API through the tunnel: gateways relay it between this cluster's agent and the peer's
	// gateways. Absent means that they do not.
	// +optional
	InBand *TunnelInBand `json:"inBand,omitempty"`
}

// ProbedNode is a node of a peer at the other end of end-to-end probes.
type ProbedNode struct {
	// node is its name in the peer's cluster.
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// addresses is its own addresses among its pods', as this cluster knows them, at most one of each family.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	Addresses []string `json:"addresses"`
}

// ContractEnd is when a contract is over.
type ContractEnd struct {
	// contract is its ID.
	// +kubebuilder:validation:MaxLength=64
	Contract string `json:"contract"`
	// time is the latest time at which it has drained.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$`
	Time metav1.Time `json:"time"`
}

// TunnelInBand is what gateways need to relay the peer API.
type TunnelInBand struct {
	// agent is where this cluster's agent accepts connections from the tunnel, as address:port. Gateways accept
	// connections into the tunnel only from its address, and from those of nodes.
	// +kubebuilder:validation:MaxLength=64
	Agent string `json:"agent"`
}

// Exposure lets each of some sources open flows to each of some destinations.
type Exposure struct {
	// contract is the ID of the contract that it follows from.
	Contract string `json:"contract"`
	// namespace is the offloaded namespace whose pods in the peer reach its Services here. It is empty if the peer
	// reaches the pods that it runs here.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// destinationPeerID is the ID of another peer to whose addresses this opens flows, as this cluster knows them:
	// those of pods that it runs there. Empty if they are this cluster's own.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	DestinationPeerID string `json:"destinationPeerID,omitempty"`
	// homePeerID is the ID of the peer whose pods are both the sources, which run in the tunnel's peer, and the
	// destinations, which run here. Empty if this exposure follows from a contract with the tunnel's peer.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	HomePeerID string `json:"homePeerID,omitempty"`
	// until is when it ends by itself. Without it, the tunnel's contract ends it.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$`
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// anySource allows all of the peer's prefixes as sources.
	// +optional
	AnySource bool `json:"anySource,omitempty"`
	// from is addresses of the peer as this cluster knows them.
	// +optional
	// +kubebuilder:validation:MaxItems=20000
	From []string `json:"from,omitempty"`
	// to is the destinations of allowed flows.
	// +optional
	// +kubebuilder:validation:MaxItems=20000
	To []Destination `json:"to,omitempty"`
}

// Destination is addresses of this cluster with the ports that are open on each.
type Destination struct {
	// addresses is addresses of pods of this cluster.
	// +kubebuilder:validation:MaxItems=20000
	Addresses []string `json:"addresses"`
	// anyPort opens every port of every protocol.
	// +optional
	AnyPort bool `json:"anyPort,omitempty"`
	// ports is the open ports. Without it and without anyPort none is open.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Ports []DestinationPort `json:"ports,omitempty"`
}

// DestinationPort is a port on which pods listen.
type DestinationPort struct {
	// protocol is TCP, UDP or SCTP.
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol"`
	// port is its number.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// TunnelList is a list of Tunnels.
//
// +kubebuilder:object:root=true
type TunnelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Tunnel `json:"items"`
}
