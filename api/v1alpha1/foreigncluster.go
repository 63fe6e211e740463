package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ForeignCluster is another cluster that is known here. Known does not mean trusted: joining makes trust, which the
// Trusted condition shows.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fc,categories=entente
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.status.role`
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="Connected")].status`
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.status.conditions[?(@.type=="Network")].status`
// +kubebuilder:printcolumn:name="Granted",type=string,JSONPath=`.status.granted`
// +kubebuilder:printcolumn:name="Used",type=string,JSONPath=`.status.used`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Cluster-ID",type=string,JSONPath=`.spec.clusterID`,priority=1
// +kubebuilder:printcolumn:name="Trusted",type=string,JSONPath=`.status.conditions[?(@.type=="Trusted")].status`,priority=1
// +kubebuilder:printcolumn:name="Offloading",type=string,JSONPath=`.status.conditions[?(@.type=="Offloading")].status`,priority=1
// +kubebuilder:printcolumn:name="Round-Trip",type=string,JSONPath=`.status.session.roundTrip`,priority=1
// +kubebuilder:printcolumn:name="Endpoints",type=string,JSONPath=`.spec.endpoints`,priority=1
type ForeignCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the identity of the cluster and where it can be reached.
	Spec ForeignClusterSpec `json:"spec"`
	// status is the observed state.
	// +optional
	Status ForeignClusterStatus `json:"status,omitempty"`
}

// ForeignClusterSpec is the identity of a cluster and where it can be reached.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterID) || has(self.joinToken)",message="identify the cluster by clusterID, or name the Secret with a token of it in joinToken"
// +kubebuilder:validation:XValidation:rule="!has(self.inBand) || (has(self.clusterID) && !has(self.joinToken) && (!has(self.endpoints) || self.endpoints.size() == 0))",message="in-band, a cluster is known by clusterID and reached through inBand.gateways: leave out joinToken and endpoints"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.clusterID) || (has(self.clusterID) && self.clusterID == oldSelf.clusterID)",message="a cluster's ID never changes; create another ForeignCluster"
type ForeignClusterSpec struct {
	// clusterID is the SHA-256 of the cluster's identity key, base32: the owner of the key is the cluster. The
	// agent takes it from the token if joinToken is set.
	// +optional
	// +kubebuilder:validation:Pattern=`^[a-z2-7]{32}$`
	ClusterID string `json:"clusterID,omitempty"`
	// joinToken names a Secret with a token that the cluster made. The agent redeems it once. It may be set before
	// the Secret exists.
	// +optional
	JoinToken *SecretKey `json:"joinToken,omitempty"`
	// decision is what an administrator decided about trusting the cluster. Approved trusts the cluster that proves
	// clusterID. Denied ends or prevents trust: it stays known as denied. Absent leaves it to tokens.
	// +optional
	Decision Decision `json:"decision,omitempty"`
	// approvedRequests is the IDs of this cluster's requests that an administrator approved, if the policy says
	// AfterApproval.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	ApprovedRequests []string `json:"approvedRequests,omitempty"`
	// deniedRequests is the IDs of the requests that an administrator refused.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	DeniedRequests []string `json:"deniedRequests,omitempty"`
	// endpoints is where its peer API can be dialled, as host:port, best first. Empty if only the other side can
	// dial.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=261
	Endpoints []string `json:"endpoints,omitempty"`
	// inBand runs the peer API inside the tunnel, so that only WireGuard's UDP passes between the two clusters. It
	// is what `entente network parameters` prints at the peer, whose administrator needs this cluster's parameters.
	// Absent means that the peer API is dialled at endpoints.
	// +optional
	InBand *InBand `json:"inBand,omitempty"`
	// transit is the third clusters to and from which packets pass. Absent means none.
	// +optional
	Transit *Transit `json:"transit,omitempty"`
	// trustBundle is the peer's root certificates, PEM. It is public; joining decides to trust it. Absent means
	// known but not trusted.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	TrustBundle string `json:"trustBundle,omitempty"`
}

// Transit is the third clusters to and from which packets pass. What passes is between pods of the cluster in
// between that run in the two others, as far as its Services open it.
type Transit struct {
	// passTo is the IDs of peers whose pods of this cluster may exchange packets with those in this peer, through
	// this cluster. All three have to agree: the two name each other in through, and this cluster both in passTo.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^[a-z2-7]{32}$`
	PassTo []string `json:"passTo,omitempty"`
	// through is the IDs of clusters whose pods exchange packets with this cluster's pods through the peer, if the
	// peer passes them on. The peer's own pods in both do so directly where the two peer with each other.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Pattern=`^[a-z2-7]{32}$`
	Through []string `json:"through,omitempty"`
}

