package agent

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/lending"
	"github.com/entente-dev/entente/internal/offload"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/version"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
	"github.com/entente-dev/entente/server/admin"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/vk"
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
	// DiscoveryLAN publishes this cluster on the LANs of the gateway, and looks for others
	// there, on the interfaces DiscoveryInterfaces; default: see [mdns.DefaultInterface].
	DiscoveryLAN        bool
	DiscoveryInterfaces []string
	// DiscoveryDomains are the domains in which clusters are looked for. Default: none.
	DiscoveryDomains []string
	// DiscoveryResolvers are asked for them. Default: those of /etc/resolv.conf.
	DiscoveryResolvers []netip.AddrPort
	// Update is where this cluster publishes itself. Default: nowhere.
	Update UpdateConfig
	// PeerAddress, AdminAddress, KubeletAddress, HealthAddress and MetricsAddress are
	// where the agent listens.
	PeerAddress, AdminAddress, KubeletAddress, HealthAddress, MetricsAddress string
	// KubeletCertificate is who signs the certificate of the kubelet API.
	KubeletCertificate KubeletCertificate
	// LeafLife is how long a certificate of the agent lives.
	LeafLife time.Duration
	Log      *slog.Logger
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

	// renewDeadline is for how long the lease may not be renewed before an agent gives
	// up leading, each try taking half of it at most: an API server under load takes
	// seconds. leaseDuration is how long an agent in another pod waits after one that died. With
	// its start, and the ten seconds since the lease of a virtual node was renewed, that
	// stays below the 40 s after which a node counts as lost.
	leaseDuration, renewDeadline, leaseRetry = 20 * time.Second, 15 * time.Second, 3 * time.Second

	// ownLook is how often it is looked whether what this cluster says of itself
	// changed.
	ownLook = 5 * time.Second
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
	bundles   *identity.Bundles
	trust     *trust
	found     *domains
	peers     *controller.Peers
	events    events.EventRecorder
	states    *controller.States
	speech    *speech
	offers    *lending.OfferWatch
	requests  *controller.Requests
	addresses addresses
	sessions  *session.Manager
	lender    *lending.Lender
	tokens    *store.Tokens
	forgotten *store.Forgotten
	groups    *controller.Groups
	nodes     *nodes
	lent      *offload.Provider
	startup   startup
	// automatic says whether this cluster peers by policy, without being asked: then it
	// is published so. Nil is no.
	automatic func() bool
	// published is where this cluster is in DNS; nil is nowhere.
	published atomic.Pointer[[]admin.DNSPublication]

	peersWake, trustWake, contractsWake *waker
	serving                             atomic.Bool
}

// Run runs the agent until ctx ends. One agent of a cluster leads and serves;
// others wait.
func Run(ctx context.Context, cfg Config) error {
	a := &agent{
		cfg: cfg, log: cfg.Log, bundles: identity.NewBundles(),
		peersWake: &waker{}, trustWake: &waker{}, contractsWake: &waker{},
	}
	ctrl.SetLogger(logr.FromSlogHandler(cfg.Log.Handler()))
	steps := []func(context.Context) error{a.findDomain, a.clients, a.identify, a.manager, a.sayings, a.peerAPI, a.virtualNodes, a.adminAPI, a.controllers, a.discover, a.publish}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	a.log.Info("starting", "version", version.Version, "cluster", a.source.ID(), "name", a.name())
	return a.leaseLost(a.mgr.Start(ctx))
}

// leaseLost says of the end of an agent that could not renew its lease what
// happened and what follows. It ends at once: whatever it still did could be in the
// way of the next one.
func (a *agent) leaseLost(err error) error {
	if err == nil || !strings.Contains(err.Error(), "leader election lost") { // as manager.Manager says it
		return err
	}
	return fmt.Errorf("lease %s/%s could not be renewed for %s, because the API server or this node was too slow, so this agent stops leading; "+
		"it goes on where it was when it is restarted, and tunnels and running pods go on meanwhile: %w", a.cfg.Namespace, leaseName, renewDeadline, err)
}

func (a *agent) clients(context.Context) error {
	var err error
	if a.direct, err = ctrlclient.NewWithWatch(a.cfg.Kubernetes, ctrlclient.Options{Scheme: Scheme()}); err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	if a.kubernetes, err = kubernetes.NewForConfig(a.cfg.Kubernetes); err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	return nil
}

