package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Contract is a contract with a foreign cluster, as this cluster stores it. Its envelope is authoritative; the rest
// of the spec is a readable copy of it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=entente
// +kubebuilder:printcolumn:name="Peer",type=string,JSONPath=`.spec.foreignCluster`
// +kubebuilder:printcolumn:name="Side",type=string,JSONPath=`.spec.role`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="CPU-Granted",type=string,JSONPath=`.spec.resources.cpu`
// +kubebuilder:printcolumn:name="Memory-Granted",type=string,JSONPath=`.spec.resources.memory`
// +kubebuilder:printcolumn:name="Pods-Used",type=integer,JSONPath=`.status.pods`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.spec.notAfter`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="CPU-Used",type=string,JSONPath=`.status.used.cpu`,priority=1
// +kubebuilder:printcolumn:name="Memory-Used",type=string,JSONPath=`.status.used.memory`,priority=1
// +kubebuilder:printcolumn:name="Pods-Granted",type=string,JSONPath=`.spec.resources.pods`,priority=1
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.spec.revision`,priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`,priority=1
// +kubebuilder:printcolumn:name="Node-Ready",type=string,JSONPath=`.status.conditions[?(@.type=="NodeReady")].status`,priority=1
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`,priority=1
type Contract struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is what was agreed.
	Spec ContractSpec `json:"spec"`
	// status is its state.
	// +optional
	Status ContractStatus `json:"status,omitempty"`
}

// ContractRole is this cluster's role in a contract.
// +kubebuilder:validation:Enum=Consumer;Provider
type ContractRole string

// The roles.
const (
	ContractConsumer ContractRole = "Consumer"
	ContractProvider ContractRole = "Provider"
)

// ContractSpec is what was agreed.
type ContractSpec struct {
	// foreignCluster is the name of the other side's ForeignCluster.
	ForeignCluster string `json:"foreignCluster"`
	// peerID is the other side's cluster ID.
	PeerID string `json:"peerID"`
	// role is this cluster's role.
	Role ContractRole `json:"role"`
	// revision counts the contract's revisions, from 1.
	// +kubebuilder:validation:Minimum=1
	Revision int64 `json:"revision"`
	// requestID is the UID of the consumer's PeeringRequest.
	RequestID string `json:"requestID"`
	// resources is what is granted.
	Resources corev1.ResourceList `json:"resources"`
	// notBefore is when the contract begins.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$`
	NotBefore metav1.Time `json:"notBefore"`
	// notAfter is when it ends.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}([.][0-9]+)?(Z|[-+][0-9]{2}:[0-9]{2})$`
	NotAfter metav1.Time `json:"notAfter"`
	// network is Tunnel or None.
	Network NetworkMode `json:"network"`
	// podSecurity is the Pod Security level that offloaded pods have to meet.
	PodSecurity PodSecurityLevel `json:"podSecurity"`
	// nodeLabels are the labels of the virtual node.
	// +optional
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// price is what use costs.
	// +optional
	Price *PriceList `json:"price,omitempty"`
	// renewable says whether the provider intends to renew it.
	// +optional
	Renewable bool `json:"renewable,omitempty"`
	// notice is how long pods may continue to run when the provider ends it early.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	Notice *metav1.Duration `json:"notice,omitempty"`
	// statementPeriod is how long each statement of use covers.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^-?(0|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+)$') && duration(self) <= duration('2562047h')",message="a duration is in hours, minutes and seconds: write 720h, not 30d"
	// +optional
	StatementPeriod *metav1.Duration `json:"statementPeriod,omitempty"`
	// exposure is what the two clusters' pods reach in the other cluster.
	// +optional
	Exposure string `json:"exposure,omitempty"`
	// pool is the pool of the provider's nodes that was asked for by name.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Pool string `json:"pool,omitempty"`
	// nodeSelector is labels of the nodes on which offloaded pods run.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// runtimeClasses is the runtime classes that offloaded pods may name.
	// +optional
	RuntimeClasses []string `json:"runtimeClasses,omitempty"`
	// limitRange has the defaults of containers of offloaded pods that name no amount of a resource, and the bounds
	// of containers and pods. It stays as long as the contract.
	// +optional
	LimitRange *LimitRange `json:"limitRange,omitempty"`
	// envelope is the DSSE envelope, JSON, with both signatures. Verify it with
	// `entente contract verify`.
	// +kubebuilder:validation:MaxLength=131072
	Envelope string `json:"envelope"`
	// termination asks to end the contract: Drain lets running pods move away first, Now does not. The agent writes
	// Peer when the other side ended it.
	// +optional
	// +kubebuilder:validation:Enum=Drain;Now;Peer
	Termination Termination `json:"termination,omitempty"`
}

