package vk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/refusals"
	"github.com/entente-dev/entente/peering"
)

// podState is the state of a pod in memory, by its UID. It is lost with the process, and
// nothing depends on that: what matters is in the local pod's status and at the provider.
type podState struct {
	ref      peering.ObjectRef
	wanted   bool
	hash     peering.Hash
	taken    bool
	refusal  *peering.Refusal
	refused  refusals.Shown
	ackHash  peering.Hash // what the provider took or refused last
	wantedAt time.Time    // when it was wanted last
	claims   claims

	remote         *corev1.PodStatus // the provider's last status
	remoteName     string
	remoteUID      string
	remoteDeleting time.Time // since when the provider's cluster deletes it, as far as home saw; zero if it does not
	remoteUntil    time.Time // when its grace period there ends then, by the provider's clock
	gone           bool
	concluded      bool // the provider knows that the pod must not run again

	unwanted    bool
	grace       *int64 // with unwanted; nil means the pod's own
	deleteAcked bool

	lost   bool   // it was counted as lost
	warned string // the last problem that became an event
	events map[eventKey]int32
	writes writes
}

// Reasons that a local pod and its events show, in addition to those of podstatus.
const (
	reasonNotOffloaded = "NotOffloadable"
	reasonNotTolerated = "NotTolerated"
	reasonMissing      = "MissingReference"
	reasonUndecided    = "NetworkPoliciesUnknown"
	reasonRemoteGone   = "RemotePodGone"
	reasonRemoteStuck  = "RemoteNotEnding" // the provider's cluster deletes the pod, and it does not end there
	reasonDeleted      = "Deleted"
	reasonLosingPods   = "ProviderLosesPods"
)

// notTaken is the message of a pod that was deleted and, as far as is known, ran nowhere.
const notTaken = "the pod was deleted before the provider reported that it had taken it"

// uidIndex finds a pod by its UID.
const uidIndex = "uid"

// newPodInformer watches the pods on this node, and no others.
func (n *Node) newPodInformer() cache.SharedIndexInformer {
	inf := coreinformers.NewFilteredPodInformer(n.cfg.Client, metav1.NamespaceAll, 0, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		uidIndex: func(obj any) ([]string, error) {
			if p, ok := obj.(*corev1.Pod); ok {
				return []string{string(p.UID)}, nil
			}
			return nil, nil
		},
	}, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.cfg.Name).String()
	})
	// These fail only on an informer that has started.
	_ = inf.SetTransform(dropManagedFields)
	_ = inf.SetWatchErrorHandlerWithContext(n.watchError("pods", ""))
	changed := func(obj any) {
		if p := podOf(obj); p != nil && p.Spec.NodeName == n.cfg.Name {
			n.noteReferences(p)
			n.podQueue.Add(string(p.UID))
		}
	}
	_, _ = inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed,
		UpdateFunc: func(was, is any) {
			// A pod deleted and created again under its name between two events shows as an update.
			if a, b := podOf(was), podOf(is); a != nil && b != nil && a.UID != b.UID {
				n.forgetReferences(a)
				n.podQueue.Add(string(a.UID))
			}
			changed(is)
		},
		DeleteFunc: func(obj any) {
			if p := podOf(obj); p != nil {
				n.forgetReferences(p)
				n.podQueue.Add(string(p.UID))
			}
		},
	})
	return inf
}

func dropManagedFields(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// podOf returns the pod of an informer's event, even of a missed delete.
func podOf(obj any) *corev1.Pod {
	if d, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = d.Obj
	}
	p, _ := obj.(*corev1.Pod)
	return p
}

// localPods returns the pods on the node, in no order. They must not be changed.
func (n *Node) localPods() []*corev1.Pod {
	var out []*corev1.Pod
	for _, obj := range n.pods.GetStore().List() {
		if p := podOf(obj); p != nil && p.Spec.NodeName == n.cfg.Name {
			out = append(out, p)
		}
	}
	return out
}

// AwaitPods returns true once the pods on the node are known, or false if ctx ended first.
func (n *Node) AwaitPods(ctx context.Context) bool {
	return cache.WaitForCacheSync(ctx.Done(), n.pods.HasSynced)
}

// Pod returns the pod with a UID that is on the node, or nil. It must not be changed.
func (n *Node) Pod(uid string) *corev1.Pod { return n.localPod(uid) }

