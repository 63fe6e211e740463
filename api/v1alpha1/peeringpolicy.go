package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PeeringPolicy says what this cluster offers, to whom, how much and on what
// terms. A peer that no policy accepts is offered nothing. Where several
// match, the one whose name sorts first decides. One with spec.automatic also peers by
// itself; it decides about the clusters that it peered with, before all others, and
// about no others.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=pp,categories=entente
// +kubebuilder:printcolumn:name="Accept",type=string,JSONPath=`.spec.accept`
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.spec.limits.percentOfFree`
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.spec.limits.resources.cpu`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.spec.limits.resources.memory`
// +kubebuilder:printcolumn:name="Duration",type=string,JSONPath=`.spec.contractDuration`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Automatic",type=string,JSONPath=`.status.conditions[?(@.type=="Automatic")].reason`,priority=1
// +kubebuilder:printcolumn:name="Peers",type=integer,JSONPath=`.status.automatic.peers`,priority=1
// +kubebuilder:validation:XValidation:rule="!has(self.spec.automatic) || size(self.metadata.name) <= 63",message="the name of a policy with automatic has at most 63 characters: it is a label of what the policy makes"
type PeeringPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the policy.
	Spec PeeringPolicySpec `json:"spec"`
	// status is what came of spec.automatic.
	// +optional
	Status PeeringPolicyStatus `json:"status,omitempty"`
}

// Acceptance is what happens to a request.
// +kubebuilder:validation:Enum=Automatic;AfterApproval;Never
type Acceptance string

// What happens to a request.
const (
	AcceptAutomatic     Acceptance = "Automatic"
	AcceptAfterApproval Acceptance = "AfterApproval"
	AcceptNever         Acceptance = "Never"
)

// Renewal is what happens when a consumer asks to renew.
// +kubebuilder:validation:Enum=Automatic;Never
type Renewal string

// What happens when a consumer asks to renew.
const (
	RenewalAutomatic Renewal = "Automatic"
	RenewalNever     Renewal = "Never"
)

// PodSecurityLevel is a level of the Pod Security Standards.
// +kubebuilder:validation:Enum=privileged;baseline;restricted
type PodSecurityLevel string

// PeeringPolicySpec is the policy.
//
// +kubebuilder:validation:XValidation:rule="!has(self.automatic) || !(has(self.clusterSelector) || has(self.clusterIDs) || has(self.names) || has(self.found))",message="a policy with automatic decides about the clusters that it peered with: leave out clusterSelector, clusterIDs, names and found, and write the IDs into automatic.clusterIDs"
type PeeringPolicySpec struct {
	// clusterSelector selects ForeignClusters by their labels. Absent selects all
	// that are trusted. Of this and the three lists that follow, each that is
	// present has to match.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
	// clusterIDs selects clusters by their IDs.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:Pattern=`^[a-z2-7]{32}$`
	ClusterIDs []string `json:"clusterIDs,omitempty"`
	// names selects ForeignClusters by their names here, where an administrator chose
	// them: by writing the ForeignCluster, or by the name in a join or an introduction.
	// A name that a cluster gave itself selects nothing until an administrator confirms
	// it by the annotation entente.dev/name-confirmed=true. clusterIDs need no such care.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=253
	Names []string `json:"names,omitempty"`
	// found selects clusters by how they came to be known.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	Found []Found `json:"found,omitempty"`
	// automatic peers with clusters that discovery finds, without anybody's help, where
	// their owners' policies say the same of this one.
	// +optional
	Automatic *AutomaticPeering `json:"automatic,omitempty"`
	// accept says what happens to a request from a selected cluster.
	// +kubebuilder:default=Automatic
	Accept Acceptance `json:"accept,omitempty"`
	// limits is the most that is offered.
	// +optional
	Limits PolicyLimits `json:"limits,omitempty"`
	// price is what use costs. Absent is nothing.
	// +optional
	Price *PriceList `json:"price,omitempty"`
	// pools offers this cluster's nodes in parts: consumers see a virtual node for each, with its
	// labels, amounts and price. A contract is of one pool, and its pods run on the nodes of that
	// alone. Without pools all nodes are offered as one. With pools only their nodes are offered, and a request
	// that names no pool gets the one that is named default, or is refused.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.all(b, a.name == b.name || a.nodeSelector.exists(k, k in b.nodeSelector && a.nodeSelector[k] != b.nodeSelector[k])))",message="no node may be in two pools: of each two, the nodeSelectors have to name one label with different values"
	Pools []NodePool `json:"pools,omitempty"`
	// renewal says whether a contract can be renewed before its end, on the terms
	// that hold then.
	// +kubebuilder:default=Automatic
	// +optional
	Renewal Renewal `json:"renewal,omitempty"`
	// notice is how long pods may run on when this cluster ends a contract before
	// its time.
	// +kubebuilder:default="1h"
	// +optional
	Notice *metav1.Duration `json:"notice,omitempty"`
	// statementPeriod is how long each statement of use covers: one minute to
	// 31 days.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('744h')",message="statementPeriod is from 1m to 744h"
	// +optional
	StatementPeriod *metav1.Duration `json:"statementPeriod,omitempty"`
	// runtimeClasses is the runtime classes that offloaded pods may name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	RuntimeClasses []string `json:"runtimeClasses,omitempty"`
	// runtimeClassMappings has pods run with a runtime class of this cluster that name one of their
	// consumer's. A class that the contract names is this cluster's own and is not mapped; a pod
	// that names any other one is refused. A change holds for new pods.
	// +optional
	// +listType=map
	// +listMapKey=from
	// +kubebuilder:validation:MaxItems=16
	RuntimeClassMappings []ClassMapping `json:"runtimeClassMappings,omitempty"`
	// priorityClassMappings gives pods a priority class of this cluster that have one of their
	// consumer's. A pod of any other class has the priority that this cluster gives to pods
	// that name none. A change holds for new pods.
	// +optional
	// +listType=map
	// +listMapKey=from
	// +kubebuilder:validation:MaxItems=16
	PriorityClassMappings []PriorityMapping `json:"priorityClassMappings,omitempty"`
	// limitRange gives containers of consumers' pods requests and limits that have none, and refuses
	// pods beyond its bounds, as a LimitRange does. A contract keeps what it was first signed with; a
	// change holds for new contracts.
	// +optional
	LimitRange *LimitRange `json:"limitRange,omitempty"`
	// storageClasses is the storage classes that consumers are shown, besides those of
	// which limits has an amount, as CLASS.storageclass.storage.k8s.io/requests.storage.
	// Storage is offered of those alone.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	StorageClasses []string `json:"storageClasses,omitempty"`
	// nodeSelectorKeys is the labels by which consumers may choose among this cluster's
	// nodes. A request that selects by any other is refused, so that nobody gets to
	// nodes that are set apart, and nobody learns which labels there are. Those that all nodes
	// of a contract share are on its virtual node.
	// +kubebuilder:default={"kubernetes.io/arch","kubernetes.io/os"}
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="each is the key of a label: a name of up to 63 characters, with a DNS name and a slash before it or none"
	NodeSelectorKeys []string `json:"nodeSelectorKeys,omitempty"`
	// services is which Services of this cluster the selected clusters are told of,
	// as ones that they may import. None by default: nobody is told of any. Each
	// cluster sees what the policy lists that decides about it, whatever capacity is
	// free, and nothing of the policies of others; where accept is Never it sees
	// none. A contract with a tunnel that is made or renewed while a policy lists any has the
	// exposure OffloadedAndExported: by it all pods of the consumer reach the endpoints of
	// what the policy lists at that moment, on the ports of the Service and no others. At most 256 Services are told, with at most
	// 64 ports each, and 64 KiB of them in all, in the order of their names.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Services []ServiceExports `json:"services,omitempty"`
	// clusterSet has the selected clusters share namespaces with this one, in the sense of
	// the Multi-Cluster Services API: they may import what a ServiceExport exports there,
	// and what they export there is imported here. None by default. Contracts count it as they count services.
	// +optional
	ClusterSet *ClusterSet `json:"clusterSet,omitempty"`
	// minFence is the shortest fence that consumers may ask for: for how long they may be silent before
	// this cluster stops what it runs for them, where their namespaces ask for that.
	// +kubebuilder:default="3m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3m') && duration(self) <= duration('24h')",message="minFence is from 3m to 24h"
	// +optional
	MinFence *metav1.Duration `json:"minFence,omitempty"`
	// homeAPI says whether this cluster's agent carries what pods ask the API server of their own home,
	// where they and their home opted in. A pod that asks for it is refused otherwise.
	// +kubebuilder:default=Denied
	// +optional
	HomeAPI HomeAPI `json:"homeAPI,omitempty"`
	// networkPolicies says whether NetworkPolicies of the consumer's own namespaces that select pods which run here
	// are made here, too. Policies of Kubernetes add up: one of a consumer's opens to its pods here what it allows, its own
	// pods, its home and the Internet, also where a NetworkPolicy of this cluster in that namespace closes it. What
	// is here stays, and follows its home, when it is Denied later.
	// +kubebuilder:default=Denied
	// +optional
	NetworkPolicies NetworkPolicies `json:"networkPolicies,omitempty"`
	// contractDuration is how long a contract lasts.
	// +kubebuilder:default="8760h"
	// +optional
	ContractDuration *metav1.Duration `json:"contractDuration,omitempty"`
	// podSecurity is the Pod Security level that offloaded pods have to meet.
	// +kubebuilder:default=baseline
	// +optional
	PodSecurity PodSecurityLevel `json:"podSecurity,omitempty"`
	// namespaceNames is the names that a consumer's namespaces may have here, its own
	// (nameMapping Same) or others (Chosen); a * at the end stands for any end. None by default: a
	// namespace's name is part of what this cluster's other pods resolve. What begins with kube- is
	// never given, nor what this cluster has, nor what ends as the names do that another trusted cluster's
	// namespaces have here by default. Give each consumer a beginning of its own, or one of
	// them can have the name that another one wants.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9*])?$`
	NamespaceNames []string `json:"namespaceNames,omitempty"`
	// nodeLabels are shown on the consumer's virtual node, besides architecture
	// and operating system.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
}

