package offload

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/peering"
)

// applyClaim creates a volume, or expands it.
func (p *Provider) applyClaim(ctx context.Context, contract string, c Contract, o peering.Object) error {
	ns, err := p.home(ctx, contract, c, o.Ref)
	if err != nil {
		return err
	}
	// Nothing else is created between the check of what exists and the write.
	release, err := p.locks.Lock(ctx, "volumes/"+string(c.Peer))
	if err != nil {
		return err
	}
	defer release()
	return volumes.Apply(ctx, p.client, volumes.Share{
		Peer: c.Peer, Contract: contract, Hold: heldKey(contract), Resources: c.Resources, AcceptNew: c.AcceptNew,
	}, ns.Name, o)
}

// deleteClaim deletes a volume at its consumer's request.
func (p *Provider) deleteClaim(ctx context.Context, c Contract, ref peering.ObjectRef) error {
	ns, _, err := p.findNamespace(ctx, c.Peer, ref.Namespace, "")
	if err != nil {
		return err
	}
	space := ""
	if ns != nil {
		space = ns.Name
	}
	return volumes.Delete(ctx, p.client, c.Peer, space, ref)
}

// keepVolumes ends a contract's hold on the volumes of a namespace, and reports whether there are
// any. With last, no other contract uses the namespace: then it stays for the volumes alone, with a
// label that says so.
func (p *Provider) keepVolumes(ctx context.Context, contract string, ns *corev1.Namespace, last bool) (bool, error) {
	n, err := volumes.Keep(ctx, p.client, peering.ClusterID(ns.Labels[api.LabelPeer]), heldKey(contract), heldPrefix, ns.Name, time.Now())
	if err != nil || n == 0 || !last {
		return n > 0, err
	}
	p.cfg.Log.Info("the volumes of a consumer are kept", "namespace", ns.Name, "volumes", n, "contract", contract)
	return true, p.relabel(ctx, ns, api.LabelRetained, "true")
}

// leave removes everything that a contract holds in a namespace that stays.
func (p *Provider) leave(ctx context.Context, contract string, ns *corev1.Namespace, record *corev1.ConfigMap) error {
	if err := p.releaseShared(ctx, contract, ns, peering.ClusterID(ns.Labels[api.LabelPeer])); err != nil {
		return err
	}
	if err := p.noteFence(ctx, ns, contract, 0); err != nil || record == nil {
		return err
	}
	if err := p.release(ctx, contract, record); err != nil {
		return err
	}
	return p.enforce(ctx, ns, record)
}

// takeUp uses a namespace again that was kept for its volumes alone. The namespace at home may be a
// new one of the same name.
func (p *Provider) takeUp(ctx context.Context, ns *corev1.Namespace, uid string) error {
	if err := p.relabel(ctx, ns, api.LabelOriginUID, uid); err != nil {
		return err
	}
	return p.relabel(ctx, ns, api.LabelRetained, "")
}

// sweepKept deletes a namespace that was kept for its volumes, once none is left.
func (p *Provider) sweepKept(ctx context.Context, name string) error {
	ns := &corev1.Namespace{}
	if err := p.client.Get(ctx, client.ObjectKey{Name: name}, ns); err != nil || ns.DeletionTimestamp != nil || ns.Labels[api.LabelRetained] == "" {
		return client.IgnoreNotFound(err)
	}
	release, err := p.locks.Lock(ctx, namespaceLock(peering.ClusterID(ns.Labels[api.LabelPeer]), ns.Labels[api.LabelOriginNamespace]))
	if err != nil {
		return err
	}
	defer release()
	record, err := p.readRecord(ctx, name)
	if err != nil || record != nil {
		return err
	}
	var list corev1.PersistentVolumeClaimList
	if err := p.client.List(ctx, &list, client.InNamespace(name), client.Limit(1)); err != nil || len(list.Items) > 0 {
		return err
	}
	err = p.client.Delete(paced.Urgent(ctx), ns, client.Preconditions{UID: &ns.UID, ResourceVersion: &ns.ResourceVersion})
	return client.IgnoreNotFound(err)
}

// relabel sets a label of a namespace; an empty value removes it.
func (p *Provider) relabel(ctx context.Context, ns *corev1.Namespace, key, value string) error {
	if ns.Labels[key] == value {
		return nil
	}
	before := ns.DeepCopy()
	if ns.Labels[key] = value; value == "" {
		delete(ns.Labels, key)
	}
	if err := p.client.Patch(ctx, ns, client.MergeFrom(before), client.FieldOwner(api.Manager)); err != nil {
		return fmt.Errorf("label namespace %s: %w", ns.Name, err)
	}
	return nil
}

// seeClaim counts the use of a contract again.
func (v *inventory) seeClaim(c *corev1.PersistentVolumeClaim) {
	v.p.changed(c.Labels[api.LabelContract])
}

func (v *inventory) leaveClaim(c *corev1.PersistentVolumeClaim) {
	v.seeClaim(c)
	v.work.Go(func() { v.sweep(c.Namespace) })
}

func (v *inventory) sweep(namespace string) {
	if err := v.p.sweepKept(v.ctx, namespace); err != nil && v.ctx.Err() == nil {
		v.p.cfg.Log.Warn("cannot delete a namespace whose volumes are gone", "namespace", namespace, "err", err)
	}
}
