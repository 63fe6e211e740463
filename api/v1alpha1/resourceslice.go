package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResourceSlice asks a foreign cluster for resources. As long as it exists this
// cluster wants them; deleting it ends the contract.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=eslice,categories=entente
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.foreignCluster`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the ask.
	Spec ResourceSliceSpec `json:"spec"`
	// status is what came of it.
	// +optional
	Status ResourceSliceStatus `json:"status,omitempty"`
}

// ResourceSliceSpec is the ask.
//
// +kubebuilder:validation:XValidation:rule="has(self.foreignCluster) != has(self.clusterSelector)",message="say who is asked either by foreignCluster or by clusterSelector"
// +kubebuilder:validation:XValidation:rule="has(self.foreignCluster) == has(oldSelf.foreignCluster) && (!has(self.foreignCluster) || self.foreignCluster == oldSelf.foreignCluster)",message="foreignCluster never changes; create another ResourceSlice"
type ResourceSliceSpec struct {
	// foreignCluster is the name of the ForeignCluster that is asked.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ForeignCluster string `json:"foreignCluster,omitempty"`
	// clusterSelector asks all trusted ForeignClusters with these labels, and takes
	// the cheapest offer that fits; of equal ones that of the nearest. When that
	// provider ends the contract, the next is taken.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// priceCeiling is the most that the whole may cost an hour. Absent is any price.
	// +optional
	PriceCeiling *Money `json:"priceCeiling,omitempty"`
	// renewal says whether the contract is renewed before its end, as long as the
	// provider does and the price stays below the ceiling.
	// +kubebuilder:default=Automatic
	// +optional
	Renewal Renewal `json:"renewal,omitempty"`
	// nodeSelector is labels that the provider's nodes must have: architecture, GPU
	// type, region.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nodeSelector never changes; create another ResourceSlice"
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
	// resources is what is asked for. Empty leaves it to the provider's policy.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// duration is for how long. Absent leaves it to the provider's terms.
	// +optional
	Duration *metav1.Duration `json:"duration,omitempty"`
	// network is Tunnel, or None for a peering without a tunnel.
	// +kubebuilder:validation:Enum=Tunnel;None
	// +kubebuilder:default=Tunnel
	// +optional
	Network NetworkMode `json:"network,omitempty"`
}

// NetworkMode is how two clusters' pods are joined.
type NetworkMode string

// How two clusters' pods are joined.
const (
	NetworkTunnel NetworkMode = "Tunnel"
	NetworkNone   NetworkMode = "None"
)

// ConditionAccepted tells of a ResourceSlice whether the provider accepted it.
const ConditionAccepted = "Accepted"

// ResourceSliceStatus is what came of the ask.
type ResourceSliceStatus struct {
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
	// foreignCluster is the name of the ForeignCluster that lends.
	// +optional
	ForeignCluster string `json:"foreignCluster,omitempty"`
	// observedGeneration is the generation of the spec that the contract fulfils.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// ResourceSliceList is a list of ResourceSlices.
//
// +kubebuilder:object:root=true
type ResourceSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceSlice `json:"items"`
}