// localPod returns the pod with a UID, or nil.
func (n *Node) localPod(uid string) *corev1.Pod {
	list, err := n.pods.GetIndexer().ByIndex(uidIndex, uid)
	if err != nil || len(list) == 0 {
		return nil
	}
	if p := podOf(list[0]); p != nil && p.Spec.NodeName == n.cfg.Name {
		return p
	}
	return nil
}

func podRef(p *corev1.Pod) peering.ObjectRef {
	return peering.ObjectRef{Kind: peering.KindPod, Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)}
}

// tolerates reports whether a toleration lets a pod onto virtual nodes. The chart's policy
// entente-agent-pods requires the same of pods that the agent changes.
func tolerates(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule) && (t.Key == "" || t.Key == api.TaintVirtualNode)
	})
}

// podPlan is a pod, the facts about it, and the decision.
type podPlan struct {
	pod     *corev1.Pod // nil if it is not in the cache
	st      podState    // a copy
	step    step
	object  peering.Object   // what to want
	refusal *peering.Refusal // why it cannot cross
	missing missing          // what it waits for
	waits   string           // the claims that it waits for
	notes   []string         // what was left behind
	// references are the objects to which it refers.
	references []podspec.Reference
	up         bool // the provider can be reached
	unknown    bool // it is not in the cache, which may be behind
}

// plan gathers the facts about a pod and decides.
func (n *Node) plan(uid string) podPlan {
	p := podPlan{pod: n.localPod(uid)}
	n.mu.Lock()
	if st := n.state[uid]; st != nil {
		p.st = *st
	}
	if p.pod != nil {
		n.unknown.forget(uid)
	} else {
		delete(n.waitsSince, uid)
	}
	p.unknown = n.unknown.has(uid)
	p.up = n.link.responds()
	fenced := p.pod != nil && n.isFenced(p.pod)
	closed := p.pod != nil && time.Now().Before(n.losses.Closed(p.pod.Namespace))
	if r := p.st.refusal; r != nil {
		p.st.refusal = p.st.refused.Why()
		// If the namespace was refused, its refusal is the reason.
		if of := n.namespaceRefusal(p.st.ref.Namespace); of != nil && r.Reason == peering.RefusedNamespace {
			p.st.refusal = of
		}
	}
	n.mu.Unlock()

	f := podFacts{wanted: p.st.wanted, taken: p.st.taken, gone: p.st.gone, deleteAcked: p.st.deleteAcked, portable: true, complete: true, closed: closed, fenced: fenced}
	if p.pod != nil {
		f.exists = true
		f.deleting = p.pod.DeletionTimestamp != nil
		f.terminal = podstatus.Terminal(p.pod.Status.Phase)
		f.recorded = podstatus.Offloaded(p.pod)
		f.tolerates = tolerates(p.pod)
		f.offloading = n.offloadsPods(p.pod.Namespace)
		t, object, waits, refusal := podObject(p.pod, p.st.claims, n.cfg.Address)
		p.object, p.refusal, p.notes, p.references, p.waits = object, refusal, t.Notes, t.References, waits
		f.portable = refusal == nil
		if f.portable {
			if p.missing = n.missing(p.pod.Namespace, t.References); p.missing.what == "" {
				p.missing = missing{reason: reasonMissing, what: waits}
			}
			if p.missing.what == "" && f.offloading == yes && !f.crossed() && !f.wanted {
				p.missing = n.undecided(p.pod, t.Pod)
			}
			f.complete = p.missing.what == ""
		}
	}
	p.step = decidePod(f)
	return p
}

// podObject returns a pod in the form in which it is sent, and the claims that it waits for.
func podObject(pod *corev1.Pod, claims claims, host netip.Addr) (t podspec.Translation, o peering.Object, waits string, refusal *peering.Refusal) {
	t, refusal = podspec.Leave(pod)
	if refusal == nil {
		refusal, waits = claims.mount(t.Pod)
	}
	if refusal != nil {
		return t, peering.Object{}, "", refusal
	}
	podspec.HostAtHome(&t.Pod.Spec, host)
	o, err := object(podRef(pod), t.Pod)
	if err != nil {
		refusal = &peering.Refusal{Reason: peering.RefusedInvalid, Message: err.Error()}
	}
	return t, o, waits, refusal
}

// namespaceRefusal returns why the provider refused a namespace; nil if it did not, or was not
// asked. n.mu is held.
func (n *Node) namespaceRefusal(namespace string) *peering.Refusal {
	space, ok := n.exported[namespace]
	if !ok {
		return nil
	}
	if st := n.objects[namespaceRef(space)]; st != nil {
		return st.refused.Why()
	}
	return nil
}

