package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ImportedService imports a Service that a foreign cluster exports: it creates a Service of the same name as this
// object in this namespace, whose endpoints are the foreign cluster's pods under the addresses by which this
// cluster knows them. All pods of this cluster reach it, and it is not exported further.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=isvc,categories=entente
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.foreignCluster`
// +kubebuilder:printcolumn:name="Imported",type=string,JSONPath=`.status.conditions[?(@.type=="Imported")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Imported")].reason`
// +kubebuilder:printcolumn:name="Endpoints",type=integer,JSONPath=`.status.endpoints`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Imported")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",message="the name is one that a Service can have"
type ImportedService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is which Service is imported.
	Spec ImportedServiceSpec `json:"spec"`
	// status is its observed state.
	// +optional
	Status ImportedServiceStatus `json:"status,omitempty"`
}

// ImportedServiceSpec is which Service is imported.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an ImportedService never changes; create another"
type ImportedServiceSpec struct {
	// foreignCluster is the name of the ForeignCluster that exports it. Its offer lists
	// what it exports to this cluster; a contract whose exposure is OffloadedAndExported
	// lets this cluster import.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ForeignCluster string `json:"foreignCluster"`
	// service is the Service there.
	Service ServiceReference `json:"service"`
}

// ServiceReference names a Service in the terms of the cluster that has it.
type ServiceReference struct {
	// namespace is its namespace there.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`
	// name is its name there.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
}

// ConditionImported is the condition of an ImportedService that its Service exists.
const ConditionImported = "Imported"

// ImportedServiceStatus is the observed state of an ImportedService.
type ImportedServiceStatus struct {
	// conditions has Imported: whether the Service exists as the foreign cluster exports it, or why not.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// endpoints is how many of its endpoints are reached from here.
	// +optional
	Endpoints int32 `json:"endpoints,omitempty"`
}

// ImportedServiceList is a list of ImportedServices.
//
// +kubebuilder:object:root=true
type ImportedServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ImportedService `json:"items"`
}
