package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/preflight"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
)

// Config configures the fabric of a node.
type Config struct {
	// Kubernetes is how to reach the API server. Required.
	Kubernetes *rest.Config
	// Node is this node's name, Namespace that of the install. Required.
	Node, Namespace string
	// Interface is the WireGuard device's name, Port its UDP port, MTU its MTU
	// (0: by the node's own links).
	Interface string
	Port, MTU int
	// PodCIDRs are prefixes of this cluster's pods besides those of the nodes: a route to pods on
	// this node counts if it is in them. ServiceCIDRs are the known prefixes of Services,
	// and AliasPool is the pool of aliases. The node checks itself with them.
	PodCIDRs, ServiceCIDRs, AliasPool []netip.Prefix
	// KeyEvery is how long the node's WireGuard key is used before it is replaced; 0 means for ever.
	KeyEvery time.Duration
	// RelayAgent is the address, host:port, at which this cluster's agent carries datagrams of tunnels
	// over sessions; empty if it does not.
	RelayAgent string
	// StateDirectory is where on the node the fabric saves the objects that it last read, and its keys, for
	// a restart while no API server answers. Empty means that it saves nothing.
	StateDirectory string
	// HealthAddress is where /healthz and /readyz are served.
	HealthAddress string
	// MetricsAddress is where /metrics is served, over TLS, to callers that may get it. Empty means that
	// it is not served. MetricsCertificate is the directory of its certificate, tls.crt and tls.key, which
	// may be written later, and change.
	MetricsAddress, MetricsCertificate string
	Log                                *slog.Logger
}

const (
	nodeResync      = 10 * time.Second
	nodeStatusEvery = time.Minute
	// nodeStatusPace is the least time between two writes of a node's status, nodeStatusBurst how many
	// it makes at once: a new tunnel passes several states in a moment.
	nodeStatusPace, nodeStatusBurst = time.Second, 4
)

// Run runs the fabric of a node until ctx ends: it makes the node's tunnels
// by the Tunnels, and reports in the node's FabricNode. While the node has a
// NodeDiscovery, it publishes this cluster on the node's LANs and reports in it the clusters that it
// finds. At its end other gateways take over the peers that this one carries; the
// tunnels stay as they are, unless all Tunnels are gone.
func Run(ctx context.Context, cfg Config) error {
	relays, err := newRelays(cfg)
	if err != nil {
		return err
	}
	state := openState(cfg)
	fabricConfig := tunnel.Config{Device: cfg.Interface, ListenPort: cfg.Port, MTU: cfg.MTU, DelayRelay: relays.delay(), Log: cfg.Log}
	if state != nil {
		fabricConfig.Keys = state
	}
	fabric, err := tunnel.New(fabricConfig)
	if err != nil {
		return err
	}
	n := &node{cfg: cfg, fabric: fabric, relays: relays, state: state, checks: checks{observe: preflight.Observe}}
	if n.inBand, err = newInBandRelays(cfg.Log, func() []tunnel.PeerStatus { return fabric.Status().Peers }); err != nil {
		return err
	}
	mgr, err := n.manager()
	if err != nil {
		return err
	}
	// The fabric outlives the manager, so that it can clean the node at the end.
	fabricCtx, stopFabric := context.WithCancel(context.WithoutCancel(ctx))
	defer stopFabric()
	var fabricDone errgroup.Group
	fabricDone.Go(func() error { return fabric.Run(fabricCtx) })

	// All goes on while others take over the peers that this node carries.
	parent := ctx
	ctx, stop := context.WithCancel(context.WithoutCancel(parent))
	defer stop()
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error {
		defer stop()
		return handOver(ctx, parent, fabric)
	})
	tasks.Go(func() error { return mgr.Start(ctx) })
	tasks.Go(func() error { return n.follow(ctx, mgr.GetCache()) })
	tasks.Go(func() error { return n.report(ctx) })
	tasks.Go(func() error { return state.run(ctx) })
	tasks.Go(func() error { return relays.run(ctx, fabric.Status) })
	tasks.Go(func() error { return n.inBand.Run(ctx) })
	tasks.Go(func() error { return serveMetrics(ctx, cfg, fabric, n.keyDue.Load) })
	tasks.Go(func() error { return runLAN(ctx, cfg, mgr.GetRESTMapper(), multicastDNS(cfg.Log)) })
	err = tasks.Wait()
	ending := n.ending(context.WithoutCancel(ctx))
	stopFabric()
	err = errors.Join(err, fabricDone.Wait())
	if ending {
		cfg.Log.Info("no Tunnel is left: cleaning the node")
		state.remove()
		err = errors.Join(err, tunnel.Clean(n.tunnelConfig()))
	}
	return err
}

