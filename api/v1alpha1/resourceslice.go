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
	// +kubebuilder:validation:XValidation:rule="self.foreignCluster == oldSelf.foreignCluster",message="foreignCluster never changes; create another ResourceSlice"
	Spec ResourceSliceSpec `json:"spec"`
	// status is what came of it.
	// +optional
	Status ResourceSliceStatus `json:"status,omitempty"`
}

// ResourceSliceSpec is the ask.
type ResourceSliceSpec struct {
	// foreignCluster is the name of the ForeignCluster that is asked.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ForeignCluster string `json:"foreignCluster"`
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
}

// ResourceSliceList is a list of ResourceSlices.
//
// +kubebuilder:object:root=true
type ResourceSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ResourceSlice `json:"items"`
}