// InBand is the peer's end of a tunnel that exists before the two agents have a session. It has no secret.
type InBand struct {
	// exchangeKey is the peer's Curve25519 public key, base64. From it and from its own
	// secret each side derives the same preshared key for the tunnel.
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$`
	ExchangeKey string `json:"exchangeKey"`
	// gateways is the peer's nodes with WireGuard. Once the peer has connected, its own announcement counts; if
	// both list a gateway, the endpoints of both are used.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(g, self.exists_one(h, h.publicKey == g.publicKey))",message="two gateways have the same publicKey"
	Gateways []InBandGateway `json:"gateways"`
}

// InBandGateway is a node of the peer with WireGuard.
type InBandGateway struct {
	// name is the node's name, from which its address inside the tunnel follows.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// publicKey is its Curve25519 public key, base64.
	// +kubebuilder:validation:MaxLength=44
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$`
	PublicKey string `json:"publicKey"`
	// endpoints is where it listens, as host:port, best first. Empty if it can only dial this cluster.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=261
	// +kubebuilder:validation:items:Pattern=`^.+:[1-9][0-9]{0,4}$`
	Endpoints []string `json:"endpoints,omitempty"`
}

// SecretKey names a key of a Secret in the agent's namespace.
type SecretKey struct {
	// name is the Secret's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// key is the key in it. Empty means token for joinToken, and secret for a group.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Key string `json:"key,omitempty"`
}

// Decision is what an administrator decided about trusting a cluster.
// +kubebuilder:validation:Enum=Approved;Denied
type Decision string

// The decisions.
const (
	DecisionApproved Decision = "Approved"
	DecisionDenied   Decision = "Denied"
)

// Role is the role of a foreign cluster in the contracts with this one.
// +kubebuilder:validation:Enum=None;Provider;Consumer;ProviderAndConsumer
type Role string

// The roles.
const (
	RoleNone                Role = "None"
	RoleProvider            Role = "Provider"
	RoleConsumer            Role = "Consumer"
	RoleProviderAndConsumer Role = "ProviderAndConsumer"
)

// Condition types of a ForeignCluster, one for each hop.
const (
	// ConditionTrusted: the two clusters trust each other.
	ConditionTrusted = "Trusted"
	// ConditionConnected: a session to the peer's agent is up.
	ConditionConnected = "Connected"
	// ConditionNetwork: traffic was seen to pass through the tunnel, and pods on all Ready nodes of this cluster
	// reach the peer. With the reason ReasonNodesCutOff traffic passes, and not from all nodes.
	ConditionNetwork = "Network"
	// ConditionOffloading: a contract is in force and its virtual node is ready.
	ConditionOffloading = "Offloading"
	// ConditionImpostor: discovery finds a cluster that is not trusted with the name or address of one that is. It
	// is absent otherwise.
	ConditionImpostor = "Impostor"
	// ConditionInBand: the tunnel that carries the peer API is up. It is absent if the peer is not in-band.
	ConditionInBand = "InBand"
	// ConditionCertificateValid: the root certificate of a trusted peer is valid for a while.
	ConditionCertificateValid = "CertificateValid"
)

