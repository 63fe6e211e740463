package agent

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/automatic"
	"github.com/entente-dev/entente/internal/browse"
	"github.com/entente-dev/entente/internal/clock"
	"github.com/entente-dev/entente/internal/clusterset"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/direct"
	"github.com/entente-dev/entente/internal/exchange"
	"github.com/entente-dev/entente/internal/exposure"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/handback"
	"github.com/entente-dev/entente/internal/homeapi"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/leader"
	"github.com/entente-dev/entente/internal/namespaces"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/offload"
	"github.com/entente-dev/entente/internal/placementserver"
	"github.com/entente-dev/entente/internal/profiles"
	"github.com/entente-dev/entente/internal/provider"
	"github.com/entente-dev/entente/internal/refused"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/internal/version"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
	"github.com/entente-dev/entente/server/admin"
	"github.com/entente-dev/entente/tunnel/plan"
)

// agent is the parts of a running agent.
type agent struct {
	cfg        Config
	log        *slog.Logger
	mgr        ctrl.Manager
	kubernetes kubernetes.Interface
	// direct reads and writes without a cache.
	direct    ctrlclient.WithWatch
	source    *identity.Source
	tunnelKey []byte
	// inBand is where this agent accepts what gateways relay; invalid if in-band peers are off.
	inBand  netip.AddrPort
	bundles *identity.Bundles
	trust   *trusted
	// own is the addresses that no other cluster may name.
	own   *lastKnown[[]netip.Prefix]
	found *browse.Domains
	// fabricKeys is the content of the fabric's Secret.
	fabricKeys *lastKnown[map[string][]byte]
	// problems is the problems of the configured domains and resolvers.
	problems []string
	lans     *browse.LANs
	// foundChanged has a value when what is found changed.
	foundChanged notify.Channel
	contracts    *contractCache
	trusts       *trust.Trusts
	automatic    *automatic.Automatic
	// announces reports whether this cluster publishes that it peers by policy.
	announces func() bool
	peers     *controller.Peers
	hosts     *allow.Hosts
	gateways  *gateways.Reconciler
	events    events.EventRecorder
	placed    placementserver.Check
	states    *controller.States
	exchange  *exchange.Exchange
	offers    *provider.OfferWatch
	requests  *controller.Requests
	addresses *addresses
	sessions  *session.Manager
	carrying  *carrying // nil: datagrams are not carried
	thirds    *thirds
	provider  *provider.Provider
	tokens    *store.Tokens
	forgotten *store.Forgotten
	groups    *trust.Groups
	nodes     *nodes
	offloaded *offload.Provider
	directly  *direct.Provider
	home      *homeapi.Home
	fences    *fencing.Keeper
	refused   *refused.Log
	exports   *services.Exports
	set       *clusterset.Reconciler // nil: no namespaces are shared
	startup   exposure.Startup
	openings  exposure.Openings
	// published is where this cluster is published in DNS; nil if it is not.
	published atomic.Pointer[[]admin.DNSPublication]

	peersWake, trustWake, contractsWake *waker
	timing                              leader.Timing
	lease                               *leader.Lease
	clock                               *clock.Clock
	// serving is true while this agent leads, standsBy once its caches are filled.
	serving, standsBy atomic.Bool
}

// Run runs the agent until ctx ends. One agent of a cluster leads and serves; the others wait.
func Run(ctx context.Context, cfg Config) error {
	a := &agent{
		cfg: cfg, log: cfg.Log, bundles: identity.NewBundles(),
		peersWake: &waker{}, trustWake: &waker{}, contractsWake: &waker{},
	}
	ctrl.SetLogger(logr.FromSlogHandler(cfg.Log.Handler()))
	if err := a.build(ctx); err != nil {
		return err
	}
	a.log.Info("starting", "version", version.Version, "cluster", a.source.ID(), "name", a.name())
	return a.leaseLost(a.mgr.Start(ctx))
}

func (a *agent) clients(ctx context.Context) error {
	var err error
	if a.direct, err = ctrlclient.NewWithWatch(a.cfg.Kubernetes, ctrlclient.Options{Scheme: kube.Scheme()}); err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	if a.kubernetes, err = kubernetes.NewForConfig(a.cfg.Kubernetes); err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	return a.awaitAPIServer(ctx)
}

