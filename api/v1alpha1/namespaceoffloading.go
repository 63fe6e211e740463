package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NamespaceOffloading lets the pods of its namespace run in foreign clusters.
// It is a singleton: its name is always "offloading".
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=nsof,categories=entente
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.spec.podStrategy`
// +kubebuilder:printcolumn:name="Mapping",type=string,JSONPath=`.spec.nameMapping`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Open To",type=string,JSONPath=`.spec.openTo`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name == 'offloading'",message="a namespace has one NamespaceOffloading, named offloading"
type NamespaceOffloading struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is where pods may run.
	Spec NamespaceOffloadingSpec `json:"spec"`
	// status is its observed state.
	// +optional
	Status NamespaceOffloadingStatus `json:"status,omitempty"`
}

// NamespaceOffloadingName is the one name of a NamespaceOffloading.
const NamespaceOffloadingName = "offloading"

// PodStrategy is where the pods of a namespace may run.
// +kubebuilder:validation:Enum=Local;Remote;LocalAndRemote
type PodStrategy string

// Where the pods of a namespace may run.
const (
	StrategyLocal          PodStrategy = "Local"
	StrategyRemote         PodStrategy = "Remote"
	StrategyLocalAndRemote PodStrategy = "LocalAndRemote"
)

// NameMapping is how the provider names a namespace.
// +kubebuilder:validation:Enum=Suffixed;Same;Chosen
type NameMapping string

// How the provider names a namespace.
const (
	// MappingSuffixed is NAME-CONSUMER, where CONSUMER is short for the
	// consumer's cluster ID.
	MappingSuffixed NameMapping = "Suffixed"
	// MappingSame is the same name, and MappingChosen the one in remoteName. The provider refuses a name that its
	// policy does not list, or that is taken there.
	MappingSame   NameMapping = "Same"
	MappingChosen NameMapping = "Chosen"
)

// NamespaceOffloadingSpec is where pods may run.
//
// +kubebuilder:validation:XValidation:rule="(has(self.nameMapping) && self.nameMapping == 'Chosen') == has(self.remoteName)",message="remoteName goes with nameMapping Chosen, and with no other"
type NamespaceOffloadingSpec struct {
	// podStrategy is where pods may run.
	// +kubebuilder:default=LocalAndRemote
	// +optional
	PodStrategy PodStrategy `json:"podStrategy,omitempty"`
	// nameMapping is how the provider names the namespace.
	// +kubebuilder:default=Suffixed
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="nameMapping never changes; delete the NamespaceOffloading and create another"
	// +optional
	NameMapping NameMapping `json:"nameMapping,omitempty"`
	// remoteName is the namespace's name in each provider with nameMapping Chosen. The provider's PeeringPolicy has
	// to list the name in namespaceNames.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="remoteName never changes; delete the NamespaceOffloading and create another"
	// +optional
	RemoteName string `json:"remoteName,omitempty"`
	// clusterSelector selects ForeignClusters by their labels, and their virtual nodes by latency, price, pool,
	// region, zone, architecture and GPU. Absent selects all.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// peerLost is what happens to pods in a foreign cluster that does not respond. It applies to pods that run
	// there already, too, and overrides their own tolerations. Absent means that they are kept.
	// +optional
	PeerLost *PeerLost `json:"peerLost,omitempty"`
	// unschedulable is what happens to a pod that a provider accepted and has no node for.
	// +optional
	Unschedulable *Unschedulable `json:"unschedulable,omitempty"`
	// misplaced is what happens to pods that run where podStrategy and clusterSelector no longer let new ones run:
	// Stay leaves them there until they end, Move lets their controllers replace them, as disruption budgets allow.
	// +kubebuilder:default=Stay
	// +optional
	Misplaced MisplacedAction `json:"misplaced,omitempty"`
	// homeAPI says whether pods with the annotation entente.dev/home-api: "true" may call this cluster's API
	// server, each as its own ServiceAccount, from where they run. The provider of a pod can do what its
	// ServiceAccount may do, as long as the pod runs there. A change applies at once.
	// +kubebuilder:default=Denied
	// +optional
	HomeAPI HomeAPI `json:"homeAPI,omitempty"`
	// openTo is the other offloaded namespaces whose pods abroad may use the Services of this one, as its own pods
	// abroad may; "*" stands for all. Its endpoints in this cluster are opened, on their ports. Absent means none.
	// A change applies at once.
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?|\*)$`
	// +optional
	// +listType=set
	OpenTo []string `json:"openTo,omitempty"`
}

