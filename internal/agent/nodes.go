package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/exposure"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/namespaces"
	"github.com/entente-dev/entente/internal/netpolicy"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/offload"
	"github.com/entente-dev/entente/internal/placement"
	"github.com/entente-dev/entente/internal/podmetrics"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/version"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/vk"
)

const (
	// nodeWatch is how often a virtual node's status is checked for changes.
	nodeWatch = time.Second
	// silentAfter is how long a response of a peer may be overdue until the peer counts as silent.
	silentAfter = time.Second
)

// nodes runs the virtual nodes: for each contract a node, and the mirror that keeps its objects in sync with the
// provider. It implements controller.Nodes.
type nodes struct {
	kubernetes kubernetes.Interface
	cache      ctrlclient.Reader
	addresses  *addresses
	conn       func(peering.ClusterID) grpc.ClientConnInterface
	sessions   attendance
	kubelet    *vk.Kubelet
	budget     *vk.Budget
	volumes    *volumes.Home
	policies   *netpolicy.Home
	metrics    *podmetrics.Home
	podIP      netip.Addr
	self       peering.ClusterID
	// clusterDomain is this cluster's.
	clusterDomain string
	// contractChanged and exposureChanged are called with a contract and with a peer.
	contractChanged func(contract string)
	exposureChanged func(peer peering.ClusterID)
	log             *slog.Logger

	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // that of Run, in which nodes live
	running map[string]*virtual
	tasks   sync.WaitGroup
}

// attendance is the part of the session manager that nodes use: to probe a peer more often, and to know since when
// a response has been overdue, and how long one takes.
type attendance interface {
	Attend(peer peering.ClusterID, on bool)
	Silence(peer peering.ClusterID) (since time.Time, connected bool)
	RoundTrip(peer peering.ClusterID) time.Duration
}

// virtual is one contract's node.
type virtual struct {
	spec      controller.NodeSpec
	latency   latency
	described placement.Described
	// labels is the labels that home puts on the node for what it knows of the peer.
	labels   atomic.Pointer[map[string]string]
	node     *vk.Node
	exposure *exposure.Exposure
	mirror   *client.Mirror
	policies *netpolicy.Contract
	cancel   context.CancelFunc
	done     chan struct{}
	drain    sync.Once
	cordoned bool
}

// Run runs the nodes until ctx ends. Its end leaves node objects and pods as they are: a restart is not an end.
func (n *nodes) Run(ctx context.Context) error {
	n.mu.Lock()
	n.ctx = ctx
	n.running = map[string]*virtual{}
	n.mu.Unlock()
	<-ctx.Done()
	n.mu.Lock()
	n.ctx = nil
	n.mu.Unlock()
	n.tasks.Wait()
	return nil
}

var errNotRunning = errors.New("the virtual nodes are not running yet")

func (n *nodes) Ensure(ctx context.Context, spec controller.NodeSpec) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx == nil {
		return errNotRunning
	}
	if v, ok := n.running[spec.Contract]; ok {
		select {
		case <-v.done: // it failed; create another
			n.kubelet.Remove(v.node)
		default:
			return n.follow(ctx, v, spec)
		}
	}
	v, err := n.start(ctx, spec)
	if err != nil {
		return err
	}
	n.running[spec.Contract] = v
	return n.follow(ctx, v, spec)
}

// follow updates a running node to its contract: a later revision may offer something else. The caller holds n.mu.
func (n *nodes) follow(ctx context.Context, v *virtual, spec controller.NodeSpec) error {
	spec.Labels = v.described.Update(spec.Labels, spec.Selector, n.addresses.peer(spec.Peer), spec.Pool, time.Now())
	labels, _ := n.labelsOf(spec, v.latency.get())
	if !equality.Semantic.DeepEqual(v.spec.Capacity, spec.Capacity) || !maps.Equal(v.spec.Labels, spec.Labels) || !maps.Equal(*v.labels.Load(), labels) {
		if err := v.node.SetShare(ctx, spec.Capacity, spec.Labels, labels); err != nil {
			return err
		}
		v.spec.Capacity, v.spec.Labels = spec.Capacity, spec.Labels
		v.labels.Store(&labels)
	}
	if !spec.AcceptNew && !v.cordoned {
		if err := v.node.Cordon(ctx); err != nil {
			return err
		}
		v.cordoned = true
	}
	return nil
}