func (a *agent) name() string {
	return cmp.Or(a.cfg.ClusterName, a.source.ID().Short())
}

// serviceNames and ownAddresses are where the cluster's administrators reach the agent.
func (a *agent) serviceNames() []string {
	return []string{"entente-agent." + a.cfg.Namespace + ".svc", "entente-agent", "localhost"}
}

// fabricNames are the names by which readers of nodes' metrics verify the nodes.
func (a *agent) fabricNames() []string {
	return []string{"entente-fabric." + a.cfg.Namespace + ".svc", "entente-fabric"}
}

func (a *agent) ownAddresses() []netip.Addr {
	return []netip.Addr{a.cfg.PodIP, netip.MustParseAddr("127.0.0.1")}
}

// endpoints returns where this cluster can be dialled; empty if that is not known now.
func (a *agent) endpoints() []string {
	out, err := endpoints(context.Background(), a.mgr.GetCache(), &a.cfg) //nolint:forbidigo // a read from a cache does not block
	if err != nil {
		a.log.Warn("cannot find out where this cluster can be dialled", "err", err)
	}
	return out
}

// buildStates builds the state that this cluster sends to its peers, and its offers.
func (a *agent) buildStates(_ context.Context, own statesConfig) error {
	keys, err := inband.NewExchange(a.source.ID(), a.tunnelKey)
	if err != nil {
		return err
	}
	reserved := servicePrefixes(own.ServiceCIDRs, a.direct, a.log)
	a.states = &controller.States{
		Exchange: keys,
		Client:   a.mgr.GetClient(), Namespace: a.cfg.Namespace, Self: a.source.ID(),
		Endpoints: a.endpoints, PodCIDRs: own.PodCIDRs, Reserved: reserved, Learn: a.learnPods(reserved), Aggregate: plan.Aggregate, KeyShare: a.keyShare, KeyEvery: own.KeyEvery, Now: time.Now, Versions: a.mgr.GetCache(),
		Offering:       func(peer peering.ClusterID) peering.Offering { return a.provider.Offering(peer) },
		Capabilities:   func(peer peering.ClusterID) []string { return a.thirds.capabilities(peer) },
		SessionAddress: a.sessionAddress, Observed: a.observed(),
		Budget: &store.WriteBudget{Now: time.Now},
	}
	a.fabricKeys = &lastKnown[map[string][]byte]{now: time.Now, log: a.log, every: keysPause, what: "the preshared keys of tunnels", ask: a.readFabricKeys}
	a.exchange = exchange.New(a.states, a.log)
	a.trust = &trusted{self: a.source.ID(), bundles: a.bundles, nameOf: a.nameOf, again: func() { a.peersWake.wake("") }}
	a.events = a.mgr.GetEventRecorder(eventSource)
	a.tokens = &store.Tokens{Client: a.direct, Namespace: a.cfg.Namespace, Now: time.Now}
	a.forgotten = &store.Forgotten{Client: a.direct, Namespace: a.cfg.Namespace, Now: time.Now}
	a.provider = &provider.Provider{
		Client: a.mgr.GetClient(), Reader: a.direct, Identity: a.source.Identity, Now: time.Now, Changed: a.exchange.Changed,
		Informers: a.mgr.GetCache(), Namespace: a.cfg.Namespace, Budget: a.states.Budget, Events: a.events, Log: a.log,
	}
	if a.cfg.MultiClusterServices {
		a.set = &clusterset.Reconciler{
			Client: a.mgr.GetClient(), Direct: a.direct, Cache: a.mgr.GetCache(), Self: a.source.ID(),
			ServiceAccount: ctrlclient.ObjectKey{Namespace: a.cfg.Namespace, Name: ServiceAccount},
		}
		a.provider.ServiceExports = a.set.Exported
	}
	return nil
}

// keyShare returns this cluster's share of the preshared key with a number and a peer, derived (RFC 5869) so that it is
// the same after a restart.
func (a *agent) keyShare(peer peering.ClusterID, number uint64) peering.PresharedKeyShare {
	info := "entente tunnel preshared half " + string(peer)
	if number > 0 {
		info += " " + strconv.FormatUint(number, 10)
	}
	out, err := hkdf.Key(sha256.New, a.tunnelKey, nil, info, len(peering.PresharedKeyShare{}))
	if err != nil {
		panic(err) // 32 bytes are never too many
	}
	return peering.PresharedKeyShare(out)
}

