package agent

import (
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/entente-dev/entente/internal/dnsupdate"
	"github.com/entente-dev/entente/internal/gateways"
)

// Config is what the agent of a cluster needs.
type Config struct {
	// Kubernetes is how to reach the API server. Required.
	Kubernetes *rest.Config
	// Namespace and Pod name the agent's own pod, PodIP is its address. Required.
	Namespace, Pod string
	PodIP          netip.Addr
	// PodUID is the pod's UID. With it an agent that was killed leads again as soon as its container is restarted;
	// without it, once the dead agent's lease has ended.
	PodUID string
	// LeaseDuration is how long an agent in another pod waits for one that died without notice.
	// Default 20 s.
	LeaseDuration time.Duration
	// ClusterName is the name that this cluster gives itself; default: the short form of its ID.
	ClusterName string
	// PeerEndpoints is where peers can dial this cluster. Default: the addresses of the Service PeerService.
	PeerEndpoints []string
	PeerService   string
	// ClusterDomain is the domain of this cluster's Services. Default: the one in the resolv.conf of the agent's
	// own pod.
	ClusterDomain string
	// DNSService is the Service, in the agent's namespace, of the resolver for pods of consumers. Default: this
	// cluster's own resolver.
	DNSService string
	// PodCIDRs overrides the prefixes of the nodes, ServiceCIDRs is prefixes of Services besides those that the API
	// server has, AliasPool where aliases come from.
	PodCIDRs, ServiceCIDRs, AliasPool []netip.Prefix
	// MultiClusterServices shares namespaces with peers as policies say, if the API server has the kinds
	// ServiceExport and ServiceImport.
	MultiClusterServices bool
	// ExternalHosts is the prefixes of hosts, other than pods, that may be exported.
	ExternalHosts []netip.Prefix
	// Gateways is how many nodes are gateways if none is labelled as one.
	Gateways int
	// Direct is which nodes are announced to peers, so that pods reach each other from node to node.
	Direct gateways.Direct
	// PresharedKeyEvery is how long the preshared key of a tunnel is used before it is replaced; 0 means forever.
	PresharedKeyEvery time.Duration
	// FabricEndpoints is where other clusters can dial the gateways, as HOST or HOST:PORT
	// with {node} for a gateway's name. Default: the addresses of their Nodes.
	FabricEndpoints []string
	// FabricService is LoadBalancer or NodePort if each gateway has a Service of its own by which it is dialled, of
	// FabricServiceClass, with FabricServiceAnnotations and of FabricServiceFamilies. Default: none.
	FabricService            corev1.ServiceType
	FabricServiceClass       string
	FabricServiceFamilies    corev1.IPFamilyPolicy
	FabricServiceAnnotations map[string]string
	// DiscoveryLAN publishes this cluster on the LANs of the gateway, and discovers others there, on the interfaces
	// DiscoveryInterfaces; default: see [mdns.DefaultInterface].
	DiscoveryLAN        bool
	DiscoveryInterfaces []string
	// DiscoveryDomains are the domains in which clusters are discovered. Default: none.
	DiscoveryDomains []string
	// DiscoveryResolvers are asked for these domains, as ADDRESS or ADDRESS:PORT. Default: those of
	// /etc/resolv.conf. Malformed ones are reported to administrators as problems.
	DiscoveryResolvers []string
	// Update is where this cluster publishes itself. Default: nowhere.
	Update dnsupdate.Config
	// InBandAddress is where gateways bring connections of in-band peers; empty if there are none.
	InBandAddress string
	// PeerAddress, AdminAddress, KubeletAddress, HealthAddress and MetricsAddress are
	// where the agent listens.
	PeerAddress, AdminAddress, KubeletAddress, HealthAddress, MetricsAddress string
	// PlacementBy is what places pods, as the chart installed it: policy/VERSION, webhook or off; empty if it is not known.
	PlacementBy string
	// Placement is where the placement webhook listens, if the API server has no policy that does the same.
	Placement PlacementConfig
	// Relay configures how datagrams of tunnels are carried over sessions.
	Relay RelayConfig
	// Carry configures how sessions are carried through third peers.
	Carry CarryConfig
	// HomeAPI configures where pods of consumers reach the API servers of their homes.
	HomeAPI HomeAPIConfig
	// KubeletCertificate is the signer of the kubelet API's certificate.
	KubeletCertificate KubeletCertificate
	// NodeMetrics publishes a certificate with which nodes serve their metrics.
	NodeMetrics bool
	// LeafLife is how long a certificate of the agent is valid.
	LeafLife time.Duration
	Log      *slog.Logger
}

// PlacementConfig is where the placement webhook is served.
type PlacementConfig struct {
	// Address is where it listens; empty turns it off.
	Address string
	// Certificate is the directory of its certificate, tls.crt and tls.key, which may change. It is not signed by
	// this cluster's own authority: the agent would need the right to change its MutatingWebhookConfiguration, with
	// which it could make the API server send it every request.
	Certificate string
}

// RelayConfig configures how datagrams of tunnels are carried over sessions if UDP does not pass.
type RelayConfig struct {
	// Address is where gateways bring them; empty turns it off.
	Address string
	// Rate is how many bytes a second are carried for a peer, each way, AllRate for all peers.
	Rate, AllRate int
}

// HomeAPIConfig is where pods of consumers reach the API servers of their homes.
type HomeAPIConfig struct {
	// Address is where the agent listens for them; empty turns it off.
	Address string
	// Service is the Service, in the agent's namespace, whose port 443 leads there.
	Service string
}

// KubeletCertificate is the signer of the certificate with which virtual nodes serve the API server.
type KubeletCertificate string

const (
	// OwnCertificate is signed by this cluster's own authority, which clients of the admin API know as well.
	OwnCertificate KubeletCertificate = "Own"
	// ClusterCertificate is signed by kubernetes.io/kubelet-serving, after the agent approved it itself.
	ClusterCertificate KubeletCertificate = "Cluster"
)

const (
	// ServiceAccount is the agent's.
	ServiceAccount = "entente-agent"
	// CAConfigMap is the ConfigMap in which clients of the admin API find its certificate authority, under CAKey.
	CAConfigMap = "entente-ca"
	// CAKey is the key of the certificate, PEM.
	CAKey = "ca.crt"

	leaseName   = "entente-agent"
	eventSource = "entente-agent"

	// defaultLease is the length of the lease if no other agent stands by: it has to be long, as an API server
	// under load takes seconds, and only an agent that follows one on a node that died waits for its end.
	defaultLease = 20 * time.Second
	// stopLimit is how long the parts of an agent that stops may take, before it gives its lease up anyway.
	stopLimit = 8 * time.Second

	// namespacePoll is how often the cache is checked for the deletion of the agent's namespace.
	namespacePoll = time.Second

	// ownPoll is how often this cluster's own ClusterInfo is checked for changes.
	ownPoll = 5 * time.Second
)
