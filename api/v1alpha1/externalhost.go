package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ExternalHost lets peers reach a host of this cluster other than a pod, such as a database on a machine beside the
// cluster: offloaded pods of its namespace by Services, and the clusters that it names by an alias of its address.
// The administrator decides what may be exported at all: network.externalHosts of the chart.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=eh,categories=entente
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.clusters[*].foreignCluster`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].message`,priority=1
type ExternalHost struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is which host it is, and which clusters reach it.
	Spec ExternalHostSpec `json:"spec"`
	// status is its observed state.
	// +optional
	Status ExternalHostStatus `json:"status,omitempty"`
}

// ExternalHostSpec is which host it is, and which clusters reach it.
type ExternalHostSpec struct {
	// addresses is its IP addresses, at most one of each family.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip.isCanonical(a))",message="each is an IP address in its canonical form"
	// +kubebuilder:validation:XValidation:rule="self.all(a, !isIP(a) || !(ip(a).isLoopback() || ip(a).isUnspecified() || ip(a).isLinkLocalUnicast() || ip(a).isLinkLocalMulticast()))",message="no address may be of the machine itself or of its link"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !isIP(self[0]) || !isIP(self[1]) || ip(self[0]).family() != ip(self[1]).family()",message="at most one address of each family"
	Addresses []string `json:"addresses"`
	// ports is the open ports. Absent means every port of every protocol.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Ports []DestinationPort `json:"ports,omitempty"`
	// clusters is the ForeignClusters all of whose pods reach the host; status says at which address. Besides,
	// offloaded pods of this namespace reach it if endpoints of a Service of the namespace have its address.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Clusters []string `json:"clusters,omitempty"`
}

// ExternalHostStatus is the observed state of an ExternalHost.
type ExternalHostStatus struct {
	// conditions has Accepted: whether the host may be exported, or why not.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// clusters has, for each cluster that may reach the host, the address at which it does.
	// +optional
	// +listType=map
	// +listMapKey=foreignCluster
	// +kubebuilder:validation:MaxItems=256
	Clusters []HostInCluster `json:"clusters,omitempty"`
}

// HostInCluster is a host as a foreign cluster knows it.
type HostInCluster struct {
	// foreignCluster is the cluster.
	ForeignCluster string `json:"foreignCluster"`
	// addresses is the aliases by which its pods reach the host, one for each address that has one.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	Addresses []string `json:"addresses,omitempty"`
	// message is what the host waits for to get an address there.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}

// ExternalHostList is a list of ExternalHosts.
//
// +kubebuilder:object:root=true
type ExternalHostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExternalHost `json:"items"`
}
