package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/limitrange"
	"github.com/entente-dev/entente/internal/offloadedpod"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/internal/pages"
	"github.com/entente-dev/entente/internal/podsecurity"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/recent"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func refuse(reason peering.RefusalReason, retryable bool, format string, args ...any) *peering.Refusal {
	return &peering.Refusal{Reason: reason, Retryable: retryable, Message: fmt.Sprintf(format, args...)}
}

// contract returns a contract that accepts objects.
func (p *Provider) contract(id string) (Contract, error) {
	if err := checkContract(id); err != nil {
		return Contract{}, refuse(peering.RefusedInvalid, false, "%v", err)
	}
	c, ok := p.cfg.Contracts(id)
	if !ok {
		return Contract{}, refuse(peering.RefusedContract, false, "contract %s is closed or unknown here; ask for a new one", id)
	}
	c.PodSecurity = podsecurity.Level(c.PodSecurity)
	return c, nil
}

// Apply creates or updates an object of the consumer, and returns nil once that is persisted. A
// *peering.Refusal means that it is refused; any other error is this cluster's, and a retry may
// help. Applying the same object again changes nothing.
func (p *Provider) Apply(ctx context.Context, contract string, o peering.Object) error {
	if err := wire.CheckObjectRef(o.Ref); err != nil {
		return refuse(peering.RefusedInvalid, false, "%v", err)
	}
	if len(o.JSON) > wire.MaxObjectBytes {
		return refuse(peering.RefusedInvalid, false, "%s has %d bytes; the limit is %d", o.Ref, len(o.JSON), wire.MaxObjectBytes)
	}
	c, err := p.contract(contract)
	if err != nil {
		return err
	}
	ctx = paced.For(ctx, c.Peer)
	if err := p.await(ctx); err != nil {
		return err
	}
	err = p.client.Retry(ctx, c.Peer, func() error {
		if err := p.client.Room(c.Peer); err != nil {
			return err
		}
		// A peer that writes many large objects at once would leave the API server little for others.
		if len(o.JSON) > largeObject {
			release, err := p.locks.Lock(ctx, "large/"+string(c.Peer))
			if err != nil {
				return err
			}
			defer release()
		}
		return p.applyNow(ctx, contract, c, o)
	})
	return refusalOf(err, o.Ref)
}

func (p *Provider) applyNow(ctx context.Context, contract string, c Contract, o peering.Object) error {
	// Each of these reads and then writes; a write in between, such as one by the reconciler, makes
	// it read again.
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		switch o.Ref.Kind {
		case peering.KindNamespace:
			return p.applyNamespace(ctx, contract, c, o)
		case peering.KindConfigMap, peering.KindSecret:
			return p.applyConfig(ctx, contract, c, o)
		case peering.KindService:
			return p.applyService(ctx, contract, c, o)
		case peering.KindNetworkPolicy:
			return p.applyPolicy(ctx, contract, c, o)
		case peering.KindClaim:
			return p.applyClaim(ctx, contract, c, o)
		case peering.KindPod:
			return p.applyPod(ctx, contract, c, o)
		}
		return refuse(peering.RefusedInvalid, false, "%s is of a kind that does not cross", o.Ref)
	})
}

// refusalOf turns an API server's error about the object itself into a refusal that the consumer
// can read.
func refusalOf(err error, ref peering.ObjectRef) error {
	var refusal *peering.Refusal
	switch {
	case err == nil || errors.As(err, &refusal):
		return err
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return refuse(peering.RefusedInvalid, false, "the provider's cluster does not take %s: %s", ref, peering.Text(err.Error(), statusDetail))
	case apierrors.IsForbidden(err):
		return refuse(peering.RefusedInternal, true, "the provider's cluster does not let its agent write %s; its owner has to look at the agent's log", ref)
	}
	return err
}

