package offload

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// hub tells those who watch a contract which of its pods to look at.
type hub struct {
	now func() time.Time

	mu   sync.Mutex
	subs map[*subscription]struct{}
	// left is, by contract, the pods that went a moment ago. Who begins to watch was
	// told before what is held, and hears of what went in between.
	left map[string][]leftPod
}

// leftPod is a pod of which there is nothing here any more.
type leftPod struct {
	ref peering.ObjectRef
	at  time.Time
}

// subscription is one watch of a contract.
type subscription struct {
	contract string
	event    func(peering.PodEvent)

	mu    sync.Mutex
	dirty map[types.NamespacedName]struct{}
	gone  []peering.ObjectRef
	wake  notify.Channel
}

func newHub() *hub {
	return &hub{now: time.Now, subs: make(map[*subscription]struct{}), left: make(map[string][]leftPod)}
}

func (h *hub) subscribe(contract string, event func(peering.PodEvent)) (*subscription, func()) {
	s := &subscription{
		contract: contract, event: event,
		dirty: make(map[types.NamespacedName]struct{}), wake: notify.New(),
	}
	h.mu.Lock()
	h.subs[s] = struct{}{}
	for _, p := range h.prune(contract) {
		s.leave(p.ref)
	}
	h.mu.Unlock()
	return s, func() {
		h.mu.Lock()
		delete(h.subs, s)
		h.mu.Unlock()
	}
}

func (h *hub) each(contract string, f func(*subscription)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eachLocked(contract, f)
}

func (h *hub) eachLocked(contract string, f func(*subscription)) {
	for s := range h.subs {
		if s.contract == contract {
			f(s)
		}
	}
}

func (h *hub) touch(contract string, key types.NamespacedName) {
	h.each(contract, func(s *subscription) { s.touch(key) })
}

// gone tells that there is nothing of a pod here.
func (h *hub) gone(contract string, ref peering.ObjectRef) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eachLocked(contract, func(s *subscription) { s.leave(ref) })
	left := append(h.prune(contract), leftPod{ref: ref, at: h.now()})
	h.left[contract] = left[max(len(left)-maxLeft, 0):]
}

// prune forgets what went too long ago, and returns what is left of a contract. The
// lock is held.
func (h *hub) prune(contract string) []leftPod {
	since := h.now().Add(-leftKept)
	for c, pods := range h.left {
		recent := slices.DeleteFunc(pods, func(p leftPod) bool { return p.at.Before(since) })
		if h.left[c] = recent; len(recent) == 0 {
			delete(h.left, c)
		}
	}
	return h.left[contract]
}

func (s *subscription) leave(ref peering.ObjectRef) {
	s.mu.Lock()
	s.gone = append(s.gone, ref)
	s.mu.Unlock()
	s.wake.Notify()
}

func (s *subscription) touch(key types.NamespacedName) {
	s.mu.Lock()
	s.dirty[key] = struct{}{}
	s.mu.Unlock()
	s.wake.Notify()
}

func (s *subscription) take() (dirty map[types.NamespacedName]struct{}, gone []peering.ObjectRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dirty, gone = s.dirty, s.gone
	s.dirty, s.gone = make(map[types.NamespacedName]struct{}), nil
	return dirty, gone
}

// Watch calls status for each pod of the contract and then whenever one changes,
// and event whenever something happens to one, until ctx ends, and then returns
// nil. The functions must not block.
func (p *Provider) Watch(ctx context.Context, contract string, status func(peering.PodStatus), event func(peering.PodEvent)) error {
	if err := p.await(ctx); err != nil {
		return err
	}
	sub, leave := p.hub.subscribe(contract, event)
	defer leave()
	for _, o := range p.inv.of(contract) {
		sub.touch(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
	}
	// said has a hash of what was last said of each pod: there may be many, and a status
	// is long.
	said := make(map[types.NamespacedName][sha256.Size]byte)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sub.wake:
		}
		dirty, gone := sub.take()
		for key := range dirty {
			o := p.inv.offloaded(key)
			if o == nil || o.Spec.Contract != contract {
				delete(said, key)
				continue
			}
			pod, seen := p.inv.pod(key.Namespace, key.Name)
			s, ok := statusOf(o, pod, seen)
			if !ok {
				continue
			}
			b, err := json.Marshal(s)
			if hash := sha256.Sum256(b); err == nil && said[key] != hash {
				said[key] = hash
				status(s)
			}
		}
		for _, ref := range gone {
			status(peering.PodStatus{Ref: ref, Gone: true})
		}
	}
}

func podRef(o *api.OffloadedPod) peering.ObjectRef {
	return peering.ObjectRef{
		Kind: peering.KindPod, Namespace: o.Spec.OriginNamespace, Name: o.Spec.OriginName, UID: o.Spec.OriginUID,
	}
}

// statusOf returns what there is to say about a pod. seen says that pod, also if
// nil, is what is so. It has nothing to say about a pod that it cannot see and
// that did not end.
func statusOf(o *api.OffloadedPod, pod *corev1.Pod, seen bool) (peering.PodStatus, bool) {
	s := peering.PodStatus{Ref: podRef(o)}
	mine := pod != nil && (string(pod.UID) == o.Status.PodUID || o.Status.PodUID == "" && isPodOf(pod, o))
	var status corev1.PodStatus
	switch {
	case mine:
		s.RemoteName, s.RemoteUID = pod.Namespace+"/"+pod.Name, string(pod.UID)
		status = pod.Status
		if pod.DeletionTimestamp != nil {
			s.DeletionTimestamp = pod.DeletionTimestamp.UTC().Format(time.RFC3339)
		}
	case !live(o):
		status = finalStatus(o)
		s.Gone = seen
		if o.Status.PodUID != "" {
			s.RemoteName, s.RemoteUID = o.Namespace+"/"+o.Name, o.Status.PodUID
		}
	case o.Status.Reason != "":
		status = corev1.PodStatus{Phase: corev1.PodPending, Reason: o.Status.Reason, Message: o.Status.Message}
	default:
		return peering.PodStatus{}, false
	}
	b, err := json.Marshal(status)
	if err != nil {
		return peering.PodStatus{}, false
	}
	s.Status = b
	return s, true
}

// finalStatus returns the last status of a pod that ended.
func finalStatus(o *api.OffloadedPod) corev1.PodStatus {
	var s corev1.PodStatus
	if o.Status.PodStatus != nil {
		// What cannot be read is less than the phase, which is enough.
		_ = json.Unmarshal(o.Status.PodStatus.Raw, &s)
	}
	s.Phase = o.Status.Phase
	if s.Reason == "" {
		s.Reason = o.Status.Reason
	}
	if s.Message == "" {
		s.Message = o.Status.Message
	}
	return s
}

// isPodOf says whether a pod was made for an OffloadedPod.
func isPodOf(pod *corev1.Pod, o *api.OffloadedPod) bool {
	if pod.Labels[api.LabelManaged] != api.Manager || pod.Labels[api.LabelOriginUID] != o.Spec.OriginUID {
		return false
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.UID == o.UID
}

// event passes an event of a pod on to the watches of its contract.
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
	v.p.hub.each(o.Spec.Contract, func(s *subscription) { s.event(out) })
}