// offloads reports whether a namespace is offloaded to this provider.
func (n *Node) offloads(namespace string) ternary {
	return n.findSpace(namespace, func(Namespace) bool { return true })
}

// offloadsPods reports whether a namespace's pods may run at this provider.
func (n *Node) offloadsPods(namespace string) ternary {
	return n.findSpace(namespace, func(s Namespace) bool { return !s.PodsStay })
}

// findSpace reports whether a namespace is offloaded, and matches.
func (n *Node) findSpace(namespace string, is func(Namespace) bool) ternary {
	spaces, err := n.cfg.Namespace(namespace)
	if err != nil {
		return unknown
	}
	if slices.ContainsFunc(spaces, func(s Namespace) bool { return s.Name == namespace && is(s) }) {
		return yes
	}
	return no
}

// declarePod wants a pod if that is the decision, and does nothing else.
func (n *Node) declarePod(pod *corev1.Pod) {
	if p := n.plan(string(pod.UID)); p.step == stepWant {
		n.wantPod(p)
	}
}

// reconcilePod synchronises one pod, both ways.
func (n *Node) reconcilePod(ctx context.Context, uid string) error {
	if err := n.lookUpClaims(ctx, uid); err != nil {
		return err
	}
	p := n.plan(uid)
	if p.unknown {
		return nil // dropUnknown asks for it
	}
	switch p.step {
	case stepNothing:
		return nil
	case stepDrop:
		return n.drop(ctx, uid, p.st)
	case stepNotApplicable:
		why := "namespace " + p.pod.Namespace + " is not offloaded to this cluster"
		if n.offloads(p.pod.Namespace) == yes {
			why = "namespace " + p.pod.Namespace + " has podStrategy Local"
		}
		n.warnDaemonSet(p.pod)
		return n.patchStatus(ctx, p.pod, podstatus.NotApplicable(p.pod,
			why+", so this pod is not run here; this is not an error of the pod", metav1.Now()))
	case stepLeave:
		n.warn(p, reasonNotTolerated, fmt.Sprintf(
			"the pod is bound to virtual node %s but does not tolerate its taint %s:NoSchedule, so it is not run; let the scheduler place it, or delete it (with --force --grace-period=0)",
			n.cfg.Name, api.TaintVirtualNode))
		return nil
	case stepRefuse:
		n.warn(p, reasonNotOffloaded, p.refusal.Message)
		return n.patchStatus(ctx, p.pod, podstatus.Waiting(p.pod, reasonNotOffloaded, p.refusal.Message, metav1.Now()))
	case stepWait:
		return n.wait(ctx, p)
	case stepHold:
		return n.hold(ctx, p)
	case stepWant:
		// This comes first: if this agent dies in between, Kubernetes must not evict the pod
		// against the choice of its namespace. If a policy forbids the write, the pod runs all the
		// same.
		tolerated := n.tolerateLoss(ctx, p.pod)
		if tolerated == nil || apierrors.IsForbidden(tolerated) || podstatus.Offloaded(p.pod) {
			n.wantPod(p)
		}
		return errors.Join(tolerated, n.show(ctx, p))
	case stepFinal:
		n.conclude(p)
		return nil
	case stepFail:
		return n.fail(ctx, p)
	case stepUnwant:
		return n.unwantPod(ctx, p)
	case stepFinalise:
		return n.finalise(ctx, p)
	case stepFence:
		return n.fence(ctx, p)
	}
	return nil
}

// drop forgets a pod. A pod that went unasked was wanted until now, and its provider keeps how it ended.
func (n *Node) drop(ctx context.Context, uid string, st podState) error {
	if st.ref.UID == "" {
		return nil // nothing was remembered; a status that came since then must stay
	}
	if st.wanted {
		is, err := n.live(ctx, st.ref)
		if err != nil {
			return err
		}
		if is {
			return fmt.Errorf("%s is in the API but not in the cache", st.ref)
		}
		n.cfg.Mirror.Unwant(st.ref, nil)
	}
	n.mu.Lock()
	delete(n.state, uid)
	n.mu.Unlock()
	if st.ref.Namespace != "" {
		n.nsQueue.AddAfter(st.ref.Namespace, debounce) // it may have been the last one there
	}
	return nil
}