func (n *nodes) start(ctx context.Context, spec controller.NodeSpec) (*virtual, error) {
	log := n.log.With("peer", spec.Peer) // the parts add node and contract
	home := func(a netip.Addr) (netip.Addr, bool) { return n.addresses.reached(spec.Peer, a) }
	v := &virtual{
		done:     make(chan struct{}),
		exposure: &exposure.Exposure{Contract: spec.Contract, Changed: func() { n.exposureChanged(spec.Peer) }, Home: func() exposure.Translation { return n.addresses.homes(spec.Peer) }},
	}
	spec.Labels = v.described.Update(spec.Labels, spec.Selector, n.addresses.peer(spec.Peer), spec.Pool, time.Now())
	v.spec = spec
	if class := n.lastLatency(ctx, spec.Name); class != "" {
		v.latency.class.Store(&class)
	}
	v.latency.update(n.sessions.RoundTrip(spec.Peer), time.Now())
	labels, _ := n.labelsOf(spec, v.latency.get())
	v.labels.Store(&labels)
	v.exposure.Local = func() (map[peering.ObjectRef][]netip.Addr, bool) {
		return v.node.PodAddresses(), v.node.ServicesDeclared()
	}
	dispatch := &dispatcher{exposure: v.exposure, volume: func(a peering.Ack) { n.volumes.Ack(spec.Contract, a) }}
	conn := n.conn(spec.Peer)
	mirror, err := client.NewMirror(client.MirrorConfig{Contract: spec.Contract, Conn: conn, Handler: dispatch, Asked: func() { v.node.Asked() }, Log: log})
	if err != nil {
		return nil, err
	}
	v.mirror = mirror
	v.policies = n.policies.Open(netpolicy.ContractConfig{
		ID: spec.Contract, Peer: spec.Peer, Node: spec.Name, Want: mirror.Want, Unwant: func(ref peering.ObjectRef) { mirror.Unwant(ref, nil) },
		Decided: func() { v.node.Decided() },
	})
	dispatch.policies = v.policies
	v.node, err = vk.New(vk.Config{
		Name: spec.Name, Contract: spec.Contract, Peer: string(spec.Peer),
		Client:    n.kubernetes,
		Mirror:    &mirrored{Mirror: mirror, exposure: v.exposure, policies: v.policies},
		Streams:   streams{conn: conn, contract: spec.Contract},
		Resources: spec.Capacity,
		Labels:    maps.Clone(spec.Labels), PeerLabels: labels,
		Version:       version.Version,
		Address:       n.podIP,
		TranslateIP:   home,
		Namespaces:    func() ([]vk.Namespace, error) { return n.namespaces(spec, *v.labels.Load(), "") },
		Namespace:     func(name string) ([]vk.Namespace, error) { return n.namespaces(spec, *v.labels.Load(), name) },
		Undecided:     v.policies.Undecided,
		ClusterDomain: n.clusterDomain,
		Budget:        n.budget,
		Logger:        log,
	})
	if err != nil {
		return nil, err
	}
	dispatch.Node = v.node
	ctx, v.cancel = context.WithCancel(n.ctx)
	n.metrics.Add(spec.Name, func(ctx context.Context) (peering.ContractMetrics, error) {
		return client.PodMetrics(ctx, conn, spec.Contract)
	})
	n.kubelet.Add(v.node)
	n.sessions.Attend(spec.Peer, true)
	n.tasks.Go(func() { n.live(ctx, v, log) })
	return v, nil
}

// live runs a virtual node until ctx ends or it fails.
func (n *nodes) live(ctx context.Context, v *virtual, log *slog.Logger) {
	defer close(v.done)
	var tasks sync.WaitGroup
	tasks.Go(func() {
		// The provider sends each state of a pod once.
		if !v.node.AwaitPods(ctx) {
			return
		}
		if err := v.mirror.Run(ctx); err != nil {
			log.Error("the mirror of a virtual node failed", "contract", v.spec.Contract, "err", err)
		}
	})
	tasks.Go(func() { n.watch(ctx, v) })
	if err := v.node.Run(ctx); err != nil {
		log.Error("a virtual node failed", "node", v.spec.Name, "contract", v.spec.Contract, "err", err)
	}
	v.cancel()
	tasks.Wait()
	n.contractChanged(v.spec.Contract)
}

