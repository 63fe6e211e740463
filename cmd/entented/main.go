// Command entented runs Entente's processes in a cluster: the agent, the fabric on
// each node, and the jobs that remove both again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/entente-dev/entente/internal/agent"
	"github.com/entente-dev/entente/internal/cleanup"
	"github.com/entente-dev/entente/internal/fabric"
	"github.com/entente-dev/entente/internal/resolver"
	"github.com/entente-dev/entente/internal/version"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/userspace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "entented:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	var logs logFlags
	cmd := &cobra.Command{
		Use:           "entented",
		Short:         "Entente's daemons: the agent of a cluster and the fabric of its nodes",
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	logs.add(cmd.PersistentFlags())
	cmd.AddCommand(agentCommand(&logs), nodeCommand(&logs), dnsCommand(&logs), wireguardCommand(&logs), cleanCommand(&logs), cleanupCommand(&logs), volumeCommand(&logs))
	return cmd
}

// daemon is a command that runs until its context ends.
func daemon(use, short string, run func(ctx context.Context) error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) }}
}

type logFlags struct{ level, format string }

func (f *logFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.level, "log-level", "info", "least severe level that is logged: debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "json", "json or text")
}

// start returns the program's logger, which the libraries use from then on, too.
func (f *logFlags) start() (*slog.Logger, error) {
	log, err := f.logger(os.Stderr)
	if err == nil {
		takeLogs(log)
	}
	return log, err
}

func (f *logFlags) logger(out io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, fmt.Errorf("--log-level %q: use debug, info, warn or error", f.level)
	}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch f.format {
	case "json":
		handler = slog.NewJSONHandler(out, options)
	case "text":
		handler = slog.NewTextHandler(out, options)
	default:
		return nil, fmt.Errorf("--log-format %q: use json or text", f.format)
	}
	return slog.New(calm{handler}), nil
}

func (f *logFlags) cluster() (*rest.Config, *slog.Logger, error) {
	log, err := f.start()
	if err != nil {
		return nil, nil, err
	}
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("no way to reach the API server (run in a cluster, or set KUBECONFIG): %w", err)
	}
	cfg.UserAgent = "entented/" + version.Version
	// API priority and fairness limits requests; a client-side limit would only hide
	// where the time is spent.
	cfg.QPS = -1
	// Watches would be compressed, too, which the cluster's own network does not need.
	cfg.DisableCompression = true
	return cfg, log, nil
}

// agentOptions are the flags of the agent.
type agentOptions struct {
	cfg      agent.Config
	prefixes prefixOptions
	// hosts are prefixes.
	hosts []string
	// annotations are KEY=VALUE for gateways' Services.
	annotations []string
	// relayRate and relayTotalRate are quantities of bytes a second.
	relayRate, relayTotalRate string
	profiles                  string
}

// leastKeyEvery is the minimum time for which keys are used: replacing one takes some seconds, and as
// many writes.
const leastKeyEvery = time.Hour

// leastLease is the shortest lease: a shorter one is lost where an API server is busy. Beyond maxLease a virtual node
// would be lost before another agent leads.
const leastLease, maxLease = 4 * time.Second, 25 * time.Second

func checkKeyEvery(flag string, d time.Duration) error {
	if d != 0 && d < leastKeyEvery {
		return fmt.Errorf("--%s %s must be 0 or at least %s", flag, d, leastKeyEvery)
	}
	return nil
}

// prefixOptions are the flags that name this cluster's prefixes.
type prefixOptions struct{ pods, services, pool []string }

// read parses them into a configuration.
func (o *prefixOptions) read(pods, services, pool *[]netip.Prefix) (err error) {
	if *pods, err = prefixFlag("pod-cidr", o.pods); err != nil {
		return err
	}
	if *services, err = prefixFlag("service-cidr", o.services); err != nil {
		return err
	}
	*pool, err = prefixFlag("alias-pool", o.pool)
	return err
}