// NodePool is nodes of this cluster that are offered by a name.
type NodePool struct {
	// name is what consumers ask for.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// nodeSelector is the labels that all of its nodes have and no others. Consumers are told
	// them: they are signed, and on the virtual node.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	NodeSelector map[string]LabelValue `json:"nodeSelector"`
	// limits is the most that is offered of it. Absent is the policy's. Either counts for each pool by
	// itself, but for storage, of which the amounts count for all pools together.
	// +optional
	Limits *PolicyLimits `json:"limits,omitempty"`
	// price is what use of it costs. Absent is the policy's.
	// +optional
	Price *PriceList `json:"price,omitempty"`
	// nodeLabels are shown on the virtual node, besides the policy's.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// tolerations is the taints of its nodes that consumers' pods tolerate there: of nodes that are set
	// apart. Its nodes with any other taint of the effects NoSchedule and NoExecute are not offered. No consumer
	// sends tolerations, nor is told of these. A toleration that is added is for new pods of all contracts on
	// the pool; one that is taken away, or whose pool is, remains until it is renewed with a contract that had it when it
	// was signed or last revised.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Tolerations []PoolToleration `json:"tolerations,omitempty"`
}

// PoolToleration is of taints with one key, as a pod has them.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && size(self.key) > 0",message="name the taint: a toleration without a key is one of all taints, and pods would be passed on to another provider"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || size(self.key) == 0 || self.key.indexOf('/') <= 253 && self.key.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="that is not the key of a taint: a name of up to 63 characters, with a DNS name and a slash before it or none"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || !self.key.matches('^([-a-z0-9.]*[.])?entente[.]dev/')",message="no pod of a consumer tolerates a taint of virtual nodes: it would be passed on to another provider"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || !self.key.matches('^node[.](cloudprovider[.])?kubernetes[.]io/')",message="no pod of a consumer tolerates a taint by which Kubernetes says that a node is not well"
// +kubebuilder:validation:XValidation:rule="!has(self.value) || size(self.value) == 0 || !has(self.operator) || self.operator == 'Equal'",message="with the operator Exists there is no value"
type PoolToleration struct {
	// key is the taint's; it is always said. Those of virtual nodes (entente.dev/) and those by which
	// Kubernetes says that a node is not well (node.kubernetes.io/) cannot be tolerated.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Key string `json:"key,omitempty"`
	// operator is Equal, for taints with the value, or Exists, for those with any.
	// +kubebuilder:default=Equal
	// +kubebuilder:validation:Enum=Equal;Exists
	// +optional
	Operator corev1.TolerationOperator `json:"operator,omitempty"`
	// value is the taint's, with the operator Equal.
	// +optional
	Value LabelValue `json:"value,omitempty"`
	// effect is the taint's. Absent is all of them.
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	// +optional
	Effect corev1.TaintEffect `json:"effect,omitempty"`
}

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// DefaultPool is the name of the pool that a request gets which names none.
const DefaultPool = "default"

