package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// OffloadedPod is a consumer's pod that this provider runs. It has the pod's desired state, so that the pod
// outlives a consumer that is away, and its last status, so that a pod that ended is never run again.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=op,categories=entente
// +kubebuilder:printcolumn:name="Contract",type=string,JSONPath=`.spec.contract`
// +kubebuilder:printcolumn:name="Origin",type=string,JSONPath=`.spec.originNamespace`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.reason`
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.status.podIPs[0]`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type OffloadedPod struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the pod as the consumer wants it.
	Spec OffloadedPodSpec `json:"spec"`
	// status is its observed state.
	// +optional
	Status OffloadedPodStatus `json:"status,omitempty"`
}

// OffloadedPodSpec is the pod as the consumer wants it.
type OffloadedPodSpec struct {
	// contract is the contract by which it runs.
	Contract string `json:"contract"`
	// peerID is the consumer's cluster ID.
	PeerID string `json:"peerID"`
	// originNamespace is its namespace at home.
	OriginNamespace string `json:"originNamespace"`
	// originName is its name at home.
	OriginName string `json:"originName"`
	// originUID is its UID at home.
	OriginUID string `json:"originUID"`
	// hash is the hash with which the consumer applied it, hexadecimal.
	Hash string `json:"hash"`
	// template is the pod: labels, annotations and spec, in the provider's terms. It is atomic: otherwise each of its
	// fields would be in metadata.managedFields, too.
	// +mapType=atomic
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	Template runtime.RawExtension `json:"template"`
	// requests is what the pod uses of the contract.
	Requests corev1.ResourceList `json:"requests"`
}

// OffloadedPodStatus is the observed state of an offloaded pod.
type OffloadedPodStatus struct {
	// podUID is the UID of the pod that was created; it is created once.
	// +optional
	PodUID string `json:"podUID,omitempty"`
	// phase is the pod's last known phase. Succeeded and Failed are final.
	// +optional
	Phase corev1.PodPhase `json:"phase,omitempty"`
	// podIPs are the addresses of a pod that has not ended, by which the resolver of names knows the pod that asks.
	// +optional
	// +listType=atomic
	PodIPs []string `json:"podIPs,omitempty"`
	// podStatus is the pod's last status, kept when it ended.
	// +optional
	// +mapType=atomic
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:Schemaless
	PodStatus *runtime.RawExtension `json:"podStatus,omitempty"`
	// reason is why the pod could not be created, one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is the same for users.
	// +optional
	Message string `json:"message,omitempty"`
}

// OffloadedPodList is a list of OffloadedPods.
//
// +kubebuilder:object:root=true
type OffloadedPodList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OffloadedPod `json:"items"`
}
