package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PeeringPolicy says what this cluster offers, to which clusters, how much and on what terms. A peer that no policy
// accepts is offered nothing. If several match, the one whose name sorts first decides. One with spec.automatic
// also peers by itself; it decides, before all others, about the clusters that it peered with, and about no others.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=pp,categories=entente
// +kubebuilder:printcolumn:name="Accept",type=string,JSONPath=`.spec.accept`
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.spec.limits.percentOfFree`
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.spec.limits.resources.cpu`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.spec.limits.resources.memory`
// +kubebuilder:printcolumn:name="Duration",type=string,JSONPath=`.spec.contractDuration`
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Automatic",type=string,JSONPath=`.status.conditions[?(@.type=="Automatic")].reason`,priority=1
// +kubebuilder:printcolumn:name="Peers",type=integer,JSONPath=`.status.automatic.peers`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Valid")].message`,priority=1
// +kubebuilder:validation:XValidation:rule="!has(self.spec.automatic) || size(self.metadata.name) <= 63",message="the name of a policy with automatic has at most 63 characters: it is a label of what the policy makes"
type PeeringPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the policy.
	Spec PeeringPolicySpec `json:"spec"`
	// status is the observed state of the policy.
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
// +kubebuilder:validation:XValidation:rule="!has(self.automatic) || !(has(self.clusterSelector) || has(self.clusterIDs) || has(self.names) || has(self.sources))",message="a policy with automatic decides about the clusters that it peered with: leave out clusterSelector, clusterIDs, names and sources, and write the IDs into automatic.clusterIDs"
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
	// sources selects clusters by how they came to be known.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	Sources []Source `json:"sources,omitempty"`
	// automatic peers with clusters that discovery finds, without an administrator's help, if policies there do the
	// same with this one.
	// +optional
	Automatic *AutomaticPeering `json:"automatic,omitempty"`
	// accept says what happens to a request from a selected cluster.
	// +kubebuilder:default=Automatic
	Accept Acceptance `json:"accept,omitempty"`
	// limits is the limits of what is offered.
	// +optional
	Limits PolicyLimits `json:"limits,omitempty"`
	// price is what use costs. Absent means free.
	// +optional
	Price *PriceList `json:"price,omitempty"`
	// pools offers this cluster's nodes in parts: consumers see a virtual node for each, with its labels, amounts
	// and price. A contract is for one pool, and its pods run on the nodes of that alone. Without pools all nodes
	// are offered as one. With pools only their nodes are offered, and a request that names no pool gets the one
	// that is named default, or is refused.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(a, self.all(b, a.name == b.name || a.nodeSelector.exists(k, k in b.nodeSelector && a.nodeSelector[k] != b.nodeSelector[k])))",message="no node may be in two pools: of each two, the nodeSelectors have to name one label with different values"
	Pools []NodePool `json:"pools,omitempty"`
	// renewal says whether a contract can be renewed before its end, on the terms of that time.
	// +kubebuilder:default=Automatic
	// +optional
	Renewal Renewal `json:"renewal,omitempty"`
	// notice is how long pods may continue to run when this cluster ends a contract early.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ms|s|m|h))+)$') && duration(self) >= duration('0s') && duration(self) <= duration('744h')",message="it is from 0s to 744h, in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	Notice *metav1.Duration `json:"notice,omitempty"`
	// statementPeriod is how long each statement of use covers: one minute to
	// 31 days.
	// +kubebuilder:default="1h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ms|s|m|h))+)$') && duration(self) >= duration('1m') && duration(self) <= duration('744h')",message="it is from 1m to 744h, in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	StatementPeriod *metav1.Duration `json:"statementPeriod,omitempty"`
	// runtimeClasses is the runtime classes that offloaded pods may name.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	RuntimeClasses []string `json:"runtimeClasses,omitempty"`
	// runtimeClassMappings runs pods that name a runtime class of their consumer with one of this cluster. A class
	// that the contract names is this cluster's own and is not mapped; a pod that names any other one is refused. A
	// change applies to new pods.
	// +optional
	// +listType=map
	// +listMapKey=from
	// +kubebuilder:validation:MaxItems=16
	RuntimeClassMappings []ClassMapping `json:"runtimeClassMappings,omitempty"`
	// priorityClassMappings gives pods with a priority class of their consumer one of this cluster. A pod of any
	// other class has the priority of pods in this cluster that name none. A change applies to new pods.
	// +optional
	// +listType=map
	// +listMapKey=from
	// +kubebuilder:validation:MaxItems=16
	PriorityClassMappings []PriorityMapping `json:"priorityClassMappings,omitempty"`
	// limitRange sets requests and limits for containers of consumers' pods without them, and refuses pods beyond
	// its bounds, as a LimitRange does. A contract keeps the one that it was first signed with; a change applies to
	// new contracts.
	// +optional
	LimitRange *LimitRange `json:"limitRange,omitempty"`
	// storageClasses is the storage classes that consumers are shown, besides those of which limits has an amount,
	// as CLASS.storageclass.storage.k8s.io/requests.storage. Storage is offered of the latter alone.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	StorageClasses []string `json:"storageClasses,omitempty"`
	// nodeSelectorKeys is the labels by which consumers may choose among this cluster's nodes. A request that
	// selects by any other is refused, so that no consumer gets to nodes that are set apart or learns which labels
	// there are. Those that all nodes of a contract share are on its virtual node.
	// +kubebuilder:default={"kubernetes.io/arch","kubernetes.io/os","topology.kubernetes.io/region","topology.kubernetes.io/zone","nvidia.com/gpu.product","amd.com/gpu.product-name","gpu.intel.com/product"}
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$'))",message="each is the key of a label: a name of up to 63 characters, with a DNS name and a slash before it or none"
	NodeSelectorKeys []string `json:"nodeSelectorKeys,omitempty"`
	// services is the Services of this cluster that the selected clusters may import. None by default: none is
	// announced. Each cluster sees what the policy that decides about it lists, whatever capacity is free, and
	// nothing of the policies of others; if accept is Never it sees none. A contract with a tunnel that is made or
	// renewed while a policy lists any has the exposure OffloadedAndExported: by it all pods of the consumer reach
	// the endpoints of what the policy lists at that moment, only on the ports of the Service. At most 256 Services
	// are announced, with at most 64 ports each, and 64 KiB in all, sorted by name.
	// 64 ports each, and 64 KiB of them in all, in the order of their names.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Services []ServiceExports `json:"services,omitempty"`
	// clusterSet shares namespaces between the selected clusters and this one, in the sense of the Multi-Cluster
	// Services API: they may import what a ServiceExport exports there, and what they export there is imported
	// here. None by default. For contracts it counts like services.
	// +optional
	ClusterSet *ClusterSet `json:"clusterSet,omitempty"`
	// minFence is the shortest fence that consumers may ask for: how long they may be silent before this cluster
	// stops what it runs for them, if their namespaces ask for that.
	// +kubebuilder:default="3m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ms|s|m|h))+)$') && duration(self) >= duration('3m') && duration(self) <= duration('24h')",message="it is from 3m to 24h, in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	MinFence *metav1.Duration `json:"minFence,omitempty"`
	// homeAPI says whether this cluster's agent carries calls of pods to the API server of their own home, if they
	// and their home opted in. A pod that asks for it is refused otherwise.
	// +kubebuilder:default=Denied
	// +optional
	HomeAPI HomeAPI `json:"homeAPI,omitempty"`
	// networkPolicies says whether NetworkPolicies of the consumer's own namespaces that select pods which run here
	// are created here, too. Kubernetes adds policies up: one of a consumer opens to its pods here what it allows,
	// its own pods, its home and the Internet, even if a NetworkPolicy of this cluster in that namespace closes it.
	// Policies that were created stay, and follow their home, when it is Denied later.
	// +kubebuilder:default=Denied
	// +optional
	NetworkPolicies NetworkPolicies `json:"networkPolicies,omitempty"`
	// contractDuration is how long a contract lasts.
	// +kubebuilder:default="8760h"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|([0-9]+([.][0-9]+)?(ms|s|m|h))+)$') && duration(self) >= duration('1s') && duration(self) <= duration('87840h')",message="it is from 1s to 87840h, in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	ContractDuration *metav1.Duration `json:"contractDuration,omitempty"`
	// podSecurity is the Pod Security level that offloaded pods have to meet.
	// +kubebuilder:default=baseline
	// +optional
	PodSecurity PodSecurityLevel `json:"podSecurity,omitempty"`
	// namespaceNames is the names that a consumer's namespaces may have here, its own (nameMapping Same) or others
	// (Chosen); a * at the end matches any end. None by default: a namespace's name is part of what this cluster's
	// other pods resolve. Names that begin with kube-, names that exist in this cluster, and names with the default
	// ending of another trusted cluster's namespaces are always refused. Reserve a prefix for each consumer, or one
	// of them can take the name that another one wants.
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
	// nodeSelector is the labels that all of its nodes have and no others. Consumers see them: they are signed, and
	// on the virtual node.
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=8
	NodeSelector map[string]LabelValue `json:"nodeSelector"`
	// limits is the limits of what is offered of it. Absent means the policy's. Either counts for each pool by
	// itself, except for storage, whose amounts count for all pools together.
	// +optional
	Limits *PolicyLimits `json:"limits,omitempty"`
	// price is what use of it costs. Absent means the policy's.
	// +optional
	Price *PriceList `json:"price,omitempty"`
	// nodeLabels are shown on the virtual node, besides the policy's.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// tolerations is the taints of its nodes that consumers' pods tolerate there, for nodes that are set apart. Its
	// nodes with any other taint of the effects NoSchedule and NoExecute are not offered. Consumers neither send
	// tolerations nor see these. A toleration that is added applies to new pods of all contracts on the pool; one
	// that is removed, or whose pool is, stays until the contract is renewed, in contracts that had it when they
	// were signed or last revised.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	Tolerations []PoolToleration `json:"tolerations,omitempty"`
}