// wantPod wants a pod, unless it was wanted before and taken.
func (n *Node) wantPod(p podPlan) {
	if p.refusal != nil { // it was sent under other rules; it stays as it is
		return
	}
	if p.waits != "" { // it was sent, and its claims are looked up again
		return
	}
	hash, before := p.object.Hash(), podstatus.Offloaded(p.pod)
	n.mu.Lock()
	st := n.podState(p.object.Ref)
	send := !st.wanted || st.hash != hash || wantAgain(st.wantedAt, st.refusal == nil && st.ackHash == hash)
	first := !st.wanted && !st.taken && !before
	st.wanted, st.hash, st.ref = true, hash, p.object.Ref
	if send {
		st.wantedAt = time.Now()
	}
	n.mu.Unlock()
	if !send {
		return
	}
	n.wantReferences(p.pod.Namespace, p.references)
	if before {
		n.cfg.Mirror.Ran(p.object.Ref)
	}
	n.cfg.Mirror.Want(p.object)
	if first {
		for _, note := range p.notes {
			n.event(p.pod, corev1.EventTypeNormal, "NotCarried", note)
		}
		n.doWithout(p.pod, p.references)
	}
}

// hold keeps a pod at home until new ones of its namespace are sent.
func (n *Node) hold(ctx context.Context, p podPlan) error {
	n.mu.Lock()
	until, message := n.losses.Closed(p.pod.Namespace), n.losses.Message(p.pod.Namespace)
	n.mu.Unlock()
	n.podQueue.AddAfter(string(p.pod.UID), max(time.Until(until), time.Second))
	return n.patchStatus(ctx, p.pod, podstatus.Waiting(p.pod, reasonLosingPods, message, metav1.Now()))
}

// podState returns the state of a pod, which it adds if necessary. n.mu is held.
func (n *Node) podState(ref peering.ObjectRef) *podState {
	st := n.state[ref.UID]
	if st == nil {
		st = &podState{ref: ref}
		n.state[ref.UID] = st
	}
	return st
}

// show writes the provider's status of a pod into the local one. While the provider does not
// respond the status stays as it is, but after a while the pod is no longer ready.
func (n *Node) show(ctx context.Context, p podPlan) error {
	if r := p.st.refusal; r != nil {
		n.warn(p, r.Reason.Condition(), r.Message)
	}
	if !p.up {
		return n.showLost(ctx, p)
	}
	if p.st.remote == nil {
		if r := p.st.refusal; r != nil && !p.st.taken && !podstatus.Offloaded(p.pod) {
			return n.patchStatus(ctx, p.pod, podstatus.Waiting(p.pod, r.Reason.Condition(), r.Message, metav1.Now()))
		}
		if p.st.taken && !podstatus.Offloaded(p.pod) {
			return n.patchStatus(ctx, p.pod, podstatus.Accepted(p.pod, metav1.Now()))
		}
		return nil
	}
	status := podstatus.Translate(p.pod, p.st.remote, n.addresses(), metav1.Now())
	podstatus.ShowDeleting(p.pod, &status, p.st.remoteDeleting)
	if r := p.st.refusal; r != nil {
		podstatus.ShowRefusedEphemeral(&status, &p.pod.Spec, r)
		podspec.ShowRefusedResize(p.pod, &status, r, metav1.Now())
	}
	if p.st.ackHash == p.object.Hash() {
		podstatus.ShowGeneration(p.pod, &status)
	}
	if err := n.patchStatus(ctx, p.pod, status); err != nil {
		return err
	}
	if c := podstatus.Condition(status.Conditions, api.PodOffloaded); c != nil && c.Reason == podstatus.ReasonUnschedulable {
		n.warn(p, c.Reason, c.Message)
	}
	if endedUnasked(p.pod, &status) {
		n.lostPod(ctx, p.pod)
	}
	if !p.st.remoteDeleting.IsZero() && p.pod.DeletionTimestamp == nil && !podstatus.Terminal(status.Phase) {
		return n.followDelete(ctx, p)
	}
	return nil
}