// config returns the configuration from the flags and the environment, which the chart sets.
func (o *agentOptions) config(getenv func(string) string) (agent.Config, error) {
	cfg := o.cfg
	err := o.prefixes.read(&cfg.PodCIDRs, &cfg.ServiceCIDRs, &cfg.AliasPool)
	if err != nil {
		return cfg, err
	}
	if cfg.ExternalHosts, err = prefixFlag("external-hosts", o.hosts); err != nil {
		return cfg, err
	}
	if cfg.Gateways < 1 || cfg.Gateways > 16 {
		return cfg, fmt.Errorf("--gateways %d must be from 1 to 16", cfg.Gateways)
	}
	if !cfg.Direct.Valid() {
		return cfg, fmt.Errorf("--direct %q must be All, Gateways or None", cfg.Direct)
	}
	if err := checkKeyEvery("preshared-key-every", cfg.PresharedKeyEvery); err != nil {
		return cfg, err
	}
	if cfg.LeaseDuration < leastLease || cfg.LeaseDuration > maxLease || cfg.LeaseDuration%time.Second != 0 {
		return cfg, fmt.Errorf("--lease-duration %s must be whole seconds, from %s to %s", cfg.LeaseDuration, leastLease, maxLease)
	}
	if cfg.FabricService != "" && cfg.FabricService != corev1.ServiceTypeLoadBalancer && cfg.FabricService != corev1.ServiceTypeNodePort {
		return cfg, fmt.Errorf("--fabric-service %q must be LoadBalancer or NodePort", cfg.FabricService)
	}
	switch cfg.Carry.For {
	case agent.CarryForNone, agent.CarryForContracts, agent.CarryForPeers:
	default:
		return cfg, fmt.Errorf("--carry-for-peers %q must be None, Contracts or Peers", cfg.Carry.For)
	}
	for flag, rate := range map[string]struct {
		text string
		to   *int
	}{"relay-rate": {o.relayRate, &cfg.Relay.Rate}, "relay-total-rate": {o.relayTotalRate, &cfg.Relay.AllRate}} {
		q, err := resource.ParseQuantity(rate.text)
		if err != nil || q.Value() < 1 || q.Value() > math.MaxInt32 {
			return cfg, fmt.Errorf("--%s %q must be bytes a second, 1 to 2Gi", flag, rate.text)
		}
		*rate.to = int(q.Value())
	}
	cfg.Carry.Rate, cfg.Carry.AllRate = cfg.Relay.Rate, cfg.Relay.AllRate
	for _, text := range o.annotations {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return cfg, fmt.Errorf("--fabric-service-annotation %q must be KEY=VALUE", text)
		}
		if cfg.FabricServiceAnnotations == nil {
			cfg.FabricServiceAnnotations = map[string]string{}
		}
		cfg.FabricServiceAnnotations[key] = value
	}
	cfg.Namespace, cfg.Pod, cfg.PodUID = getenv("POD_NAMESPACE"), getenv("POD_NAME"), getenv("POD_UID")
	if cfg.PodIP, err = netip.ParseAddr(getenv("POD_IP")); err != nil || cfg.Namespace == "" || cfg.Pod == "" {
		return cfg, errors.New("POD_NAME, POD_NAMESPACE and POD_IP have to be set: the chart does")
	}
	return cfg, nil
}

func agentCommand(logs *logFlags) *cobra.Command {
	var options agentOptions
	cmd := daemon("agent", "Run the agent: peer API, admin API, contracts, virtual nodes", func(ctx context.Context) error {
		cfg, err := options.config(os.Getenv)
		if err != nil {
			return err
		}
		if cfg.Kubernetes, cfg.Log, err = logs.cluster(); err != nil {
			return err
		}
		ctx, stop := context.WithCancel(ctx)
		tasks, ctx := errgroup.WithContext(ctx)
		if os.Getenv("GOGC") == "" {
			tasks.Go(func() error {
				keepHeadroom(ctx)
				return nil
			})
		}
		tasks.Go(func() error {
			trim(ctx)
			return nil
		})
		if options.profiles != "" {
			tasks.Go(func() error { return serveProfiles(ctx, options.profiles) })
		}
		tasks.Go(func() error {
			defer stop()
			return agent.Run(ctx, cfg)
		})
		return tasks.Wait()
	})
	options.add(cmd.Flags())
	return cmd
}