func (a *agent) identify(ctx context.Context) error {
	id, err := store.LoadIdentity(ctx, a.direct, a.cfg.Namespace, time.Now())
	if err != nil {
		return err
	}
	if a.tunnelKey, err = store.TunnelKey(ctx, a.direct, a.cfg.Namespace); err != nil {
		return err
	}
	a.source, err = identity.NewSource(identity.SourceConfig{Identity: id, LeafLife: a.cfg.LeafLife, Log: a.log})
	if err != nil {
		return err
	}
	return a.publishCA(ctx)
}

// publishCA tells clients of the admin API by which roots to know it.
func (a *agent) publishCA(ctx context.Context) error {
	return store.PublishCA(ctx, a.direct, a.cfg.Namespace, CAConfigMap, CAKey, a.source.Identity().RootPEM())
}

// vouch keeps certificates fresh while this agent leads. Another agent may have
// led before and replaced the key.
func (a *agent) vouch(ctx context.Context) error {
	id, err := store.LoadIdentity(ctx, a.direct, a.cfg.Namespace, time.Now())
	if err != nil {
		return err
	}
	if err := a.source.SetIdentity(id); err != nil {
		return err
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	changes, cancel := a.source.Subscribe()
	defer cancel()
	tasks.Go(func() {
		for {
			// The roots change with a rollover, and again when its overlap ends.
			if err := a.publishCA(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot publish the roots of the admin API", "err", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-changes:
			}
		}
	})
	return a.source.Run(ctx)
}

func (a *agent) name() string {
	if a.cfg.ClusterName != "" {
		return a.cfg.ClusterName
	}
	return a.source.ID().Short()
}

func (a *agent) manager(ctx context.Context) error {
	own := map[string]cache.Config{a.cfg.Namespace: {}}
	lock, err := leaseLock(a.cfg)
	if err != nil {
		return err
	}
	a.mgr, err = ctrl.NewManager(a.cfg.Kubernetes, ctrl.Options{
		Scheme: Scheme(),
		Logger: logr.FromSlogHandler(a.log.Handler()),
		Cache: cache.Options{
			// Nothing secret is cached, and nothing of other namespaces that is
			// not ours to see.
			ByObject: map[ctrlclient.Object]cache.ByObject{
				// What peers may be told of Services, where a policy says so.
				&corev1.Service{}: {Transform: controller.SlimService(a.cfg.Namespace)},
				&corev1.Pod{}:     {Transform: controller.SlimPod},
				// Which there are and when they change, not what they hold.
				&corev1.Secret{}: {Namespaces: own, Transform: controller.NamesOnly},
				// Those by which the agent has its rights in namespaces.
				&rbacv1.RoleBinding{}: {Label: labels.SelectorFromSet(labels.Set{v1alpha1.LabelManaged: v1alpha1.Manager})},
			},
			DefaultTransform: cache.TransformStripManagedFields(),
		},
		Client: ctrlclient.Options{Cache: &ctrlclient.CacheOptions{
			DisableFor: []ctrlclient.Object{&corev1.Secret{}, &corev1.ConfigMap{}},
		}},
		LeaderElection:                      true,
		LeaderElectionID:                    leaseName,
		LeaderElectionNamespace:             a.cfg.Namespace,
		LeaderElectionReleaseOnCancel:       true,
		LeaderElectionResourceLockInterface: lock,
		LeaseDuration:                       new(leaseDuration),
		RenewDeadline:                       new(renewDeadline),
		RetryPeriod:                         new(leaseRetry),
		// Metrics tell of all peers, so a pod has to show that it may read them.
		Metrics: metricsserver.Options{
			BindAddress: a.cfg.MetricsAddress, SecureServing: true, FilterProvider: a.metricsFilter,
			TLSOpts: []func(*tls.Config){func(c *tls.Config) {
				own := a.source.AdminTLS(a.serviceNames(), a.ownAddresses())
				c.MinVersion, c.GetCertificate = own.MinVersion, own.GetCertificate
			}},
		},
		HealthProbeBindAddress: a.cfg.HealthAddress,
	})
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	if err := errors.Join(a.mgr.AddHealthzCheck("ping", healthz.Ping), a.mgr.AddReadyzCheck("leads", a.ready)); err != nil {
		return fmt.Errorf("serve health: %w", err)
	}
	if err := store.AddIndexes(ctx, a.mgr.GetFieldIndexer()); err != nil {
		return err
	}
	a.addresses = addresses{a.mgr.GetCache()}
	return a.run(a.vouch)
}

// serviceNames and ownAddresses are where the cluster's own people reach the agent.
func (a *agent) serviceNames() []string {
	return []string{"entente-agent." + a.cfg.Namespace + ".svc", "entente-agent", "localhost"}
}

func (a *agent) ownAddresses() []netip.Addr {
	return []netip.Addr{a.cfg.PodIP, netip.MustParseAddr("127.0.0.1")}
}

func (a *agent) ready(*http.Request) error {
	if !a.serving.Load() {
		return errors.New("another agent leads, or this one is starting")
	}
	return nil
}

// run has the manager run a task while this agent leads.
func (a *agent) run(task func(context.Context) error) error {
	return a.mgr.Add(manager.RunnableFunc(task))
}

// endpoints returns where this cluster can be dialled; none if that is not
// known now.
func (a *agent) endpoints() []string {
	out, err := endpoints(context.Background(), a.mgr.GetCache(), &a.cfg) //nolint:forbidigo // a cache answers at once
	if err != nil {
		a.log.Warn("cannot tell where this cluster can be dialled", "err", err)
	}
	return out
}

func (a *agent) sayings(context.Context) error {
	reserved := &services{named: a.cfg.ServiceCIDRs, direct: a.direct, now: time.Now, log: a.log}
	a.states = &controller.States{
		Client: a.mgr.GetClient(), Namespace: a.cfg.Namespace, Self: a.source.ID(),
		Endpoints: a.endpoints, PodCIDRs: a.cfg.PodCIDRs, Reserved: reserved.prefixes, Aggregate: tunnel.Aggregate, Half: a.half, Versions: a.mgr.GetCache(),
		Lends:  func(peer peering.ClusterID) peering.Lending { return a.lender.Lends(peer) },
		Budget: &store.WriteBudget{Now: time.Now},
	}
	a.speech = newSpeech(a.states, a.log)
	a.trust = &trust{self: a.source.ID(), bundles: a.bundles, again: func() { a.peersWake.wake("") }}
	a.events = a.mgr.GetEventRecorder(eventSource)
	a.tokens = &store.Tokens{Client: a.direct, Namespace: a.cfg.Namespace, Now: time.Now}
	a.forgotten = &store.Forgotten{Client: a.direct, Namespace: a.cfg.Namespace, Now: time.Now}
	a.lender = &lending.Lender{
		Client: a.mgr.GetClient(), Reader: a.direct, Identity: a.source.Identity, Now: time.Now, Changed: a.speech.spoken,
		Informers: a.mgr.GetCache(), Namespace: a.cfg.Namespace, Budget: a.states.Budget, Log: a.log,
	}
	return nil
}

// half returns this cluster's half of the preshared key with a peer, derived
// (RFC 5869) so that it is the same after a restart.
func (a *agent) half(peer peering.ClusterID) peering.PresharedHalf {
	out, err := hkdf.Key(sha256.New, a.tunnelKey, nil, "entente tunnel preshared half "+string(peer), len(peering.PresharedHalf{}))
	if err != nil {
		panic(err) // 32 bytes are never too many
	}
	return peering.PresharedHalf(out)
}

// peerAPI builds what other clusters see.
func (a *agent) peerAPI(ctx context.Context) error {
	contracts := &contractCache{self: a.source.ID(), lender: a.lender, reader: store.NewContractReader(maxVerified)}
	var err error
	a.lent, err = offload.New(offload.Config{
		Client: a.direct, REST: a.cfg.Kubernetes, Contracts: contracts.lent,
		// Of the addresses that a consumer names only its own pods are believed; the
		// pods that it runs here are known by their UIDs.
		Translate: a.addresses.home,
		Namespace: a.cfg.Namespace, ServiceAccount: ServiceAccount, Resolver: a.resolver(),
		Changed: gather(podsPause, func(contract string) {
			a.contractsWake.wake(contract)
			a.wakePeer(contracts.peer(contract))
		}),
		Log: a.log,
	})
	if err != nil {
		return err
	}
	offloadService, err := server.NewOffload(server.OffloadConfig{
		Objects: a.lent, Streams: a.lent, Contracts: contracts.offered,
		Peer: func(ctx context.Context) (peering.ClusterID, bool) {
			info, ok := identity.PeerFromContext(ctx)
			return info.ID, ok && info.Trusted
		},
		Log: a.log,
	})
	if err != nil {
		return err
	}
	a.groups = a.newGroups()
	peer, err := server.NewPeer(server.PeerConfig{
		Log: a.log, Credentials: session.ServerCredentials(), Self: a.source.ID(), Trusted: a.bundles.Has,
		Trust:      a.joining(),
		Negotiator: negotiator{Lender: a.lender, Contracts: a.answers(), speaks: a.speech.speaks}, Offers: a.lender, Sessions: a.speech, Offload: offloadService,
		// What is dead does not look it where nothing is written, and stays in the way of
		// the next session.
		Silent: func(number uint64) { a.sessions.CloseSession(number, errSilent) },
	})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", a.cfg.PeerAddress)
	if err != nil {
		return fmt.Errorf("listen for peers on %s: %w", a.cfg.PeerAddress, err)
	}
	a.sessions, err = session.New(session.Config{
		Source: a.source, Bundles: a.bundles, Server: peer.GRPC(), Listener: listener, Up: a.talk, Log: a.log,
		Denied: a.trust.isDenied, MayDial: func(endpoint string) bool { return a.found.mayDial(endpoint) }, ClientOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(answers())},
	})
	if err != nil {
		return err
	}
	a.trust.sessions = a.sessions
	a.offers, a.requests = a.watchOffers(), a.asking()
	if err := metrics.Registry.Register(a.sessions.Collector()); err != nil {
		return fmt.Errorf("metrics of sessions: %w", err)
	}
	return errors.Join(a.run(a.lent.Run), a.run(a.lender.Run), a.run(a.speech.Run), a.run(func(ctx context.Context) error { return peer.Run(ctx) }), a.run(func(ctx context.Context) error {
		if err := a.peers.Load(ctx); err != nil {
			return err
		}
		a.serving.Store(true)
		defer a.serving.Store(false)
		return a.sessions.Run(ctx)
	}), a.run(a.watchSessions), a.run(a.watchOwn))
}

