package vk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/losses"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// Mirror synchronises the wanted objects of a contract to the provider. Its methods return
// at once.
type Mirror interface {
	// Want declares that the provider should have this object, in its latest form. A provider's
	// refusal that can be retried is retried without another call. What the mirror itself refuses is
	// not kept.
	Want(peering.Object)
	// Unwant declares, on evidence, that an object is no longer wanted. For a pod, a PodStatus with
	// Gone follows, even if the provider never had it. A nil grace period means the pod's own.
	Unwant(ref peering.ObjectRef, graceSeconds *int64)
	// Ran declares that the provider has had the pod. If it no longer has it, the pod is reported
	// as Gone and not sent: it would run again.
	Ran(pod peering.ObjectRef)
	// Ready declares that every Want was made. Nothing is deleted before.
	Ready()
}

// Streams reaches into the pods of a contract.
type Streams interface {
	// Logs streams a container's log until it ends or ctx does.
	Logs(ctx context.Context, pod peering.ObjectRef, opts peering.LogOptions) (io.ReadCloser, error)
	// Exec runs a command in a container, or attaches to it, and returns when that
	// ended. An exit code other than 0 is a k8s.io/client-go/util/exec.CodeExitError.
	Exec(ctx context.Context, pod peering.ObjectRef, opts peering.ExecOptions) error
	// PortForward joins conn to a port of the pod until either side ends.
	PortForward(ctx context.Context, pod peering.ObjectRef, port int32, conn io.ReadWriteCloser) error
}

// Handler receives what the provider reports. Only Orphan may block.
type Handler interface {
	// Connected reports whether the provider can be reached; true only after the provider has
	// listed all that it has.
	Connected(bool)
	// PodStatus is the provider's status of a pod. After each Connected(true), it follows for every
	// pod that the provider has.
	PodStatus(peering.PodStatus)
	// PodEvent is something that happened to a pod.
	PodEvent(peering.PodEvent)
	// Ack acknowledges a Want or an Unwant.
	Ack(peering.Ack)
	// Orphan reports whether an unwanted object at the provider may be deleted. It returns true
	// only on evidence.
	Orphan(context.Context, peering.Held) bool
}

var _ Handler = (*Node)(nil)

// Namespace is an offloaded namespace.
type Namespace struct {
	Name string
	UID  string
	// Mapping is Suffixed, Same or Chosen, and RemoteName is the name that was chosen.
	Mapping, RemoteName string
	// PodsStay means that only its Services are sent, not its pods.
	PodsStay bool
	// Loss is what happens to its pods while the provider does not respond.
	Loss peering.Loss
	// Fence is the fence to ask the provider for, and Fenced the one to which it agreed before this
	// process began. 0 means none.
	Fence, Fenced time.Duration
}

// Config is what a Node needs. Fields are required unless the comment says otherwise.
type Config struct {
	// Name is the node's name: the ForeignCluster's.
	Name string
	// Contract is the contract's ID, Peer the provider's cluster ID.
	Contract, Peer string
	// Client is the home cluster. Its rate limits should be off or generous: they bound how fast
	// pods are sent.
	Client kubernetes.Interface
	// Mirror and Streams are the provider.
	Mirror  Mirror
	Streams Streams
	// Resources is what the contract grants. Pods default to 110.
	Resources corev1.ResourceList
	// Labels are the contract's node labels. They come from the provider, and only harmless
	// ones are used. Optional.
	Labels map[string]string
	// PeerLabels are labels that home sets: those of the peer's ForeignCluster with the prefix
	// peer.entente.dev/, and entente.dev/latency-ms and the like. Optional.
	PeerLabels map[string]string
	// Version is shown as the node's kubelet version.
	Version string
	// Address is that of the kubelet endpoint: the agent's pod IP.
	Address netip.Addr
	// Port is the kubelet endpoint's port. Default 10250.
	Port int32
	// TranslateIP returns the address under which home reaches a provider's pod, or false for an
	// address that does not belong to the provider, or that home does not reach. Nil without a tunnel.
	TranslateIP func(netip.Addr) (netip.Addr, bool)
	// Namespaces returns the namespaces that are offloaded to this provider: those labelled
	// entente.dev/offloading=enabled whose NamespaceOffloading selects it. An error means that they
	// are not known now, and changes nothing. It is called often and should read a cache.
	Namespaces func() ([]Namespace, error)
	// Namespace returns the one of them with a name, if there is one. It is called for each change
	// of a pod. By default it is looked up in Namespaces.
	Namespace func(name string) ([]Namespace, error)
	// Undecided returns why a pod with these labels must not be sent yet, since it is not known which NetworkPolicies
	// have to be sent before it; empty if it may be. It is not asked about pods that were sent. Node.Decided has to be
	// called when the answer may have changed. Optional.
	Undecided func(namespace string, labels map[string]string) string
	// ClusterDomain is the domain of the home cluster's Services. Default
	// cluster.local.
	ClusterDomain string
	// Budget bounds what providers make the agent write; its nodes share one. Default
	// is a budget for this node alone.
	Budget *Budget
	// LossGrace is how long the node stays Ready after its provider is lost, LossGraceTunnel how
	// long while the tunnel to it passes traffic: then most likely another agent takes over there.
	// Default 2 s and 15 s.
	LossGrace, LossGraceTunnel time.Duration
	// StartGrace is how long, after a restart, a node that was Ready stays so until the provider is
	// reached. Default 20 s.
	StartGrace time.Duration
	// Workers is how many pods are reconciled at once. Default 8.
	Workers int
	// Logger may be nil.
	Logger *slog.Logger
}