// Reasons of conditions of a ForeignCluster that tools distinguish.
const (
	// ReasonAwaitingApproval: Trusted is False until an administrator compares the codes.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonJoining: Trusted is False while a token is being redeemed.
	ReasonJoining = "Joining"
	// ReasonProviding: Offloading is True by a contract that lets the peer run pods here, and by none
	// that has a virtual node.
	ReasonProviding = "Providing"
	// ReasonTunnelNotRequired: Network is False because no contract requires a tunnel.
	ReasonTunnelNotRequired = "TunnelNotRequired"
	// ReasonNodesCutOff: Network is False because pods on some nodes of this cluster do not reach
	// the peer. Those on others do.
	ReasonNodesCutOff = "NodesCutOff"
	// ReasonPodsOutsidePrefixes: Network is True, and pods of this cluster have addresses outside of the prefixes
	// that are announced to peers.
	ReasonPodsOutsidePrefixes = "PodsOutsidePrefixes"
	// ReasonPodsUnreachable: Network is False because packets, or large ones, from pods on some nodes
	// of this cluster to pods on some nodes of the peer are lost. Others pass.
	ReasonPodsUnreachable = "PodsUnreachable"
	// ReasonNoContract: Offloading, or Imported of an ImportedService, is False because no contract
	// is in force for it.
	ReasonNoContract = "NoContract"
	// ReasonClocksDiffer: Connected is True, and the clocks are too far apart.
	ReasonClocksDiffer = "ClocksDiffer"
	// ReasonRootExpiresSoon: CertificateValid is True, and will not be in 30 days.
	ReasonRootExpiresSoon = "RootExpiresSoon"
)

// ForeignClusterStatus is the observed state of a foreign cluster.
type ForeignClusterStatus struct {
	// role is the role of the peer in the contracts in force.
	// +optional
	Role Role `json:"role,omitempty"`
	// granted is the resources of the contracts in force with the peer, for users: what it provides to this cluster
	// or, if it is a consumer, what this cluster provides to it. If it is both, a slash separates the two, in this
	// order. The Contracts have the amounts.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Granted string `json:"granted,omitempty"`
	// used is how much of that pods request, for users: the percentage of the most used resource, in steps of 5.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Used string `json:"used,omitempty"`
	// conditions has one condition for each hop: InBand, if the peer is in-band, then Trusted, Connected, Network,
	// Offloading.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// protocol is the newest protocol revision that the peer supports.
	// +optional
	Protocol int32 `json:"protocol,omitempty"`
	// network is the peer's end of the tunnel, as it announced last.
	// +optional
	Network *PeerNetwork `json:"network,omitempty"`
	// aliases is, for each prefix of the peer, the alias under which this cluster
	// knows it. An alias stays as long as the prefix is announced.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Aliases []PrefixAlias `json:"aliases,omitempty"`
	// presharedKey is which preshared key the tunnel to the peer has; absent if there is none.
	// +optional
	PresharedKey *PresharedKeyStatus `json:"presharedKey,omitempty"`
	// aliasBlocks is, for addresses that the peer named one by one because their prefix has
	// no alias, the aliases under which this cluster knows them. An alias stays as long as
	// the address is named, and for a while after that.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	AliasBlocks []AliasBlock `json:"aliasBlocks,omitempty"`
	// contracts is what the peer last reported of the contracts with it.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Contracts []PeerContract `json:"contracts,omitempty"`
	// source is how the cluster came to be known.
	// +optional
	Source Source `json:"source,omitempty"`
	// sightings is where discovery finds the cluster now. Only joining proves that it is there.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Sightings []Sighting `json:"sightings,omitempty"`
	// introduction is what an untrusted cluster sent of itself; it lapses.
	// +optional
	Introduction *Introduction `json:"introduction,omitempty"`
	// session is the connection to the peer's agent; absent if there is none.
	// +optional
	Session *PeerSession `json:"session,omitempty"`
	// bundleHash is the SHA-256 of this cluster's trust bundle as the peer has it, hexadecimal.
	// +optional
	BundleHash string `json:"bundleHash,omitempty"`
	// offer is what the peer offers this cluster, by its last message.
	// +optional
	Offer *Offer `json:"offer,omitempty"`
	// requests is what the peer asks for and an administrator has to approve, by adding its ID to
	// spec.approvedRequests or spec.deniedRequests.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +listType=map
	// +listMapKey=id
	Requests []PendingRequest `json:"requests,omitempty"`
	// droppedRequests is the IDs of the last requests that no longer wait, because the peer did not repeat them, asked for something
	// else, or got a contract. No other request gets such an ID, so an approval that comes late approves nothing else.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=64
	DroppedRequests []string `json:"droppedRequests,omitempty"`
}