// followDelete handles a pod that the provider's cluster deletes by itself, which nothing takes back. One that runs for
// ever and has a controller is deleted here, too: so Services at home prefer others while it still serves, and its
// controller makes another, as for any pod that is deleted. Others are to end with their last status, which a Job counts.
// On a node that is dead nobody ends them: then they are deleted, as Kubernetes does with the pods of a dead node of its
// own. A pod that is deleted here stays Terminating until it is gone there, so none of its name runs beside it.
func (n *Node) followDelete(ctx context.Context, p podPlan) error {
	own := ptr.Deref(p.pod.Spec.TerminationGracePeriodSeconds, corev1.DefaultTerminationGracePeriodSeconds)
	// The provider is told this, and must not end the pod earlier than its cluster would. Without a grace period the pod
	// would go at once.
	grace := new(max(own, min(int64(time.Until(p.st.remoteUntil).Seconds()), podspec.MaxGrace), 1))
	if podstatus.ReplacedAtOnce(p.pod) {
		n.warn(p, podstatus.ReasonRemoteDeleting, "the provider's cluster is deleting this pod: it is deleted here, too, so that its owner makes another, and goes when it is gone there")
		if !n.mayHaveFenced(p.pod) {
			n.lostPod(ctx, p.pod)
		}
		return n.deletePod(ctx, p.pod, grace)
	}
	left := time.Until(p.st.remoteDeleting.Add(time.Duration(own)*time.Second + stuckAfter))
	if left > 0 || metav1.GetControllerOf(p.pod) == nil {
		if !podstatus.ShowsDeleting(p.pod) {
			n.warn(p, podstatus.ReasonRemoteDeleting, "the provider's cluster is deleting this pod: it is not ready from now on, and ends when it is gone there, so that its owner can replace it")
		}
		if left > 0 {
			n.podQueue.AddAfter(string(p.pod.UID), left)
		}
		return nil
	}
	n.warn(p, reasonRemoteStuck, "the provider's cluster is deleting this pod, and it does not end there, as on a node that is dead: "+
		"it is deleted here, so that its owner makes another, and goes when it is gone there")
	n.lostPod(ctx, p.pod)
	return n.deletePod(ctx, p.pod, grace)
}

// showLost sets a pod of a provider that does not respond to not ready, once, so that Services
// leave it out.
func (n *Node) showLost(ctx context.Context, p podPlan) error {
	if c := podstatus.Condition(p.pod.Status.Conditions, corev1.PodReady); c == nil || c.Status != corev1.ConditionTrue {
		return nil
	}
	now := time.Now()
	n.mu.Lock()
	at := n.link.podsLostAt(n.started, n.cfg.StartGrace, n.tunnel.Wanted && n.tunnel.Up)
	n.mu.Unlock()
	if wait := at.Sub(now); wait > 0 {
		n.podQueue.AddAfter(string(p.pod.UID), wait)
		return nil
	}
	return n.patchStatus(ctx, p.pod, podstatus.Lost(p.pod, metav1.NewTime(now)))
}

func (n *Node) addresses() podstatus.Addresses {
	return podstatus.Addresses{Translate: n.cfg.TranslateIP, Host: n.cfg.Address}
}

// conclude makes sure that a pod that ended is never applied again, even if the provider loses it.
func (n *Node) conclude(p podPlan) {
	n.mu.Lock()
	st := n.state[string(p.pod.UID)]
	send := st != nil && st.wanted && !st.concluded
	if send {
		st.concluded, st.taken = true, true
	}
	n.mu.Unlock()
	if send {
		n.cfg.Mirror.Ran(podRef(p.pod))
	}
}

// fail ends a pod that is gone at the provider, so that its owner replaces it.
func (n *Node) fail(ctx context.Context, p podPlan) error {
	const message = "the pod is gone in the provider's cluster, which was not asked to delete it"
	status := podstatus.Failed(p.pod, p.st.remote, n.addresses(), reasonRemoteGone, message, metav1.Now())
	if err := n.patchStatus(ctx, p.pod, status); err != nil {
		return err
	}
	gone := status.Reason == reasonRemoteGone
	if gone {
		n.warn(p, reasonRemoteGone, message)
	}
	if gone && n.mayHaveFenced(p.pod) {
		return nil // this does not count as a loss
	}
	if gone || endedUnasked(p.pod, &status) {
		n.lostPod(ctx, p.pod)
	}
	return nil
}

