package offload

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// keepEnd reports whether an OffloadedPod that is being deleted, and has no pod, stays for now, because home
// is disconnected: after a restart this record alone would show how the pod ended. Its finalizer is removed
// once a stream has sent the end to home. While home is connected nothing is kept, so that a pod costs no
// request more.
//
// It cannot keep the end of a pod that was created and deleted while no agent watched: the API server has
// none of it. A finalizer on each pod would keep it, at the cost of one or two more writes for every pod, and
// of pods that never go where the agent is gone.
func (p *Provider) keepEnd(ctx context.Context, o *api.OffloadedPod) (bool, error) {
	left := time.Until(o.DeletionTimestamp.Add(endKept))
	if left <= 0 || p.hub.Watched(o.Spec.Contract) {
		return false, nil
	}
	// Home will not ask for it, or this cluster's owner deletes the namespace.
	if c, ok := p.cfg.Contracts(o.Spec.Contract); !ok || !c.AcceptNew {
		return false, nil
	}
	if ns := p.inv.space(o.Namespace); ns == nil || ns.DeletionTimestamp != nil {
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

// endings queues the OffloadedPods of a namespace that are being deleted, as nothing may keep them any
// longer.
func (v *inventory) endings(namespace string) {
	for _, o := range v.in(namespace) {
		if o.DeletionTimestamp != nil {
			v.touch(o.Namespace, o.Name, o.Spec.Contract)
		}
	}
}
