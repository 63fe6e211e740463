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
	// PodUID is the pod's UID. With it an agent that was killed leads again as soon as
	// its container is restarted; without it, when the lease of the dead one ended.
	PodUID string
	// LeaseDuration is how long an agent in another pod waits for one that died without notice.
	// Default 20 s.
	LeaseDuration time.Duration
	// ClusterName is how this cluster calls itself; default: the short form of its
	// ID.
	ClusterName string
	// PeerEndpoints is where peers can dial this cluster. Default: as the Service
	// PeerService says.
	PeerEndpoints []string
	PeerService   string
	// ClusterDomain is the domain of this cluster's Services. Default: what the
	// agent's own pod was told.
	ClusterDomain string
	// DNSService is the Service, in the agent's namespace, of the resolver that
	// answers pods of consumers. Without it this cluster's own does.
	DNSService string
	// PodCIDRs overrides what the nodes carry, ServiceCIDRs is prefixes of Services beside
	// those that the API server has, AliasPool where aliases come from.
	PodCIDRs, ServiceCIDRs, AliasPool []netip.Prefix
	// MultiClusterServices has namespaces shared with peers as their policies say, where the
	// API server has the kinds ServiceExport and ServiceImport.
	MultiClusterServices bool
	// ExternalHosts is the prefixes in which hosts that are no pods may be exported.
	ExternalHosts []netip.Prefix
	// Gateways is how many nodes are gateways where none is labelled as one.
	Gateways int
	// Direct is which nodes peers are told of, so that pods reach each other from node to node.
	Direct gateways.Direct
	// PresharedKeyEvery is how long the preshared key of a tunnel is used before it is
	// replaced; 0 is for ever.
	PresharedKeyEvery time.Duration
	// FabricEndpoints is where other clusters can dial the gateways, as HOST or HOST:PORT
	// with {node} for a gateway's name. Default: the addresses of their Nodes.
	FabricEndpoints []string
	// FabricService is LoadBalancer or NodePort where each gateway is to be dialled by a
	// Service of its own, of FabricServiceClass and with FabricServiceAnnotations. Default: none.
	FabricService            corev1.ServiceType
	FabricServiceClass       string
	FabricServiceAnnotations map[string]string
	// DiscoveryLAN publishes this cluster on the LANs of the gateway, and looks for others
	// there, on the interfaces DiscoveryInterfaces; default: see [mdns.DefaultInterface].
	DiscoveryLAN        bool
	DiscoveryInterfaces []string
	// DiscoveryDomains are the domains in which clusters are looked for. Default: none.
	DiscoveryDomains []string
	// DiscoveryResolvers are asked for them, as ADDRESS or ADDRESS:PORT. Default: those of
	// /etc/resolv.conf. What is malformed here is a problem that administrators are told.
	DiscoveryResolvers []string
	// Update is where this cluster publishes itself. Default: nowhere.
	Update dnsupdate.Config
	// InBandAddress is where gateways bring in-band peers; empty is nowhere.
	InBandAddress string
	// PeerAddress, AdminAddress, KubeletAddress, HealthAddress and MetricsAddress are
	// where the agent listens.
	PeerAddress, AdminAddress, KubeletAddress, HealthAddress, MetricsAddress string
	// Placement is where the placement webhook listens; nowhere if the API server has a policy that
	// does the same.
	Placement PlacementConfig
	// Relay is how datagrams of tunnels are carried over sessions.
	Relay RelayConfig
	// Carry is how sessions are carried through third peers.
	Carry CarryConfig
	// HomeAPI is where pods of consumers reach the API servers of their homes.
	HomeAPI HomeAPIConfig
	// KubeletCertificate is who signs the certificate of the kubelet API.
	KubeletCertificate KubeletCertificate
	// NodeMetrics has the agent give nodes a certificate for readers of their metrics.
	NodeMetrics bool
	// LeafLife is how long a certificate of the agent lives.
	LeafLife time.Duration
	Log      *slog.Logger
}

// PlacementConfig is where the placement webhook is served.
type PlacementConfig struct {
	// Address is where it listens; empty: nowhere.
	Address string
	// Certificate is the directory of its certificate, tls.crt and tls.key, which may change. It is
	// not this cluster's own: the agent would need the right to change its
	// MutatingWebhookConfiguration, with which it could have itself asked of everything.
	Certificate string
}

// RelayConfig is how datagrams of tunnels are carried over sessions, where UDP does not pass.
type RelayConfig struct {
	// Address is where gateways bring them; empty: they are not carried.
	Address string
	// Rate is how many bytes a second are carried for a peer, each way, AllRate for all.
	Rate, AllRate int
}

// HomeAPIConfig is where pods of consumers reach the API servers of their homes.
type HomeAPIConfig struct {
	// Address is where the agent listens for them; empty: nothing is carried.
	Address string
	// Service is the Service, in the agent's namespace, that leads there from port 443.
	Service string
}

// KubeletCertificate is who signs the certificate with which virtual nodes answer
// the API server.
type KubeletCertificate string

const (
	// OwnCertificate is one of this cluster's own authority, which clients of the
	// admin API know as well.
	OwnCertificate KubeletCertificate = "Own"
	// ClusterCertificate is one of the signer kubernetes.io/kubelet-serving, which
	// the agent approves itself.
	ClusterCertificate KubeletCertificate = "Cluster"
)

const (
	// ServiceAccount is the agent's.
	ServiceAccount = "entente-agent"
	// CAConfigMap is where clients of the admin API find its certificate
	// authority, under CAKey.
	CAConfigMap = "entente-ca"
	// CAKey is the key of the certificate, PEM.
	CAKey = "ca.crt"

	leaseName   = "entente-agent"
	eventSource = "entente-agent"

	// defaultLease is the length of the lease where no other agent stands by: it has to be
	// long, as an API server under load takes seconds, and nobody waits for its end but an agent
	// that follows one on a node that died.
	defaultLease = 20 * time.Second
	// stopLimit is how long the parts of an agent that stops may take, before it gives its lease
	// up all the same.
	stopLimit = 8 * time.Second

	// namespaceLook is how often the cache is asked whether the agent's namespace is being deleted.
	namespaceLook = time.Second

	// ownLook is how often this cluster's own ClusterInfo is checked for changes.
	ownLook = 5 * time.Second
)
