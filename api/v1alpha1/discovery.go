package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeDiscovery is the discovery of clusters on the LANs of one node, by Multicast DNS.
// It has the name of its node. The agent creates one for the node that is the gateway;
// without it the fabric of a node neither listens nor sends. What is found there is a hint: nothing on a LAN is
// proven.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nd,categories=entente
// +kubebuilder:printcolumn:name="Published",type=string,JSONPath=`.spec.publish.instance`
// +kubebuilder:printcolumn:name="Interfaces",type=string,JSONPath=`.status.interfaces`
// +kubebuilder:printcolumn:name="Seen",type=date,JSONPath=`.status.observedAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Not-Published",type=string,JSONPath=`.spec.notPublishedMessage`,priority=1
// +kubebuilder:printcolumn:name="Problem",type=string,JSONPath=`.status.problems[0]`,priority=1
type NodeDiscovery struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what the agent asks of the node.
	// +optional
	Spec NodeDiscoverySpec `json:"spec,omitempty"`
	// status is what the fabric on the node reports.
	// +optional
	Status NodeDiscoveryStatus `json:"status,omitempty"`
}

// NodeDiscoverySpec is what the agent asks of the node.
type NodeDiscoverySpec struct {
	// interfaces is the network interfaces in use, by name; one that ends in * matches all with that prefix.
	// Default: all except those whose names show that they lead to containers, virtual machines or tunnels.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=16
	Interfaces []string `json:"interfaces,omitempty"`
	// preferredClusterIDs is the IDs of clusters that come first in status.clusters, whatever else is on the LAN:
	// those that policies list under spec.automatic.clusterIDs, and those that an administrator decided about.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:items:Pattern=`^[a-z2-7]{32}$`
	PreferredClusterIDs []string `json:"preferredClusterIDs,omitempty"`
	// publish is what the node publishes of this cluster. Without it the node only discovers others.
	// +optional
	Publish *PublishedCluster `json:"publish,omitempty"`
	// notPublishedMessage is why there is nothing to publish, and what to do about it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	NotPublishedMessage string `json:"notPublishedMessage,omitempty"`
}

// PublishedCluster is a cluster as a service of DNS-SD (RFC 6763).
type PublishedCluster struct {
	// instance is the name of the service that users see. If another one on the LAN has it, a number is added.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Instance string `json:"instance"`
	// host is the host name that the addresses belong to, without ".local".
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:MaxLength=63
	Host string `json:"host"`
	// port is the port of the peer API.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
	// addresses is where the peer API can be dialled.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a))",message="addresses are IP addresses"
	Addresses []string `json:"addresses"`
	// clusterID is this cluster's ID.
	// +kubebuilder:validation:Pattern=`^[a-z2-7]{32}$`
	// +kubebuilder:validation:MaxLength=32
	ClusterID string `json:"clusterID"`
	// name is the name that this cluster gives itself.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name,omitempty"`
	// api is the protocol revisions that it supports, as "1" or "1-2".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	API string `json:"api,omitempty"`
	// fingerprint is the first 16 hexadecimal digits of the SHA-256 of its trust
	// bundle.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Fingerprint string `json:"fingerprint,omitempty"`
	// automatic publishes it as one that peers by policy, without being asked.
	// +optional
	Automatic bool `json:"automatic,omitempty"`
}

// NodeDiscoveryStatus is what the fabric on the node reports.
type NodeDiscoveryStatus struct {
	// interfaces is the network interfaces in use.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=15
	Interfaces []string `json:"interfaces,omitempty"`
	// clusters is the clusters that others publish there.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Clusters []DiscoveredCluster `json:"clusters,omitempty"`
	// problems is what is wrong on this node, and what to do next.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	Problems []string `json:"problems,omitempty"`
	// since is when the fabric began to listen: in the first seconds not all clusters have responded yet. It is
	// absent while the fabric cannot listen.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// observedAt is when the fabric last wrote this. It writes at least each minute.
	// +optional
	ObservedAt metav1.Time `json:"observedAt,omitempty"`
}

// DiscoveredCluster is a cluster that is published on a LAN.
type DiscoveredCluster struct {
	// interface is the network interface that it was found on.
	// +kubebuilder:validation:MaxLength=15
	Interface string `json:"interface"`
	// clusterID is the ID that it claims.
	// +kubebuilder:validation:Pattern=`^[a-z2-7]{32}$`
	// +kubebuilder:validation:MaxLength=32
	ClusterID string `json:"clusterID"`
	// name is the name that it gives itself.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Name string `json:"name,omitempty"`
	// endpoints is the published addresses of its peer API, as address:port.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=53
	Endpoints []string `json:"endpoints"`
	// automatic says that it publishes that it peers by policy, without being asked.
	// +optional
	Automatic bool `json:"automatic,omitempty"`
}

// NodeDiscoveryList is a list of NodeDiscoveries.
//
// +kubebuilder:object:root=true
type NodeDiscoveryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodeDiscovery `json:"items"`
}