// Termination is how a contract ends.
type Termination string

// How a contract ends.
const (
	TerminateDrain Termination = "Drain"
	TerminateNow   Termination = "Now"
	TerminatePeer  Termination = "Peer"
)

// ConditionNodeReady is the condition of a consumer's Contract that its virtual node accepts pods. It is a reason
// of Offloading, too.
const ConditionNodeReady = "NodeReady"

// ContractStatus is the state of a contract.
type ContractStatus struct {
	// phase is Active, Draining or Closed.
	// +optional
	Phase string `json:"phase,omitempty"`
	// reason is why it drains or closed: Expired, EndedHere or EndedByPeer.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is why, for users.
	// +optional
	Message string `json:"message,omitempty"`
	// drainUntil is when draining ends.
	// +optional
	DrainUntil *metav1.Time `json:"drainUntil,omitempty"`
	// closedAt is when it closed.
	// +optional
	ClosedAt *metav1.Time `json:"closedAt,omitempty"`
	// conditions has, at the consumer, NodeReady: whether the virtual node accepts pods.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// used is what live pods use of the resources, at the provider by its own
	// count.
	// +optional
	Used corev1.ResourceList `json:"used,omitempty"`
	// pods is how many live pods there are.
	// +optional
	Pods int32 `json:"pods,omitempty"`
	// node is the virtual node, at the consumer.
	// +optional
	Node string `json:"node,omitempty"`
	// usage is what was used, by this cluster's own count.
	// +optional
	Usage *Usage `json:"usage,omitempty"`
	// statements is the provider's newest statements of use, oldest first.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Statements []Statement `json:"statements,omitempty"`
	// statementsInDoubt is, at the consumer, which periods the provider's statements leave in doubt. It stays,
	// whatever is stated later.
	// +optional
	StatementsInDoubt *StatementsInDoubt `json:"statementsInDoubt,omitempty"`
}

// StatementsInDoubt is which periods of a contract have no statement of use here, or more than one.
type StatementsInDoubt struct {
	// missing is how many periods have no statement here.
	// +optional
	Missing int64 `json:"missing,omitempty"`
	// restated is for how many periods, as far as known, the provider signed another statement than the one that it
	// sent first.
	// +optional
	Restated int64 `json:"restated,omitempty"`
	// first is the number of the first such period.
	First int64 `json:"first"`
	// last is the number of the last one.
	Last int64 `json:"last"`
}

// Usage is the running meter of use.
type Usage struct {
	// since is when the current period began.
	Since metav1.MicroTime `json:"since"`
	// until is the time up to which it was counted.
	Until metav1.MicroTime `json:"until"`
	// using is what was in use then.
	// +optional
	Using corev1.ResourceList `json:"using,omitempty"`
	// unitSeconds is what was used in the current period: amount times seconds,
	// decimal, by resource.
	// +optional
	UnitSeconds map[string]string `json:"unitSeconds,omitempty"`
	// periods is the newest periods that have ended, oldest first, at the consumer:
	// its own count for each of the provider's statements.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	Periods []UsagePeriod `json:"periods,omitempty"`
	// sequence is the number of the last period that ended.
	// +optional
	Sequence int64 `json:"sequence,omitempty"`
}

// UsagePeriod is what was used in a period that has ended.
type UsagePeriod struct {
	// since is when it began.
	Since metav1.MicroTime `json:"since"`
	// until is when it ended.
	Until metav1.MicroTime `json:"until"`
	// unitSeconds is amount times seconds, decimal, by resource.
	// +optional
	UnitSeconds map[string]string `json:"unitSeconds,omitempty"`
}

// Statement is a provider's statement of use.
type Statement struct {
	// sequence counts the contract's statements, from 1.
	Sequence int64 `json:"sequence"`
	// envelope is the DSSE envelope, JSON, with the provider's signature.
	// +kubebuilder:validation:MaxLength=32768
	Envelope string `json:"envelope"`
}

// ContractList is a list of Contracts.
//
// +kubebuilder:object:root=true
type ContractList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Contract `json:"items"`
}