// unwantPod asks the provider to end a pod. If the cache does not have the pod, it asks the API
// server first.
func (n *Node) unwantPod(ctx context.Context, p podPlan) error {
	var grace *int64
	ref := p.st.ref
	if p.pod != nil {
		ref = podRef(p.pod)
		if g := p.pod.DeletionGracePeriodSeconds; g != nil {
			// The provider's object must not go before its containers did.
			grace = new(max(*g, 1))
		}
		if err := n.showEnding(ctx, p); err != nil {
			return err
		}
	} else if !p.st.unwanted {
		is, err := n.live(ctx, ref)
		if err != nil {
			return err
		}
		if is {
			return fmt.Errorf("%s is in the API but not in the cache", ref)
		}
	}
	n.mu.Lock()
	st := n.podState(ref)
	grace = cmp.Or(grace, st.grace)
	send := !st.unwanted || !ptr.Equal(st.grace, grace)
	st.unwanted, st.wanted, st.grace = true, false, grace
	n.mu.Unlock()
	if send {
		n.cfg.Mirror.Unwant(ref, grace)
	}
	return nil
}

// showEnding shows the provider's status of a pod that is being deleted.
func (n *Node) showEnding(ctx context.Context, p podPlan) error {
	if p.st.remote == nil || !p.up {
		return nil
	}
	return n.patchStatus(ctx, p.pod, podstatus.Translate(p.pod, p.st.remote, n.addresses(), metav1.Now()))
}

// finalise deletes a local pod whose containers no longer run, after it wrote the last status,
// which its owners need.
func (n *Node) finalise(ctx context.Context, p podPlan) error {
	return n.endPod(ctx, p, podstatus.Failed(p.pod, p.st.remote, n.addresses(), reasonDeleted, p.deletedMessage(), metav1.Now()))
}

// wasTaken reports whether the provider is known to have taken the pod.
func (p podPlan) wasTaken() bool {
	return p.st.taken || p.st.remote != nil || podstatus.Offloaded(p.pod)
}

// deletedMessage says that a pod was deleted and, if the provider is not known to have taken it, why not.
func (p podPlan) deletedMessage() string {
	if p.wasTaken() {
		return "the pod was deleted"
	}
	c := podstatus.Condition(p.pod.Status.Conditions, api.PodOffloaded)
	if c == nil {
		return notTaken
	}
	return peering.Text(notTaken+"; last it waited with "+c.Reason+": "+c.Message, podstatus.MaxMessageBytes)
}

// endPod deletes a local pod with its last status.
func (n *Node) endPod(ctx context.Context, p podPlan, status corev1.PodStatus) error {
	ref := podRef(p.pod)
	crossed := p.st.wanted || p.wasTaken()
	if crossed && !p.st.gone {
		n.mu.Lock()
		st := n.podState(ref)
		send := !st.unwanted
		st.unwanted, st.wanted, st.taken = true, false, true
		n.mu.Unlock()
		if send {
			n.cfg.Mirror.Unwant(ref, nil)
		}
	}
	// The owner of a finalizer, such as a Job, keeps the pod until its phase is final. A kubelet makes it final even for a
	// pod that it never started.
	if crossed || len(p.pod.Finalizers) > 0 {
		// A status that the API server will never accept must not keep the pod.
		if err := n.patchStatus(ctx, p.pod, status); err != nil && !refusedContent(err) {
			return err
		}
	}
	if g := p.pod.DeletionGracePeriodSeconds; g != nil && *g == 0 {
		return nil // already deleted; another finalizer keeps it
	}
	return n.deletePod(ctx, p.pod, new(int64(0)))
}

// deletePod deletes a local pod with a grace period in seconds; nil means the pod's own.
func (n *Node) deletePod(ctx context.Context, pod *corev1.Pod, grace *int64) error {
	err := n.cfg.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: grace, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete %s: %w", podRef(pod), err)
	}
	return nil
}

// patchStatus writes a pod's status if it differs, for this UID only. Beyond the budget it is
// written later, except for the last one. If the API server refuses it, only phase and readiness
// are written, so that no status of a provider keeps a pod from ending.
func (n *Node) patchStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	if apiequality.Semantic.DeepEqual(pod.Status, status) {
		return nil
	}
	if !podstatus.Terminal(status.Phase) {
		n.mu.Lock()
		writes := &n.podState(podRef(pod)).writes
		writes.ephemeral = len(pod.Spec.EphemeralContainers)
		now := time.Now()
		wait := writes.gather(now, &pod.Status, &status)
		if wait == 0 {
			wait = writes.wait(now, n.share, writtenBytes(pod, &status), podstatus.Urgent(&pod.Status, &status))
		}
		n.mu.Unlock()
		if wait > 0 {
			n.podQueue.AddAfter(string(pod.UID), wait)
			return nil
		}
	}
	err := n.writeStatus(ctx, pod, status)
	if !refusedContent(err) {
		return err
	}
	n.warn(podPlan{pod: pod}, "InvalidStatus", "the API server refused the status that the provider sent, so only phase and readiness are shown: "+err.Error())
	return n.writeStatus(ctx, pod, podstatus.Least(pod, status, metav1.Now()))
}

