package offload

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/peering"
)

// errFenced is why no pod is created while its consumer is silent.
var errFenced = errors.New("the consumer has not responded for as long as its fence allows, so none of its pods is started")

// checkFence refuses a fence that this cluster does not support.
func (p *Provider) checkFence(c Contract, ref peering.ObjectRef, seconds int64) error {
	if seconds == 0 {
		return nil
	}
	shortest := max(c.MinFence, peering.MinFence)
	switch fence := time.Duration(min(max(seconds, 0), 1<<30)) * time.Second; {
	case p.cfg.Stops == nil:
		return refuse(peering.RefusedNamespace, true, "%s asks for a fence, and the provider agrees to none", ref)
	case fence < shortest || fence > peering.MaxFence:
		return refuse(peering.RefusedNamespace, true, "%s asks for a fence of %s; the provider agrees to %s up to %s", ref, fence, shortest, peering.MaxFence)
	}
	return nil
}

// noteFence writes a contract's fence into the annotation of a namespace, before the consumer's
// fence is acknowledged.
func (p *Provider) noteFence(ctx context.Context, ns *corev1.Namespace, contract string, seconds int64) error {
	want := fencing.Fence{Namespace: ns.Name, Contract: contract, Length: time.Duration(seconds) * time.Second, LastSeen: time.Now()}
	has, ok := fencing.NotedFor(ns.Name, contract, ns.Annotations)
	if ok == (seconds != 0) && has.Length == want.Length {
		return nil
	}
	if ok {
		want.LastSeen = has.LastSeen // a changed fence does not prove that the consumer is there: the message may be old
	}
	before := ns.DeepCopy()
	if key, note := fencing.NoteOf(want); seconds == 0 {
		delete(ns.Annotations, key)
	} else {
		setAnnotation(ns, key, note)
	}
	if err := p.patch(ctx, ns, before); err != nil {
		return fmt.Errorf("note the fence of namespace %s: %w", ns.Name, err)
	}
	return nil
}

// Fences returns the fences that this cluster enforces, and false while they are not known.
func (p *Provider) Fences() (out []fencing.Fence, known bool) {
	if !p.inv.known() {
		return nil, false
	}
	for _, ns := range p.inv.namespaces() {
		out = append(out, fencing.Noted(ns.Name, ns.Annotations)...)
	}
	return out, true
}

// Stop deletes the pods under a fence, permanently, and returns how many were not being deleted
// yet. Those that were may have a longer grace period than the fence allows.
func (p *Provider) Stop(ctx context.Context, f fencing.Fence) (int, error) {
	var tasks errgroup.Group
	tasks.SetLimit(stopsAtOnce)
	var n atomic.Int64
	for _, seen := range p.inv.of(f.Contract) {
		if seen.Namespace != f.Namespace || p.endsSoon(seen) {
			continue
		}
		tasks.Go(func() error {
			o := &api.OffloadedPod{}
			err := p.client.Get(ctx, client.ObjectKeyFromObject(seen), o)
			if err != nil || o.UID != seen.UID || p.endsSoon(o) {
				return client.IgnoreNotFound(err)
			}
			ended := o.DeletionTimestamp != nil
			if err := p.endPod(paced.Urgent(ctx), o, p.closingGrace(o)); err != nil || ended {
				return err
			}
			n.Add(1)
			return nil
		})
	}
	err := tasks.Wait()
	return int(n.Load()), err
}

// endsSoon reports whether a pod is being deleted within the time that a fence allows.
func (p *Provider) endsSoon(o *api.OffloadedPod) bool {
	asked := grace(o)
	return o.DeletionTimestamp != nil && asked != nil && *asked <= *p.closingGrace(o)
}

// Note records when the consumer of a fence last responded, for the next agent process.
func (p *Provider) Note(ctx context.Context, f fencing.Fence) error {
	ns := &corev1.Namespace{}
	if err := p.client.Get(ctx, client.ObjectKey{Name: f.Namespace}, ns); err != nil {
		return client.IgnoreNotFound(err)
	}
	now, ok := fencing.NotedFor(ns.Name, f.Contract, ns.Annotations)
	if !ok || now.Length != f.Length || f.LastSeen.Equal(now.LastSeen) {
		return nil // even if it is earlier: the clock may have been set back
	}
	before := ns.DeepCopy()
	key, note := fencing.NoteOf(f)
	setAnnotation(ns, key, note)
	return p.patch(paced.Urgent(ctx), ns, before)
}

// fenced reports whether no pod of a contract may be started in a namespace.
func (p *Provider) fenced(contract string, ns *corev1.Namespace) bool {
	if p.cfg.Stops == nil {
		return false
	}
	if ns == nil {
		return true // the namespaces are not known yet, and it may have a fence
	}
	f, ok := fencing.NotedFor(ns.Name, contract, ns.Annotations)
	return ok && p.cfg.Stops(f)
}