// PoolToleration is a toleration of taints with one key, as in a pod.
//
// +kubebuilder:validation:XValidation:rule="has(self.key) && size(self.key) > 0",message="name the taint: a toleration without a key tolerates all taints, and pods would be passed on to another provider"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || size(self.key) == 0 || self.key.indexOf('/') <= 253 && self.key.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')",message="that is not the key of a taint: a name of up to 63 characters, with a DNS name and a slash before it or none"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || !self.key.matches('^([-a-z0-9.]*[.])?entente[.]dev/')",message="no pod of a consumer tolerates a taint of virtual nodes: it would be passed on to another provider"
// +kubebuilder:validation:XValidation:rule="!has(self.key) || !self.key.matches('^node[.](cloudprovider[.])?kubernetes[.]io/')",message="no pod of a consumer tolerates a taint by which Kubernetes marks a node as unhealthy"
// +kubebuilder:validation:XValidation:rule="!has(self.value) || size(self.value) == 0 || !has(self.operator) || self.operator == 'Equal'",message="with the operator Exists there is no value"
type PoolToleration struct {
	// key is the taint's key; it is required. Those of virtual nodes (entente.dev/) and those by which Kubernetes
	// marks a node as unhealthy (node.kubernetes.io/) cannot be tolerated.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Key string `json:"key,omitempty"`
	// operator is Equal, for taints with the value, or Exists, for those with any.
	// +kubebuilder:default=Equal
	// +kubebuilder:validation:Enum=Equal;Exists
	// +optional
	Operator corev1.TolerationOperator `json:"operator,omitempty"`
	// value is the taint's value, with the operator Equal.
	// +optional
	Value LabelValue `json:"value,omitempty"`
	// effect is the taint's effect. Absent means all of them.
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	// +optional
	Effect corev1.TaintEffect `json:"effect,omitempty"`
}