// watch reports the state of the peer and its tunnel to the node, and changes of the node's status to the
// reconciler.
func (n *nodes) watch(ctx context.Context, v *virtual) {
	var last vk.Status
	for notify.Pause(ctx, nodeWatch) {
		if since, connected := n.sessions.Silence(v.spec.Peer); connected {
			if time.Since(since) < silentAfter {
				since = time.Time{}
			}
			v.node.SetSilence(since)
		}
		if fc := n.addresses.peer(v.spec.Peer); fc != nil {
			v.node.SetNetwork(networkOf(fc))
		}
		v.node.SetExcess(v.mirror.Excess())
		moved := v.latency.update(n.sessions.RoundTrip(v.spec.Peer), time.Now()) || v.described.Due(time.Now())
		if now := v.node.Status(); now != last || moved {
			last = now
			n.contractChanged(v.spec.Contract)
		}
	}
}

// networkOf is the state of the tunnel to a peer, by its ForeignCluster.
func networkOf(fc *v1alpha1.ForeignCluster) vk.Network {
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionNetwork)
	if c == nil {
		return vk.Network{Wanted: true}
	}
	return vk.Network{
		Wanted: c.Reason != v1alpha1.ReasonTunnelNotRequired,
		Up:     store.TunnelPasses(c), Known: c.Status != metav1.ConditionUnknown,
		Reason: c.Reason, Message: c.Message,
	}
}

func (n *nodes) of(contract string) *virtual {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.running[contract]
}

// Drain implements controller.Nodes. It starts a drain once, which continues by itself.
func (n *nodes) Drain(_ context.Context, contract string) (int, error) {
	v := n.of(contract)
	if v == nil {
		return 0, errNotRunning
	}
	v.drain.Do(func() {
		n.mu.Lock()
		ctx := n.ctx
		n.mu.Unlock()
		if ctx == nil {
			return
		}
		n.tasks.Go(func() {
			err := v.node.Drain(ctx, func(p vk.DrainProgress) {
				n.log.Info("draining a virtual node", "node", v.spec.Name, "progress", fmt.Sprintf("%+v", p))
			})
			if err != nil && ctx.Err() == nil {
				n.log.Error("draining a virtual node", "node", v.spec.Name, "err", err)
			}
			n.contractChanged(contract)
		})
	})
	return v.node.Status().Pods, nil
}

func (n *nodes) Remove(ctx context.Context, spec controller.NodeSpec) (bool, error) {
	v := n.of(spec.Contract)
	if v == nil {
		left, err := n.hasNode(ctx, spec.Contract)
		if err != nil || !left {
			return err == nil, err
		}
		// The agent was restarted since: start the node again, so that what was left of it can be removed.
		return false, n.Ensure(ctx, spec)
	}
	v.cancel()
	<-v.done
	if err := v.node.Remove(ctx); err != nil {
		return false, err
	}
	n.kubelet.Remove(v.node)
	v.policies.Close()
	n.metrics.Remove(spec.Name)
	n.mu.Lock()
	delete(n.running, spec.Contract)
	others := false
	for _, o := range n.running {
		others = others || o.spec.Peer == spec.Peer
	}
	n.sessions.Attend(spec.Peer, others)
	n.mu.Unlock()
	n.exposureChanged(spec.Peer)
	return true, nil
}

// hasNode reports whether there is a node object for a contract.
func (n *nodes) hasNode(ctx context.Context, contract string) (bool, error) {
	list, err := n.kubernetes.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.LabelContract + "=" + contract})
	if err != nil {
		return false, fmt.Errorf("list the node of contract %s: %w", contract, err)
	}
	return len(list.Items) > 0, nil
}

// starts reports whether a contract has a node object whose virtual node does not run yet.
func (n *nodes) starts(ctx context.Context, contract string) (bool, error) {
	if n.of(contract) != nil {
		return false, nil
	}
	return n.hasNode(ctx, contract)
}

func (n *nodes) Status(contract string) controller.NodeStatus {
	v := n.of(contract)
	if v == nil {
		return controller.NodeStatus{Reason: "NodeStarting", Message: "the virtual node is not running yet"}
	}
	return controller.NodeStatus(v.node.Status())
}

// exposed returns what the provider of a contract may reach here, and whether that is all.
func (n *nodes) exposed(contract string, own exposure.Reachable) ([]allow.Exposed, bool) {
	v := n.of(contract)
	if v == nil {
		return nil, false
	}
	return v.exposure.Exposed(own)
}