func (o *agentOptions) add(flags *pflag.FlagSet) {
	cfg := &o.cfg
	flags.StringVar(&cfg.ClusterName, "cluster-name", "", "this cluster's name, a DNS label (default: the first 8 characters of its ID)")
	flags.StringArrayVar(&cfg.PeerEndpoints, "peer-endpoint", nil, "where peers can dial this cluster, as HOST:PORT; repeat for several, best first (default: by --peer-service)")
	flags.StringVar(&cfg.PeerService, "peer-service", "", "the Service, in the agent's namespace, that leads to the peer API")
	flags.StringVar(&cfg.ClusterDomain, "cluster-domain", "", "the domain of this cluster's Services (default: as the agent's own pod resolves them)")
	flags.StringVar(&cfg.DNSService, "dns-service", "", "the Service, in the agent's namespace, that resolves names of their homes for pods of consumers (default: none, this cluster's own DNS responds)")
	flags.StringArrayVar(&o.prefixes.pods, "pod-cidr", nil, "this cluster's pod prefix; repeat for several (default: those of the nodes, and what is learnt from the network plugin and kubeadm)")
	flags.StringArrayVar(&o.prefixes.services, "service-cidr", nil, "this cluster's service prefix, which no alias may overlap; repeat for several")
	flags.StringArrayVar(&o.prefixes.pool, "alias-pool", []string{"198.18.0.0/15", "fdd7:585b:e300::/40"}, "the prefix from which aliases for peers' prefixes are taken; repeat for several")
	flags.StringArrayVar(&o.hosts, "external-hosts", nil, "a prefix in which hosts that are not pods may be exported to peers by ExternalHosts; a node only if its address is given alone; repeat for several (default: none)")
	flags.IntVar(&cfg.Gateways, "gateways", 3, "how many nodes are gateways, 1 to 16, where none has the label entente.dev/gateway=true")
	flags.StringVar((*string)(&cfg.Direct), "direct", "All", "which nodes are announced to peers, so that pods reach each other directly from node to node where the nodes do: All, Gateways or None")
	flags.DurationVar(&cfg.PresharedKeyEvery, "preshared-key-every", 7*24*time.Hour, "how long the preshared key of a tunnel is used before the agents of both sides replace it, without a pause (0: for ever)")
	flags.StringArrayVar(&cfg.FabricEndpoints, "fabric-endpoint", nil, "where other clusters can dial the gateways, over UDP, as HOST or HOST:PORT with {node} for a gateway's name; repeat for several, best first (default: the addresses of their Nodes; a Node's annotation entente.dev/endpoint comes before both)")
	flags.StringVar((*string)(&cfg.FabricService), "fabric-service", "", "LoadBalancer or NodePort: make each gateway a Service, over which other clusters can dial it (default: none)")
	flags.StringVar(&cfg.FabricServiceClass, "fabric-service-class", "", "the loadBalancerClass of these Services (default: the cluster's)")
	flags.StringVar((*string)(&cfg.FabricServiceFamilies), "fabric-service-families", string(corev1.IPFamilyPolicyPreferDualStack), "the ipFamilyPolicy of these Services")
	flags.StringArrayVar(&o.annotations, "fabric-service-annotation", nil, "an annotation of these Services, as KEY=VALUE; repeat for several")
	flags.BoolVar(&cfg.MultiClusterServices, "multicluster-services", false, "share namespaces with peers as the clusterSet of PeeringPolicies says, by ServiceExports and ServiceImports")
	flags.BoolVar(&cfg.DiscoveryLAN, "discovery-lan", false, "publish this cluster on the LANs of the gateway by Multicast DNS, and look for clusters there")
	flags.StringArrayVar(&cfg.DiscoveryInterfaces, "discovery-interface", nil, "a network interface on which that is done, or a prefix of its name and *; repeat for several (default: all except those whose names are usual for containers, virtual machines or tunnels)")
	flags.StringArrayVar(&cfg.DiscoveryDomains, "discovery-domain", nil, "a domain in which to look for clusters by DNS-SD; repeat for several (default: none)")
	flags.StringArrayVar(&cfg.DiscoveryResolvers, "discovery-resolver", nil, "the address, or ADDRESS:PORT, of a resolver for these domains; repeat for several, the first is queried first (default: those of /etc/resolv.conf)")
	flags.StringVar(&cfg.Update.Server, "discovery-update-server", "", "the primary server, as HOST or HOST:PORT, in whose zone this cluster publishes itself by dynamic updates (default: none; published records are removed)")
	flags.StringVar(&cfg.Update.Zone, "discovery-update-zone", "", "the zone that is updated")
	flags.StringVar(&cfg.Update.Domain, "discovery-update-domain", "", "the domain, in that zone, in which this cluster is published (default: the zone)")
	flags.StringVar(&cfg.Update.Secret, "discovery-update-secret", "", "the Secret, in the agent's namespace, that has the TSIG key which signs updates")
	flags.StringVar(&cfg.Update.SecretKey, "discovery-update-secret-key", "key", "the entry of that Secret with the key, as tsig-keygen prints it, or with its secret in base64")
	flags.StringVar(&cfg.Update.KeyName, "discovery-update-key-name", "", "the name of the key, if the Secret has only its secret")
	flags.StringVar(&cfg.Update.Algorithm, "discovery-update-algorithm", "hmac-sha256", "the algorithm of the key, in the same case")
	flags.DurationVar(&cfg.Update.TTL, "discovery-update-ttl", 5*time.Minute, "how long others may cache the records, 30s to 24h")
	flags.StringVar(&cfg.PeerAddress, "peer-address", ":7443", "where the peer API listens")
	flags.StringVar(&cfg.Relay.Address, "relay-address", ":7449", "where gateways send packets of tunnels that UDP does not carry, to be relayed over the session with a peer; empty for nowhere")
	flags.StringVar(&o.relayRate, "relay-rate", "12Mi", "how many bytes of such packets are relayed per second for each peer, each way")
	flags.StringVar(&o.relayTotalRate, "relay-total-rate", "48Mi", "the same for all peers together, which share it")
	flags.StringVar((*string)(&cfg.Carry.For), "carry-for-peers", string(agent.CarryForNone), "between which peers this cluster carries sessions where their agents cannot dial each other, at the same rates: None, Contracts, those with which a contract is in force, or Peers, all that are trusted")
	flags.BoolVar(&cfg.Carry.Through, "carry-through-peers", true, "whether sessions of this cluster may go through a third peer where neither agent can dial the other")
	flags.StringVar(&cfg.InBandAddress, "in-band-address", ":7448", "where gateways forward connections of peers whose peer API runs inside the tunnel; empty for nowhere")
	flags.StringVar(&cfg.HomeAPI.Address, "home-api-address", "", "where pods of consumers reach the API servers of their homes, as policies say (default: nowhere)")
	flags.StringVar(&cfg.HomeAPI.Service, "home-api-service", "", "the Service, in the agent's namespace, that leads there from port 443")
	flags.StringVar(&cfg.AdminAddress, "admin-address", ":7444", "where the admin API listens")
	flags.StringVar(&cfg.Placement.Address, "placement-address", "", "where the webhook listens that lets pods onto virtual nodes, for API servers without MutatingAdmissionPolicy (default: nowhere)")
	flags.StringVar(&cfg.PlacementBy, "placement", "", "what the chart installed to let pods onto virtual nodes, to check it: policy/v1, policy/v1beta1, webhook or off (default: not checked)")
	flags.StringVar(&cfg.Placement.Certificate, "placement-certificate", "/etc/entente/placement", "the directory of its certificate: tls.crt and tls.key")
	flags.StringVar(&cfg.KubeletAddress, "kubelet-address", ":10250", "where the virtual nodes' kubelet API listens")
	flags.StringVar((*string)(&cfg.KubeletCertificate), "kubelet-certificate", string(agent.OwnCertificate), "who signs the certificate of the virtual nodes' kubelet API: Own, this cluster's authority in the ConfigMap entente-ca, or Cluster, the signer kubernetes.io/kubelet-serving")
	flags.StringVar(&cfg.HealthAddress, "health-address", ":7446", "where /healthz and /readyz listen")
	flags.StringVar(&cfg.MetricsAddress, "metrics-address", ":7447", "where /metrics listens, over TLS, for callers that may get it")
	flags.BoolVar(&cfg.NodeMetrics, "node-metrics", false, "give the nodes a certificate for readers of their metrics, in the Secret entente-fabric-metrics")
	flags.StringVar(&o.profiles, "profile-address", "", "loopback address and port where profiles and metrics of this process can be read (default: nowhere)")
	flags.DurationVar(&cfg.LeaseDuration, "lease-duration", 20*time.Second, "how long another agent waits before it takes over from a leader that died without notice, at least 4s; a leader exits if it cannot renew its lease for three quarters of that")
	flags.DurationVar(&cfg.LeafLife, "leaf-life", 24*time.Hour, "how long a certificate of this agent is valid; it is renewed after half of that")
}