// home returns the namespace here for that of an object at the consumer.
func (p *Provider) home(ctx context.Context, contract string, c Contract, ref peering.ObjectRef) (*corev1.Namespace, error) {
	enforced := func(ns *corev1.Namespace) bool {
		level := api.PodSecurityLevel(ns.Labels[labelEnforce])
		return podsecurity.Looser(level, c.PodSecurity) == level
	}
	if ns := matchNamespace(p.inv.namespaces(), c.Peer, ref.Namespace, ""); ns != nil && enforced(ns) && p.holds.Has(recent.Binding{Namespace: ns.Name, Contract: contract}, time.Now()) {
		return ns, nil
	}
	ns, record, err := p.findNamespace(ctx, c.Peer, ref.Namespace, "")
	if err != nil {
		return nil, err
	}
	if ns != nil && record != nil {
		if _, ok := heldBy(record, contract); ok {
			p.holds.Add(recent.Binding{Namespace: ns.Name, Contract: contract}, time.Now())
			// The contract may have changed after the namespace was applied.
			if ref.Kind == peering.KindPod && !enforced(ns) {
				return ns, p.enforce(ctx, ns, record)
			}
			return ns, nil
		}
	}
	return nil, refuse(peering.RefusedNamespace, true, "namespace %s is not here yet; %s follows it", ref.Namespace, ref)
}

