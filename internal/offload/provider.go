package offload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/ledger"
	"github.com/entente-dev/entente/internal/netpolicy"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstreams"
	"github.com/entente-dev/entente/internal/podwatch"
	"github.com/entente-dev/entente/internal/recent"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/internal/turns"
	"github.com/entente-dev/entente/peering"
)

// Contract is what a Provider has to know of a contract.
type Contract struct {
	// Peer is the consumer.
	Peer peering.ClusterID
	// Resources is what is lent. Without "pods" it takes none.
	Resources corev1.ResourceList
	// PodSecurity is the level that pods have to meet; empty is restricted.
	PodSecurity api.PodSecurityLevel
	// NodeSelector is labels that the nodes have on which its pods run.
	NodeSelector map[string]string
	// Tolerations is what its pods tolerate there.
	Tolerations []corev1.Toleration
	// RuntimeClasses is those that its pods may name.
	RuntimeClasses []string
	// LimitRange is what containers of its pods have that say nothing, and their bounds; nil is neither.
	LimitRange *api.LimitRange
	// Classes is which classes of this cluster others of the consumer's are.
	Classes podspec.Classes
	// HomeAPI is how pods reach the API server of their home, nil if it is not carried.
	HomeAPI *podspec.HomeAPI
	// NetworkPolicies says that NetworkPolicies of the consumer's are taken.
	NetworkPolicies bool
	// NamespaceNames is the names that namespaces of the peer may have here with another
	// mapping than Suffixed. A * at the end stands for any end.
	NamespaceNames []string
	// MinFence is the shortest fence that its consumer may ask for.
	MinFence time.Duration
	// AcceptNew says whether new pods are taken: not while it drains, nor later.
	AcceptNew bool
}

// terms is what of a contract decides about a single pod.
func (c Contract) terms() podspec.Terms {
	return podspec.Terms{
		Peer: c.Peer, PodSecurity: c.PodSecurity, NodeSelector: c.NodeSelector, Tolerations: c.Tolerations,
		RuntimeClasses: c.RuntimeClasses, Classes: c.Classes, HomeAPI: c.HomeAPI,
	}
}

// Config configures a Provider.
type Config struct {
	// Client reads and writes this cluster, without a cache: what it reads is what
	// is. It should have no rate limit of its own worth speaking of. Required.
	Client client.WithWatch
	// REST reaches into pods (logs, exec, port-forward). Required for these.
	REST *rest.Config
	// Contracts returns a contract in which this cluster is the provider, unless
	// it is closed. Required. It must not block.
	Contracts func(id string) (Contract, bool)
	// Trusted returns the clusters that this one trusts. No other consumer chooses a name of the kind that the
	// mapping Suffixed gives their namespaces. Nil is for a cluster whose consumers choose none. It must not block.
	Trusted func() []peering.ClusterID
	// Translate returns an address of the peer's terms in this cluster's, if it
	// can be reached. Nil reaches none.
	Translate func(peer peering.ClusterID, a netip.Addr) (netip.Addr, bool)
	// Self is this cluster's ID, and Own returns the address of a pod of this cluster that the peer
	// knows by an alias: in Services of a cluster set that both are in. Nil knows none.
	Self string
	Own  func(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool)
	// Zone returns the zone that a node of this cluster is in; empty if it is in none. Nil knows none. It
	// must not block.
	Zone func(node string) string
	// KnownAs returns by which address the peer knows a pod of this cluster. Nil knows none.
	KnownAs func(peer peering.ClusterID, own netip.Addr) (netip.Addr, bool)
	// Namespace and ServiceAccount are the agent's own; the account gets its
	// rights in each namespace made here. Required.
	Namespace, ServiceAccount string
	// ClusterRole has those rights. It defaults to entente-provider-namespace.
	ClusterRole string
	// Here returns by what NetworkPolicies of a peer are translated. Nil is for a cluster that takes
	// none. It must not block.
	Here func(peering.ClusterID) (netpolicy.Here, error)
	// Resolver returns the address of the resolver that answers consumers' pods with
	// the names of their homes. Nil is for a cluster without one: its own resolver
	// answers then. It must not block.
	Resolver func() (netip.Addr, error)
	// Stops says whether nothing may be begun under a fence. Nil: this cluster agrees to no fences.
	// It must not block.
	Stops func(fencing.Fence) bool
	// Changed is called, if set, when what a contract uses or exposes may have
	// changed, for many pods many times a second. It must not block.
	Changed func(contract string)
	// Workers is how many pods are reconciled at once. It defaults to 16.
	Workers int
	// Log is for what consumers are not told. Nil discards.
	Log *slog.Logger
}

// Provider makes what consumers apply. Its methods work while Run runs, and wait
// until Run has seen the cluster.
type Provider struct {
	// Streams reaches into pods; not without Config.REST.
	*podstreams.Streams

	cfg      Config
	client   paced.Client
	security *podSecurity
	inv      *inventory
	hub      *podwatch.Hub
	ledger   *ledger.Ledger
	stock    *stock.Stock
	graves   recent.Graves
	made     recent.Made
	named    recent.Named
	trials   *recent.Moments[recent.Trial]
	holds    *recent.Moments[recent.Hold]
	// compared is when streams of a peer were ended last to have it compare what is here.
	compared sync.Map // peering.ClusterID to time.Time

	// locks has a lock for each contract that pods are applied to, and for each
	// namespace that is made or unmade.
	locks turns.Locks
	// services and policies wake the reflection of Services and NetworkPolicies, configs has ConfigMaps and Secrets
	// compared. What pods do changes the first alone.
	services, policies, configs *turns.Comparer
	// slices writes the EndpointSlices of reflected Services.
	slices reflection.Slices
}

