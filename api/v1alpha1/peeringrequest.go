package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PeeringRequest asks a foreign cluster for resources. As long as it exists this
// cluster wants them; deleting it ends the contract.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=preq,categories=entente
// +kubebuilder:printcolumn:name="Requested",type=string,JSONPath=`.spec.foreignCluster`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.status.foreignCluster`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.spec.resources.cpu`,priority=1
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.spec.resources.memory`,priority=1
// +kubebuilder:printcolumn:name="Contract",type=string,JSONPath=`.status.contract`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`,priority=1
type PeeringRequest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the request.
	Spec PeeringRequestSpec `json:"spec"`
	// status is its observed state.
	// +optional
	Status PeeringRequestStatus `json:"status,omitempty"`
}

// PeeringRequestSpec is the request.
//
// +kubebuilder:validation:XValidation:rule="has(self.foreignCluster) != has(self.clusterSelector)",message="choose the provider either by foreignCluster or by clusterSelector"
// +kubebuilder:validation:XValidation:rule="has(self.pool) == has(oldSelf.pool) && (!has(self.pool) || self.pool == oldSelf.pool)",message="pool never changes; create another PeeringRequest"
// +kubebuilder:validation:XValidation:rule="has(self.foreignCluster) == has(oldSelf.foreignCluster) && (!has(self.foreignCluster) || self.foreignCluster == oldSelf.foreignCluster)",message="foreignCluster never changes; create another PeeringRequest"
type PeeringRequestSpec struct {
	// foreignCluster is the name of the ForeignCluster that is asked.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ForeignCluster string `json:"foreignCluster,omitempty"`
	// clusterSelector asks all trusted ForeignClusters with these labels, and takes the cheapest offer that fits;
	// of equal ones that of the nearest. When that provider ends the contract, the next is asked.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// priceCeiling is the most that the whole may cost an hour. Absent means any price for the first contract with
	// a provider, and for later ones with it at most the price agreed then, resource by resource.
	// +optional
	PriceCeiling *Money `json:"priceCeiling,omitempty"`
	// renewal says whether the contract is renewed before its end, as long as the provider renews it and the price
	// stays below the ceiling.
	// +kubebuilder:default=Automatic
	// +optional
	Renewal Renewal `json:"renewal,omitempty"`
	// pool is the requested pool of the provider's nodes, which it offers on terms of their own. Absent means the
	// pool that is named default, or all nodes if the provider has no pools. To use several pools, create a
	// PeeringRequest for each: each has a virtual node.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Pool string `json:"pool,omitempty"`
	// nodeSelector is labels that the provider's nodes must have: architecture, GPU
	// type, region.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeSelector never changes; create another PeeringRequest"
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// storageClasses is the storage classes that the provider must have.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	StorageClasses []string `json:"storageClasses,omitempty"`
	// runtimeClasses is the runtime classes that the provider must have.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	RuntimeClasses []string `json:"runtimeClasses,omitempty"`
	// resources is what is asked for. Empty leaves it to the provider's policy. If pods are not named, the provider
	// grants the same share of its pods as of the rest. A contract in force keeps what is not named here; 0 returns
	// all of a resource.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(r, type(self[r]) == int ? self[r] >= 0 : size(self[r]) <= 20 && !self[r].startsWith('-') && ![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].exists(i, i + 1 < size(self[r]) && self[r].charAt(i) in ['e', 'E'] && self[r].charAt(i + 1) != 'i'))",message="an amount is a number of Kubernetes without an exponent, such as 500m, 2 or 4Gi, and not below zero"
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// duration is how long the contract should last. Absent leaves it to the provider's terms, which are not
	// accepted below 5 minutes.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ms|s|m|h))+)$') && duration(self) >= duration('1s') && duration(self) <= duration('87840h')",message="it is from 1s to 87840h, in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
	// network is Tunnel, or None for a peering without a tunnel.
	// +kubebuilder:validation:Enum=Tunnel;None
	// +kubebuilder:default=Tunnel
	// +optional
	Network NetworkMode `json:"network,omitempty"`
}

// NetworkMode is how two clusters' pods are connected.
type NetworkMode string

// How two clusters' pods are connected.
const (
	NetworkTunnel NetworkMode = "Tunnel"
	NetworkNone   NetworkMode = "None"
)

// ConditionAccepted is the condition of a PeeringRequest that the provider accepted it.
const ConditionAccepted = "Accepted"

// PeeringRequestStatus is the observed state of a request.
type PeeringRequestStatus struct {
	// conditions has Accepted: whether there is a contract, or why not.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// contract is the name of the Contract.
	// +optional
	Contract string `json:"contract,omitempty"`
	// node is the name of the virtual node.
	// +optional
	Node string `json:"node,omitempty"`
	// foreignCluster is the name of the ForeignCluster that is the provider, or is asked.
	// +optional
	ForeignCluster string `json:"foreignCluster,omitempty"`
	// agreed is the last agreed price, and with which provider. Without a price ceiling the same provider gets no
	// more.
	// +optional
	Agreed *AgreedPrice `json:"agreed,omitempty"`
	// observedGeneration is the generation of the spec that the contract fulfils.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// AgreedPrice is the price of the newest contract.
type AgreedPrice struct {
	// clusterID is the ID of the provider.
	ClusterID string `json:"clusterID"`
	// price is what use costs; absent means free.
	// +optional
	Price *PriceList `json:"price,omitempty"`
}

// PeeringRequestList is a list of PeeringRequests.
//
// +kubebuilder:object:root=true
type PeeringRequestList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PeeringRequest `json:"items"`
}