// refusedContent reports whether the API server refused a write for its content, so that a retry is useless.
func refusedContent(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsRequestEntityTooLargeError(err)
}

func (n *Node) writeStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	if apiequality.Semantic.DeepEqual(pod.Status, status) {
		return nil
	}
	patch, err := podstatus.Patch(pod, status)
	if err != nil {
		return fmt.Errorf("write the status of %s: %w", podRef(pod), err)
	}
	_, err = n.cfg.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{FieldManager: api.Manager}, "status")
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || otherUID(err) {
		// Deleted, or created again: the watch reports it.
		return nil
	}
	return fmt.Errorf("write the status of %s: %w", podRef(pod), err)
}

// otherUID reports whether a patch was refused because the object has another UID.
func otherUID(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsInvalid(err) || status.ErrStatus.Details == nil {
		return false
	}
	return slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// warn records a problem as an event, once while it stays the same.
func (n *Node) warn(p podPlan, reason, message string) {
	text := reason + ": " + message
	n.mu.Lock()
	st := n.podState(podRef(p.pod))
	news := st.warned != text
	st.warned = text
	n.mu.Unlock()
	if news {
		n.event(p.pod, corev1.EventTypeWarning, reason, message)
	}
}

// warnDaemonSet records an event of the DaemonSet of a pod that is not run here, once and not for each of its pods. A pod
// that was there before a restart has its status already.
func (n *Node) warnDaemonSet(pod *corev1.Pod) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "DaemonSet" || pod.Status.Reason == podstatus.ReasonNotApplicable {
		return
	}
	n.mu.Lock()
	_, was := n.daemonSets[owner.UID]
	if !was {
		if n.daemonSets == nil || len(n.daemonSets) >= maxDaemonSets {
			n.daemonSets = map[types.UID]struct{}{}
		}
		n.daemonSets[owner.UID] = struct{}{}
	}
	n.mu.Unlock()
	if was {
		return
	}
	n.recorder.Event(&corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: pod.Namespace, Name: owner.Name, UID: owner.UID},
		corev1.EventTypeNormal, "NotOnVirtualNodes",
		"its pods are not run on virtual nodes, as "+n.cfg.Name+", and are reported as ready there, so its rolling updates do not wait for them; "+
			"to have none there, set placement.daemonSets=true of Entente's chart, or require "+api.LabelVirtualNode+" DoesNotExist in its node affinity")
}

// event records an event of a pod, within the budget.
func (n *Node) event(pod *corev1.Pod, kind, reason, message string) {
	n.mu.Lock()
	may := n.podState(podRef(pod)).writes.event(time.Now(), n.share)
	n.mu.Unlock()
	if may {
		n.recorder.Event(pod, kind, reason, peering.Text(message, podstatus.MaxMessageBytes))
	}
}

// PodStatus implements Handler.
func (n *Node) PodStatus(s peering.PodStatus) {
	if s.Ref.Kind != peering.KindPod || s.Ref.UID == "" {
		n.complain.Do(func() { n.log.Warn("a status of an object that is not a pod", "ref", s.Ref.String()) })
		return
	}
	var remote *corev1.PodStatus
	if len(s.Status) > 0 {
		var err error
		if remote, err = podstatus.Decode(s.Status); err != nil {
			n.complain.Do(func() { n.log.Warn("malformed pod status", "ref", s.Ref.String(), "err", err) })
			if !s.Gone {
				return
			}
		}
	}
	local := n.localPod(s.Ref.UID)
	if local != nil {
		s.Ref = podRef(local) // this cluster names its pods
		podstatus.Trim(remote, &local.Spec)
	}
	size := podstatus.Bytes(remote, len(s.Status))
	n.mu.Lock()
	if st := n.state[s.Ref.UID]; local == nil && (st == nil || n.unknown.has(s.Ref.UID)) && !n.unknown.admit(s.Ref.UID, size) {
		n.unknown.forget(s.Ref.UID)
		delete(n.state, s.Ref.UID)
		n.mu.Unlock()
		return
	}
	st := n.podState(s.Ref)
	if remote != nil {
		st.remote = remote
	}
	if s.Gone {
		st.gone = true
	} else if !st.gone {
		st.taken = true
		st.remoteName, st.remoteUID = s.RemoteName, s.RemoteUID
		st.remoteUntil, _ = time.Parse(time.RFC3339, s.DeletionTimestamp) // no time, if it is not deleted
		switch {
		case s.DeletionTimestamp == "":
			st.remoteDeleting = time.Time{}
		case st.remoteDeleting.IsZero():
			st.remoteDeleting = time.Now()
		}
	}
	ask := n.synced && !n.unknown.has(s.Ref.UID)
	n.mu.Unlock()
	// A pod that the cache received in between was reconciled without this status.
	if ask || n.localPod(s.Ref.UID) != nil {
		n.podQueue.Add(s.Ref.UID)
	}
}