// LabelValue is the value of a label.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// DefaultPool is the name of the pool for requests that name none.
const DefaultPool = "default"

// NetworkPolicies is whether a consumer's NetworkPolicies are created here.
// +kubebuilder:validation:Enum=Denied;Allowed
type NetworkPolicies string

// Whether a consumer's NetworkPolicies are created here.
const (
	NetworkPoliciesDenied  NetworkPolicies = "Denied"
	NetworkPoliciesAllowed NetworkPolicies = "Allowed"
)

// LimitRange is a LimitRange of core/v1 for the types Container and Pod.
type LimitRange struct {
	// container applies to each container of a pod, including init containers.
	// +optional
	Container *ContainerLimitRange `json:"container,omitempty"`
	// pod applies to all containers of a pod together.
	// +optional
	Pod *PodLimitRange `json:"pod,omitempty"`
}

// ContainerLimitRange is the defaults and the bounds of each container.
type ContainerLimitRange struct {
	// default is the limits of a container that has none; max if it is absent. A container that requests more gets
	// what it requests.
	// +optional
	Default LimitedResources `json:"default,omitempty"`
	// defaultRequest is what a container requests that has neither a request nor a limit; default, or otherwise
	// min, if it is absent.
	// +optional
	DefaultRequest LimitedResources `json:"defaultRequest,omitempty"`
	// min is the least that a container requests.
	// +optional
	Min LimitedResources `json:"min,omitempty"`
	// max is the highest limit of a container.
	// +optional
	Max LimitedResources `json:"max,omitempty"`
}