// Sighting is one place where discovery finds a cluster.
type Sighting struct {
	// source is LAN or DNS.
	// +kubebuilder:validation:Enum=LAN;DNS
	Source Source `json:"source"`
	// location is the network interface or the domain.
	// +kubebuilder:validation:MaxLength=253
	Location string `json:"location"`
	// node is the node whose interface it is; absent for a domain.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// name is the name that the cluster gives itself there.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name,omitempty"`
	// endpoints is the published addresses of its peer API, as host:port.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=261
	Endpoints []string `json:"endpoints,omitempty"`
	// lastSeenTime is when it was published last, to within five minutes.
	LastSeenTime metav1.Time `json:"lastSeenTime"`
}

// Source is how a cluster came to be known.
// +kubebuilder:validation:Enum=Token;Introduction;Manual;LAN;DNS
type Source string

// How a cluster came to be known.
const (
	// SourceToken: by a token that one of the two made.
	SourceToken Source = "Token"
	// SourceIntroduction: it, or this cluster, introduced itself.
	SourceIntroduction Source = "Introduction"
	// SourceManual: a user wrote its ForeignCluster.
	SourceManual Source = "Manual"
	// SourceLAN: it announces itself on a network of this cluster's nodes.
	SourceLAN Source = "LAN"
	// SourceDNS: a domain lists it.
	SourceDNS Source = "DNS"
)

// Introduction is what a cluster that is not trusted sent of itself.
type Introduction struct {
	// time is when it was sent.
	Time metav1.Time `json:"time"`
	// code is the short authentication string: compare it with the other side's
	// before you approve. Absent until both random numbers are known.
	// +optional
	Code string `json:"code,omitempty"`
	// name is the name that it gives itself.
	// +optional
	Name string `json:"name,omitempty"`
	// bundle is its root certificates, PEM, which were proven to belong to clusterID.
	// +kubebuilder:validation:MaxLength=32768
	Bundle string `json:"bundle"`
}

// PeerSession is the connection to a peer's agent.
type PeerSession struct {
	// dialled says whether this side dialled.
	Dialled bool `json:"dialled"`
	// endpoint is the endpoint in use; absent if the peer dialled, or in-band.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`
	// inBand says that it runs inside the tunnel.
	// +optional
	InBand bool `json:"inBand,omitempty"`
	// through is the name here of the third peer that carries the session, or its cluster ID, if neither agent can
	// dial the other. Absent means none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Through string `json:"through,omitempty"`
	// since is when it came up.
	Since metav1.Time `json:"since"`
	// clockSkew is how far the peer's clock is ahead of this one's, in whole seconds. It is known if this side
	// dialled.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	ClockSkew *metav1.Duration `json:"clockSkew,omitempty"`
	// roundTrip is the round trip of a probe of the session, rounded so that it does not change with each.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	RoundTrip *metav1.Duration `json:"roundTrip,omitempty"`
	// certificateNotAfter is when the certificate that the peer presented ends.
	// +optional
	CertificateNotAfter *metav1.Time `json:"certificateNotAfter,omitempty"`
}

// Offer is what a peer offers this cluster. It binds neither side.
type Offer struct {
	// available says whether a request would get an offer at all.
	Available bool `json:"available"`
	// message says why not.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// resources is the amounts.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// price is what they cost.
	// +optional
	Price *PriceList `json:"price,omitempty"`
	// nodeLabels are the labels that all its nodes have.
	// +optional
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// architectures are the architectures of its nodes.
	// +optional
	Architectures []string `json:"architectures,omitempty"`
	// storageClasses are the storage classes that it has.
	// +optional
	StorageClasses []string `json:"storageClasses,omitempty"`
	// duration is the longest duration of a contract.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
	// services is the peer's Services that this cluster may import, by namespace and name. They are listed whether
	// or not resources are available. This version lists them; importing one, that is, an object here that reaches
	// it, is not part of it yet.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=256
	Services []OfferedService `json:"services,omitempty"`
	// pools is the pools of the peer's nodes that a PeeringRequest can name. They are listed whether or not
	// resources are available to a request that names none.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Pools []OfferedPool `json:"pools,omitempty"`
	// observedAt is when it last changed.
	ObservedAt metav1.Time `json:"observedAt"`
}