func (a *agent) reconcileGateways(context.Context) error {
	a.gateways = &gateways.Reconciler{
		Client: a.mgr.GetClient(), Self: a.source.ID(), Most: a.cfg.Gateways, Endpoints: a.cfg.FabricEndpoints,
		Services: gateways.Services{
			Namespace: a.cfg.Namespace, Type: a.cfg.FabricService, Class: a.cfg.FabricServiceClass, Families: a.cfg.FabricServiceFamilies, Annotations: a.cfg.FabricServiceAnnotations,
		},
		Direct: a.cfg.Direct, Pods: a.directPods, PodNetwork: a.podNetwork(),
		Reserved: a.states.Reserved, Namespace: a.cfg.Namespace, Silent: a.wakePeers, Now: time.Now,
	}
	return a.gateways.SetupWithManager(a.mgr)
}

// directPods returns which of the pods on each node are announced to peers, in the prefixes that they know.
func (a *agent) directPods(ctx context.Context, has map[string][]netip.Prefix) (map[string][]netip.Prefix, error) {
	known, _, err := a.states.Prefixes(ctx)
	if err != nil {
		return nil, err
	}
	var nodes []plan.Node
	for _, name := range slices.Sorted(maps.Keys(has)) {
		nodes = append(nodes, plan.Node{Name: name, PodCIDRs: has[name]})
	}
	return plan.DirectPods(nodes, known, plan.MaxNodePrefixes), nil
}

func (a *agent) reconcilePeers(_ context.Context, aliasPool []netip.Prefix) error {
	a.peers = &controller.Peers{
		Client: a.mgr.GetClient(), States: a.states,
		Trust: a.trust, Attempt: firstAttempt(a.trusts.Attempt, a.automatic.Attempt), Forget: a.tokens.Forget, Forgotten: a.forgotten, Events: a.events,
		Again:     a.peersWake.wake,
		AliasPool: aliasPool, Reserved: a.states.Reserved, MayDial: a.mayDial, InBand: a.inBandTunnels(),
		Exposed: a.exposed, PodAddress: a.addresses.there, Hosts: a.hosts.Accepted, OwnPod: a.cfg.PodIP, Health: func(node string) gateways.Health { return a.gateways.Health(node) }, Wake: a.peersWake, StateChanged: a.exchange.Changed, Readdressed: a.readdressed, Now: time.Now,
	}
	return errors.Join(a.peers.SetupWithManager(a.mgr), a.registerPeerMetrics(aliasPool))
}

// readdressed updates what depends on a peer's addresses: the endpoints of its Services here, and the addresses of
// this cluster's pods there.
func (a *agent) readdressed(peer peering.ClusterID) {
	a.offloaded.Refresh(peer)
	for _, home := range a.reachedThrough(peer) {
		a.offloaded.Refresh(home)
	}
	a.nodes.readdressed(peer)
}

func (a *agent) reconcileNamespaces(context.Context) error {
	reconciler := &namespaces.Reconciler{
		Client:         a.mgr.GetClient(),
		ServiceAccount: ctrlclient.ObjectKey{Namespace: a.cfg.Namespace, Name: ServiceAccount},
		Evict:          a.evict, States: a.nodes.states, Starts: a.nodes.starts, Changed: a.namespacesChanged, Events: a.events, NotPlaced: a.placed.Problem,
	}
	back := &handback.Reconciler{Client: a.mgr.GetClient(), Direct: a.mgr.GetAPIReader(), Events: a.events, Now: time.Now}
	return errors.Join(reconciler.SetupWithManager(a.mgr), back.SetupWithManager(a.mgr))
}

// showProfiles shows ForeignClusters as ClusterProfiles.
func (a *agent) showProfiles(context.Context) error {
	shown := &profiles.Reconciler{Client: a.mgr.GetClient(), Direct: a.direct, Namespace: a.cfg.Namespace, Now: time.Now}
	return shown.SetupWithManager(a.mgr)
}