var errSilent = fmt.Errorf("the peer said nothing for %s", heartbeat.SessionPatience)

// talk runs as long as a session lives that this side dialled: the side that dialled
// opens the exchange. For the others it returns at once, so that they have no goroutine.
func (a *agent) talk(ctx context.Context, s session.Info) error {
	a.speech.begun(s.Peer, s.Number)
	a.wakePeer(s.Peer)
	listened := a.offers.Follow(ctx, s.Peer)
	ended := func() {
		listened()
		a.speech.ended(s.Peer, s.Number)
		a.wakePeer(s.Peer)
	}
	if !s.Dialled {
		context.AfterFunc(ctx, ended)
		return nil
	}
	defer ended()
	return client.RunSession(ctx, a.sessions.Conn(s.Peer), heartbeat.Config{
		Patience: heartbeat.SessionPatience,
		Current:  func(ctx context.Context) (*peerState, error) { return a.speech.State(ctx, s.Peer) },
		Watch:    func(changed func()) func() { return a.speech.Watch(s.Peer, changed) },
		Observe:  func(ctx context.Context, state *peerState) error { return a.speech.Observe(ctx, s.Peer, state) },
	})
}

// wakePeer has a peer's ForeignCluster looked at again.
func (a *agent) wakePeer(id peering.ClusterID) {
	if fc := a.addresses.peer(id); fc != nil {
		a.peersWake.wake(fc.Name)
	}
}