// manager returns the manager that caches what the node reads, and answers probes.
func (n *node) manager() (ctrl.Manager, error) {
	mgr, err := ctrl.NewManager(n.cfg.Kubernetes, nodeOptions(n.cfg))
	if err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	n.client = mgr.GetClient()
	return mgr, errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("synced", n.ready))
}

// handOver waits until parent ends, and then hands the peers that this node carries over to other gateways.
func handOver(ctx, parent context.Context, fabric *tunnel.Fabric) error {
	select {
	case <-parent.Done():
		leaving, cancel := context.WithTimeout(ctx, leaveMost)
		defer cancel()
		fabric.Leave(leaving)
	case <-ctx.Done():
	}
	return nil
}

// nodeOptions limits the watches to the objects that the node needs: of Secrets and Nodes one each. It
// reads only from these watches, so writes of other nodes cost it no request.
func nodeOptions(cfg Config) ctrl.Options {
	return ctrl.Options{
		Scheme: kube.Scheme(), MapperProvider: kinds,
		Logger: logr.FromSlogHandler(cfg.Log.Handler()),
		Cache: cache.Options{
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Secret{}: {Namespaces: map[string]cache.Config{
					cfg.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", v1alpha1.FabricSecret)},
				}},
				&corev1.Node{}: {Field: fields.OneTermEqualSelector("metadata.name", cfg.Node)},
			},
			DefaultTransform: cache.TransformStripManagedFields(),
		},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: cfg.HealthAddress,
	}
}

// kinds maps the kinds that a node reads, without an API server, which may not answer when the node
// starts.
func kinds(*rest.Config, *http.Client) (meta.RESTMapper, error) {
	m := meta.NewDefaultRESTMapper(nil)
	m.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	m.Add(corev1.SchemeGroupVersion.WithKind("Node"), meta.RESTScopeRoot)
	for _, kind := range []string{"Tunnel", "FabricNode", "NodeDiscovery"} {
		m.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeRoot)
	}
	return m, nil
}

// tunnels is the part of [tunnel.Fabric] that a node uses.
type tunnels interface {
	Set(d plan.Desired)
	Status() tunnel.Status
	Changed() <-chan struct{}
}

// node is the fabric of one node between the custom resources and the kernel.
type node struct {
	cfg    Config
	fabric tunnels
	relays *relays // nil relays nothing
	inBand *inBandRelays
	client client.Client
	synced atomic.Bool
	// state is saved for a restart. confirmed is when the API server last answered.
	state     *stateFiles
	confirmed atomic.Pointer[time.Time]
	// tunnelCount is one more than the number of Tunnels when they were last read; zero means unknown.
	tunnelCount atomic.Int64
	// Only the goroutine of follow uses known.
	known Known
	// Only the goroutine of report uses checks.
	checks checks
	// keyDue is when this node's WireGuard key is due to be replaced; nil means unknown.
	keyDue atomic.Pointer[time.Time]
}

func (n *node) tunnelConfig() tunnel.Config {
	return tunnel.Config{Device: n.cfg.Interface, ListenPort: n.cfg.Port, MTU: n.cfg.MTU, Log: n.cfg.Log}
}

func (n *node) ready(*http.Request) error {
	if !n.synced.Load() {
		return errors.New("not synced with the API server yet")
	}
	return nil
}

// follow sets the desired state of the fabric by the custom resources, whenever they change, and by the
// saved ones until they can be read.
func (n *node) follow(ctx context.Context, objects cache.Cache) error {
	kick := notify.New()
	read := make(chan error, 1)
	go func() { read <- n.watch(ctx, objects, kick) }()
	if err := n.carryOn(ctx, read); err != nil || ctx.Err() != nil {
		return err
	}
	n.answered(time.Now())
	tick := time.NewTicker(nodeResync)
	defer tick.Stop()
	for changed := true; ; {
		desired, err := n.desired(ctx, changed)
		switch {
		case err != nil && ctx.Err() == nil:
			n.cfg.Log.Warn("cannot read the desired state of the fabric, keeping the current one", "err", err)
		case err == nil && desired != nil:
			n.fabric.Set(*desired)
			n.synced.Store(true)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-kick:
			changed = true
		case <-tick.C:
			changed = err != nil
		}
	}
}

