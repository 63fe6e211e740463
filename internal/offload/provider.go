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
	"github.com/entente-dev/entente/internal/podsecurity"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/podstreams"
	"github.com/entente-dev/entente/internal/podwatch"
	"github.com/entente-dev/entente/internal/recent"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/internal/turns"
	"github.com/entente-dev/entente/peering"
)

// Contract is what a Provider needs to know about a contract.
type Contract struct {
	// Peer is the consumer.
	Peer peering.ClusterID
	// Resources are the granted resources. Without "pods", no pods are taken.
	Resources corev1.ResourceList
	// PodSecurity is the level that pods have to meet; "" means restricted.
	PodSecurity api.PodSecurityLevel
	// NodeSelector selects the nodes on which its pods run.
	NodeSelector map[string]string
	// Tolerations are those of its pods there.
	Tolerations []corev1.Toleration
	// RuntimeClasses are those that its pods may name.
	RuntimeClasses []string
	// LimitRange has the default resources and the bounds of its pods' containers; nil means neither.
	LimitRange *api.LimitRange
	// Classes maps the consumer's classes to classes of this cluster.
	Classes podspec.Classes
	// HomeAPI is how pods reach the API server of their home; nil means not at all.
	HomeAPI *podspec.HomeAPI
	// NetworkPolicies means that the consumer's NetworkPolicies are taken.
	NetworkPolicies bool
	// NamespaceNames are the names that namespaces of the peer may have here with a mapping other
	// than Suffixed. A trailing * matches any suffix.
	NamespaceNames []string
	// MinFence is the shortest fence that its consumer may ask for.
	MinFence time.Duration
	// AcceptNew reports whether new pods are taken: not while the contract drains, nor later.
	AcceptNew bool
}

// terms returns those terms of a contract that apply to a single pod.
func (c Contract) terms() podspec.Terms {
	return podspec.Terms{
		Peer: c.Peer, PodSecurity: c.PodSecurity, NodeSelector: c.NodeSelector, Tolerations: c.Tolerations,
		RuntimeClasses: c.RuntimeClasses, Classes: c.Classes, HomeAPI: c.HomeAPI,
	}
}

// Config configures a Provider.
type Config struct {
	// Client reads and writes this cluster, without a cache and with no or a generous rate limit.
	// Required.
	Client client.WithWatch
	// REST is for logs, exec and port-forward. Required for these.
	REST *rest.Config
	// Contracts returns a contract in which this cluster is the provider, unless
	// it is closed. Required. It must not block.
	Contracts func(id string) (Contract, bool)
	// Trusted returns the clusters that this one trusts. No other consumer may choose a name with the suffix
	// that the mapping Suffixed gives their namespaces. Nil means that none are trusted. It must not block.
	Trusted func() []peering.ClusterID
	// Translate returns the address under which this cluster reaches one of the peer, if it does.
	// Nil reaches none.
	Translate func(peer peering.ClusterID, a netip.Addr) (netip.Addr, bool)
	// Self is this cluster's ID, and Own returns the address of a pod of this cluster for the alias
	// by which the peer knows it, for Services of a cluster set of which both are members. Nil
	// means no aliases.
	Self string
	Own  func(peer peering.ClusterID, alias netip.Addr) (netip.Addr, bool)
	// Zone returns the zone of a node of this cluster, or "". Nil means no zones. It must not block.
	Zone func(node string) string
	// KnownAs returns the address by which the peer knows a pod of this cluster, none if it has no use for that. Nil means no addresses.
	KnownAs func(peer peering.ClusterID, own netip.Addr) (netip.Addr, bool)
	// Namespace and ServiceAccount are the agent's own; the account gets its rights in each
	// namespace created here. Required.
	Namespace, ServiceAccount string
	// ClusterRole has those rights. It defaults to entente-provider-namespace.
	ClusterRole string
	// Here returns what is needed to translate NetworkPolicies of a peer. Nil means that none are
	// taken. It must not block.
	Here func(peering.ClusterID) (netpolicy.Here, error)
	// Resolver returns the address of the resolver with which consumers' pods resolve the names of
	// their homes. Nil means that they use the cluster's own. It must not block.
	Resolver func() (netip.Addr, error)
	// Stops reports whether no pod may be started under a fence. Nil means that this cluster agrees
	// to no fences. It must not block.
	Stops func(fencing.Fence) bool
	// Changed is called, if set, when what a contract uses or exposes may have changed, with many
	// pods many times a second. It must not block.
	Changed func(contract string)
	// Served is called, if set, when the result of Served may have changed for contracts of a peer because of its
	// Services. It must not block.
	Served func(peer peering.ClusterID)
	// Workers is how many pods are reconciled at once. It defaults to 16.
	Workers int
	// Log is for what is not sent to consumers. Nil discards.
	Log *slog.Logger
}

