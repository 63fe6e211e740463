package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ForeignCluster is another cluster that is known here. Knowing is not trusting:
// trust is made by joining and shows in the Trusted condition.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fc,categories=entente
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.status.role`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Cluster-ID",type=string,JSONPath=`.spec.clusterID`,priority=1
// +kubebuilder:printcolumn:name="Connected",type=string,JSONPath=`.status.conditions[?(@.type=="Connected")].status`,priority=1
// +kubebuilder:printcolumn:name="Network",type=string,JSONPath=`.status.conditions[?(@.type=="Network")].status`,priority=1
// +kubebuilder:printcolumn:name="Offloading",type=string,JSONPath=`.status.conditions[?(@.type=="Offloading")].status`,priority=1
// +kubebuilder:printcolumn:name="Endpoints",type=string,JSONPath=`.spec.endpoints`,priority=1
type ForeignCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is who the cluster is and where it can be reached.
	Spec ForeignClusterSpec `json:"spec"`
	// status is what is so.
	// +optional
	Status ForeignClusterStatus `json:"status,omitempty"`
}

// ForeignClusterSpec is who a cluster is and where it can be reached.
type ForeignClusterSpec struct {
	// clusterID is the SHA-256 of the cluster's identity key, base32: whoever
	// holds the key is the cluster.
	// +kubebuilder:validation:Pattern=`^[a-z2-7]{32}$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a cluster's ID never changes; create another ForeignCluster"
	ClusterID string `json:"clusterID"`
	// endpoints is where its peer API can be dialled, as host:port, best first.
	// Empty when only the other side can dial.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=261
	Endpoints []string `json:"endpoints,omitempty"`
	// trustBundle is the peer's root certificates, PEM. It is public; trusting it
	// is what joining is about. Absent means known but not trusted.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	TrustBundle string `json:"trustBundle,omitempty"`
}

// Role is what a foreign cluster is to this one.
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
	// ConditionTrusted: the two clusters joined.
	ConditionTrusted = "Trusted"
	// ConditionConnected: a session to the peer's agent is up.
	ConditionConnected = "Connected"
	// ConditionNetwork: traffic was seen to pass through the tunnel.
	ConditionNetwork = "Network"
	// ConditionOffloading: a contract is in force and its virtual node is ready.
	ConditionOffloading = "Offloading"
)

// ForeignClusterStatus is what is so.
type ForeignClusterStatus struct {
	// role is what the peer is to this cluster, by the contracts in force.
	// +optional
	Role Role `json:"role,omitempty"`
	// conditions has one condition for each hop: Trusted, Connected, Network,
	// Offloading.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// protocol is the newest protocol revision that the peer speaks.
	// +optional
	Protocol int32 `json:"protocol,omitempty"`
	// network is the peer's end of the tunnel, as it last said.
	// +optional
	Network *PeerNetwork `json:"network,omitempty"`
	// aliases is, for each prefix of the peer, the alias under which this cluster
	// knows it. An alias stays as long as the prefix is announced.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	Aliases []PrefixAlias `json:"aliases,omitempty"`
	// contracts is what the peer last said of the contracts with it.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	Contracts []PeerContract `json:"contracts,omitempty"`
}

// PeerContract is the peer's word on a contract.
type PeerContract struct {
	// id is the contract's ID.
	ID string `json:"id"`
	// revision is the revision that the peer holds.
	Revision int64 `json:"revision"`
	// phase is the state it is in at the peer: Active, Draining or Closed.
	Phase string `json:"phase"`
	// message is why it is draining or closed.
	// +optional
	Message string `json:"message,omitempty"`
}

// PeerNetwork is the peer's end of the tunnel.
type PeerNetwork struct {
	// gateways is the peer's nodes that speak WireGuard.
	// +kubebuilder:validation:MaxItems=64
	Gateways []Gateway `json:"gateways,omitempty"`
	// prefixes is the peer's pod prefixes, as it uses them itself.
	// +kubebuilder:validation:MaxItems=16
	Prefixes []string `json:"prefixes,omitempty"`
	// aliases is, for each prefix of this cluster, the alias under which the peer
	// knows it.
	// +kubebuilder:validation:MaxItems=16
	Aliases []PrefixAlias `json:"aliases,omitempty"`
}

// Gateway is a node that speaks WireGuard to other clusters.
type Gateway struct {
	// name is the node's name.
	Name string `json:"name"`
	// publicKey is its Curve25519 public key, base64.
	// +kubebuilder:validation:MaxLength=44
	PublicKey string `json:"publicKey"`
	// endpoints is where it listens, as host:port, best first.
	// +optional
	// +kubebuilder:validation:MaxItems=8
	Endpoints []string `json:"endpoints,omitempty"`
	// overlay is its IPv6 address inside the tunnel.
	Overlay string `json:"overlay"`
}

// PrefixAlias is another name for a prefix, of the same length.
type PrefixAlias struct {
	// prefix is the prefix as its owner uses it.
	Prefix string `json:"prefix"`
	// alias is the prefix as the other side uses it.
	Alias string `json:"alias"`
}

// ForeignClusterList is a list of ForeignClusters.
//
// +kubebuilder:object:root=true
type ForeignClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ForeignCluster `json:"items"`
}