// podsIn returns the addresses of this cluster's pods in a peer, by namespace.
func (n *nodes) podsIn(peer peering.ClusterID) map[string][]netip.Addr {
	n.mu.Lock()
	var in []*exposure.Exposure
	for _, v := range n.running {
		if v.spec.Peer == peer {
			in = append(in, v.exposure)
		}
	}
	n.mu.Unlock()
	out := map[string][]netip.Addr{}
	for _, e := range in {
		for namespace, addrs := range e.There() {
			out[namespace] = append(out[namespace], addrs...)
		}
	}
	return out
}

// namespacesChanged notifies all nodes that the offloaded namespaces may have changed.
func (n *nodes) namespacesChanged() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.running {
		v.node.NamespacesChanged()
	}
}

// readdressed notifies the nodes of a peer that its addresses translate differently.
func (n *nodes) readdressed(peer peering.ClusterID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, v := range n.running {
		if v.spec.Peer == peer {
			v.node.Readdressed()
		}
	}
	n.policies.Readdressed()
}

// states returns the state of a namespace at each contract, sorted by provider.
func (n *nodes) states(namespace string, selector *metav1.LabelSelector) []v1alpha1.NamespaceInCluster {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []v1alpha1.NamespaceInCluster
	for _, v := range n.running {
		fc := n.addresses.peer(v.spec.Peer)
		if fc == nil {
			continue
		}
		for _, s := range v.node.Namespaces() {
			if s.Name != namespace {
				continue
			}
			state := v1alpha1.NamespaceInCluster{ForeignCluster: fc.Name, Contract: v.spec.Contract, State: v1alpha1.OffloadingPending}
			if s.Counts > 0 {
				state.Fence = &metav1.Duration{Duration: s.Counts}
				if !s.Answered {
					state.PendingFence = &metav1.Duration{Duration: s.Fence}
				}
			}
			if s.Accepted {
				state.RemoteName, _ = offload.RemoteNamespace(n.self, s.Name, peering.NamespaceObject{Mapping: s.Mapping, Name: s.RemoteName})
			}
			switch {
			case !placement.Selects(selector, *v.labels.Load()):
				state.State, state.Message = v1alpha1.OffloadingTerminating, "spec.clusterSelector no longer selects this cluster, and pods of the namespace are there"
			case s.Refusal != nil:
				state.State, state.Message = v1alpha1.OffloadingRefused, s.Refusal.Error()
			case s.Accepted:
				state.State, state.Message = v1alpha1.OffloadingReady, v.policies.Problem(namespace)
			}
			out = append(out, state)
		}
	}
	slices.SortFunc(out, namespaces.ByCluster)
	return out
}

