package vk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

const (
	// defaultPods is how many pods a node takes if the contract has no limit.
	defaultPods = 110
	// roleLabel is what kubectl prints as the node's role.
	roleLabel = "node-role.kubernetes.io/agent"
	// leaseSeconds is a kubelet's, and so is the pause between two renewals.
	leaseSeconds = 40
	// repairInterval is how often the node in the API is compared with the desired one, in addition
	// to every change.
	repairInterval = 5 * time.Second
)

// Status is the status of a virtual node.
type Status struct {
	// Ready reports whether the node takes pods; Reason and Message say why not.
	Ready           bool
	Reason, Message string
	// Pods is how many pods on the node have not ended.
	Pods int
}

// Status returns the status of the node.
func (n *Node) Status() Status {
	now := time.Now()
	n.mu.Lock()
	c, _ := n.readiness(now)
	losing, excess := n.losses.NodeCondition(now), n.excess.condition()
	switch {
	case c.Status != corev1.ConditionTrue:
	case n.isLosingPods(n.node, now):
		c = losing
		c.Status = corev1.ConditionFalse
	case excess.Status == corev1.ConditionTrue:
		c = excess
		c.Status = corev1.ConditionFalse
	}
	n.mu.Unlock()
	s := Status{Ready: c.Status == corev1.ConditionTrue, Reason: c.Reason, Message: c.Message}
	for _, p := range n.localPods() {
		if !podstatus.Terminal(p.Status.Phase) {
			s.Pods++
		}
	}
	return s
}

// readiness returns the node's Ready condition, and when it will change by itself. n.mu is held.
func (n *Node) readiness(now time.Time) (corev1.NodeCondition, time.Time) {
	wasReady := !n.link.ever && n.ready.Status == corev1.ConditionTrue
	grace := n.cfg.LossGrace
	if n.tunnel.Wanted && n.tunnel.Up {
		grace = n.cfg.LossGraceTunnel
	}
	up, until := n.link.shown(now, n.started, wasReady, n.cfg.StartGrace, grace)
	c := corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "PeerConnected",
		Message: "the provider answers, and runs pods by contract " + n.cfg.Contract,
	}
	switch {
	case up:
	case n.link.ever:
		c.Status, c.Reason = corev1.ConditionFalse, "PeerLost"
		c.Message = "the provider has not responded since " + n.link.lost.UTC().Format(time.RFC3339) +
			"; pods there go on running; see the Connected condition of its ForeignCluster"
	default:
		c.Status, c.Reason = corev1.ConditionFalse, "PeerNotConnected"
		c.Message = "the provider has not been reached yet; see the Connected condition of its ForeignCluster"
	}
	c.LastTransitionTime = metav1.NewTime(now)
	if n.ready.Status == c.Status {
		c.LastTransitionTime = n.ready.LastTransitionTime
	}
	return c, until
}

// nodeObject returns the desired node. The first of own is its Ready condition; since is when the
// node was created.
func nodeObject(cfg Config, own []corev1.NodeCondition, draining bool, since, now time.Time) *corev1.Node {
	capacity, labels := nodeCapacity(cfg), nodeLabels(cfg)
	conditions := slices.Clone(own)
	for i := range conditions {
		conditions[i].LastHeartbeatTime = metav1.NewTime(now)
		if conditions[i].LastTransitionTime.IsZero() {
			conditions[i].LastTransitionTime = metav1.NewTime(since)
		}
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		conditions = append(conditions, corev1.NodeCondition{
			Type: t, Status: corev1.ConditionFalse, Reason: "ContractShare", LastHeartbeatTime: metav1.NewTime(now),
			LastTransitionTime: metav1.NewTime(since),
			Message:            "the provider sets aside what the contract grants; its own nodes' pressure does not show here",
		})
	}
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: cfg.Name, Labels: labels, Annotations: map[string]string{annotationMetrics: resourcePath + "/" + cfg.Name}},
		Spec: corev1.NodeSpec{
			ProviderID:    "entente://" + cfg.Peer + "/" + cfg.Contract,
			Unschedulable: draining,
			Taints:        []corev1.Taint{virtualNodeTaint()},
		},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity.DeepCopy(), Conditions: conditions,
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: cfg.Version, OSImage: "Entente virtual node",
				ContainerRuntimeVersion: "entente://" + cfg.Peer,
				OperatingSystem:         labels[corev1.LabelOSStable], Architecture: labels[corev1.LabelArchStable],
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: cfg.Port}},
		},
	}
	if cfg.Address.IsValid() {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: cfg.Address.String()})
	}
	node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: cfg.Name})
	return node
}