// watch notifies kick of changes, and returns once all objects were read: it waits for the API server.
func (n *node) watch(ctx context.Context, objects cache.Cache, kick notify.Channel) error {
	for _, object := range []client.Object{&v1alpha1.Tunnel{}, &v1alpha1.FabricNode{}, &corev1.Secret{}, &corev1.Node{}} {
		if _, err := kube.OnChange(ctx, objects, object, matters, kick.Notify); err != nil && ctx.Err() == nil {
			return err
		}
	}
	objects.WaitForCacheSync(ctx)
	return nil
}

// carryOn uses the saved plan until the objects were read from the API server.
func (n *node) carryOn(ctx context.Context, read <-chan error) error {
	stored := n.state.load()
	tick := time.NewTicker(nodeResync)
	defer tick.Stop()
	stale := false
	for {
		if stored != nil {
			tunnels, at, old := stored.usable(time.Now())
			if old && !stale {
				n.cfg.Log.Warn("the API server has not answered for too long: tunnels end", "since", stored.Confirmed, "limit", savedLife)
			}
			stale = old
			n.known = stored.known()
			if desired := n.plan(&stored.Node, stored.FabricNodes, tunnels, at); desired != nil {
				n.fabric.Set(*desired)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-read:
			return err
		case <-tick.C:
		}
	}
}

// answered notes that the API server answered.
func (n *node) answered(now time.Time) { n.confirmed.Store(&now) }

// matters reports whether an update of an object can change the desired state of the fabric.
// Each node writes its FabricNode each minute, with its paths, which do not matter here.
func matters(before, after any) bool {
	switch after := after.(type) {
	case *v1alpha1.FabricNode:
		was, is := before.(*v1alpha1.FabricNode), after
		return was.Spec.ClusterID != is.Spec.ClusterID || was.Spec.Gateway != is.Spec.Gateway || !slices.Equal(was.Spec.AnnouncedPodCIDRs, is.Spec.AnnouncedPodCIDRs) ||
			!slices.Equal(was.Spec.ClusterPodCIDRs, is.Spec.ClusterPodCIDRs) ||
			was.Status.PublicKey != is.Status.PublicKey || was.Status.NextPublicKey != is.Status.NextPublicKey ||
			was.Annotations[v1alpha1.AnnotationRotateKey] != is.Annotations[v1alpha1.AnnotationRotateKey] ||
			!slices.Equal(was.Status.Endpoints, is.Status.Endpoints) || !slices.Equal(was.Status.PodCIDRs, is.Status.PodCIDRs)
	case *corev1.Node:
		was := before.(*corev1.Node)
		return !slices.Equal(was.Spec.PodCIDRs, after.Spec.PodCIDRs) || !slices.Equal(was.Status.Addresses, after.Status.Addresses)
	default:
		return true
	}
}

// desired reads the desired state of the fabric. It returns nil until the agent has written
// which cluster this is. It saves the objects that it read, if they changed or the saved ones are old.
func (n *node) desired(ctx context.Context, changed bool) (*plan.Desired, error) {
	var nodes v1alpha1.FabricNodeList
	var tunnels v1alpha1.TunnelList
	var secret corev1.Secret
	if err := n.client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	if err := n.client.List(ctx, &tunnels); err != nil {
		return nil, fmt.Errorf("list tunnels: %w", err)
	}
	err := n.client.Get(ctx, client.ObjectKey{Namespace: n.cfg.Namespace, Name: v1alpha1.FabricSecret}, &secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Secret %s: %w", v1alpha1.FabricSecret, err)
	}
	own, err := n.ownNode(ctx)
	if err != nil {
		return nil, err
	}
	n.tunnelCount.Store(int64(len(tunnels.Items)) + 1)
	n.known = n.known.Update(nodes.Items, tunnels.Items, secret.Data)
	desired := n.plan(own, nodes.Items, tunnels.Items, time.Now())
	if confirmed := n.confirmed.Load(); desired != nil && confirmed != nil && (changed || n.state.stale(*confirmed)) {
		n.state.offer(newSavedPlan(*confirmed, own, nodes.Items, tunnels.Items, n.known))
	}
	return desired, nil
}

// plan returns the desired state of the fabric, and sets that of the relays.
func (n *node) plan(own *corev1.Node, nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel, now time.Time) *plan.Desired {
	desired := Desired(n.cfg, kube.Prefixes(own.Spec.PodCIDRs), nodes, tunnels, n.known, now)
	if i := slices.IndexFunc(nodes, func(f v1alpha1.FabricNode) bool { return f.Name == n.cfg.Node }); i >= 0 {
		n.keyDue.Store(new(keyDue(&nodes[i], n.cfg.KeyEvery)))
	}
	n.relays.fill(desired)
	if desired != nil {
		table := inBandTable(own, nodes, tunnels, n.known)
		desired.Relay = plan.Relay{Listen: table.own, From: table.from}
		n.inBand.Set(table)
	}
	return desired
}

func (n *node) ownNode(ctx context.Context) (*corev1.Node, error) {
	var own corev1.Node
	if err := n.client.Get(ctx, client.ObjectKey{Name: n.cfg.Node}, &own); err != nil {
		return nil, fmt.Errorf("read node %s: %w", n.cfg.Node, err)
	}
	return &own, nil
}

// report keeps the status of the node's FabricNode up to date.
func (n *node) report(ctx context.Context) error {
	every := time.NewTicker(nodeStatusEvery)
	defer every.Stop()
	check := time.NewTicker(preflightEvery)
	defer check.Stop()
	pace := rate.NewLimiter(rate.Every(nodeStatusPace), nodeStatusBurst)
	var last v1alpha1.FabricNodeStatus
	for force := true; ; {
		err := n.writeStatus(ctx, &last, force)
		if err != nil && ctx.Err() == nil {
			n.cfg.Log.Warn("cannot report the fabric's status; the fabric goes on", "err", err)
		}
		if pace.Wait(ctx) != nil {
			return nil // ctx ended
		}
		if force = err != nil; force {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
			force = true
		case <-check.C:
		case <-n.fabric.Changed():
		case <-n.inBand.changed:
		}
	}
}

func (n *node) writeStatus(ctx context.Context, last *v1alpha1.FabricNodeStatus, force bool) error {
	own, err := n.ownNode(ctx)
	if err != nil {
		return err
	}
	observed := n.fabric.Status()
	var problems []plan.Problem
	for _, text := range n.inBand.Problems() {
		problems = append(problems, plan.Problem{Text: text})
	}
	observed.Problems = append(problems, observed.Problems...)
	status := NodeStatus(observed, own)
	status.Relays = n.inBand.Listening()
	status.Preflight = n.preflight(ctx, observed, own, time.Now())
	if !force && equality.Semantic.DeepEqual(*last, status) {
		return nil
	}
	fn := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{
		Name: n.cfg.Node, Labels: map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager},
	}}
	err = n.client.Get(ctx, client.ObjectKeyFromObject(fn), fn)
	if apierrors.IsNotFound(err) {
		err = n.client.Create(ctx, fn, client.FieldOwner(fabricManager))
	}
	if err != nil {
		return fmt.Errorf("fabric node %s: %w", n.cfg.Node, err)
	}
	patch := client.MergeFrom(fn.DeepCopy())
	// What this process has not found out yet stays as the one before it reported: other nodes use it
	// while a fabric is restarted.
	if status.Preflight == nil {
		status.Preflight = fn.Status.Preflight
	}
	if observed.PodCIDRs == nil {
		if status.PodCIDRs = fn.Status.PodCIDRs; status.PodCIDRs == nil {
			status.PodCIDRs = own.Spec.PodCIDRs
		}
	}
	since := fn.Status.PublicKeySince
	if now := metav1.Now(); status.PublicKey != "" && (since == nil || fn.Status.PublicKey != status.PublicKey) {
		since = &now
	}
	conditions := fn.Status.Conditions
	fn.Status = status
	fn.Status.Conditions = sinceWhen(conditions, status.Conditions)
	fn.Status.PublicKeySince, fn.Status.ObservedAt = since, metav1.Now()
	if err := n.client.Status().Patch(ctx, fn, patch, client.FieldOwner(fabricManager)); err != nil {
		return fmt.Errorf("status of fabric node %s: %w", n.cfg.Node, err)
	}
	*last = status
	n.answered(time.Now())
	return nil
}

// fabricManager is the fabric's field manager.
const fabricManager = "entente-fabric"

// ending reports whether the fabric is being removed for good, rather than
// restarted: all Tunnels are gone. When in doubt it is a restart.
func (n *node) ending(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	direct, err := client.New(n.cfg.Kubernetes, client.Options{Scheme: kube.Scheme()})
	if err == nil {
		var tunnels v1alpha1.TunnelList
		err = direct.List(ctx, &tunnels)
		switch {
		case err == nil:
			return len(tunnels.Items) == 0
		case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
			return true // the kind itself is gone
		}
	}
	return n.tunnelCount.Load() == 1
}