// Node is a virtual node, with the pods on it and what they need of the home cluster.
type Node struct {
	cfg Config
	log *slog.Logger
	// complain limits the log lines that a provider can cause.
	complain rate.Sometimes
	events   record.EventBroadcaster
	recorder record.EventRecorder
	share    *share
	pods     cache.SharedIndexInformer
	podQueue workqueue.TypedRateLimitingInterface[string]
	nsQueue  workqueue.TypedRateLimitingInterface[string]
	nodePoke notify.Channel
	// serviceQueue has the Services that changed; servicesMu is held from the check that a
	// Service's namespace is offloaded until the Service is wanted.
	serviceQueue workqueue.TypedRateLimitingInterface[serviceKey]
	servicesMu   sync.Mutex

	// refsMu orders the Wants of ConfigMaps and Secrets: it is held from the read of the
	// cache until the Want.
	refsMu sync.Mutex

	mu sync.Mutex
	// launch runs a function until Run ends or it is cancelled; nil while Run does not run.
	launch   func(func(context.Context)) context.CancelFunc
	running  sync.WaitGroup // what was started within Run
	synced   bool           // the pod cache is complete and every Want was declared
	link     link
	started  time.Time
	draining bool
	losses   losses.Losses
	fences   fencing.Home
	tunnel   tunnel
	excess   excess
	// daemonSets has the UIDs of those that have the event that their pods are not run here.
	daemonSets map[types.UID]struct{}
	// dropped is labels that earlier revisions of the contract gave the node.
	dropped  []string
	removed  bool
	node     *corev1.Node // as last seen in the API; nil if it is not there
	ready    corev1.NodeCondition
	state    map[string]*podState // by UID
	unknown  unknownPods          // of state, those that are not in the cache
	objects  map[peering.ObjectRef]*objectState
	named    map[peering.ObjectRef][]string // the UIDs of objects, by the rest of their references
	watches  map[string]*namespaceWatch
	refs     map[string]map[string][]podspec.Reference // namespace → pod UID → references
	waiting  map[string]map[string]bool                // namespace → UIDs of pods that wait for references
	exported map[string]Namespace                      // last known, by name
	// waitsSince is since when pods have waited for Config.Undecided, by their UIDs.
	waitsSince map[string]time.Time
	spaces     map[string]Namespace // at the last full reconcile; nil before the first
}