func prefixFlag(name string, texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// nodeOptions are the flags of the fabric of a node.
type nodeOptions struct {
	cfg      fabric.Config
	prefixes prefixOptions
}

// config returns the configuration from the flags and the environment.
func (o *nodeOptions) config(getenv func(string) string) (fabric.Config, error) {
	cfg := o.cfg
	err := o.prefixes.read(&cfg.PodCIDRs, &cfg.ServiceCIDRs, &cfg.AliasPool)
	if err != nil {
		return cfg, err
	}
	if err := checkKeyEvery("key-every", cfg.KeyEvery); err != nil {
		return cfg, err
	}
	// The kubelet sets the address of at least one Service in each pod's environment.
	if addr, err := netip.ParseAddr(getenv("KUBERNETES_SERVICE_HOST")); err == nil {
		cfg.ServiceCIDRs = append(cfg.ServiceCIDRs, netip.PrefixFrom(addr, addr.BitLen()))
	}
	cfg.Node, cfg.Namespace = getenv("NODE_NAME"), getenv("POD_NAMESPACE")
	if cfg.Node == "" || cfg.Namespace == "" {
		return cfg, errors.New("NODE_NAME and POD_NAMESPACE have to be set: the chart does")
	}
	return cfg, nil
}

func (o *nodeOptions) add(flags *pflag.FlagSet) {
	device(flags, &o.cfg.Interface)
	flags.IntVar(&o.cfg.Port, "wireguard-port", 51820, "UDP port of the WireGuard device")
	flags.IntVar(&o.cfg.MTU, "mtu", 0, "MTU of the WireGuard device (0: by the node's links)")
	flags.StringArrayVar(&o.prefixes.pods, "pod-cidr", nil, "a prefix of this cluster's pods besides those of the nodes, for the node's self-check; repeat for several")
	flags.StringArrayVar(&o.prefixes.services, "service-cidr", nil, "the same for Services")
	flags.StringArrayVar(&o.prefixes.pool, "alias-pool", nil, "the same for the prefixes from which the agent takes aliases")
	flags.DurationVar(&o.cfg.KeyEvery, "key-every", 30*24*time.Hour, "how long the node's WireGuard key is used before it is replaced, without a pause (0: for ever)")
	flags.StringVar(&o.cfg.RelayAgent, "relay-agent", "", "where the agent accepts packets of tunnels that UDP does not carry, as HOST:PORT (default: nowhere)")
	stateDirectory(flags, &o.cfg.StateDirectory)
	flags.StringVar(&o.cfg.HealthAddress, "health-address", "127.0.0.1:7446", "where /healthz and /readyz listen")
	flags.StringVar(&o.cfg.MetricsAddress, "metrics-address", "", "where /metrics listens, over TLS, for callers that may get it (default: nowhere)")
	flags.StringVar(&o.cfg.MetricsCertificate, "metrics-certificate", "", "the directory of its certificate, with tls.crt and tls.key")
}

func stateDirectory(flags *pflag.FlagSet, directory *string) {
	flags.StringVar(directory, "state-directory", "", "where the node stores its fabric's last configuration, and its keys, for a restart while no API server responds (default: nowhere)")
}

func nodeCommand(logs *logFlags) *cobra.Command {
	var options nodeOptions
	cmd := daemon("node", "Run the fabric of a node: tunnels, routes, translation, probes", func(ctx context.Context) error {
		cfg, err := options.config(os.Getenv)
		if err != nil {
			return err
		}
		if cfg.Kubernetes, cfg.Log, err = logs.cluster(); err != nil {
			return err
		}
		return fabric.Run(ctx, cfg)
	})
	options.add(cmd.Flags())
	return cmd
}

func dnsCommand(logs *logFlags) *cobra.Command {
	var cfg resolver.Config
	cmd := daemon("dns", "Resolve names of their homes for pods that run here for other clusters", func(ctx context.Context) error {
		var err error
		if cfg.Kubernetes, cfg.Log, err = logs.cluster(); err != nil {
			return err
		}
		return resolver.Run(ctx, cfg)
	})
	flags := cmd.Flags()
	flags.StringVar(&cfg.Address, "address", ":1053", "where queries are answered, over UDP and TCP")
	flags.StringVar(&cfg.ClusterDomain, "cluster-domain", "", "the domain of this cluster's Services, besides cluster.local: consumers cannot resolve its names")
	flags.BoolVar(&cfg.ShowClusterNames, "show-cluster-names", false, "resolve names that home does not have by this cluster's DNS, which --resolv-conf has to name")
	flags.StringVar(&cfg.ResolvConf, "resolv-conf", "/etc/resolv.conf", "the file that names the resolvers for all other names: the node's")
	flags.StringVar(&cfg.HealthAddress, "health-address", ":7446", "where /healthz, /readyz and /metrics listen")
	return cmd
}

func device(flags *pflag.FlagSet, name *string) {
	flags.StringVar(name, "interface", "entente0", "name of the WireGuard device")
}

func wireguardCommand(logs *logFlags) *cobra.Command {
	var cfg userspace.Config
	cmd := &cobra.Command{
		Use:   "wireguard",
		Short: "Carry packets where the kernel has no WireGuard",
		Long: `Carry packets where the kernel has no WireGuard. It is a process of its own
so that the fabric can be restarted without losing packets. Where the kernel has
WireGuard it does nothing, and waits to be stopped.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.Log, err = logs.start(); err != nil {
				return err
			}
			return userspace.Run(cmd.Context(), cfg)
		},
	}
	device(cmd.Flags(), &cfg.Device)
	return cmd
}

func cleanCommand(logs *logFlags) *cobra.Command {
	var cfg tunnel.Config
	var state string
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "Remove everything that the fabric set up on this node, by its names and marks; needs no API server",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var err error
			if cfg.Log, err = logs.start(); err != nil {
				return err
			}
			if state != "" {
				err = fabric.RemoveState(state)
			}
			return errors.Join(err, tunnel.Clean(cfg))
		},
	}
	device(cmd.Flags(), &cfg.Device)
	stateDirectory(cmd.Flags(), &state)
	return cmd
}

func cleanupCommand(logs *logFlags) *cobra.Command {
	var cfg cleanup.Config
	cmd := daemon("cleanup", "End all peerings and remove everything of Entente from this cluster, before it is uninstalled", func(ctx context.Context) error {
		var err error
		if cfg.Kubernetes, _, err = logs.cluster(); err != nil {
			return err
		}
		if cfg.Namespace = os.Getenv("POD_NAMESPACE"); cfg.Namespace == "" {
			return errors.New("POD_NAMESPACE has to be set: the chart does")
		}
		cfg.Out = os.Stdout
		return cleanup.Run(ctx, cfg)
	})
	cmd.Flags().DurationVar(&cfg.Timeout, "timeout", 2*time.Minute, "how long the orderly part may take")
	cmd.Flags().BoolVar(&cfg.KeepIdentity, "keep-identity", false, "keep the cluster's identity for a later install")
	return cmd
}