// OfferedPool is what a peer offers of one pool of its nodes.
type OfferedPool struct {
	// name is the name for PeeringRequests.
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name"`
	// resources is the amounts; absent while nothing is left.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// price is what they cost.
	// +optional
	Price *PriceList `json:"price,omitempty"`
	// nodeLabels are labels that a virtual node of it would have.
	// +optional
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
}

// OfferedPools returns the names of the pools that have something to offer, and an empty name if
// requests that name no pool are offered something.
func (o *Offer) OfferedPools() []string {
	var out []string
	if o == nil {
		return out
	}
	if o.Available {
		out = append(out, "")
	}
	for _, p := range o.Pools {
		if len(p.Resources) > 0 {
			out = append(out, p.Name)
		}
	}
	return out
}

// OfferedService is a Service of a peer that this cluster may import, in the terms of the Multi-Cluster Services
// API (KEP-1645).
type OfferedService struct {
	// namespace is its namespace in the peer.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name is its name there.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// type says whether the Service has one address for all its pods, or its name resolves to the addresses of
	// each.
	Type OfferedServiceType `json:"type"`
	// ports is the ports that it listens on. A headless one may have none.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Ports []OfferedServicePort `json:"ports,omitempty"`
}

// OfferedServiceType is how a Service is reached.
// +kubebuilder:validation:Enum=ClusterSetIP;Headless
type OfferedServiceType string

// How a Service is reached.
const (
	// ServiceClusterSetIP has one address for all its pods.
	ServiceClusterSetIP OfferedServiceType = "ClusterSetIP"
	// ServiceHeadless has none of its own: its name resolves to its pods' addresses.
	ServiceHeadless OfferedServiceType = "Headless"
)