// New returns a Provider that does nothing until Run.
func New(cfg Config) (*Provider, error) {
	if cfg.Client == nil || cfg.Contracts == nil || cfg.Namespace == "" || cfg.ServiceAccount == "" {
		return nil, errors.New("offload: client, contracts, namespace and service account are required")
	}
	if cfg.ClusterRole == "" {
		cfg.ClusterRole = "entente-provider-namespace"
	}
	for _, f := range []*func(peering.ClusterID, netip.Addr) (netip.Addr, bool){&cfg.Translate, &cfg.Own, &cfg.KnownAs} {
		if *f == nil {
			*f = func(peering.ClusterID, netip.Addr) (netip.Addr, bool) { return netip.Addr{}, false }
		}
	}
	if cfg.Zone == nil {
		cfg.Zone = func(string) string { return "" }
	}
	if cfg.Trusted == nil {
		cfg.Trusted = func() []peering.ClusterID { return nil }
	}
	if cfg.Changed == nil {
		cfg.Changed = func(string) {}
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 16
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	security, err := newPodSecurity()
	if err != nil {
		return nil, err
	}
	p := &Provider{
		cfg: cfg, client: paced.New(paced.Config{Client: cfg.Client, Writes: paced.Writes(), Unseen: unseen}), security: security, hub: podwatch.New(), stock: stock.New(),
		ledger: ledger.New(), trials: recent.NewTrials(), holds: recent.NewHolds(),
	}
	if p.Streams, err = podstreams.New(cfg.REST, p.runningPod); err != nil {
		return nil, err
	}
	p.slices = reflection.Slices{Client: p.client}
	p.services, p.policies = p.comparer("services", p.reflectServices), p.comparer("network policies", p.reflectPolicies)
	p.configs = p.comparer("config maps and secrets", p.compareConfigs)
	p.inv = newInventory(p)
	return p, nil
}

// comparer returns what has something compared, a peer at a time.
func (p *Provider) comparer(what string, compare func(context.Context, types.NamespacedName) error) *turns.Comparer {
	return turns.NewComparer(turns.CompareConfig{
		What: what, Compare: compare, Log: p.cfg.Log,
		PeerOf: func(namespace string) peering.ClusterID { return p.inv.peerOf(namespace) },
		Namespaces: func() (names []string) {
			for _, ns := range p.inv.namespaces() {
				names = append(names, ns.Name)
			}
			return names
		},
		Pause: pauseAfter,
	})
}

// pauseAfter returns after which pause a comparison that failed is repeated, and whether that is usual.
func pauseAfter(err error) (time.Duration, bool) {
	if over, ok := errors.AsType[*paced.OverBudget](err); ok {
		return over.Wait, true
	}
	if apierrors.IsConflict(err) {
		return reflectBehind, true
	}
	return time.Second, false
}

// Run watches the cluster and makes pods and Services until ctx ends, and then
// returns nil. It runs once, and should run in one process at a time.
func (p *Provider) Run(ctx context.Context) error {
	queue := turns.NewQueue("offloadedpod",
		workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](reconcileRetryMin, reconcileRetryMax), p.inv.peerOf)
	pods, err := controller.NewUnmanaged("offloadedpod", controller.Options{
		Reconciler:              reconcile.Func(p.Reconcile),
		MaxConcurrentReconciles: p.cfg.Workers,
		SkipNameValidation:      new(true),
		RecoverPanic:            new(true),
		NewQueue: func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
			return queue // which the controller shuts down
		},
		LogConstructor: func(r *reconcile.Request) logr.Logger {
			log := logr.FromSlogHandler(p.cfg.Log.Handler())
			if r != nil {
				log = log.WithValues("pod", r.String())
			}
			return log
		},
	})
	if err != nil {
		return fmt.Errorf("make controller of offloaded pods: %w", err)
	}
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		if err := pods.Start(ctx); err != nil {
			return fmt.Errorf("run controller of offloaded pods: %w", err)
		}
		return nil
	})
	for _, r := range []*turns.Comparer{p.services, p.policies, p.configs} {
		work.Go(func() error {
			r.Run(ctx)
			return nil
		})
	}
	work.Go(func() error {
		p.inv.run(ctx, queue)
		return nil
	})
	return work.Wait()
}

// Synced is closed once Run has seen the cluster.
func (p *Provider) Synced() <-chan struct{} { return p.inv.synced }

// await waits until the cluster was seen.
func (p *Provider) await(ctx context.Context) error {
	select {
	case <-p.inv.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for this cluster's state: %w", context.Cause(ctx))
	}
}

// changed tells Config.Changed of a contract.
func (p *Provider) changed(contract string) {
	if contract != "" {
		p.cfg.Changed(contract)
	}
}

// Refresh compares the reflected Services and NetworkPolicies of a peer with what they should be, at once, and what
// its pods read of their addresses: call it when what Translate, KnownAs or Here says may have changed.
func (p *Provider) Refresh(peer peering.ClusterID) {
	p.services.Of(peer)
	p.policies.Of(peer)
	for _, pod := range indexed[*corev1.Pod](p.inv.pods, byHomeIPs, string(peer)) {
		p.inv.touch(pod.Namespace, pod.Name, pod.Labels[api.LabelContract])
	}
}
