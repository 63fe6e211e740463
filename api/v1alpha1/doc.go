// Package v1alpha1 holds Entente's custom resources: what people declare, what
// the agents agreed on, and what is so. It knows nothing of the wire and nothing
// of the peering logic; internal/store converts.
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
	// LabelPeer is the cluster ID of the peer that an object is there for.
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
	// AnnotationNameConfirmed says of a ForeignCluster that an administrator chose or
	// confirmed its name: "true". One that the agent made has the name that the cluster
	// gave itself, which selects no policy.
	AnnotationNameConfirmed = "entente.dev/name-confirmed"
	// AnnotationDiscovered says of a ForeignCluster that discovery made it: "true".
	AnnotationDiscovered = "entente.dev/discovered"
	// LabelAutomatic names the PeeringPolicy that made an object by its spec.automatic:
	// a ForeignCluster that it peered with, a PeeringRequest, a NamespaceOffloading.
	// Whoever takes it off makes the object theirs, and the policy touches it no more. Off
	// a ForeignCluster it makes its PeeringRequest theirs, too.
	LabelAutomatic = "entente.dev/automatic"
	// LabelNamespacesOf names the PeeringPolicy whose spec.automatic.namespaces may run in
	// a ForeignCluster. It stays where a person takes the cluster over: what runs there
	// goes on.
	LabelNamespacesOf = "entente.dev/namespaces-of"
	// AnnotationAutomaticBy says why that policy trusts a ForeignCluster: ClusterID,
	// Group/NAME or FirstUse.
	AnnotationAutomaticBy = "entente.dev/automatic-by"
	// AnnotationAutomaticEnded says of a ForeignCluster that is being deleted that the
	// policy it names ended the peering, and not a person: "true".
	AnnotationAutomaticEnded = "entente.dev/automatic-ended"
	// AnnotationEndpoints is which endpoints a Service leads to: an EndpointPreference. A
	// ServiceExport has it among its exportedAnnotations, a Service of an offloaded namespace itself,
	// where it holds at providers: at home Kubernetes writes the EndpointSlices.
	AnnotationEndpoints = "entente.dev/endpoints"
	// AnnotationSetName is the name of the ServiceImport of a consumer's that a Service here is made
	// of: names below clusterset.local lead to it.
	AnnotationSetName = "entente.dev/cluster-set-name"
	// LabelSourceCluster is the ID of the cluster whose endpoints an EndpointSlice of such a
	// Service has.
	LabelSourceCluster = "entente.dev/source-cluster"
	// AnnotationExternalName is the name of DNS that a Service of a consumer stands for, here
	// only for the resolver of the consumer's pods.
	AnnotationExternalName = "entente.dev/external-name"
	// AnnotationClusterDomain is the domain of the cluster that a namespace is from,
	// where its peer named one.
	AnnotationClusterDomain = "entente.dev/cluster-domain"
	// LabelVirtualNode marks nodes that stand for contracts: "true".
	LabelVirtualNode = "entente.dev/virtual-node"
	// LabelGateway says of a Node whether it is a gateway: "true" or "false". Where some have
	// "true", these are the gateways and no others; else the agent chooses some of those
	// that do not have "false".
	LabelGateway = "entente.dev/gateway"
	// AnnotationEndpoint says of a Node where other clusters can dial it as a gateway: HOST or
	// HOST:PORT, several with commas between, best first. Nobody is told of others then.
	AnnotationEndpoint = "entente.dev/endpoint"
	// AnnotationRotateKey asks for another key, of the tunnel to a ForeignCluster or of the node
	// of a FabricNode: a time in the form of RFC 3339. A key that is older is replaced, at
	// that time or as soon as can be.
	AnnotationRotateKey = "entente.dev/rotate-key"
	// PrefixPeerLabel begins the labels that a virtual node has of its ForeignCluster,
	// so that a selector of ForeignClusters can be one of nodes. Providers cannot set
	// such labels.
	PrefixPeerLabel = "peer.entente.dev/"
	// PrefixHomeLabel begins the labels of a consumer's pod that have a domain at its home,
	// with a _ for the slash: no controller here shall act on what a consumer calls its pods.
	PrefixHomeLabel = "home.entente.dev/"
	// LabelLatency says of a virtual node how long a message to its provider takes and back: at
	// most so many milliseconds, in classes.
	LabelLatency = "entente.dev/latency-ms"
	// LabelPrice and LabelCurrency say of a virtual node what a pod of one core and 4 GiB costs an
	// hour by its contract, in thousandths of the currency.
	LabelPrice    = "entente.dev/price-milli"
	LabelCurrency = "entente.dev/currency"
	// LabelPool says of a virtual node which pool of the provider's nodes it stands for, where its
	// contract names one.
	LabelPool = "entente.dev/pool"
	// LabelOffloading marks namespaces in which placement is decided by a
	// NamespaceOffloading: "enabled".
	LabelOffloading = "entente.dev/offloading"
	// AnnotationPodStrategy says of a pod of such a namespace where it may run, instead of
	// the namespace's podStrategy: Local, Remote or LocalAndRemote. With a namespace's Local
	// no pod leaves.
	AnnotationPodStrategy = "entente.dev/pod-strategy"
	// AnnotationHomeAPI says of a pod that it asks the API server of its home, as its ServiceAccount,
	// where it runs abroad: "true". Its namespace and the provider have to allow that.
	AnnotationHomeAPI = "entente.dev/home-api"
	// AnnotationPodIP says of a pod by which addresses it knows itself abroad, where its environment
	// refers to status.podIP or status.podIPs: PodIPHome for those by which home knows it. Without it
	// they are those of its own interfaces, to which it can bind.
	AnnotationPodIP = "entente.dev/pod-ip"
	PodIPHome       = "Home"
	// AnnotationHomeIPs is by which addresses home knows a pod of a consumer that reads them, empty
	// as long as that was not written.
	AnnotationHomeIPs = "entente.dev/home-ips"
	// LabelExport withholds a Service from peers, whatever policies say: "false".
	LabelExport = "entente.dev/export"
	// PodOffloaded is the condition of a pod on a virtual node that says whether the provider
	// took it. Its reason is Unschedulable while no node there takes it.
	PodOffloaded = "entente.dev/Offloaded"
	// TaintVirtualNode keeps pods off virtual nodes unless they opted in.
	TaintVirtualNode = "entente.dev/virtual-node"
	// TaintLosingPods keeps new pods off a virtual node whose provider loses those
	// that it takes.
	TaintLosingPods = "entente.dev/losing-pods"

	// VirtualNodeSuffix ends the name of every virtual node and of no other node.
	// Admission policies see a pod's node by name only, so the name says which
	// pods the agent may touch.
	VirtualNodeSuffix = ".entente.dev"

	// VolumeDriver is the provisioner of our storage classes, and the driver of
	// PersistentVolumes that stand for volumes in a peer's cluster. Nothing mounts them.
	VolumeDriver = "volumes.entente.dev"
	// LabelKept says of a consumer's volume, and of the namespace that it is in, that it is
	// kept though no contract holds it any more; AnnotationKeptSince says since when.
	LabelKept           = "entente.dev/kept-volume"
	AnnotationKeptSince = "entente.dev/kept-since"
	// VolumePeer is the attribute of such a PersistentVolume that says in whose.
	VolumePeer = "peer"

	// Manager is the value of LabelManaged and the field manager of server-side
	// apply.
	Manager = "entente"
	// Finalizer holds an object until what it stands for was taken down. Only
	// the local agent has to live for it to go; a peer never.
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