// NetworkPolicies is whether a consumer's NetworkPolicies are made here.
// +kubebuilder:validation:Enum=Denied;Allowed
type NetworkPolicies string

// Whether a consumer's NetworkPolicies are made here.
const (
	NetworkPoliciesDenied  NetworkPolicies = "Denied"
	NetworkPoliciesAllowed NetworkPolicies = "Allowed"
)

// LimitRange is what a LimitRange of core/v1 says of the types Container and Pod.
type LimitRange struct {
	// container is about each container of a pod, init containers among them.
	// +optional
	Container *ContainerLimitRange `json:"container,omitempty"`
	// pod is about all containers of a pod together.
	// +optional
	Pod *PodLimitRange `json:"pod,omitempty"`
}

// ContainerLimitRange is what each container has that says nothing, and between which amounts it
// has to be.
type ContainerLimitRange struct {
	// default is the limits of a container that has none: max if it is not said. A container that
	// requests more has what it requests.
	// +optional
	Default LimitedResources `json:"default,omitempty"`
	// defaultRequest is what a container requests that has neither a request nor a limit: default,
	// or else min, if it is not said.
	// +optional
	DefaultRequest LimitedResources `json:"defaultRequest,omitempty"`
	// min is what a container requests at least.
	// +optional
	Min LimitedResources `json:"min,omitempty"`
	// max is what the limit of a container is at most.
	// +optional
	Max LimitedResources `json:"max,omitempty"`
}

