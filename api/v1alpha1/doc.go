// Package v1alpha1 has Entente's custom resources: what users declare, what the agents agreed on, and the observed
// state. It does not know the wire or the peering logic; internal/store converts.
//
// +kubebuilder:object:generate=true
// +groupName=entente.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of every kind in this package.
var GroupVersion = schema.GroupVersion{Group: "entente.dev", Version: "v1alpha1"}

// Labels, annotations and taints that Entente puts on objects of other kinds.
const (
	// LabelManaged marks everything that Entente made: "entente".
	LabelManaged = "app.kubernetes.io/managed-by"
	// LabelLeader is "true" on the pod of the agent that leads. Services select it.
	LabelLeader = "entente.dev/leader"
	// LabelPeer is the cluster ID of the peer for which an object exists.
	LabelPeer = "entente.dev/peer"
	// LabelContract is the contract that an object is there for.
	LabelContract = "entente.dev/contract"
	// LabelOriginNamespace is the namespace of the object at its home.
	LabelOriginNamespace = "entente.dev/origin-namespace"
	// LabelOriginName is the name of the object at its home, where it fits a label.
	LabelOriginName = "entente.dev/origin-name"
	// LabelOriginUID is the UID of the object at its home.
	LabelOriginUID = "entente.dev/origin-uid"
	// AnnotationHash is the hash with which an object was applied by its home.
	AnnotationHash = "entente.dev/hash"
	// AnnotationNameConfirmed on a ForeignCluster says that an administrator chose or confirmed its name: "true".
	// One that the agent made has the name that the cluster gave itself, which selects no policy.
	AnnotationNameConfirmed = "entente.dev/name-confirmed"
	// AnnotationDiscovered on a ForeignCluster says that discovery made it: "true".
	AnnotationDiscovered = "entente.dev/discovered"
	// LabelAutomatic names the PeeringPolicy that made an object by its spec.automatic: a ForeignCluster that it
	// peered with, a PeeringRequest, a NamespaceOffloading. A user who removes it takes the object over, and the
	// policy no longer changes it. Removing it from a ForeignCluster takes its PeeringRequest over, too.
	LabelAutomatic = "entente.dev/automatic"
	// LabelNamespacesOf names the PeeringPolicy whose spec.automatic.namespaces may run in a ForeignCluster. It
	// stays when an administrator takes the cluster over: what runs there continues.
	LabelNamespacesOf = "entente.dev/namespaces-of"
	// AnnotationAutomaticBy says why that policy trusts a ForeignCluster: ClusterID,
	// Group/NAME or FirstUse.
	AnnotationAutomaticBy = "entente.dev/automatic-by"
	// AnnotationAutomaticEnded on a ForeignCluster that is being deleted says that the policy it names ended the
	// peering, and not an administrator: "true".
	AnnotationAutomaticEnded = "entente.dev/automatic-ended"
	// AnnotationEndpoints is which endpoints a Service leads to: an EndpointPreference. A ServiceExport has it
	// among its exportedAnnotations. A Service of an offloaded namespace has it itself, for providers: at home
	// Kubernetes writes the EndpointSlices.
	AnnotationEndpoints = "entente.dev/endpoints"
	// AnnotationSetName is the name of the consumer's ServiceImport for which a Service was made here: names below
	// clusterset.local lead to it.
	AnnotationSetName = "entente.dev/cluster-set-name"
	// LabelSourceCluster is the ID of the cluster whose endpoints an EndpointSlice of such a
	// Service has.
	LabelSourceCluster = "entente.dev/source-cluster"
	// AnnotationExternalName is the DNS name that a Service of a consumer refers to, which is used here only by the
	// resolver of the consumer's pods.
	AnnotationExternalName = "entente.dev/external-name"
	// AnnotationClusterDomain is the domain of the cluster that a namespace is from, if its peer named one.
	AnnotationClusterDomain = "entente.dev/cluster-domain"
	// LabelVirtualNode is "true" on the nodes of contracts.
	LabelVirtualNode = "entente.dev/virtual-node"
	// LabelGateway on a Node says whether it is a gateway: "true" or "false". If some Nodes have "true", these are
	// the gateways and no others; otherwise the agent chooses some of those that do not have "false".
	LabelGateway = "entente.dev/gateway"
	// AnnotationEndpoint on a Node says where other clusters can dial it as a gateway: HOST or HOST:PORT, several
	// separated by commas, best first. No other endpoints of it are announced then.
	AnnotationEndpoint = "entente.dev/endpoint"
	// AnnotationRotateKey asks for another key, of the tunnel to a ForeignCluster or of the node of a FabricNode: a
	// time in the form of RFC 3339. A key that is older is replaced, at that time or as soon as possible.
	AnnotationRotateKey = "entente.dev/rotate-key"
	// PrefixPeerLabel begins the labels that a virtual node has of its ForeignCluster,
	// so that a selector of ForeignClusters can be one of nodes. Providers cannot set
	// such labels.
	PrefixPeerLabel = "peer.entente.dev/"
	// PrefixHomeLabel begins the labels of a consumer's pod that have a domain at its home, with a _ for the slash:
	// no controller here should act on a consumer's labels.
	PrefixHomeLabel = "home.entente.dev/"
	// LabelLatency on a virtual node is the round trip to its provider: at most that many milliseconds, in classes.
	LabelLatency = "entente.dev/latency-ms"
	// LabelPrice and LabelCurrency on a virtual node are what a pod of one core and 4 GiB costs an hour by its
	// contract, in thousandths of the currency.
	LabelPrice    = "entente.dev/price-milli"
	LabelCurrency = "entente.dev/currency"
	// LabelPool on a virtual node names the pool of the provider's nodes that its contract names, if it names one.
	LabelPool = "entente.dev/pool"
	// LabelGPU on a virtual node names the domains of the GPUs that its contract grants, as nvidia.com, if it grants any.
	LabelGPU = "entente.dev/gpu"
	// LabelOffloading is "enabled" on namespaces whose placement a NamespaceOffloading decides.
	LabelOffloading = "entente.dev/offloading"
	// AnnotationPodStrategy on a pod of such a namespace says where it may run, instead of the namespace's
	// podStrategy: Local, Remote or LocalAndRemote. If the namespace's is Local no pod leaves.
	AnnotationPodStrategy = "entente.dev/pod-strategy"
	// AnnotationHomeAPI on a pod says that it calls the API server of its home, as its ServiceAccount, when it runs
	// abroad: "true". Its namespace and the provider have to allow that.
	AnnotationHomeAPI = "entente.dev/home-api"
	// AnnotationPodIP on a pod says which addresses it sees as its own abroad, if its environment refers to
	// status.podIP or status.podIPs: PodIPHome for those by which home knows it. Without it they are the addresses
	// of its own interfaces, to which it can bind.
	AnnotationPodIP = "entente.dev/pod-ip"
	PodIPHome       = "Home"
	// AnnotationHomeIPs is the addresses by which home knows a pod of a consumer that reads them, empty until they
	// are written.
	AnnotationHomeIPs = "entente.dev/home-ips"
	// LabelExport withholds a Service from peers, whatever policies list: "false".
	LabelExport = "entente.dev/export"
	// PodOffloaded is the condition of a pod on a virtual node that the provider accepted it. Its reason is
	// Unschedulable while no node there accepts it.
	PodOffloaded = "entente.dev/Offloaded"
	// TaintVirtualNode keeps pods off virtual nodes unless they opted in.
	TaintVirtualNode = "entente.dev/virtual-node"
	// TaintLosingPods keeps new pods off a virtual node whose provider loses the pods that it accepts.
	TaintLosingPods = "entente.dev/losing-pods"

	// VirtualNodeSuffix ends the name of every virtual node and of no other node.
	// Admission policies see a pod's node by name only, so the name says which
	// pods the agent may touch.
	VirtualNodeSuffix = ".entente.dev"

	// VolumeDriver is the provisioner of our storage classes, and the driver of PersistentVolumes that represent
	// volumes in a peer's cluster. Nothing mounts them.
	VolumeDriver = "volumes.entente.dev"
	// LabelRetained says that a consumer's volume, or the namespace that it is in, is retained though no contract
	// needs it any more; AnnotationRetainedSince says since when.
	LabelRetained           = "entente.dev/retained-volume"
	AnnotationRetainedSince = "entente.dev/retained-since"
	// VolumePeer is the attribute of such a PersistentVolume that names the peer.
	VolumePeer = "peer"

	// Manager is the value of LabelManaged and the field manager of server-side
	// apply.
	Manager = "entente"
	// Finalizer keeps an object until what exists because of it was removed. Only the local agent has to run for
	// that, and no peer.
	Finalizer = "entente.dev/finalizer"
	// FinalizerMove keeps a claim while its volume is moved. `entente move volume` removes it.
	FinalizerMove = "entente.dev/move"
)

// AddToScheme registers the kinds of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ForeignCluster{}, &ForeignClusterList{},
		&PeeringPolicy{}, &PeeringPolicyList{},
		&PeeringRequest{}, &PeeringRequestList{},
		&Contract{}, &ContractList{},
		&NamespaceOffloading{}, &NamespaceOffloadingList{},
		&OffloadedPod{}, &OffloadedPodList{},
		&FabricNode{}, &FabricNodeList{},
		&Tunnel{}, &TunnelList{},
		&NodeDiscovery{}, &NodeDiscoveryList{},
		&ExternalHost{}, &ExternalHostList{},
		&ImportedService{}, &ImportedServiceList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