// applyPod persists a pod as an OffloadedPod.
func (p *Provider) applyPod(ctx context.Context, contract string, c Contract, o peering.Object) error {
	ns, err := p.home(ctx, contract, c, o.Ref)
	if err != nil {
		return err
	}
	release, err := p.locks.Lock(ctx, "pod/"+ns.Name+"/"+o.Ref.Name)
	if err != nil {
		return err
	}
	defer release()
	key := types.NamespacedName{Namespace: ns.Name, Name: o.Ref.Name}
	if p.unseenPod(contract, key, o.Ref.UID) {
		// Its name is unique to the pod, so creating it shows whether it exists.
		if err := p.newPod(ctx, contract, c, ns, o); !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	old := &api.OffloadedPod{}
	err = p.client.Get(ctx, key, old)
	switch {
	case apierrors.IsNotFound(err):
		return p.newPod(ctx, contract, c, ns, o)
	case err != nil:
		return fmt.Errorf("look for offloaded pod: %w", err)
	case old.Spec.PeerID != string(c.Peer) || old.Spec.OriginUID != o.Ref.UID:
		return refuse(peering.RefusedInternal, true,
			"pod %s with UID %s is still here, and has to end before another of its name runs", o.Ref.Name, old.Spec.OriginUID)
	case old.Spec.Contract != contract:
		return refuse(peering.RefusedContract, false, "%s runs by contract %s; a pod cannot change its contract", o.Ref, old.Spec.Contract)
	case old.Spec.Hash == o.Hash().String() || old.DeletionTimestamp != nil:
		return nil
	}
	return p.changePod(ctx, c, ns, o, old)
}

// judgePod decodes a pod and decides whether it may run under the contract, apart from quota. was
// is the pod as it was admitted; nil means that it is new.
func (p *Provider) judgePod(ctx context.Context, c Contract, was *corev1.PodSpec, ns *corev1.Namespace, o peering.Object) (t *podspec.Template, need corev1.ResourceList, err error) {
	if len(o.JSON) > maxPodBytes {
		return nil, nil, refuse(peering.RefusedInvalid, false, "%s has %d bytes and a pod at most %d; move large values to a ConfigMap", o.Ref, len(o.JSON), maxPodBytes)
	}
	terms, homeAPI, homeIP := c.terms(), false, false
	terms.Was = was
	if t, err = readPod(o.JSON); err == nil {
		homeIP = podspec.AsksHomeIP(t)
		homeAPI, err = podspec.AsksHomeAPI(t, terms)
	}
	if err == nil {
		err = podspec.Admit(t, terms)
	}
	if err == nil {
		err = checkMounts(&t.Spec)
	}
	if err != nil {
		return nil, nil, refuse(peering.RefusedInvalid, errors.Is(err, podspec.ErrClass) || errors.Is(err, podspec.ErrHomeAPI), "%s: %v", o.Ref, err)
	}
	if homeAPI {
		podspec.PlaceHomeAPI(t, *terms.HomeAPI, ns.Labels[api.LabelOriginNamespace], ClusterDomain(ns))
	}
	if homeIP {
		podspec.PlaceHomeIP(t, homeIPsName(o.Ref.UID))
	}
	if err := p.nameAsAtHome(t, ns, o.Ref); err != nil {
		return nil, nil, err
	}
	limitrange.Fill(&t.Spec, c.LimitRange)
	if err := p.addOverhead(ctx, o.Ref, &t.Spec, terms.Was); err != nil {
		return nil, nil, err
	}
	if need, err = podspec.Demand(&t.Spec); err == nil {
		err = limitrange.Check(&t.Spec, c.LimitRange)
	}
	if err != nil {
		return nil, nil, refuse(peering.RefusedInvalid, false, "%s: %v", o.Ref, err)
	}
	if refusal := p.security.Check(t, terms.PodSecurity); refusal != nil {
		return nil, nil, refusal
	}
	return t, need, nil
}

// addOverhead adds the overhead of this cluster's runtime class, as the API server will: it counts
// against the contract. A pod that is here keeps its overhead, even if the class changed.
func (p *Provider) addOverhead(ctx context.Context, ref peering.ObjectRef, spec, was *corev1.PodSpec) error {
	if spec.RuntimeClassName == nil || *spec.RuntimeClassName == "" {
		return nil
	}
	if was != nil && was.RuntimeClassName != nil && *was.RuntimeClassName == *spec.RuntimeClassName {
		spec.Overhead = was.Overhead
		return nil
	}
	var class nodev1.RuntimeClass
	err := p.client.Get(ctx, client.ObjectKey{Name: *spec.RuntimeClassName}, &class)
	if apierrors.IsNotFound(err) {
		return refuse(peering.RefusedInvalid, true, "%s: the provider's cluster has no runtime class %s any more", ref, *spec.RuntimeClassName)
	}
	if err != nil {
		return fmt.Errorf("read runtime class %s: %w", *spec.RuntimeClassName, err)
	}
	if class.Overhead != nil {
		spec.Overhead = class.Overhead.PodFixed
	}
	return nil
}

// graveOf is the key under which a deleted pod is remembered. Consumers choose UIDs, so the key has
// the contract as well.
func graveOf(contract, uid string) string { return contract + "/" + uid }

func (p *Provider) newPod(ctx context.Context, contract string, c Contract, ns *corev1.Namespace, o peering.Object) error {
	if !c.AcceptNew {
		return refuse(peering.RefusedContract, false, "contract %s is ending and takes no new pods; ask for a new one", contract)
	}
	if p.fenced(contract, ns) {
		return refuse(peering.RefusedInternal, true, "%s: %v", o.Ref, errFenced)
	}
	if p.graves.Has(c.Peer, graveOf(contract, o.Ref.UID)) {
		p.hub.Gone(contract, peering.PodStatus{Ref: o.Ref})
		return nil
	}
	t, need, err := p.judgePod(ctx, c, nil, ns, o)
	if err == nil {
		err = volumes.Mountable(ctx, p.client, c.Peer, ns.Name, &t.Spec)
	}
	if err != nil {
		return err
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode pod: %w", err)
	}
	pod := &api.OffloadedPod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: o.Ref.Name, Finalizers: []string{api.Finalizer}},
		Spec: api.OffloadedPodSpec{
			Contract: contract, PeerID: string(c.Peer),
			OriginNamespace: o.Ref.Namespace, OriginName: o.Ref.Name, OriginUID: o.Ref.UID,
			Hash: o.Hash().String(), Template: runtime.RawExtension{Raw: raw}, Requests: need,
		},
	}
	setOrigin(pod, c.Peer, o.Ref.UID)
	pod.Labels[api.LabelContract] = contract
	undo, err := p.reserve(ctx, c, pod, podBytes(len(raw)))
	if err != nil {
		return err
	}
	if err := p.tryPod(ctx, ns, o.Ref, raw); err != nil {
		undo()
		return err
	}
	answer := p.made.Begin(client.ObjectKeyFromObject(pod))
	if err := p.client.Create(ctx, pod, client.FieldOwner(api.Manager)); err != nil {
		answer(nil)
		// If the response was lost, it may have been created.
		var over *paced.OverBudget
		if !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) && !apierrors.IsAlreadyExists(err) && !errors.As(err, &over) {
			p.ledger.Add(contract, pod)
		} else {
			undo()
		}
		return fmt.Errorf("create offloaded pod: %w", err)
	}
	p.ledger.Add(contract, pod)
	answer(pod.DeepCopy())
	p.changed(contract)
	p.leftOut(pod, t.Notes)
	return nil
}