// nodeCapacity returns the contract's resources in the form of a node's capacity.
func nodeCapacity(cfg Config) corev1.ResourceList {
	capacity := cfg.Resources.DeepCopy()
	if capacity == nil {
		capacity = corev1.ResourceList{}
	}
	// Storage is what claims ask for, not pods.
	maps.DeleteFunc(capacity, func(name corev1.ResourceName, _ resource.Quantity) bool {
		return peering.StorageClass(string(name)) != ""
	})
	if _, ok := capacity[corev1.ResourcePods]; !ok {
		capacity[corev1.ResourcePods] = *resource.NewQuantity(defaultPods, resource.DecimalSI)
	}
	return capacity
}

// annotationMetrics has the path at which metrics-server reads a node's metrics.
const annotationMetrics = "metrics.k8s.io/resource-metrics-path"

func virtualNodeTaint() corev1.Taint {
	return corev1.Taint{Key: api.TaintVirtualNode, Value: "true", Effect: corev1.TaintEffectNoSchedule}
}

// nodeLabels returns the node's labels. The provider writes those of the contract, so among names
// that Kubernetes and Entente reserve only those that describe a machine are taken.
func nodeLabels(cfg Config) map[string]string {
	described := []string{
		corev1.LabelOSStable, corev1.LabelArchStable, corev1.LabelTopologyRegion, corev1.LabelTopologyZone, corev1.LabelInstanceTypeStable,
	}
	var names []string
	for k, v := range cfg.Labels {
		domain, _, qualified := strings.Cut(k, "/")
		reserved := qualified && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io", "entente.dev"}, func(d string) bool {
			return domain == d || strings.HasSuffix(domain, "."+d)
		})
		if (!reserved || slices.Contains(described, k)) &&
			len(validation.IsQualifiedName(k)) == 0 && len(validation.IsValidLabelValue(v)) == 0 {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	out := map[string]string{corev1.LabelOSStable: "linux"}
	for _, k := range names[:min(len(names), maxNodeLabels)] {
		out[k] = cfg.Labels[k]
	}
	maps.Copy(out, cfg.PeerLabels)
	out[corev1.LabelHostname] = cfg.Name
	if len(cfg.Name) > validation.LabelValueMaxLength {
		out[corev1.LabelHostname] = strings.TrimSuffix(cfg.Name, api.VirtualNodeSuffix)
	}
	out[corev1.LabelNodeExcludeBalancers] = "true" // there are no node ports to send traffic to
	out["type"] = "virtual-kubelet"
	out[roleLabel] = ""
	out[api.LabelVirtualNode] = "true"
	out[api.LabelPeer] = cfg.Peer
	out[api.LabelContract] = cfg.Contract
	out[api.LabelManaged] = api.Manager
	return out
}

// homeLabel reports whether home itself sets a label of a virtual node, from what it knows about
// the peer.
func homeLabel(k string) bool {
	return strings.HasPrefix(k, api.PrefixPeerLabel) || k == api.LabelLatency || k == api.LabelPrice || k == api.LabelCurrency || k == api.LabelPool || k == api.LabelGPU
}

// errForeignNode means that the node's name is taken by a node that is not ours.
var errForeignNode = errors.New("there is a node of that name which is not a virtual node of this peer; rename the ForeignCluster or remove the node")

// keepNode registers the node and keeps it as desired until ctx ends. It returns an error only if
// the name is taken.
func (n *Node) keepNode(ctx context.Context) error {
	for ctx.Err() == nil {
		err := n.adopt(ctx)
		if errors.Is(err, errForeignNode) {
			return fmt.Errorf("virtual node %s: %w", n.cfg.Name, err)
		}
		if err == nil {
			n.runNode(ctx)
			break
		}
		n.log.Warn("get the node", "err", err)
		notify.Pause(ctx, time.Second)
	}
	return nil
}

// runNode runs what keeps the node until ctx ends.
func (n *Node) runNode(ctx context.Context) {
	inf := n.watchNode()
	n.running.Go(func() { inf.RunWithContext(ctx) })
	n.running.Go(func() { n.repairNode(ctx) })

	for ctx.Err() == nil {
		err := n.runController(ctx)
		n.mu.Lock()
		removed := n.removed
		n.mu.Unlock()
		if removed {
			<-ctx.Done()
		}
		if ctx.Err() == nil {
			n.log.Warn("the node controller ended", "err", err)
			notify.Pause(ctx, time.Second)
		}
	}
}

