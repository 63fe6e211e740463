package offload

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/offloadedpod"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/podwatch"
	"github.com/entente-dev/entente/peering"
)

// Watch calls status for each pod of the contract and at each change of one, and event for each
// event of one, until ctx ends; then it returns nil. The functions must not block.
func (p *Provider) Watch(ctx context.Context, contract string, status func(peering.PodStatus), event func(peering.PodEvent)) error {
	if err := p.await(ctx); err != nil {
		return err
	}
	sub, leave := p.hub.Subscribe(contract, event)
	defer leave()
	for _, o := range p.inv.of(contract) {
		sub.Touch(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	}
	// sent has a hash of the last status that was sent of each pod: there may be many, and a status
	// is long.
	sent := make(map[types.NamespacedName][sha256.Size]byte)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.Over:
			return errCompare
		case <-sub.Wake:
		}
		dirty, gone := sub.Take()
		// These come first: a consumer that just connected waits a moment for them.
		for _, last := range gone {
			status(last)
		}
		for key := range dirty {
			o := p.inv.offloaded(key)
			if o == nil || o.Spec.Contract != contract {
				delete(sent, key)
				continue
			}
			pod, seen := p.inv.pod(key.Namespace, key.Name)
			s, ok := statusOf(o, pod, seen)
			if !ok {
				continue
			}
			b, err := json.Marshal(s)
			before, again := sent[key]
			if hash := sha256.Sum256(b); err == nil && before != hash {
				sent[key] = hash
				status(s)
			}
			if !again && s.Gone && o.DeletionTimestamp != nil {
				p.inv.queue.Add(reconcile.Request{NamespacedName: key}) // its finalizer may have been kept for this
			}
		}
	}
}

func podRef(o *api.OffloadedPod) peering.ObjectRef {
	return peering.ObjectRef{
		Kind: peering.KindPod, Namespace: o.Spec.OriginNamespace, Name: o.Spec.OriginName, UID: o.Spec.OriginUID,
	}
}

// statusOf returns the status to send of a pod, if there is one. seen means that pod is current,
// even if it is nil. A pod that is neither in the cache nor recorded as ended has none.
func statusOf(o *api.OffloadedPod, pod *corev1.Pod, seen bool) (peering.PodStatus, bool) {
	s := peering.PodStatus{Ref: podRef(o)}
	mine := pod != nil && (string(pod.UID) == o.Status.PodUID || o.Status.PodUID == "" && offloadedpod.IsPodOf(pod, o))
	var status corev1.PodStatus
	switch {
	case mine:
		s.RemoteName, s.RemoteUID = pod.Namespace+"/"+pod.Name, string(pod.UID)
		status = pod.Status
		if pod.DeletionTimestamp != nil {
			s.DeletionTimestamp = pod.DeletionTimestamp.UTC().Format(time.RFC3339)
		}
	case !live(o):
		status = offloadedpod.FinalStatus(o)
		s.Gone = seen
		if o.Status.PodUID != "" {
			s.RemoteName, s.RemoteUID = o.Namespace+"/"+o.Name, o.Status.PodUID
		}
	case o.Status.Reason != "":
		status = corev1.PodStatus{Phase: corev1.PodPending, Reason: o.Status.Reason, Message: o.Status.Message}
	default:
		return peering.PodStatus{}, false
	}
	status = offloadedpod.WithoutAdded(status, o)
	b, err := podstatus.Encode(&status)
	if err != nil {
		return peering.PodStatus{}, false
	}
	s.Status = b
	return s, true
}

// lastStatus returns the final status of a pod whose OffloadedPod was deleted: how it ended, as far
// as that is known. A stream may have sent neither, and home decides by it.
func (v *inventory) lastStatus(o *api.OffloadedPod) peering.PodStatus {
	s := peering.PodStatus{Ref: podRef(o)}
	last, seen := v.takeLast(o.Namespace, types.UID(o.Status.PodUID))
	if seen && live(o) { // it ended while it was deleted, and so was not recorded
		o = o.DeepCopy()
		o.Status.Phase = last.Phase
		if err := keepStatus(o, last); err != nil {
			return s
		}
	}
	if !live(o) {
		s, _ = statusOf(o, nil, true)
	}
	return s
}

// leftOut notifies a pod's home of what was left out of it here, as home does of what it leaves out itself.
func (p *Provider) leftOut(o *api.OffloadedPod, notes []string) {
	for _, note := range notes {
		out := peering.PodEvent{Ref: podRef(o), Type: corev1.EventTypeNormal, Reason: "NotCarried", Message: note, Count: 1}
		p.hub.Each(o.Spec.Contract, func(s *podwatch.Watch) { s.Event(out) })
	}
}

// event passes an event of a pod to the watches of its contract.
func (v *inventory) event(e *corev1.Event) {
	key := types.NamespacedName{Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name}
	o := v.offloaded(key)
	if o == nil || o.Status.PodUID != "" && o.Status.PodUID != string(e.InvolvedObject.UID) {
		return
	}
	count := e.Count
	if e.Series != nil {
		count = max(count, e.Series.Count)
	}
	out := peering.PodEvent{Ref: podRef(o), Type: e.Type, Reason: e.Reason, Message: e.Message, Count: max(count, 1)}
	v.p.hub.Each(o.Spec.Contract, func(s *podwatch.Watch) { s.Event(out) })
}
