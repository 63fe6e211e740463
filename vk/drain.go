package vk

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// evictInterval is how often an eviction that a disruption budget blocks is tried again.
const evictInterval = 3 * time.Second

// DrainProgress is how far a drain has come.
type DrainProgress struct {
	// Pods is how many pods are still on the node.
	Pods int
	// Ending is how many of them are being deleted.
	Ending int
	// Blocked is why pods cannot be evicted (yet), by namespace/name.
	Blocked map[string]string
}

// Cordon keeps new pods off the node from now on. What runs there goes on.
func (n *Node) Cordon(ctx context.Context) error {
	n.mu.Lock()
	n.draining = true
	node := n.node
	n.mu.Unlock()
	if node == nil {
		return nil // it is made cordoned
	}
	if err := n.repairObject(ctx, node); err != nil {
		return fmt.Errorf("cordon node %s: %w", n.cfg.Name, err)
	}
	return nil
}

// Drain cordons the node and evicts its offloaded pods, as their disruption budgets allow, until
// none is left. Pods that never ran here, such as those of DaemonSets, are left alone. It calls
// progress at each change and returns nil when the node is empty, or an error with what is left
// when ctx ends. The node stays cordoned. Run must be running.
func (n *Node) Drain(ctx context.Context, progress func(DrainProgress)) error {
	if err := n.Cordon(ctx); err != nil {
		return err
	}
	if !cache.WaitForCacheSync(ctx.Done(), n.pods.HasSynced) {
		return fmt.Errorf("drain node %s: %w", n.cfg.Name, ctx.Err())
	}
	last := ""
	for {
		p := n.evictAll(ctx)
		if text := fmt.Sprint(p); progress != nil && text != last {
			progress(p)
			last = text
		}
		if p.Pods == 0 {
			return nil
		}
		wait := evictInterval
		if len(p.Blocked) == 0 {
			wait /= 6 // only waiting for what is ending
		}
		if !notify.Pause(ctx, wait) {
			return fmt.Errorf("drain node %s: %d pods are left, %d of them ending%s: %w",
				n.cfg.Name, p.Pods, p.Ending, blockedText(p.Blocked), ctx.Err())
		}
	}
}

func blockedText(blocked map[string]string) string {
	names, text := slices.Sorted(maps.Keys(blocked)), ""
	for i, k := range names {
		if i == 5 {
			return text + fmt.Sprintf("; and %d more", len(names)-i)
		}
		text += "; " + k + ": " + blocked[k]
	}
	return text
}

// evictAll evicts each offloaded pod on the node, once.
func (n *Node) evictAll(ctx context.Context) DrainProgress {
	p := DrainProgress{Blocked: map[string]string{}}
	for _, pod := range n.localPods() {
		if podstatus.Terminal(pod.Status.Phase) || !n.occupies(pod) {
			continue
		}
		p.Pods++
		if pod.DeletionTimestamp != nil {
			p.Ending++
			continue
		}
		err := n.cfg.Client.PolicyV1().Evictions(pod.Namespace).Evict(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
		})
		switch {
		case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
			p.Ending++
		default:
			p.Blocked[pod.Namespace+"/"+pod.Name] = peering.Text(err.Error(), 256)
		}
	}
	return p
}

// occupies reports whether a pod is at the provider, or may still be sent there.
func (n *Node) occupies(pod *corev1.Pod) bool {
	n.mu.Lock()
	st := n.state[string(pod.UID)]
	wanted := st != nil && (st.wanted || st.taken) && !st.gone
	n.mu.Unlock()
	return wanted || podstatus.Offloaded(pod) || tolerates(pod) && n.offloadsPods(pod.Namespace) != no
}

// Remove deletes the node of a contract that is over, and the pods left on it, which no longer run
// anywhere. It does not need the provider, and can be repeated. Call it after Run has returned, or
// the lease may come back once.
func (n *Node) Remove(ctx context.Context) error {
	n.mu.Lock()
	n.removed, n.draining = true, true
	n.mu.Unlock()
	nodes := n.cfg.Client.CoreV1().Nodes()
	node, err := nodes.Get(ctx, n.cfg.Name, metav1.GetOptions{})
	gone := apierrors.IsNotFound(err)
	switch {
	case gone:
	case err != nil:
		return fmt.Errorf("look for node %s: %w", n.cfg.Name, err)
	case !n.ours(node):
		return fmt.Errorf("remove node %s: %w", n.cfg.Name, errForeignNode)
	default:
		if err := n.repairObject(ctx, node); err != nil {
			return fmt.Errorf("cordon node %s: %w", n.cfg.Name, err)
		}
	}
	if err := n.removePods(ctx); err != nil {
		return err
	}
	if !gone {
		err := nodes.Delete(ctx, n.cfg.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete node %s: %w", n.cfg.Name, err)
		}
	}
	// The owner reference would delete the lease too, but later.
	err = n.cfg.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Delete(ctx, n.cfg.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the lease of node %s: %w", n.cfg.Name, err)
	}
	// Controllers replace pods quickly, and the scheduler may have bound one here before it saw the cordon.
	// Kubernetes would delete that only a minute later.
	return n.removePods(ctx)
}

// removePods deletes the pods on the node at once.
func (n *Node) removePods(ctx context.Context) error {
	list, err := n.cfg.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.cfg.Name})
	if err != nil {
		return fmt.Errorf("list the pods of node %s: %w", n.cfg.Name, err)
	}
	var errs []error
	now := metav1.Now()
	for i := range list.Items {
		pod := &list.Items[i]
		// A pod that was bound by hand goes with the node: Kubernetes deletes pods of a node that
		// does not exist.
		if pod.Spec.NodeName != n.cfg.Name || !tolerates(pod) {
			continue
		}
		status := podstatus.Failed(pod, nil, n.addresses(), "ContractEnded", "the contract of its virtual node is over", now)
		if err := n.patchStatus(ctx, pod, status); err != nil && !refusedContent(err) {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, n.deletePod(ctx, pod, new(int64(0))))
	}
	return errors.Join(errs...)
}