// Provider creates the objects that consumers apply. Its methods work while Run runs, and wait
// until its caches are synced.
type Provider struct {
	// Streams serves logs, exec and port-forward; unavailable without Config.REST.
	*podstreams.Streams

	cfg      Config
	client   paced.Client
	security *podsecurity.Checker
	inv      *inventory
	hub      *podwatch.Hub
	ledger   *ledger.Ledger
	stock    *stock.Stock
	graves   recent.Graves
	made     recent.Made
	named    recent.Named
	trials   *recent.Moments[recent.Trial]
	holds    *recent.Moments[recent.Binding]
	// compared is when streams of a peer were last ended so that it compares its objects here.
	compared sync.Map // peering.ClusterID to time.Time

	// locks has a lock for each contract to which pods are applied, and for each namespace that is
	// created or deleted.
	locks turns.Locks
	// services and policies wake the reflection of Services and NetworkPolicies, configs the comparison of
	// ConfigMaps and Secrets. Changes of pods wake the first only.
	services, policies, configs *turns.Comparer
	// slices writes the EndpointSlices of reflected Services, and openings has what these open of pods.
	slices   reflection.Slices
	openings reflection.Openings
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
	security, err := podsecurity.New()
	if err != nil {
		return nil, err
	}
	p := &Provider{
		cfg: cfg, client: paced.New(paced.Config{Client: cfg.Client, Writes: paced.Writes(), Unseen: unseen}), security: security, hub: podwatch.New(podstatus.Outline), stock: stock.New(),
		ledger: ledger.New(), trials: recent.NewTrials(), holds: recent.NewBindings(),
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

// comparer returns a Comparer that calls compare, for one peer at a time.
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

// pauseAfter returns the pause before a failed comparison is repeated, and whether the failure is expected.
func pauseAfter(err error) (time.Duration, bool) {
	if over, ok := errors.AsType[*paced.OverBudget](err); ok {
		return over.Wait, true
	}
	if apierrors.IsConflict(err) {
		return reflectBehind, true
	}
	return time.Second, false
}

// Run watches the cluster and creates pods and Services until ctx ends, and then returns nil. Call
// it once, and in one process at a time.
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

// Synced is closed once the caches are synced.
func (p *Provider) Synced() <-chan struct{} { return p.inv.synced }

// await waits until the caches are synced.
func (p *Provider) await(ctx context.Context) error {
	select {
	case <-p.inv.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for this cluster's state: %w", context.Cause(ctx))
	}
}

// changed calls Config.Changed.
func (p *Provider) changed(contract string) {
	if contract != "" {
		p.cfg.Changed(contract)
	}
}

// Refresh compares at once the reflected Services and NetworkPolicies of a peer, and the addresses that its
// pods read, with the desired ones. Call it when the results of Translate, KnownAs or Here may have changed.
func (p *Provider) Refresh(peer peering.ClusterID) {
	p.services.Of(peer)
	p.policies.Of(peer)
	for _, pod := range indexed[*corev1.Pod](p.inv.pods, byHomeIPs, string(peer)) {
		p.inv.touch(pod.Namespace, pod.Name, pod.Labels[api.LabelContract])
	}
}