// AllNamespaces stands in openTo for all offloaded namespaces.
const AllNamespaces = "*"

// HomeAPI is whether pods abroad may call the API server of their home.
// +kubebuilder:validation:Enum=Denied;Allowed
type HomeAPI string

// Whether pods abroad may call the API server of their home.
const (
	HomeAPIDenied  HomeAPI = "Denied"
	HomeAPIAllowed HomeAPI = "Allowed"
)

// PeerLostAction is what happens to pods in a foreign cluster that does not respond.
// +kubebuilder:validation:Enum=Keep;Evict;Fence
type PeerLostAction string

// What happens to pods in a foreign cluster that does not respond.
const (
	// PeerLostKeep leaves them where they are: they most likely continue to run.
	PeerLostKeep PeerLostAction = "Keep"
	// PeerLostEvict evicts them after a while. Their owners create others, which may run besides those that still
	// run there.
	PeerLostEvict PeerLostAction = "Evict"
	// PeerLostFence lets the foreign cluster stop them by itself, as agreed, and then ends them here, so that they
	// run elsewhere and never twice.
	PeerLostFence PeerLostAction = "Fence"
)

// PeerLost is what happens to pods in a foreign cluster that does not respond.
//
// +kubebuilder:validation:XValidation:rule="self.action != 'Fence' || !has(self.after) || duration(self.after) >= duration('3m') && duration(self.after) <= duration('24h')",message="a fence is from 3m to 24h"
// +kubebuilder:validation:XValidation:rule="!has(self.after) || self.action != 'Keep'",message="pods that are kept are kept for as long as it takes: leave out after, or choose another action"
type PeerLost struct {
	// action is what happens to them.
	Action PeerLostAction `json:"action"`
	// after is how long after the loss: 5m by default.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ms|s|m|h))+)$') && duration(self) >= duration('10s') && duration(self) <= duration('168h')",message="it is from 10s to 168h, in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	After *metav1.Duration `json:"after,omitempty"`
}

// MisplacedAction is what happens to pods that run where they no longer may.
// +kubebuilder:validation:Enum=Stay;Move
type MisplacedAction string

// What happens to pods that run where they no longer may.
const (
	MisplacedStay MisplacedAction = "Stay"
	MisplacedMove MisplacedAction = "Move"
)

// UnschedulableAction is what happens to a pod for which a provider has no node.
// +kubebuilder:validation:Enum=HandBack;Wait
type UnschedulableAction string

// What happens to a pod for which a provider has no node.
const (
	// UnschedulableHandBack evicts it, if its controller creates another, which is kept off that provider for a
	// while.
	UnschedulableHandBack UnschedulableAction = "HandBack"
	// UnschedulableWait leaves it there until the provider has a node.
	UnschedulableWait UnschedulableAction = "Wait"
)

// Unschedulable is what happens to a pod that a provider accepted and has no node for.
type Unschedulable struct {
	// after is how long it waits there, from when the provider accepted it.
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ms|s|m|h))+)$') && duration(self) >= duration('10s') && duration(self) <= duration('24h')",message="it is from 10s to 24h, in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	After *metav1.Duration `json:"after,omitempty"`
	// action is what happens to it afterwards.
	// +kubebuilder:default=HandBack
	// +optional
	Action UnschedulableAction `json:"action,omitempty"`
}

// The states of an offloaded namespace, at one provider and overall.
const (
	OffloadingReady       = "Ready"
	OffloadingPending     = "Pending"
	OffloadingRefused     = "Refused"
	OffloadingNoProvider  = "NoProvider"
	OffloadingTerminating = "Terminating"
)