// PodLimitRange is between which amounts a pod has to be.
type PodLimitRange struct {
	// min is what a pod requests at least, as the scheduler counts its containers.
	// +optional
	Min LimitedResources `json:"min,omitempty"`
	// max is what the limits of a pod come to at most.
	// +optional
	Max LimitedResources `json:"max,omitempty"`
}

// LimitedResources is amounts of cpu, memory and ephemeral-storage.
// +kubebuilder:validation:MaxProperties=3
// +kubebuilder:validation:XValidation:rule="self.all(r, r in ['cpu', 'memory', 'ephemeral-storage'])",message="only cpu, memory and ephemeral-storage have defaults and bounds"
type LimitedResources corev1.ResourceList

// ClassMapping says which class of this cluster one of a consumer's is.
type ClassMapping struct {
	// from is the name of the consumer's class.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	From string `json:"from"`
	// to is the name of this cluster's class.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	To string `json:"to"`
}

// PriorityMapping says which priority class of this cluster one of a consumer's is.
type PriorityMapping struct {
	// from is the name of the consumer's class.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	From string `json:"from"`
	// to is the name of this cluster's class.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system-')",message="classes whose names begin with system- are for what the cluster itself runs"
	To string `json:"to"`
	// preemption says whether such pods may evict this cluster's own of lower priority. By
	// default they may not: pods are refused unless the class has the preemptionPolicy Never.
	// With PreemptLowerPriority the class decides.
	// +kubebuilder:default=Never
	// +kubebuilder:validation:Enum=Never;PreemptLowerPriority
	// +optional
	Preemption corev1.PreemptionPolicy `json:"preemption,omitempty"`
}

// Direction is which side lends to the other.
// +kubebuilder:validation:Enum=Lend;Use;Both
type Direction string

// Which side lends to the other.
const (
	// DirectionLend: this cluster offers resources, and asks for nothing.
	DirectionLend Direction = "Lend"
	// DirectionUse: this cluster asks, and offers nothing.
	DirectionUse Direction = "Use"
	// DirectionBoth: both.
	DirectionBoth Direction = "Both"
)

// AutomaticPeering says with whom this cluster peers by itself, and why it trusts
// them: their ID is listed, they know the secret of a group, or they were found. Who is
// found is not trusted for that, but with firstUse. A cluster that an administrator
// denied or forgot is left alone.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterIDs) && size(self.clusterIDs) > 0 || has(self.group) || has(self.firstUse) && self.firstUse",message="say whom to trust: clusterIDs, group, or firstUse for everybody who is found"
// +kubebuilder:validation:XValidation:rule="!has(self.group) || !has(self.firstUse) || !self.firstUse",message="firstUse trusts those who do not know the group's secret, too: say one of the two"
type AutomaticPeering struct {
	// clusterIDs trusts clusters by their IDs, which their keys prove.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:Pattern=`^[a-z2-7]{32}$`
	ClusterIDs []string `json:"clusterIDs,omitempty"`
	// group trusts clusters that know the same secret.
	// +optional
	Group *PeeringGroup `json:"group,omitempty"`
	// firstUse trusts every cluster that is found, as long as its key is not in
	// conflict with a known one. Whoever is on the network, or writes the domain, is
	// trusted then.
	// +optional
	FirstUse bool `json:"firstUse,omitempty"`
	// sources is where clusters are found that are dialled.
	// +kubebuilder:default={LAN,DNS}
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.all(s, s in ['LAN', 'DNS'])",message="sources are LAN and DNS"
	Sources []Found `json:"sources,omitempty"`
	// direction is which side lends to the other. With Use this cluster offers nothing by this
	// policy, with Lend it asks for nothing.
	// +kubebuilder:default=Both
	// +optional
	Direction Direction `json:"direction,omitempty"`
	// resources is what each peer is asked for. Empty leaves it to its policy.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// priceCeiling is the most that what one peer grants may cost an hour. Absent is any
	// price.
	// +optional
	PriceCeiling *Money `json:"priceCeiling,omitempty"`
	// namespaces is offloaded to these peers, where they exist. One that somebody
	// offloads already is left as it is.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
}