// OfferedServicePort is a port of an offered Service.
type OfferedServicePort struct {
	// name is the port's name; absent if it is the only port and has none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`
	// protocol is TCP, UDP or SCTP.
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol"`
	// appProtocol is the application's protocol, as the Service names it.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	AppProtocol string `json:"appProtocol,omitempty"`
	// port is the port's number.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// PendingRequest is what a peer asks for and an administrator has to approve.
type PendingRequest struct {
	// id is the request's ID.
	// +kubebuilder:validation:MaxLength=64
	ID string `json:"id"`
	// resources is what is asked for; absent means all that the policy offers.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// duration is how long the contract should last.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
	// priceCeiling is the most that it may cost an hour.
	// +optional
	PriceCeiling *Money `json:"priceCeiling,omitempty"`
	// pool is the requested pool of this cluster's nodes.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Pool string `json:"pool,omitempty"`
	// nodeSelector is the labels of the requested nodes.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// network is Tunnel or None.
	// +optional
	Network NetworkMode `json:"network,omitempty"`
	// runtimeClasses is the runtime classes that pods will name.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	RuntimeClasses []string `json:"runtimeClasses,omitempty"`
	// storageClasses is the requested storage classes.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	StorageClasses []string `json:"storageClasses,omitempty"`
	// time is when it was first asked.
	Time metav1.Time `json:"time"`
}

// PeerContract is the peer's report of a contract.
type PeerContract struct {
	// id is the contract's ID.
	ID string `json:"id"`
	// revision is the revision that the peer has.
	Revision int64 `json:"revision"`
	// phase is its state at the peer: Active, Draining or Closed.
	Phase string `json:"phase"`
	// message is why it is draining or closed.
	// +optional
	Message string `json:"message,omitempty"`
	// drainUntil is when draining ends.
	// +optional
	DrainUntil *metav1.Time `json:"drainUntil,omitempty"`
	// statementSequence is the sequence number of the provider's newest statement of use.
	// +optional
	StatementSequence int64 `json:"statementSequence,omitempty"`
}

// PeerNetwork is the peer's end of the tunnel.
type PeerNetwork struct {
	// gateways is the peer's nodes with WireGuard.
	// +kubebuilder:validation:MaxItems=64
	Gateways []Gateway `json:"gateways,omitempty"`
	// nodes is other nodes of the peer, with WireGuard for their own pods only.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Nodes []Gateway `json:"nodes,omitempty"`
	// prefixes is the peer's pod prefixes, as it uses them itself.
	// +kubebuilder:validation:MaxItems=16
	Prefixes []string `json:"prefixes,omitempty"`
	// aliases is, for each prefix of this cluster, the alias under which the peer
	// knows it.
	// +kubebuilder:validation:MaxItems=16
	Aliases []PrefixAlias `json:"aliases,omitempty"`
	// addresses is the peer's addresses that need an alias each, as it uses them itself: those that no alias of
	// this cluster covers, and with which flows are allowed.
	// +optional
	// +kubebuilder:validation:MaxItems=4096
	Addresses []string `json:"addresses,omitempty"`
	// aliasBlocks is the aliases under which the peer knows such addresses of this cluster.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	AliasBlocks []AliasBlock `json:"aliasBlocks,omitempty"`
	// transit is addresses of third clusters that this one may reach through the peer, as the
	// peer knows them.
	// +optional
	// +listType=map
	// +listMapKey=clusterID
	// +kubebuilder:validation:MaxItems=16
	Transit []TransitAddresses `json:"transit,omitempty"`
	// through is the IDs of the clusters that the peer agrees to reach, and to be reached by,
	// through this one.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	Through []string `json:"through,omitempty"`
	// direct is the IDs of those clusters of through with which the peer peers itself.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	Direct []string `json:"direct,omitempty"`
	// opened is the addresses of pods, as the peer uses them itself, that it runs for third clusters, and that pods
	// which this cluster runs for them reach directly. Each clusterID is that of the pods' home.
	// +optional
	// +listType=map
	// +listMapKey=clusterID
	// +kubebuilder:validation:MaxItems=16
	Opened []TransitAddresses `json:"opened,omitempty"`
	// running is the addresses of pods, as the peer uses them itself, that it runs for third clusters: only to these
	// are pods opened that this cluster runs for them. Each clusterID is that of the pods' home.
	// +optional
	// +listType=map
	// +listMapKey=clusterID
	// +kubebuilder:validation:MaxItems=16
	Running []TransitAddresses `json:"running,omitempty"`
	// observations is where the peer sees gateways of this cluster that address
	// translation hides.
	// +optional
	// +listType=map
	// +listMapKey=publicKey
	// +kubebuilder:validation:MaxItems=64
	Observations []Observation `json:"observations,omitempty"`
	// ownAddress is where the peer sees this cluster's end of the session between the
	// agents.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	OwnAddress string `json:"ownAddress,omitempty"`
	// inBandHash is a hash of spec.inBand at the time of this announcement. What was written there since takes
	// precedence over the announcement.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	InBandHash string `json:"inBandHash,omitempty"`
}

// TransitAddresses is addresses of a third cluster.
type TransitAddresses struct {
	// clusterID is the ID of the third cluster.
	// +kubebuilder:validation:MaxLength=32
	ClusterID string `json:"clusterID"`
	// addresses is its addresses, as they are known in the cluster in between.
	// +kubebuilder:validation:MaxItems=4096
	Addresses []string `json:"addresses"`
	// namespaces is where those of the addresses are that may be reached directly.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Namespaces []TransitNamespace `json:"namespaces,omitempty"`
}

// TransitNamespace is all pods of one namespace of the cluster in between that run in a third cluster.
type TransitNamespace struct {
	// name is the namespace's name in the cluster in between.
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// addresses is the pods' addresses, as they are known in the cluster in between.
	// +kubebuilder:validation:MaxItems=1024
	Addresses []string `json:"addresses"`
	// podAddresses is, for each of addresses, the one that the pod has in the third cluster.
	// +kubebuilder:validation:MaxItems=1024
	PodAddresses []string `json:"podAddresses"`
}

// AliasBlock is aliases of single addresses, which follow each other.
type AliasBlock struct {
	// alias is the prefix that they fill.
	// +kubebuilder:validation:MaxLength=49
	Alias string `json:"alias"`
	// addresses is the address for each alias in the prefix, in their order, as its owner uses it. An empty one is
	// unused.
	// +kubebuilder:validation:MaxItems=64
	Addresses []string `json:"addresses"`
	// released is the aliases that are no longer used: they are not assigned to another address for a while.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Released []ReleasedAlias `json:"released,omitempty"`
}

// ReleasedAlias is an alias that is no longer used.
type ReleasedAlias struct {
	// index is its place in the block.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=63
	Index int32 `json:"index"`
	// time is when it was released.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$`
	Time metav1.Time `json:"time"`
}

// Observation is where a gateway of this cluster is seen.
type Observation struct {
	// publicKey is the gateway's Curve25519 public key, base64.
	// +kubebuilder:validation:MaxLength=44
	PublicKey string `json:"publicKey"`
	// endpoint is the source of its packets, as address:port.
	// +kubebuilder:validation:MaxLength=64
	Endpoint string `json:"endpoint"`
	// since is when the peer first reported it.
	Since metav1.Time `json:"since"`
}

// Gateway is a node with WireGuard tunnels to other clusters.
type Gateway struct {
	// name is the node's name.
	Name string `json:"name"`
	// publicKey is its Curve25519 public key, base64.
	// +kubebuilder:validation:MaxLength=44
	PublicKey string `json:"publicKey"`
	// nextPublicKey is the key that is about to replace publicKey, base64.
	// +optional
	// +kubebuilder:validation:MaxLength=44
	NextPublicKey string `json:"nextPublicKey,omitempty"`
	// endpoints is where it listens, as host:port, best first.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Endpoints []string `json:"endpoints,omitempty"`
	// overlayAddress is its IPv6 address inside the tunnel.
	OverlayAddress string `json:"overlayAddress"`
	// podCIDRs is the prefixes of pods on it that nodes of the other cluster reach directly.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// probeAddresses is its own addresses among its pods', at most one of each family, as its cluster uses them.
	// End-to-end probes are sent and answered there.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	ProbeAddresses []string `json:"probeAddresses,omitempty"`
	// observedEndpoints is where other clusters see it, as address:port: on the outside of an
	// address translation. They are dialled after endpoints.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MaxLength=64
	ObservedEndpoints []string `json:"observedEndpoints,omitempty"`
}

// PresharedKeyStatus is which preshared key a tunnel has. The keys are in the Secret
// "entente-fabric".
type PresharedKeyStatus struct {
	// number counts the keys with the peer, in order: 0 is the first.
	Number int64 `json:"number"`
	// since is when this one was first used.
	Since metav1.Time `json:"since"`
	// rotationStartTime is since when it is being replaced by the next one: because of its age,
	// because of the annotation entente.dev/rotate-key, or because the peer wants it.
	// +optional
	RotationStartTime *metav1.Time `json:"rotationStartTime,omitempty"`
	// nextStored says that the next key is known and stored for the gateways.
	// +optional
	NextStored bool `json:"nextStored,omitempty"`
	// message is what the next key waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// PrefixAlias is another name for a prefix, of the same length.
type PrefixAlias struct {
	// prefix is the prefix as its owner uses it.
	Prefix string `json:"prefix"`
	// alias is the prefix as the other side uses it; empty if that side knows it address by address.
	// +optional
	Alias string `json:"alias,omitempty"`
}

// ForeignClusterList is a list of ForeignClusters.
//
// +kubebuilder:object:root=true
type ForeignClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ForeignCluster `json:"items"`
}

// NameConfirmed reports whether an administrator chose the name of a ForeignCluster, by writing it, by naming it in
// a join or an introduction, or by the annotation.
func (fc *ForeignCluster) NameConfirmed() bool {
	return fc.Labels[LabelManaged] != Manager || fc.Annotations[AnnotationNameConfirmed] == "true"
}

// Hint reports whether a ForeignCluster exists only because discovery found it: it is not decided yet, and did not
// introduce itself.
func (fc *ForeignCluster) Hint() bool {
	return fc.Labels[LabelManaged] == Manager && fc.Annotations[AnnotationDiscovered] == "true" && fc.Status.Introduction == nil &&
		fc.Spec.TrustBundle == "" && fc.Spec.Decision == "" && fc.Spec.JoinToken == nil
}

// TakeFromPolicy turns a policy's ForeignCluster into an administrator's. What the policy runs in a trusted one continues.
func (fc *ForeignCluster) TakeFromPolicy() {
	if fc.Spec.TrustBundle == "" {
		delete(fc.Labels, LabelNamespacesOf)
	}
	delete(fc.Labels, LabelAutomatic)
	delete(fc.Annotations, AnnotationAutomaticBy)
	delete(fc.Annotations, AnnotationAutomaticEnded)
}
