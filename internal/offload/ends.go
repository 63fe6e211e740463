package offload

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// keepEnd says whether an OffloadedPod that is being deleted, and has no pod, stays for now: home is away, and this
// record is all that is left of how the pod ended when this process ends, too. It is let go once a stream of home's
// said it. While home is connected nothing is kept, so it costs a pod no request.
//
// What it cannot keep is the end of a pod that came and went while no agent watched: nothing of it is left in the
// API server then. A finalizer on each pod would keep it, for one or two more writes of every pod, and
// pods that hang for ever where the agent is gone.
func (p *Provider) keepEnd(ctx context.Context, o *api.OffloadedPod) (bool, error) {
	left := time.Until(o.DeletionTimestamp.Add(endKept))
	if left <= 0 || p.hub.Watched(o.Spec.Contract) {
		return false, nil
	}
	// Nobody will ask for it, or its cluster's owner wants the namespace gone.
	if c, ok := p.cfg.Contracts(o.Spec.Contract); !ok || !c.AcceptNew {
		return false, nil
	}
	if ns := p.inv.space(o.Namespace); ns == nil || ns.DeletionTimestamp != nil {
		return false, nil
	}
	if live(o) { // it ended while it was deleted, and so was not recorded
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

// endings has the OffloadedPods of a namespace reconciled that are being deleted, as nothing may keep them any more.
func (v *inventory) endings(namespace string) {
	for _, o := range v.in(namespace) {
		if o.DeletionTimestamp != nil {
			v.touch(o.Namespace, o.Name, o.Spec.Contract)
		}
	}
}