// New returns a Node for one contract. It does nothing before Run.
func New(cfg Config) (*Node, error) {
	if errs := validation.IsDNS1123Subdomain(cfg.Name); len(errs) > 0 {
		return nil, fmt.Errorf("node name %q: %s", cfg.Name, errs[0])
	}
	if cfg.Client == nil || cfg.Mirror == nil || cfg.Streams == nil || cfg.Namespaces == nil {
		return nil, errors.New("a virtual node needs a Client, a Mirror, Streams and Namespaces")
	}
	if cfg.Contract == "" || cfg.Peer == "" {
		return nil, errors.New("a virtual node needs a Contract and a Peer")
	}
	if cfg.Namespace == nil {
		cfg.Namespace = func(string) ([]Namespace, error) { return cfg.Namespaces() }
	}
	cfg.Port = cmp.Or(cfg.Port, 10250)
	cfg.LossGrace = cmp.Or(cfg.LossGrace, nodeLossGrace)
	cfg.LossGraceTunnel = cmp.Or(cfg.LossGraceTunnel, nodeLossGraceTunnel)
	cfg.StartGrace = cmp.Or(cfg.StartGrace, nodeStartGrace)
	if cfg.Workers <= 0 {
		cfg.Workers = 8
	}
	cfg.Budget = cmp.Or(cfg.Budget, NewBudget())
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	n := &Node{
		cfg:      cfg,
		log:      cfg.Logger.With("node", cfg.Name, "contract", cfg.Contract),
		share:    newShare(cfg.Budget),
		complain: rate.Sometimes{First: maxComplaints, Interval: complainAgain},
		nodePoke: notify.New(),
		started:  time.Now(),
		fences:   fencing.NewHome(),
		state:    map[string]*podState{},
		objects:  map[peering.ObjectRef]*objectState{},
		named:    map[peering.ObjectRef][]string{},
		watches:  map[string]*namespaceWatch{},
		refs:     map[string]map[string][]podspec.Reference{},
		waiting:  map[string]map[string]bool{},
		exported: map[string]Namespace{}, waitsSince: map[string]time.Time{},
		podQueue: newQueue[string](),
		nsQueue:  newQueue[string](),

		serviceQueue: newQueue[serviceKey](),
	}
	n.pods = n.newPodInformer()
	n.events = record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{BurstSize: 25, QPS: 1.0 / 60}))
	n.recorder = n.events.NewRecorder(eventScheme(), corev1.EventSource{Component: api.Manager, Host: cfg.Name})
	return n, nil
}

// newQueue returns a queue that delays only retries.
func newQueue[T comparable]() workqueue.TypedRateLimitingInterface[T] {
	return workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[T](100*time.Millisecond, 30*time.Second))
}

// Run registers the node and synchronises it, its pods and what they refer to until ctx ends; then
// it returns nil and leaves node and pods as they are, for a restart. It returns an error if the
// name is taken by a node that is not ours. Call it once.
func (n *Node) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sink := n.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: n.cfg.Client.CoreV1().Events("")})
	defer n.events.Shutdown()
	defer sink.Stop()

	n.mu.Lock()
	n.started = time.Now()
	n.launch = func(f func(context.Context)) context.CancelFunc {
		ctx, cancel := context.WithCancel(ctx)
		n.running.Go(func() {
			defer cancel()
			f(ctx)
		})
		return cancel
	}
	n.mu.Unlock()
	fail := make(chan error, 1)
	n.running.Go(func() {
		if err := n.keepNode(ctx); err != nil {
			fail <- err
		}
	})
	n.running.Go(func() { n.pods.RunWithContext(ctx) })
	n.running.Go(func() {
		if n.declare(ctx) {
			n.work(ctx)
		}
	})

	var err error
	select {
	case <-ctx.Done():
	case err = <-fail:
	}
	n.mu.Lock()
	n.launch = nil // no more watches start
	n.mu.Unlock()
	cancel()
	n.podQueue.ShutDown()
	n.nsQueue.ShutDown()
	n.serviceQueue.ShutDown()
	n.running.Wait()
	return err
}

// declare fills the caches, declares every Want and then calls Ready. It returns false if ctx
// ended first.
func (n *Node) declare(ctx context.Context) bool {
	if !n.AwaitPods(ctx) {
		return false
	}
	var spaces []Namespace
	for {
		var err error
		if spaces, err = n.cfg.Namespaces(); err == nil {
			break
		}
		n.log.Warn("offloaded namespaces are not known yet", "err", err)
		if !notify.Pause(ctx, time.Second) {
			return false
		}
	}
	names := map[string]bool{}
	for _, s := range spaces {
		names[s.Name] = true
	}
	for _, p := range n.localPods() {
		names[p.Namespace] = true
		n.noteReferences(p)
	}
	n.openWatches(ctx, names)
	for name := range names {
		if err := n.syncNamespace(ctx, name); err != nil {
			n.log.Warn("synchronise namespace", "namespace", name, "err", err)
			n.nsQueue.AddRateLimited(name)
		}
	}
	for _, p := range n.localPods() {
		n.declarePod(p)
		n.podQueue.Add(string(p.UID))
	}
	n.mu.Lock()
	n.synced = true
	n.mu.Unlock()
	n.cfg.Mirror.Ready()
	return true
}

