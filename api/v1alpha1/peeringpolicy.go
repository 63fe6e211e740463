package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PeeringPolicy says what this cluster lends, to whom, how much and on what
// terms. Without one that accepts a peer, nothing is lent to it. Where several
// match, the one whose name sorts first decides.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=pp,categories=entente
// +kubebuilder:printcolumn:name="Accept",type=string,JSONPath=`.spec.accept`
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.spec.limits.percentOfFree`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PeeringPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the policy.
	Spec PeeringPolicySpec `json:"spec"`
}

// Acceptance is what happens to a request.
// +kubebuilder:validation:Enum=Automatic;Never
type Acceptance string

// What happens to a request.
const (
	AcceptAutomatic Acceptance = "Automatic"
	AcceptNever     Acceptance = "Never"
)

// PodSecurityLevel is a level of the Pod Security Standards.
// +kubebuilder:validation:Enum=privileged;baseline;restricted
type PodSecurityLevel string

// PeeringPolicySpec is the policy.
type PeeringPolicySpec struct {
	// clusterSelector selects ForeignClusters by their labels. Absent selects all
	// that are trusted.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// accept says what happens to a request from a selected cluster.
	// +kubebuilder:default=Automatic
	Accept Acceptance `json:"accept,omitempty"`
	// limits is the most that is lent.
	// +optional
	Limits PolicyLimits `json:"limits,omitempty"`
	// contractDuration is how long a contract lasts.
	// +kubebuilder:default="8760h"
	// +optional
	ContractDuration *metav1.Duration `json:"contractDuration,omitempty"`
	// podSecurity is the Pod Security level that offloaded pods have to meet.
	// +kubebuilder:default=baseline
	// +optional
	PodSecurity PodSecurityLevel `json:"podSecurity,omitempty"`
	// sameNamespaces is the names that a consumer's namespaces may have here
	// unchanged (nameMapping Same). None by default: a namespace's name is part of
	// what this cluster's other pods resolve.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	SameNamespaces []string `json:"sameNamespaces,omitempty"`
	// nodeLabels are shown on the consumer's virtual node, besides architecture
	// and operating system.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
}

// PolicyLimits is the most that is lent. Of amounts and percentage the smaller
// counts.
type PolicyLimits struct {
	// resources is the most that one peer gets, by resource.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// percentOfFree is the most that one peer gets of what this cluster's nodes
	// have free.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=50
	// +optional
	PercentOfFree *int32 `json:"percentOfFree,omitempty"`
}

// PeeringPolicyList is a list of PeeringPolicies.
//
// +kubebuilder:object:root=true
type PeeringPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PeeringPolicy `json:"items"`
}