// Ack implements Handler.
func (n *Node) Ack(a peering.Ack) {
	if a.Ref.Kind != peering.KindPod {
		n.ackObject(a)
		return
	}
	deleted := a.Hash == (peering.Hash{})
	n.mu.Lock()
	st := n.state[a.Ref.UID]
	if st == nil || n.unknown.has(a.Ref.UID) {
		n.mu.Unlock()
		return
	}
	switch {
	case deleted && a.Refusal == nil:
		st.deleteAcked = st.unwanted
	case deleted:
		n.complain.Do(func() { n.log.Warn("the provider refused a delete", "ref", a.Ref.String(), "err", a.Refusal) })
	case a.Refusal == nil:
		st.taken, st.refusal = true, nil
	default:
		st.refusal = a.Refusal
	}
	if !deleted {
		st.refused.Set(a.Ref.Kind, a.Refusal, time.Now())
		st.ackHash = a.Hash
	}
	synced := n.synced
	n.mu.Unlock()
	if synced {
		n.podQueue.Add(a.Ref.UID)
	}
}

// eventKey identifies an event of a pod.
type eventKey struct{ kind, reason, message string }

// PodEvent implements Handler. The provider repeats events after a reconnect; each is recorded
// once.
func (n *Node) PodEvent(e peering.PodEvent) {
	pod := n.localPod(e.Ref.UID)
	if pod == nil || e.Ref.Kind != peering.KindPod {
		return
	}
	key := eventKey{kind: corev1.EventTypeNormal, reason: eventReason(e.Reason), message: peering.Text(e.Message, podstatus.MaxMessageBytes)}
	if e.Type == corev1.EventTypeWarning {
		key.kind = corev1.EventTypeWarning
	}
	n.mu.Lock()
	st := n.podState(podRef(pod))
	count, seen := st.events[key]
	news := !seen || e.Count > count
	if news {
		if st.events == nil || len(st.events) >= maxEventsPerPod {
			st.events = map[eventKey]int32{}
		}
		st.events[key] = e.Count
	}
	n.mu.Unlock()
	if news {
		n.event(pod, key.kind, key.reason, key.message)
	}
}

// eventReason turns a provider's reason into a valid one.
func eventReason(s string) string {
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return -1
	}, peering.Text(s, podstatus.MaxReasonBytes))
	if s == "" {
		return "Remote"
	}
	return s
}

// Orphan implements Handler.
func (n *Node) Orphan(ctx context.Context, h peering.Held) bool {
	n.mu.Lock()
	synced := n.synced
	n.mu.Unlock()
	if !synced {
		return false
	}
	may, err := n.orphan(ctx, h.Ref)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			n.log.Warn("cannot read whether an object is an orphan, so it stays", "ref", h.Ref.String(), "err", err)
		}
		return false
	}
	return may
}

func (n *Node) orphan(ctx context.Context, ref peering.ObjectRef) (bool, error) {
	switch ref.Kind {
	case peering.KindPod:
		is, err := n.live(ctx, ref)
		if is {
			n.podQueue.Add(ref.UID)
		}
		return err == nil && !is, err
	case peering.KindNamespace:
		return n.orphanNamespace(ctx, ref)
	case peering.KindConfigMap, peering.KindSecret:
		return n.orphanReference(ctx, ref)
	case peering.KindService:
		return n.orphanService(ctx, ref)
	case peering.KindClaim, peering.KindNetworkPolicy:
		return false, nil // a volume that nothing here wants need not be deleted, and nodes do not handle policies
	}
	return false, fmt.Errorf("%s is not of a kind that crosses", ref)
}

// eventScheme knows the kinds that events are about.
func eventScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	s.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.Node{})
	return s
}