// reserve counts a pod that is about to be created, if the contract has room for it. The pods of a
// contract pass one at a time, so that nothing is used between the check and the reservation;
// reserve does not wait for the API server.
func (p *Provider) reserve(ctx context.Context, c Contract, pod *api.OffloadedPod, bytes int) (undo func(), err error) {
	contract := pod.Spec.Contract
	release, err := p.locks.Lock(ctx, "contract/"+contract)
	if err != nil {
		return nil, err
	}
	defer release()
	// The contract may have ended meanwhile: CloseContract counts what is reserved by now, and
	// nothing is reserved afterwards.
	if now, err := p.contract(contract); err != nil {
		return nil, err
	} else if !now.AcceptNew {
		return nil, refuse(peering.RefusedContract, false, "contract %s is ending and takes no new pods; ask for a new one", contract)
	}
	if err := p.confirmReserved(ctx, contract); err != nil {
		return nil, err
	}
	for _, other := range p.withUID(contract, pod.Spec.OriginUID) {
		if other.Name != pod.Name || other.Namespace != pod.Namespace {
			return nil, refuse(peering.RefusedInvalid, false, "UID %s is that of %s here; a pod is not renamed", pod.Spec.OriginUID, podRef(other))
		}
	}
	used, _ := p.ledger.Of(contract)
	if refusal := fits(c.Resources, used, pod.Spec.Requests); refusal != nil {
		return nil, refusal
	}
	remove, refusal := p.stock.Admit(podKey(pod), stock.Item{Peer: c.Peer, Contract: contract, Bytes: bytes})
	if refusal != nil {
		return nil, refusal
	}
	// A copy: creating the pod writes the response into it, while other goroutines count.
	p.ledger.Reserve(contract, pod.DeepCopy())
	return func() {
		p.ledger.Drop(contract, pod.Spec.OriginUID)
		remove()
	}, nil
}

// tryPod asks the API server by a dry run whether it would take a pod, so that the consumer gets a
// refusal and not a pod that waits indefinitely. If the dry run is not possible, creating the pod
// shows it.
func (p *Provider) tryPod(ctx context.Context, ns *corev1.Namespace, ref peering.ObjectRef, raw []byte) error {
	like := recent.TrialOf(ns.Name, raw)
	if p.trials.Has(like, time.Now()) {
		return nil
	}
	trial := &api.OffloadedPod{
		// The record does not exist yet, and so has no UID.
		ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: ref.Name, UID: types.UID(ref.UID)},
		Spec:       api.OffloadedPodSpec{PeerID: ns.Labels[api.LabelPeer], OriginUID: ref.UID, Template: runtime.RawExtension{Raw: raw}},
	}
	pod, err := makePod(trial)
	if err != nil {
		return fmt.Errorf("make pod: %w", err)
	}
	// They are added to a pod that exists; Pod Security has checked them.
	pod.Spec.EphemeralContainers = nil
	// A dry run writes nothing, and counts against no budget.
	err = p.client.Create(ctx, pod, client.DryRunAll, client.FieldOwner(api.Manager))
	switch {
	case err == nil:
		p.trials.Add(like, time.Now())
	case apierrors.IsInvalid(err):
		return refusalOf(err, ref)
	case apierrors.IsForbidden(err):
		return refuse(peering.RefusedInvalid, true, "the provider's cluster does not admit %s: %s", ref, peering.Text(err.Error(), statusDetail))
	}
	return nil
}

// changePod updates a pod that is here.
func (p *Provider) changePod(ctx context.Context, c Contract, ns *corev1.Namespace, o peering.Object, old *api.OffloadedPod) error {
	was, err := readPod(old.Spec.Template.Raw)
	if err != nil {
		return refuse(peering.RefusedInternal, false, "%s: its record cannot be decoded: %v", o.Ref, err)
	}
	t, _, err := p.judgePod(ctx, c, &was.Spec, ns, o)
	if err != nil {
		return err
	}
	before := old.DeepCopy()
	shrink, err := p.resizePod(ctx, c, o, old, was, t)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encode pod: %w", err)
	}
	undo, refusal := p.stock.Admit(podKey(old), stock.Item{Peer: c.Peer, Contract: old.Spec.Contract, Bytes: podBytes(len(raw))})
	if refusal != nil {
		shrink()
		return refusal
	}
	old.Spec.Hash, old.Spec.Template = o.Hash().String(), runtime.RawExtension{Raw: raw}
	if err := p.patch(ctx, old, before); err != nil {
		undo()
		if refused := new(paced.OverBudget); errors.As(err, &refused) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsConflict(err) {
			shrink() // otherwise it may have been written
		}
		return fmt.Errorf("change offloaded pod: %w", err)
	}
	return nil
}