// work reconciles until ctx ends.
func (n *Node) work(ctx context.Context) {
	var wg sync.WaitGroup
	for range n.cfg.Workers {
		wg.Go(func() { drainQueue(ctx, n.log, "pod", n.podQueue, n.reconcilePod) })
	}
	for range 2 {
		wg.Go(func() { drainQueue(ctx, n.log, "namespace", n.nsQueue, n.syncNamespace) })
	}
	wg.Go(func() { drainQueue(ctx, n.log, "service", n.serviceQueue, n.syncService) })
	wg.Go(func() { n.sweep(ctx) })
	wg.Wait()
}

func drainQueue[T comparable](ctx context.Context, log *slog.Logger, what string, q workqueue.TypedRateLimitingInterface[T], f func(context.Context, T) error) {
	for {
		key, stop := q.Get()
		if stop {
			return
		}
		if ctx.Err() != nil {
			q.Done(key)
			continue
		}
		err := f(ctx, key)
		switch {
		case err == nil:
			q.Forget(key)
		case ctx.Err() == nil:
			log.Warn("reconcile", what, key, "err", err)
			q.AddRateLimited(key)
		}
		q.Done(key)
	}
}

// sweep reconciles everything each minute, in case something was missed.
func (n *Node) sweep(ctx context.Context) {
	for notify.Pause(ctx, time.Minute) {
		n.mu.Lock()
		for uid := range n.state {
			n.podQueue.Add(uid)
		}
		n.mu.Unlock()
		n.dropUnknown(ctx)
		spaces, _ := n.cfg.Namespaces()
		n.reconcileAll(spaces)
	}
}

// Connected implements Handler.
func (n *Node) Connected(up bool) {
	n.mu.Lock()
	changed := n.link.set(up, time.Now())
	n.mu.Unlock()
	if changed {
		n.log.Info("peer", "connected", up)
		n.nodePoke.Notify()
		n.reconcilePods()
	}
}

// Readdressed translates the addresses of all pods again, after TranslateIP changed its results.
func (n *Node) Readdressed() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.synced {
		return // each is translated then
	}
	for uid, st := range n.state {
		if st.remote != nil {
			n.podQueue.Add(uid)
		}
	}
}

// NamespacesChanged reconciles everything if Config.Namespaces changed. If it has not, it does
// nothing: it is called for each namespace every few seconds.
func (n *Node) NamespacesChanged() {
	spaces, err := n.cfg.Namespaces()
	if err != nil {
		spaces = nil
	}
	n.mu.Lock()
	same := err == nil && n.spaces != nil && maps.Equal(n.spaces, spacesByName(spaces))
	n.mu.Unlock()
	if !same {
		n.reconcileAll(spaces)
	}
}

func spacesByName(spaces []Namespace) map[string]Namespace {
	out := make(map[string]Namespace, len(spaces))
	for _, s := range spaces {
		out[s.Name] = s
	}
	return out
}

// reconcileAll reconciles all pods and all namespaces; spaces are those that are offloaded now.
func (n *Node) reconcileAll(spaces []Namespace) {
	names := map[string]bool{}
	for _, s := range spaces {
		names[s.Name] = true
	}
	n.mu.Lock()
	n.spaces = spacesByName(spaces)
	for ref := range n.objects {
		names[namespaceOf(ref)] = true
	}
	for ns, w := range n.watches {
		names[ns] = true
		w.compared = false
	}
	n.mu.Unlock()
	for name := range names {
		n.nsQueue.Add(name)
	}
	for _, p := range n.localPods() {
		n.podQueue.Add(string(p.UID))
	}
}

func namespaceOf(ref peering.ObjectRef) string {
	if ref.Kind == peering.KindNamespace {
		return ref.Name
	}
	return ref.Namespace
}