// NamespaceOffloadingStatus is the observed state of a NamespaceOffloading.
type NamespaceOffloadingStatus struct {
	// state sums up clusters: Refused if one provider refuses the namespace, Pending if it is not at all of them
	// yet, Ready if it is, NoProvider if there is none, or if clusterSelector selects no ForeignCluster. It is
	// Terminating from the deletion until the namespace's pods were moved home.
	// +optional
	State string `json:"state,omitempty"`
	// message is the message of the first cluster that is not ready, or what the end waits for.
	// +optional
	Message string `json:"message,omitempty"`
	// clusters has, for each contract, the state of the namespace at its provider.
	// +optional
	// +listType=map
	// +listMapKey=contract
	// +kubebuilder:validation:MaxItems=256
	Clusters []NamespaceInCluster `json:"clusters,omitempty"`
	// placementBackoffs is the controllers some of whose pods were handed back because a provider had no node for
	// them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	PlacementBackoffs []PlacementBackoff `json:"placementBackoffs,omitempty"`
	// misplaced is the progress of moving pods that run where they no longer may; absent if there are none, or if
	// misplaced is Stay.
	// +optional
	Misplaced *MisplacedPods `json:"misplaced,omitempty"`
}

// MisplacedPods is pods that run where they no longer may.
type MisplacedPods struct {
	// pods is how many there are.
	Pods int32 `json:"pods"`
	// notMoved is how many of them are not moved.
	// +optional
	NotMoved int32 `json:"notMoved,omitempty"`
	// message is why one of them stays, or what its move waits for.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`
}

// PlacementBackoff is a controller whose new pods are kept off a virtual node for a while.
type PlacementBackoff struct {
	// ownerUID is the controller's UID: that of a ReplicaSet changes with the template.
	// +kubebuilder:validation:MaxLength=64
	OwnerUID string `json:"ownerUID"`
	// kind is the controller's kind.
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name is the controller's name.
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// node is the virtual node, by its label kubernetes.io/hostname. Other nodes of that provider, of other pools,
	// may run the pods.
	// +kubebuilder:validation:MaxLength=63
	Node string `json:"node"`
	// count is how often that happened in a row.
	Count int32 `json:"count"`
	// since is when it happened last.
	Since metav1.Time `json:"since"`
	// until is when that ends. The next time takes twice as long.
	Until metav1.Time `json:"until"`
	// expired says that it has ended: the entry is kept to count the next time.
	// +optional
	Expired bool `json:"expired,omitempty"`
}

// NamespaceInCluster is a namespace in one provider, by one contract.
type NamespaceInCluster struct {
	// foreignCluster is the provider.
	ForeignCluster string `json:"foreignCluster"`
	// contract is the contract.
	// +kubebuilder:validation:MaxLength=63
	Contract string `json:"contract"`
	// remoteName is the namespace's name there.
	// +optional
	RemoteName string `json:"remoteName,omitempty"`
	// state is Ready, Pending or Refused; Terminating if the provider is no longer selected and has pods of the
	// namespace.
	State string `json:"state"`
	// message is why.
	// +optional
	Message string `json:"message,omitempty"`
	// fence is the length of the fence that the provider agreed to, if peerLost is Fence: after so long a silence
	// it has stopped the namespace's pods. Absent means none yet: pods are kept while it does not respond.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	Fence *metav1.Duration `json:"fence,omitempty"`
	// pendingFence is the length of another fence that the provider was asked for since, and has not agreed to yet;
	// of several the longest one that it may have agreed to. Until it responds, pods are ended here after the
	// longer one of fence and pendingFence.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	PendingFence *metav1.Duration `json:"pendingFence,omitempty"`
}

// NamespaceOffloadingList is a list of NamespaceOffloadings.
//
// +kubebuilder:object:root=true
type NamespaceOffloadingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NamespaceOffloading `json:"items"`
}