// PodLimitRange is the bounds of a pod.
type PodLimitRange struct {
	// min is the least that a pod requests, as the scheduler counts its containers.
	// +optional
	Min LimitedResources `json:"min,omitempty"`
	// max is the highest sum of a pod's limits.
	// +optional
	Max LimitedResources `json:"max,omitempty"`
}

// LimitedResources is amounts of cpu, memory and ephemeral-storage.
// +kubebuilder:validation:MaxProperties=3
// +kubebuilder:validation:XValidation:rule="self.all(r, r in ['cpu', 'memory', 'ephemeral-storage'])",message="only cpu, memory and ephemeral-storage have defaults and bounds"
// +kubebuilder:validation:XValidation:rule="self.all(r, type(self[r]) == int ? self[r] >= 0 : size(self[r]) <= 20 && !self[r].startsWith('-') && ![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].exists(i, i + 1 < size(self[r]) && self[r].charAt(i) in ['e', 'E'] && self[r].charAt(i + 1) != 'i'))",message="an amount is a number of Kubernetes without an exponent, such as 500m, 2 or 4Gi, and not below zero"
type LimitedResources corev1.ResourceList

// ClassMapping maps a class of a consumer to one of this cluster.
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

// PriorityMapping maps a priority class of a consumer to one of this cluster.
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

// Direction is which side provides resources to the other.
// +kubebuilder:validation:Enum=Provide;Consume;Both
type Direction string

// Which side provides resources to the other.
const (
	// DirectionProvide: this cluster offers resources, and asks for nothing.
	DirectionProvide Direction = "Provide"
	// DirectionConsume: this cluster asks, and offers nothing.
	DirectionConsume Direction = "Consume"
	// DirectionBoth: both.
	DirectionBoth Direction = "Both"
)

// AutomaticPeering says with which clusters this cluster peers by itself, and why it trusts them: their ID is
// listed, they know the secret of a group, or they were found. Being found suffices only with trustOnFirstUse.
// A cluster that an administrator denied or forgot is left alone.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterIDs) && size(self.clusterIDs) > 0 || has(self.group) || has(self.trustOnFirstUse) && self.trustOnFirstUse",message="choose whom to trust: clusterIDs, group, or trustOnFirstUse for every cluster that is found"
// +kubebuilder:validation:XValidation:rule="!has(self.group) || !has(self.trustOnFirstUse) || !self.trustOnFirstUse",message="trustOnFirstUse trusts clusters that do not know the group's secret, too: choose one of the two"
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
	// trustOnFirstUse trusts every cluster that is found, as long as its key is not in conflict with a known one.
	// This trusts any host on the network, and anyone who can write the domain.
	// +optional
	TrustOnFirstUse bool `json:"trustOnFirstUse,omitempty"`
	// sources is where the clusters to dial are found.
	// +kubebuilder:default={LAN,DNS}
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="self.all(s, s in ['LAN', 'DNS'])",message="sources are LAN and DNS"
	Sources []Source `json:"sources,omitempty"`
	// direction is which side provides resources to the other. With Consume this cluster offers nothing by this
	// policy, with Provide it asks for nothing.
	// +kubebuilder:default=Both
	// +optional
	Direction Direction `json:"direction,omitempty"`
	// resources is what each peer is asked for. Empty leaves it to its policy.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(r, type(self[r]) == int ? self[r] >= 0 : size(self[r]) <= 20 && !self[r].startsWith('-') && ![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].exists(i, i + 1 < size(self[r]) && self[r].charAt(i) in ['e', 'E'] && self[r].charAt(i + 1) != 'i'))",message="an amount is a number of Kubernetes without an exponent, such as 500m, 2 or 4Gi, and not below zero"
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// priceCeiling is the most that what one peer grants may cost an hour. Absent means any price.
	// +optional
	PriceCeiling *Money `json:"priceCeiling,omitempty"`
	// namespaces is offloaded to these peers, if they exist. One that is offloaded by another owner is left as it
	// is.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
}

// PeeringGroup is clusters that share a secret.
type PeeringGroup struct {
	// name is the group's name. It is sent to clusters that are found, so it is not secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// secretRef names the Secret that the group's clusters share. Every cluster that knows it is trusted.
	SecretRef SecretKey `json:"secretRef"`
}

// Uses reports whether this cluster asks such peers.
func (a *AutomaticPeering) Uses() bool { return a.Direction != DirectionProvide }

// Provides reports whether this cluster is a provider of such peers.
func (a *AutomaticPeering) Provides() bool { return a.Direction != DirectionConsume }

// ConditionAutomatic is the condition of a PeeringPolicy that it peers by itself.
const ConditionAutomatic = "Automatic"