func (n *Node) ours(node *corev1.Node) bool {
	return node.Labels[api.LabelVirtualNode] == "true" && node.Labels[api.LabelPeer] == n.cfg.Peer
}

// adopt looks for a node left by an earlier process, and takes over from it whether it was Ready
// and until when it takes no pods.
func (n *Node) adopt(ctx context.Context) error {
	node, err := n.cfg.Client.CoreV1().Nodes().Get(ctx, n.cfg.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !n.ours(node) {
		return errForeignNode
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.node = node
	wanted := nodeLabels(n.cfg)
	for k := range node.Labels {
		if _, ok := wanted[k]; !ok && homeLabel(k) {
			n.dropped = append(n.dropped, k) // it changed meanwhile
		}
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionUnknown {
			n.ready = c
		}
		n.losses.Restore(c, time.Now())
	}
	return nil
}

// runController runs the library's controller for the node, which maintains lease, heartbeats and
// status, until it or ctx ends.
func (n *Node) runController(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c, err := vknode.NewNodeController(nodeProvider{n}, n.desired(), n.cfg.Client.CoreV1().Nodes(),
		vknode.WithNodeEnableLeaseV1(n.cfg.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease), leaseSeconds),
		vknode.WithNodeStatusUpdateErrorHandler(n.recreate))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// desired returns the desired node, and records its Ready condition.
func (n *Node) desired() *corev1.Node {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	c, until := n.readiness(now)
	// A condition that is shown only during a grace period is not the state from which the next one starts.
	if until.IsZero() || n.ready.Status == "" {
		n.ready = c
	}
	since := n.started
	if n.node != nil {
		since = n.node.CreationTimestamp.Time
	}
	return nodeObject(n.cfg, []corev1.NodeCondition{c, n.losses.NodeCondition(now), n.tunnel.condition(now, n.started), n.excess.condition()}, n.draining, since, now)
}

func (n *Node) recreate(ctx context.Context, err error) error {
	n.mu.Lock()
	removed := n.removed
	n.mu.Unlock()
	if !apierrors.IsNotFound(err) || removed {
		return err
	}
	n.log.Warn("the node was deleted; creating it again")
	if _, err := n.cfg.Client.CoreV1().Nodes().Create(ctx, n.desired(), metav1.CreateOptions{FieldManager: api.Manager}); err != nil {
		return fmt.Errorf("create node %s again: %w", n.cfg.Name, err)
	}
	return nil
}

// nodeProvider answers the library's questions about the node.
type nodeProvider struct{ n *Node }

// Ping reports whether the node is alive, which it always is. A lost provider must not stop the
// lease: the home cluster would overwrite the conditions, and the reason with them, with Unknown.
func (nodeProvider) Ping(ctx context.Context) error { return ctx.Err() }

// NotifyNodeStatus passes the desired node to the library whenever it changes.
func (p nodeProvider) NotifyNodeStatus(ctx context.Context, write func(*corev1.Node)) {
	p.n.running.Go(func() {
		pace := rate.NewLimiter(rate.Every(nodePace), nodeBurst)
		for {
			wake := p.n.nextChange()
			t := time.NewTimer(wake)
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-p.n.nodePoke:
			case <-t.C:
			}
			t.Stop()
			if pace.Wait(ctx) != nil {
				return
			}
			node := p.n.desired()
			written := make(chan struct{})
			go func() { // the library takes it once its last write is done
				write(node)
				close(written)
			}()
			select {
			case <-ctx.Done():
				return
			case <-written:
			}
		}
	})
}

// nextChange is when the node's readiness changes by itself.
func (n *Node) nextChange() time.Duration {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, until := n.readiness(now); !until.IsZero() {
		return max(until.Sub(now), 0) + time.Millisecond
	}
	return time.Hour
}

// watchNode watches the node's own object.
func (n *Node) watchNode() cache.SharedIndexInformer {
	inf := coreinformers.NewFilteredNodeInformer(n.cfg.Client, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", n.cfg.Name).String()
	})
	// These fail only on an informer that has started.
	_ = inf.SetTransform(dropManagedFields)
	_ = inf.SetWatchErrorHandlerWithContext(n.watchError("nodes", ""))
	seen := func(obj any, is bool) {
		if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = d.Obj
		}
		node, ok := obj.(*corev1.Node)
		if !ok || node.Name != n.cfg.Name {
			return
		}
		n.mu.Lock()
		had := n.node != nil
		if n.node = node; !is {
			n.node = nil
		}
		wrong := n.node == nil && had || n.node != nil && n.wrong(n.node)
		n.mu.Unlock()
		if wrong {
			n.nodePoke.Notify()
		}
	}
	_, _ = inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen(obj, true) }, UpdateFunc: func(_, obj any) { seen(obj, true) },
		DeleteFunc: func(obj any) { seen(obj, false) },
	})
	return inf
}