// namespaces returns the namespaces that are offloaded to a virtual node with these labels: all, or the one with
// the given name, which each pod asks for.
func (n *nodes) namespaces(spec controller.NodeSpec, labels map[string]string, name string) ([]vk.Namespace, error) {
	ctx := context.Background() //nolint:forbidigo // a read from a cache does not block
	if n.addresses.peer(spec.Peer) == nil {
		return nil, fmt.Errorf("cluster %s is not known", spec.Peer)
	}
	var list v1alpha1.NamespaceOffloadingList // the list is only read
	var err error
	if name == "" {
		err = n.cache.List(ctx, &list, ctrlclient.UnsafeDisableDeepCopy)
	} else {
		list.Items = make([]v1alpha1.NamespaceOffloading, 1)
		err = n.cache.Get(ctx, ctrlclient.ObjectKey{Namespace: name, Name: v1alpha1.NamespaceOffloadingName}, &list.Items[0], ctrlclient.UnsafeDisableDeepCopy)
		if err != nil && ctrlclient.IgnoreNotFound(err) == nil {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read namespace offloadings: %w", err)
	}
	var out []vk.Namespace
	for i := range list.Items {
		o := &list.Items[i]
		if !placement.Selects(o.Spec.ClusterSelector, labels) {
			continue
		}
		var namespace corev1.Namespace
		if err := n.cache.Get(ctx, ctrlclient.ObjectKey{Name: o.Namespace}, &namespace, ctrlclient.UnsafeDisableDeepCopy); err != nil {
			if ctrlclient.IgnoreNotFound(err) == nil {
				continue
			}
			return nil, fmt.Errorf("read namespace %s: %w", o.Namespace, err)
		}
		if namespace.Labels[v1alpha1.LabelOffloading] != "enabled" {
			continue
		}
		space := vk.Namespace{Name: namespace.Name, UID: string(namespace.UID), Mapping: string(o.Spec.NameMapping), RemoteName: o.Spec.RemoteName, PodsStay: o.Spec.PodStrategy == v1alpha1.StrategyLocal, Loss: placement.LossOf(o), Fenced: namespaces.Fenced(o, spec.Contract)}
		space.Fence = fencing.AskFor(space.Loss.Fence(), space.Fenced)
		out = append(out, space)
	}
	return out, nil
}

// dispatcher passes what a node receives to the parts that it concerns. It implements vk.Handler.
type dispatcher struct {
	*vk.Node
	exposure *exposure.Exposure
	policies *netpolicy.Contract
	volume   func(peering.Ack)
}

func (h *dispatcher) Ack(a peering.Ack) {
	switch a.Ref.Kind {
	case peering.KindClaim:
		h.volume(a)
	case peering.KindNetworkPolicy:
		h.policies.Ack(a)
	default:
		h.Node.Ack(a)
	}
}

func (h *dispatcher) Orphan(ctx context.Context, held peering.Held) bool {
	if held.Ref.Kind == peering.KindNetworkPolicy {
		return h.policies.Orphan(held.Ref)
	}
	return h.Node.Orphan(ctx, held)
}

func (h *dispatcher) Connected(is bool) {
	if is {
		h.exposure.Connected()
	}
	h.Node.Connected(is)
}

func (h *dispatcher) PodStatus(s peering.PodStatus) {
	h.exposure.Status(s)
	if s.Gone {
		h.policies.Gone(s.Ref)
	}
	h.Node.PodStatus(s)
}

// mirrored is the desired state at a contract's provider, of which other parts are notified first. It implements
// vk.Mirror.
type mirrored struct {
	*client.Mirror
	exposure *exposure.Exposure
	policies *netpolicy.Contract
}

func (m *mirrored) Want(o peering.Object) {
	m.exposure.Want(o)
	if o.Ref.Kind == peering.KindPod {
		m.policies.Pod(o) // its policies are sent before it
	}
	m.Mirror.Want(o)
}

func (m *mirrored) Unwant(ref peering.ObjectRef, grace *int64) {
	m.exposure.Unwant(ref)
	if ref.Kind == peering.KindPod {
		m.policies.Ending(ref)
	}
	m.Mirror.Unwant(ref, grace)
}

func (m *mirrored) Ready() {
	m.exposure.Readied()
	m.Mirror.Ready()
}

// streams reaches into the pods of a contract at its provider. It implements vk.Streams.
type streams struct {
	conn     grpc.ClientConnInterface
	contract string
}

func (s streams) Logs(ctx context.Context, pod peering.ObjectRef, o peering.LogOptions) (io.ReadCloser, error) {
	return client.FollowLogs(ctx, s.conn, s.contract, pod, o)
}

func (s streams) Exec(ctx context.Context, pod peering.ObjectRef, o peering.ExecOptions) error {
	return client.Exec(ctx, s.conn, s.contract, pod, o)
}

func (s streams) PortForward(ctx context.Context, pod peering.ObjectRef, port int32, conn io.ReadWriteCloser) error {
	return client.PortForward(ctx, s.conn, s.contract, pod, port, conn)
}

// virtualNodes builds the consumer's half of offloading.
func (a *agent) virtualNodes(_ context.Context, cfg nodesConfig) error {
	certificate, err := a.kubeletCertificate(cfg.Certificate)
	if err != nil {
		return err
	}
	policies, err := a.followPolicies()
	if err != nil {
		return err
	}
	measured := podmetrics.NewHome(podmetrics.HomeConfig{Log: a.log})
	kubelet, err := vk.NewKubelet(vk.KubeletConfig{
		Client: a.kubernetes, Address: cfg.Address, GetCertificate: certificate, Metrics: measured, Logger: a.log,
	})
	if err != nil {
		return err
	}
	a.nodes = &nodes{
		budget: vk.NewBudget(), metrics: measured,
		kubernetes: a.kubernetes, cache: a.mgr.GetCache(), addresses: a.addresses, conn: a.sessions.Conn, sessions: a.sessions,
		kubelet: kubelet, policies: policies, podIP: a.cfg.PodIP, self: a.source.ID(), clusterDomain: a.cfg.ClusterDomain, log: a.log,
		contractChanged: a.contractsWake.wake,
		exposureChanged: notify.Gather(podsPause, exposurePause, a.exposureChanged),
	}
	return errors.Join(a.provisionVolumes(), a.run(kubelet.Run), a.run(a.nodes.Run))
}