// ConditionValid is the condition of a PeeringPolicy that nothing is wrong with it.
const ConditionValid = "Valid"

// ReasonNotFound is the reason of a Valid condition that is True, of a policy that names what this cluster does not
// have.
const ReasonNotFound = "NotFound"

// PeeringPolicyStatus is the observed state of a policy.
type PeeringPolicyStatus struct {
	// conditions has Valid: whether the policy can be followed, and everything that is wrong with it. By one that is
	// not valid nothing is offered to the clusters that it selects. It has Automatic if spec.automatic is set.
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
	// pending is how many it would peer with that are not trusted yet. Their ForeignClusters say why.
	Pending int32 `json:"pending"`
}

// ServiceExports is Services of one namespace: those that names lists, those that selector selects, or, with
// neither, all. Never announced are Services of type ExternalName, those that Entente made, those labelled
// entente.dev/export=false, whatever a policy says, and the Service of the API server; and those of namespaces that
// are Kubernetes' own (kube-*), the agent's, or made for a consumer.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.names) && has(self.selector))",message="set names or selector, not both"
type ServiceExports struct {
	// namespace is the namespace of the Services.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('kube-')",message="Services of Kubernetes' own namespaces (kube-*) are not exported"
	Namespace string `json:"namespace"`
	// names is the names of Services, whether they exist or not.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Names []string `json:"names,omitempty"`
	// selector selects Services by their labels. Users who may edit a Service decide about its labels.
	// +optional
	Selector *metav1.LabelSelector `json:"selector,omitempty"`
}

// ClusterSet is the namespaces that clusters share. A namespace is the same in all of them: a
// Service of one name there is one Service, whose endpoints are those of all that export it.
// Namespaces that are Kubernetes' own (kube-*), the agent's, or made for a consumer are never
// shared.
type ClusterSet struct {
	// namespaceSelector selects namespaces of this cluster by their labels. Absent selects all. Users who may label
	// a namespace decide about it.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// endpoints is when the addresses of Services of the set lead to endpoints of the clusters that this policy
	// selects: All means always; OwnFirst while this cluster has none that is ready; Nearest while no nearer
	// cluster has one that is ready, this one among them. The annotation entente.dev/endpoints of a ServiceExport
	// overrides it for its Service. Absent means All.
	// +optional
	Endpoints EndpointPreference `json:"endpoints,omitempty"`
}

// EndpointPreference is which endpoints are used of a Service in several clusters.
// +kubebuilder:validation:Enum=All;OwnFirst;Nearest
type EndpointPreference string

// Which endpoints are used of a Service in several clusters.
const (
	EndpointsAll      EndpointPreference = "All"
	EndpointsOwnFirst EndpointPreference = "OwnFirst"
	EndpointsNearest  EndpointPreference = "Nearest"
)

// PolicyLimits is the limits of what is offered. Of amounts and percentage the smaller counts.
type PolicyLimits struct {
	// resources is the most that one peer gets, by resource.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(r, type(self[r]) == int ? self[r] >= 0 : size(self[r]) <= 20 && !self[r].startsWith('-') && ![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].exists(i, i + 1 < size(self[r]) && self[r].charAt(i) in ['e', 'E'] && self[r].charAt(i + 1) != 'i'))",message="an amount is a number of Kubernetes without an exponent, such as 500m, 2 or 4Gi, and not below zero"
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// percentOfFree is the largest share of the free resources of this cluster's nodes that one peer gets.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=50
	// +optional
	PercentOfFree *int32 `json:"percentOfFree,omitempty"`
	// total is the most that all peers of this policy get together.
	// +optional
	Total *TotalLimits `json:"total,omitempty"`
	// overcommitPercent is what counts as free, in percent of what is: 100 offers what is free, 200 twice as much,
	// as consumers rarely use all of it.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +kubebuilder:default=100
	// +optional
	OvercommitPercent *int32 `json:"overcommitPercent,omitempty"`
}

// TotalLimits is the most that all peers get together.
type TotalLimits struct {
	// resources is the most, by resource.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(r, type(self[r]) == int ? self[r] >= 0 : size(self[r]) <= 20 && !self[r].startsWith('-') && ![1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18].exists(i, i + 1 < size(self[r]) && self[r].charAt(i) in ['e', 'E'] && self[r].charAt(i + 1) != 'i'))",message="an amount is a number of Kubernetes without an exponent, such as 500m, 2 or 4Gi, and not below zero"
	// +optional
	Resources corev1.ResourceList `json:"resources,omitempty"`
	// percentOfFree is the largest share of the free resources of this cluster's nodes.
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
