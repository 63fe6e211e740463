package offload

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/offloadedpod"
)

// How a pod ended is in its status, until it is deleted; then in the status of its OffloadedPod, until home deletes
// that, or has received it. Finalizers keep both until the next one has it, whichever process of the agent runs:
// docs/design/0047.

// mayComplete reports whether a pod ends by itself. It then has a finalizer until its end is recorded, as home would
// run it again if that was lost. Other pods run until they are deleted, and home replaces them in any case: they
// have none, and cost no write more.
func mayComplete(pod *corev1.Pod) bool {
	return pod.Spec.RestartPolicy == corev1.RestartPolicyNever || pod.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
}

// releasable reports whether the finalizer of an OffloadedPod's pod may be removed: its end is recorded, or home
// asked for it and sees it, or the pod is deleted and will have no other status.
func releasable(o *api.OffloadedPod, pod *corev1.Pod) bool {
	switch {
	case !live(o):
		return true
	case pod.DeletionTimestamp == nil:
		return false
	case ended(pod.Status.Phase):
		return o.DeletionTimestamp != nil
	}
	// A kubelet writes the last phase before it deletes a pod with this grace period; others do so by force.
	return ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0
}

// releasePod removes the finalizer of a pod. If its OffloadedPod is being deleted and home is disconnected, the end
// is recorded first, and the next reconcile releases the pod. Until all caches are synced, nothing is released: after
// that all are reconciled again.
func (p *Provider) releasePod(ctx context.Context, o *api.OffloadedPod, pod *corev1.Pod) error {
	if !p.inv.known() {
		return nil
	}
	if o.DeletionTimestamp != nil && live(o) && ended(pod.Status.Phase) && offloadedpod.IsPodOf(pod, o) && p.keptFor(o, time.Now()) > 0 {
		return p.recordPod(ctx, o, pod)
	}
	after := pod.DeepCopy()
	controllerutil.RemoveFinalizer(after, api.Finalizer)
	if err := p.patch(ctx, after, pod); err != nil {
		return fmt.Errorf("release pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// releaseOrphan removes the finalizer of a pod that is being deleted and whose OffloadedPod is gone, as the API
// server confirms: its owner removed that one's finalizer.
func (p *Provider) releaseOrphan(ctx context.Context, key types.NamespacedName) error {
	pod, _ := p.inv.pod(key.Namespace, key.Name)
	if pod == nil || pod.DeletionTimestamp == nil || !controllerutil.ContainsFinalizer(pod, api.Finalizer) {
		return nil // it is gone, or a later event adds its OffloadedPod
	}
	o := &api.OffloadedPod{}
	if err := p.client.Get(ctx, key, o); !apierrors.IsNotFound(err) {
		if owner := metav1.GetControllerOf(pod); err != nil || owner != nil && owner.UID == o.UID {
			return err //nolint:wrapcheck // it names the object
		}
	}
	return client.IgnoreNotFound(p.releasePod(ctx, o, pod))
}

// keepEnd reports whether an OffloadedPod that is being deleted, and has no pod, stays for now, because home
// is disconnected: after a restart this record alone would show how the pod ended. Its finalizer is removed
// once a stream has sent the end to home. While home is connected nothing is kept, so that a pod costs no
// request more. Until all caches are synced, everything is kept.
func (p *Provider) keepEnd(ctx context.Context, o *api.OffloadedPod) (bool, error) {
	if !p.inv.known() {
		return true, nil
	}
	left := p.keptFor(o, time.Now())
	if left <= 0 {
		return false, nil
	}
	if live(o) { // it ended while it was being deleted, and so was not recorded
		last, seen := p.inv.endedLast(o.Namespace, types.UID(o.Status.PodUID))
		if !seen {
			return false, nil
		}
		o.Status.Phase, o.Status.PodIPs, o.Status.Reason, o.Status.Message = last.Phase, nil, "", ""
		if err := keepStatus(o, last); err != nil {
			return false, err
		}
		if err := p.writeStatus(ctx, o); err != nil {
			return false, err
		}
	}
	p.inv.queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}, left)
	return true, nil
}

// keptFor returns for how long the record of a pod that ended is kept for home, once it is being deleted: not at
// all if home sees it or will not ask for it.
func (p *Provider) keptFor(o *api.OffloadedPod, now time.Time) time.Duration {
	if c, ok := p.cfg.Contracts(o.Spec.Contract); !ok || !c.AcceptNew || p.hub.Watched(o.Spec.Contract) {
		return 0
	}
	kept := endKept
	switch ns := p.inv.space(o.Namespace); {
	case ns == nil:
		return 0
	case ns.DeletionTimestamp != nil:
		kept = endKeptDeleting // this cluster's owner waits for it
	}
	return o.DeletionTimestamp.Add(kept).Sub(now)
}

// endings queues the OffloadedPods of a namespace that are being deleted, as they may be kept no longer, or
// less long.
func (v *inventory) endings(namespace string) {
	for _, o := range v.in(namespace) {
		if o.DeletionTimestamp != nil {
			v.touch(o.Namespace, o.Name, o.Spec.Contract)
		}
	}
}