// podBytes is what a pod with a template of this size counts: the pod is a second copy of the
// template.
func podBytes(template int) int { return 2 * template }

// unseen is the size of the template that an OffloadedPod of the cache lacks, but is written with.
func unseen(o client.Object) int {
	if o, ok := o.(*api.OffloadedPod); ok && len(o.Spec.Template.Raw) == 0 {
		return notedBytes(o.Annotations) / podBytes(1)
	}
	return 0
}

// Admit implements server.OffloadObjects. While a call waits for the budget, later ones wait behind
// it.
func (p *Provider) Admit(ctx context.Context, contract string) (done func(), err error) {
	c, err := p.contract(contract)
	if err != nil {
		return nil, err
	}
	return p.client.Admit(ctx, c.Peer)
}

// Delete deletes an object if it has the UID of ref, and returns nil once that is persisted, or if
// there is no such object. A pod then ends within grace seconds, or its own grace period if grace
// is nil, and Watch reports when it no longer runs.
func (p *Provider) Delete(ctx context.Context, contract string, ref peering.ObjectRef, grace *int64) error {
	if err := wire.CheckObjectRef(ref); err != nil {
		return refuse(peering.RefusedInvalid, false, "%v", err)
	}
	c, err := p.contract(contract)
	if err != nil {
		return err
	}
	ctx = paced.For(ctx, c.Peer)
	if err := p.await(ctx); err != nil {
		return err
	}
	err = p.client.Retry(ctx, c.Peer, func() error { return p.deleteNow(ctx, contract, c, ref, grace) })
	return refusalOf(err, ref)
}

func (p *Provider) deleteNow(ctx context.Context, contract string, c Contract, ref peering.ObjectRef, grace *int64) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		switch ref.Kind {
		// Objects that other contracts hold are only rewritten, once for each time that they were
		// applied, and do not wait.
		case peering.KindNamespace:
			return p.deleteNamespace(paced.Urgent(ctx), contract, c, ref)
		case peering.KindConfigMap, peering.KindSecret, peering.KindService, peering.KindNetworkPolicy:
			return p.deleteShared(paced.Urgent(ctx), contract, c, ref)
		case peering.KindClaim:
			return p.deleteClaim(paced.Urgent(ctx), c, ref)
		case peering.KindPod:
			return p.deletePod(ctx, contract, c, ref, grace)
		}
		return refuse(peering.RefusedInvalid, false, "%s is of a kind that does not cross", ref)
	})
}

func (p *Provider) deletePod(ctx context.Context, contract string, c Contract, ref peering.ObjectRef, grace *int64) error {
	keys := make(map[types.NamespacedName]bool)
	for _, o := range p.withUID(contract, ref.UID) {
		keys[client.ObjectKeyFromObject(o)] = true
	}
	found := false
	for key := range keys {
		if done, err := p.deleteSeen(ctx, contract, c, ref, key, grace); done {
			if err != nil {
				return err
			}
			found = true
			continue
		}
		o := &api.OffloadedPod{}
		err := p.client.Get(ctx, key, o)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look for offloaded pod: %w", err)
		}
		if o.Spec.PeerID != string(c.Peer) || o.Spec.OriginUID != ref.UID || o.Spec.Contract != contract {
			continue
		}
		found = true
		if err := p.endPod(ctx, o, grace); err != nil {
			return err
		}
	}
	if !found {
		p.hub.Gone(contract, peering.PodStatus{Ref: ref})
	}
	return nil
}

// unseenPod reports whether this process has no OffloadedPod of a name, and none whose pod at home
// has the UID.
func (p *Provider) unseenPod(contract string, key types.NamespacedName, uid string) bool {
	return p.inv.known() && p.inv.offloaded(key) == nil && len(p.withUID(contract, uid)) == 0
}