// wakePeers has all ForeignClusters looked at again.
func (a *agent) wakePeers() {
	var list v1alpha1.ForeignClusterList
	err := a.mgr.GetClient().List(context.Background(), &list, ctrlclient.UnsafeDisableDeepCopy) //nolint:forbidigo // a cache answers at once
	if err != nil {
		return // they are looked at in time
	}
	for i := range list.Items {
		a.peersWake.wake(list.Items[i].Name)
	}
}

// watchOwn has peers looked at again, and told, when what this cluster says of
// itself changes: where it can be dialled, and its prefixes. Both follow from
// objects that change all the time for other reasons.
func (a *agent) watchOwn(ctx context.Context) error {
	tick := time.NewTicker(ownLook)
	defer tick.Stop()
	last := ""
	for {
		prefixes, _, err := a.states.Prefixes(ctx)
		if now := fmt.Sprint(a.endpoints(), prefixes, err); now != last {
			if last != "" {
				a.wakePeers()
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// virtualNodes builds the consumer's half of offloading.
func (a *agent) virtualNodes(context.Context) error {
	certificate, err := a.kubeletCertificate()
	if err != nil {
		return err
	}
	kubelet, err := vk.NewKubelet(vk.KubeletConfig{
		Client: a.kubernetes, Address: a.cfg.KubeletAddress, GetCertificate: certificate, Logger: a.log,
	})
	if err != nil {
		return err
	}
	a.nodes = &nodes{
		budget:     vk.NewBudget(),
		kubernetes: a.kubernetes, cache: a.mgr.GetCache(), addresses: a.addresses, conn: a.sessions.Conn, sessions: a.sessions,
		kubelet: kubelet, podIP: a.cfg.PodIP, clusterDomain: a.cfg.ClusterDomain, log: a.log,
		contractChanged: a.contractsWake.wake,
		exposureChanged: gather(podsPause, a.wakePeer),
	}
	return errors.Join(a.run(kubelet.Run), a.run(a.nodes.Run))
}

// kubeletCertificate returns what gives the kubelet API its certificate.
func (a *agent) kubeletCertificate() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	switch a.cfg.KubeletCertificate {
	case OwnCertificate, "":
		return a.source.AdminTLS(nil, []netip.Addr{a.cfg.PodIP}).GetCertificate, nil
	case ClusterCertificate:
		certificate, err := vk.NewServingCertificate(vk.ServingCertificateConfig{
			Client: a.kubernetes, NodeName: "entente-" + a.source.ID().Short(),
			Addresses: func() []netip.Addr { return []netip.Addr{a.cfg.PodIP} },
			Logger:    a.log,
		})
		if err != nil {
			return nil, err
		}
		return certificate.GetCertificate, a.run(certificate.Run)
	}
	return nil, fmt.Errorf("kubelet certificate %q is unknown: use %s or %s", a.cfg.KubeletCertificate, OwnCertificate, ClusterCertificate)
}

// controllers registers the reconcilers.
func (a *agent) controllers(ctx context.Context) error {
	gateways := &controller.Gateways{Client: a.mgr.GetClient(), Self: a.source.ID(), Silent: a.wakePeers, Now: time.Now}
	trusts := a.trusts()
	automatic, err := a.peerByPolicy(ctx)
	if err != nil {
		return err
	}
	a.peers = &controller.Peers{
		Client: a.mgr.GetClient(), States: a.states,
		Trust: a.trust, Attempt: firstAttempt(trusts.Attempt, automatic.Attempt), Forget: a.tokens.Forget, Forgotten: a.forgotten, Events: a.events,
		Again:     a.peersWake.wake,
		AliasPool: a.cfg.AliasPool, Reserved: a.states.Reserved, Allocate: tunnel.Allocate,
		Exposed: a.exposed, Wake: a.peersWake, Spoken: a.speech.spoken, Readdressed: a.lent.Refresh, Now: time.Now,
	}
	orphans, contracts := a.negotiation()
	namespaces := &controller.Namespaces{
		Client:         a.mgr.GetClient(),
		ServiceAccount: ctrlclient.ObjectKey{Namespace: a.cfg.Namespace, Name: ServiceAccount},
		Evict:          a.evict, States: a.nodes.states, Changed: a.nodes.namespacesChanged, Events: a.events,
	}
	return errors.Join(
		gateways.SetupWithManager(a.mgr), a.peers.SetupWithManager(a.mgr), trusts.SetupWithManager(a.mgr), a.requests.SetupWithManager(a.mgr),
		orphans.SetupWithManager(a.mgr), contracts.SetupWithManager(ctx, a.mgr), namespaces.SetupWithManager(a.mgr),
		a.registerMetrics(), a.run(keepCount(contracts)), a.mgr.Add(automatic),
	)
}

// exposed returns what a peer may reach: as a consumer the pods that it runs
// here, as a provider what our pods there need.
func (a *agent) exposed(ctx context.Context, peer peering.ClusterID) ([]controller.Exposed, error) {
	own, _, err := a.states.Prefixes(ctx)
	if err != nil {
		return nil, err
	}
	contracts, err := store.ContractsWith(ctx, a.mgr.GetClient(), peer, ctrlclient.UnsafeDisableDeepCopy) // they are only read
	if err != nil {
		return nil, err
	}
	var out []controller.Exposed
	for i := range contracts {
		c := &contracts[i]
		if !store.Unverified(c).Wants().Tunnel {
			continue
		}
		open, known := a.exposedBy(c, own)
		out = append(out, open...)
		if a.startup.unsure(c.Name, known, time.Now()) {
			out = append(out, controller.Exposed{Contract: c.Name, Unknown: true})
		}
	}
	return out, nil
}

// exposedBy returns what one contract exposes, as far as that is known, and whether
// that is all.
func (a *agent) exposedBy(c *v1alpha1.Contract, own []netip.Prefix) ([]controller.Exposed, bool) {
	if c.Spec.Role != v1alpha1.ContractProvider {
		return a.nodes.exposed(c.Name, own)
	}
	pods, known := a.lent.Exposed(c.Name)
	open := controller.Exposed{Contract: c.Name, AnySource: true}
	for _, addr := range pods {
		open.To = append(open.To, controller.Destination{Addr: addr}) // they are the peer's own
	}
	return []controller.Exposed{open}, known
}