// PeeringGroup is clusters that share a secret.
type PeeringGroup struct {
	// name is the group's name. Clusters that are found are told it: it is no secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// secretRef names the Secret with what the group's clusters share. Whoever knows it
	// is trusted.
	SecretRef SecretKey `json:"secretRef"`
}

// Uses reports whether this cluster asks such peers.
func (a *AutomaticPeering) Uses() bool { return a.Direction != DirectionLend }

// Provides reports whether this cluster is a provider of such peers.
func (a *AutomaticPeering) Provides() bool { return a.Direction != DirectionUse }

// ConditionAutomatic tells of a PeeringPolicy whether it peers by itself, or why not.
const ConditionAutomatic = "Automatic"

// PeeringPolicyStatus is what came of spec.automatic.
type PeeringPolicyStatus struct {
	// conditions has Automatic where spec.automatic is set.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// automatic counts clusters.
	// +optional
	Automatic *AutomaticStatus `json:"automatic,omitempty"`
}

// AutomaticStatus counts clusters.
type AutomaticStatus struct {
	// peers is how many clusters the policy peered with.
	Peers int32 `json:"peers"`
	// waiting is how many it would peer with that it did not come to trust yet. Their
	// ForeignClusters say why.
	Waiting int32 `json:"waiting"`
}

// ServiceExports is Services of one namespace: those that names lists, those that
// selector selects, or, with neither, all. Never told are Services of type
// ExternalName, those that Entente made, those labelled entente.dev/export=false,
// whatever a policy says, and the Service of the API server; and those of namespaces
// that are Kubernetes' own (kube-*), the agent's, or made for a consumer.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.names) && has(self.selector))",message="say names or selector, not both"
type ServiceExports struct {
	// namespace is where the Services are.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('kube-')",message="Services of Kubernetes' own namespaces (kube-*) are not told to anybody"
	Namespace string `json:"namespace"`
	// names is the names of Services, whether they exist or not.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Names []string `json:"names,omitempty"`
	// selector selects Services by their labels. Whoever may edit a Service decides
	// about those.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// ClusterSet is the namespaces that clusters share. A namespace is the same in all of them: a
// Service of one name there is one Service, whose endpoints are those of all that export it.
// Namespaces that are Kubernetes' own (kube-*), the agent's, or made for a consumer are never
// shared.
type ClusterSet struct {
	// namespaceSelector selects namespaces of this cluster by their labels. Absent selects
	// all. Whoever may label a namespace decides about it.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// endpoints is when the addresses of Services of the set lead to endpoints of the clusters that this
	// policy selects: All is always; OwnFirst while this cluster has none that is ready; Nearest
	// while no cluster has one ready to which a message takes less time, this one among them. The
	// annotation entente.dev/endpoints of a ServiceExport says otherwise for its Service. Absent is All.
	// +optional
	Endpoints EndpointPreference `json:"endpoints,omitempty"`
}

// EndpointPreference is which endpoints of a Service that several clusters have are used.
// +kubebuilder:validation:Enum=All;OwnFirst;Nearest
type EndpointPreference string

// Which endpoints of a Service that several clusters have are used.
const (
	EndpointsAll      EndpointPreference = "All"
	EndpointsOwnFirst EndpointPreference = "OwnFirst"
	EndpointsNearest  EndpointPreference = "Nearest"
)

// PolicyLimits is the most that is offered. Of amounts and percentage the smaller
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
	// total is the most that all peers together get that this policy selects.
	// +optional
	Total *TotalLimits `json:"total,omitempty"`
	// overcommitPercent is what counts as free, in percent of what is: 100 offers
	// what is free, 200 twice as much, as consumers rarely use all of it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=100
	// +optional
	OvercommitPercent *int32 `json:"overcommitPercent,omitempty"`
}

// TotalLimits is the most that all peers together get.
type TotalLimits struct {
	// resources is the most, by resource.
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// percentOfFree is the most of what this cluster's nodes have free.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
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