// withUID returns the OffloadedPods of a contract whose pod at home has the UID. Each pod that this
// process created is in the cache or, for a moment, in the ledger.
func (p *Provider) withUID(contract, uid string) []*api.OffloadedPod {
	pods := indexed[*api.OffloadedPod](p.inv.offloads, byUID, graveOf(contract, uid))
	if o := p.ledger.Get(contract, uid); o != nil {
		pods = append(pods, o)
	}
	return pods
}

// deleteSeen deletes an OffloadedPod of the cache whose grace period is the pod's own, so that none
// has to be recorded. It deletes nothing with another UID.
func (p *Provider) deleteSeen(ctx context.Context, contract string, c Contract, ref peering.ObjectRef, key types.NamespacedName, grace *int64) (done bool, err error) {
	o := p.inv.offloaded(key)
	if o == nil || o.DeletionTimestamp != nil || o.Annotations[noteGrace] != "" ||
		o.Spec.PeerID != string(c.Peer) || o.Spec.OriginUID != ref.UID || o.Spec.Contract != contract {
		return false, nil
	}
	if grace != nil {
		pod, _ := p.inv.pod(key.Namespace, key.Name)
		if pod == nil || !offloadedpod.IsPodOf(pod, o) || pod.DeletionTimestamp != nil || !ptr.Equal(grace, pod.Spec.TerminationGracePeriodSeconds) {
			return false, nil
		}
	}
	return true, p.endPod(ctx, o, nil)
}

// endPod records the grace period of an OffloadedPod, and then deletes it. The reconciler does the
// rest.
func (p *Provider) endPod(ctx context.Context, o *api.OffloadedPod, grace *int64) error {
	if grace != nil && o.Annotations[noteGrace] != strconv.FormatInt(*grace, 10) {
		before := o.DeepCopy()
		setAnnotation(o, noteGrace, strconv.FormatInt(*grace, 10))
		first := ctx
		if o.DeletionTimestamp == nil { // it belongs to the delete, and is written once
			first = paced.Urgent(ctx)
		}
		if err := p.patch(first, o, before); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	if o.DeletionTimestamp != nil {
		return nil
	}
	err := p.client.Delete(ctx, o, client.Preconditions{UID: &o.UID})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete offloaded pod: %w", err)
	}
	return nil
}

// Held returns all objects that a contract holds, with the hashes with which they were applied.
func (p *Provider) Held(ctx context.Context, contract string) ([]peering.Held, error) {
	c, err := p.contract(contract)
	if err != nil {
		return nil, err
	}
	// One call per peer at a time, as this reads all of the peer's objects.
	release, err := p.locks.Lock(ctx, "held/"+string(c.Peer))
	if err != nil {
		return nil, err
	}
	defer release()
	if err := p.await(ctx); err != nil {
		return nil, err
	}
	var held []peering.Held
	err = p.eachPod(ctx, contract, func(o *api.OffloadedPod) {
		// A hash that cannot be parsed is zero: the consumer then applies the object again.
		hash, _ := peering.ParseHash(o.Spec.Hash)
		held = append(held, peering.Held{Ref: podRef(o), Hash: hash})
	})
	if err != nil {
		return nil, err
	}
	spaces, err := p.peerNamespaces(ctx, c.Peer)
	if err != nil {
		return nil, err
	}
	for _, ns := range spaces {
		h, err := p.heldIn(ctx, contract, ns)
		if err != nil {
			return nil, err
		}
		held = append(held, h...)
	}
	return held, nil
}

// eachPod calls f for each OffloadedPod of a contract.
func (p *Provider) eachPod(ctx context.Context, contract string, f func(*api.OffloadedPod)) error {
	err := pages.Each(ctx, p.client, func() *api.OffloadedPodList { return &api.OffloadedPodList{} }, func(pods *api.OffloadedPodList) error {
		for i := range pods.Items {
			if o := &pods.Items[i]; o.Spec.Contract == contract {
				f(o)
			}
		}
		return nil
	}, client.MatchingLabels{api.LabelContract: contract})
	if err != nil {
		return fmt.Errorf("list offloaded pods: %w", err)
	}
	return nil
}