// SetShare changes the resources and the labels of the node: a later revision of the contract may
// change both, and home changes those of the peer. Running pods stay, even if they exceed the new
// resources.
func (n *Node) SetShare(ctx context.Context, resources corev1.ResourceList, labels, peerLabels map[string]string) error {
	n.mu.Lock()
	before := nodeLabels(n.cfg)
	n.cfg.Resources, n.cfg.Labels, n.cfg.PeerLabels = resources.DeepCopy(), maps.Clone(labels), maps.Clone(peerLabels)
	after, node := nodeLabels(n.cfg), n.node
	n.dropped = slices.DeleteFunc(append(n.dropped, slices.Collect(maps.Keys(before))...), func(k string) bool {
		_, ok := after[k]
		return ok
	})
	n.mu.Unlock()
	n.nodePoke.Notify()
	if node == nil {
		return nil // it is made so
	}
	if err := n.repairObject(ctx, node); err != nil {
		return fmt.Errorf("label node %s: %w", n.cfg.Name, err)
	}
	return nil
}

// wrong reports whether the node's readiness or capacity differs from the desired one. n.mu is
// held.
func (n *Node) wrong(node *corev1.Node) bool {
	if !equality.Semantic.DeepEqual(node.Status.Capacity, nodeCapacity(n.cfg)) {
		return true
	}
	now := time.Now()
	ready, _ := n.readiness(now)
	for _, want := range []corev1.NodeCondition{ready, n.losses.NodeCondition(now), n.tunnel.condition(now, n.started), n.excess.condition()} {
		if !slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == want.Type && c.Status == want.Status }) {
			return true
		}
	}
	return false
}

// repairNode repairs, each repairInterval, what the library does not: the node's spec and
// labels, and a status that it could not write.
func (n *Node) repairNode(ctx context.Context) {
	for notify.Pause(ctx, repairInterval) {
		n.mu.Lock()
		node := n.node
		wrong := !n.removed && (node == nil || n.wrong(node))
		n.mu.Unlock()
		if wrong {
			n.nodePoke.Notify()
		}
		if node == nil {
			continue
		}
		if err := n.repairObject(ctx, node); err != nil {
			n.log.Warn("repair the node", "err", err)
		}
	}
}

// ownTaints returns a node's taints with ours as desired, those of others first.
func ownTaints(taints []corev1.Taint, losing bool) []corev1.Taint {
	ours := []corev1.Taint{virtualNodeTaint()}
	if losing {
		ours = append(ours, losingTaint())
	}
	is := slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool {
		return t.Key == api.TaintLosingPods || t.Key == api.TaintVirtualNode && t.Effect == corev1.TaintEffectNoSchedule
	})
	is = append(is, ours...)
	if len(is) == len(taints) && !slices.ContainsFunc(is, func(t corev1.Taint) bool { return !slices.Contains(taints, t) }) {
		return taints // in another order
	}
	return is
}

// repairObject puts our taint and labels back, and cordons a node that drains. It leaves another
// user's cordon and labels alone.
func (n *Node) repairObject(ctx context.Context, node *corev1.Node) error {
	n.mu.Lock()
	draining, wanted, dropped := n.draining, nodeLabels(n.cfg), slices.Clone(n.dropped)
	losing := n.isLosingPods(node, time.Now())
	n.mu.Unlock()
	spec, labels := map[string]any{}, map[string]any{}
	if taints := ownTaints(node.Spec.Taints, losing); !equality.Semantic.DeepEqual(taints, node.Spec.Taints) {
		spec["taints"] = taints
	}
	if draining && !node.Spec.Unschedulable {
		spec["unschedulable"] = true
	}
	for k, v := range wanted {
		if node.Labels[k] != v {
			labels[k] = v
		}
	}
	for _, k := range dropped {
		if _, ok := node.Labels[k]; ok {
			labels[k] = nil
		}
	}
	if len(spec) == 0 && len(labels) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion, "labels": labels},
		"spec":     spec,
	})
	if err != nil {
		return err
	}
	_, err = n.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: api.Manager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) || otherUID(err) {
		return nil // the next round reads it again
	}
	return err
}
