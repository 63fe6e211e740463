package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/usage"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

// Nodes manages the virtual nodes of this cluster. Each call is level-triggered and returns at once.
type Nodes interface {
	// Ensure creates or updates the virtual node.
	Ensure(ctx context.Context, spec NodeSpec) error
	// Drain evicts the pods of the node, and returns how many are left.
	Drain(ctx context.Context, contract string) (left int, err error)
	// Remove deletes the node and what is left on it, and reports whether it is gone.
	Remove(ctx context.Context, spec NodeSpec) (gone bool, err error)
	Status(contract string) NodeStatus
}

// NodeSpec is the desired state of a virtual node.
type NodeSpec struct {
	Name     string
	Contract string
	Peer     peering.ClusterID
	// Pool is the pool of the provider's nodes; empty if the contract names no pool.
	Pool string
	// Labels is what the contract says of the provider's nodes, and Selector by which labels they were chosen: all of them
	// have these.
	Labels, Selector map[string]string
	Capacity         corev1.ResourceList
	// Prices is what use costs.
	Prices peering.PriceList
	// AcceptNew allows new pods to be scheduled to the node.
	AcceptNew bool
}

// NodeStatus is the status of a virtual node.
type NodeStatus struct {
	Ready           bool
	Reason, Message string
	Pods            int
}

// Offloaded is what runs here for peers. Each call is level-triggered.
type Offloaded interface {
	// Usage returns what the live pods of a contract use.
	Usage(ctx context.Context, contract string) (used corev1.ResourceList, pods int, err error)
	// Close removes all objects of a contract and reports whether none is left.
	Close(ctx context.Context, contract *v1alpha1.Contract) (gone bool, err error)
}

// Counterpart is what one side of a contract asks the other, over the session.
type Counterpart interface {
	// Contract returns the newest revision that the peer has, signed by both.
	Contract(ctx context.Context, contract string) (peering.Envelope, error)
	// Statements returns the provider's statements of use that come after a sequence number, oldest first.
	Statements(ctx context.Context, contract string, after uint64) ([]peering.Envelope, error)
	// Terminate reports that this side ended the contract: with notice until drainUntil, or at once if drainUntil
	// is zero.
	Terminate(ctx context.Context, contract, message string, drainUntil time.Time) error
}

// Contracts reconciles contracts: their state, their virtual nodes or the objects here that they caused, and the
// meters of their use.
type Contracts struct {
	Client client.Client
	// Reader reads contracts from the API server itself: what exists because of a contract is removed according to
	// its status, so the status has to be current.
	Reader client.Reader
	// Identity is this cluster's current identity.
	Identity  func() *identity.Identity
	Nodes     Nodes
	Offloaded Offloaded
	// Counterpart calls a peer.
	Counterpart func(peer peering.ClusterID) Counterpart
	// Volumes returns what volumes at a peer use of a contract. Nil means nothing.
	Volumes func(ctx context.Context, peer peering.ClusterID, contract string) (corev1.ResourceList, error)
	// Wake triggers a reconciliation of the named Contract.
	Wake source.Source
	// Events records when a contract begins and ends; nil records nothing.
	Events events.EventRecorder
	// Budget bounds what peers have written here. Required.
	Budget *store.WriteBudget
	Now    func() time.Time
	// ClockDoubt returns why Now cannot be relied on to end a contract for good; empty if it can. Nil means that it
	// always can.
	ClockDoubt func() string
	Log        *slog.Logger

	// verified caches the contracts whose signatures were verified: each is reconciled whenever pods come and go.
	verified atomic.Pointer[store.ContractReader]
	meters   usage.Meters
	// onNodes counts pods as they come and go. Nil means that no watch reports them.
	onNodes *usage.Tally
	asked   pauses
	// written is when the status of each contract, by name, was last written only because of the peer.
	written sync.Map
}

// ConditionClockReliable is the condition of a Contract whose end is past by this node's clock, while that clock
// cannot be relied on. It is absent from others.
const ConditionClockReliable = "ClockReliable"

const (
	// restInterval is how often a peer or a contract is reconciled if nothing triggers it.
	restInterval = 5 * time.Minute
	// endingInterval is the same for a contract that is ending, or that the peer has not reported yet.
	endingInterval = 15 * time.Second
	// removalPoll is the same while objects are being removed.
	removalPoll = time.Second
	// callTimeout bounds a call to a peer about a contract.
	callTimeout = 5 * time.Second
	// statementGrace is how long a contract with a price is kept after it closed, for the
	// last statement of use to arrive.
	statementGrace = time.Minute
	// tombstone is how long a closed contract is kept whose peer could not be notified, to
	// notify it when it is back.
	tombstone = 7 * 24 * time.Hour
)

// SetupWithManager registers the reconciler.
func (r *Contracts) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	// enqueue enqueues the contracts that an object concerns.
	enqueue := func(find contractsOf) handler.EventHandler { return gathered(0, find) }
	const read = client.UnsafeDisableDeepCopy // they are only read
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, byNode, nodeOf); err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	r.onNodes = &usage.Tally{}
	return ctrl.NewControllerManagedBy(mgr).
		Named("contracts").
		For(&v1alpha1.Contract{}).
		Watches(&v1alpha1.ForeignCluster{}, enqueue(func(ctx context.Context, o client.Object) ([]v1alpha1.Contract, error) {
			return store.ContractsWith(ctx, r.Client, peering.ClusterID(o.(*v1alpha1.ForeignCluster).Spec.ClusterID), read)
		})).
		Watches(&v1alpha1.PeeringRequest{}, enqueue(func(ctx context.Context, o client.Object) ([]v1alpha1.Contract, error) {
			return store.ContractsFor(ctx, r.Client, string(o.GetUID()), read)
		})).
		Watches(&corev1.Pod{}, r.podsCounted(gathered(useGather, func(ctx context.Context, o client.Object) ([]v1alpha1.Contract, error) {
			return store.ContractsOn(ctx, r.Client, o.(*corev1.Pod).Spec.NodeName, read)
		}))).
		WatchesRawSource(r.Wake).
		WithOptions(controller.Options{MaxConcurrentReconciles: contractWorkers}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Contracts) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	s, err := r.load(ctx, req.Name)
	if err != nil || s == nil {
		return reconcile.Result{}, err
	}
	plan, before := planContract(s), s.stored.DeepCopy()
	switch plan.step {
	case stepPrune:
		return r.pruneClosed(ctx, s)
	case stepTakeDown:
		return r.takeDown(ctx, s.stored)
	case stepReport:
		return r.report(ctx, s, before)
	case stepConverge:
	}
	changed, behind, err := r.askPeer(ctx, s, plan)
	if changed || err != nil {
		return reconcile.Result{RequeueAfter: time.Millisecond}, err // on the new terms
	}
	result, err := r.converge(ctx, s, plan, before)
	if behind && err == nil {
		result.RequeueAfter = shorter(result.RequeueAfter, askSoon)
	}
	return result, err
}

// converge carries out a plan and writes the resulting status. before is the contract as it was read.
func (r *Contracts) converge(ctx context.Context, s *contractSnapshot, plan contractPlan, before *v1alpha1.Contract) (reconcile.Result, error) {
	contract := plan.contract
	if plan.earlier != nil && r.Budget.Take(peering.ClusterID(s.stored.Spec.PeerID), s.stored) == nil {
		contract = *plan.earlier
	}
	after, use, err := r.act(ctx, &contract, s.stored)
	if err != nil {
		return reconcile.Result{}, err
	}
	store.WriteState(s.stored, contract)
	r.sayHeld(s, plan)
	wait, err := r.pace(contract, before, s.stored)
	if err != nil {
		return reconcile.Result{}, err
	}
	var measured *meter.Meter
	if !plan.held { // else the time that it would count has not passed, perhaps
		if measured, err = r.measure(contract, s.terms, s.stored, before, use); err != nil {
			return reconcile.Result{}, err
		}
	}
	if contract.Role == peering.Consumer && wait == 0 {
		r.checkStatements(ctx, contract, s.terms, s.stored, s.peer)
	}
	written, err := r.write(ctx, before, s.stored)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !written {
		return reconcile.Result{RequeueAfter: removalPoll}, nil
	}
	if measured != nil {
		r.meters.Note(s.stored, *measured)
	}
	if contract.State == peering.Closed && after == 0 {
		return r.release(ctx, s)
	}
	if s.contract.State == peering.Active && contract.State == peering.Draining && contract.Reason == peering.EndedHere {
		_ = r.notify(ctx, s) // an early notice: the state exchange carries the same
	}
	again := requeueAfter(contract, measured, s.stored, s.peer, r.Now())
	if plan.held {
		again = max(again, endingInterval) // the end is past by this clock
	}
	return reconcile.Result{RequeueAfter: shorter(again, shorter(after, wait))}, nil
}

// sayHeld sets the condition of a contract that would have ended if the clock could be relied on, and removes it
// from others.
func (r *Contracts) sayHeld(s *contractSnapshot, plan contractPlan) {
	if !plan.held {
		meta.RemoveStatusCondition(&s.stored.Status.Conditions, ConditionClockReliable)
		return
	}
	r.condition(s.stored, ConditionClockReliable, metav1.ConditionFalse, "ClocksDisagree", "the contract is over by this node's clock, and goes on until that can be relied on: "+s.doubt)
}

// report records what is wrong with a contract that cannot be read.
func (r *Contracts) report(ctx context.Context, s *contractSnapshot, before *v1alpha1.Contract) (reconcile.Result, error) {
	s.stored.Status.Message = s.invalid.Error()
	_, err := r.write(ctx, before, s.stored)
	return reconcile.Result{RequeueAfter: time.Minute}, err
}

// contracts reads contracts.
func (r *Contracts) contracts() *store.ContractReader {
	if r.verified.Load() == nil {
		r.verified.CompareAndSwap(nil, store.NewContractReader(maxVerified))
	}
	return r.verified.Load()
}

// load reads everything that planContract decides by; nil if the contract is gone.
func (r *Contracts) load(ctx context.Context, name string) (*contractSnapshot, error) {
	s := &contractSnapshot{stored: &v1alpha1.Contract{}, now: r.Now()}
	if err := r.Reader.Get(ctx, client.ObjectKey{Name: name}, s.stored); err != nil {
		if apierrors.IsNotFound(err) {
			r.meters.Forget(name)
			r.asked.forget(name)
			r.written.Delete(name)
		}
		return nil, client.IgnoreNotFound(err)
	}
	if r.ClockDoubt != nil {
		s.doubt = r.ClockDoubt()
	}
	s.contract, s.terms, s.invalid = r.contracts().Read(s.stored, r.Identity().ID())
	var err error
	s.peer, err = store.Cached(ctx, r.Client, peering.ClusterID(s.stored.Spec.PeerID))
	return s, err
}

// askPeer asks the peer what a plan needs. changed reports that the response changed the contract, behind that a
// later revision could not be fetched: then this side continues with its own.
func (r *Contracts) askPeer(ctx context.Context, s *contractSnapshot, plan contractPlan) (changed, behind bool, err error) {
	var envelope peering.Envelope
	fetch := func(ctx context.Context) (err error) {
		envelope, err = r.Counterpart(peering.ClusterID(s.stored.Spec.PeerID)).Contract(ctx, s.stored.Name)
		return err
	}
	if plan.askRevision {
		self := r.Identity().ID()
		asked, err := r.ask(ctx, s.stored, "revision", func(ctx context.Context) error {
			if err := fetch(ctx); err != nil {
				return err
			}
			// This cluster's own signature on it proves that it agreed: it missed the response, or
			// was restored from a backup.
			return laterRevision(s.stored, envelope, self)
		})
		if asked && err == nil {
			var later *v1alpha1.Contract
			later, err = replaceRevision(ctx, r.Client, r.Reader, s.stored, envelope, self, nil)
			if changed = err == nil; changed {
				record(r.Events, later, amended(later))
			}
		}
		if behind = err != nil; behind {
			r.Log.Warn("cannot take over a later revision of a contract", "contract", s.stored.Name, "peer", s.stored.Spec.PeerID, "err", err)
		}
	}
	if plan.askExists && !changed {
		_, err := r.ask(ctx, s.stored, "held", fetch)
		switch peering.ReasonOf(err) { //nolint:exhaustive // all others prove nothing
		case peering.ReasonContractUnknown, peering.ReasonContractClosed:
			return true, behind, terminate(ctx, r.Client, s.stored, v1alpha1.TerminatePeer)
		}
	}
	return changed, behind, nil
}

// ask calls the peer about a contract, unless it made the same call shortly before, or the peer does
// not respond. asked reports whether it called.
func (r *Contracts) ask(ctx context.Context, stored *v1alpha1.Contract, what string, call func(context.Context) error) (asked bool, err error) {
	peer, contract := peering.ClusterID(stored.Spec.PeerID), stored.Name
	if !r.asked.due(peer, contract, what, r.Now()) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = call(ctx)
	r.asked.record(peer, contract, what, err, r.Now())
	return true, err
}

// peerEnds records that the peer ended a contract by a call: at once, or with notice until drainUntil, by its
// clock. The peer's state on the session repeats that.
func peerEnds(ctx context.Context, c client.Client, b *store.WriteBudget, stored *v1alpha1.Contract, self peering.ClusterID, drainUntil, now time.Time) error {
	if drainUntil.IsZero() {
		return terminate(ctx, c, stored, v1alpha1.TerminatePeer)
	}
	value, _, err := store.ReadContract(stored, self)
	if err != nil {
		return err
	}
	fc, err := store.Cached(ctx, c, peering.ClusterID(stored.Spec.PeerID))
	if err != nil {
		return err
	}
	value, _ = value.Apply(peering.PeerReported{Revision: value.Revision, Phase: peering.PhaseDraining, DrainUntil: ownClock(fc, drainUntil), Now: now})
	before := stored.DeepCopy()
	store.WriteState(stored, value)
	if equality.Semantic.DeepEqual(before.Status, stored.Status) {
		return nil
	}
	// A contract ends once, but its end can be moved a little earlier without limit.
	if err := b.Take(peering.ClusterID(stored.Spec.PeerID), stored); err != nil {
		return err
	}
	if err := store.PatchStatusLocked(ctx, c, before, stored); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// act makes what a contract requires, and applies the resulting events to it. It returns when to do so again, 0
// meaning when something changes, and what is in use.
func (r *Contracts) act(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, corev1.ResourceList, error) {
	if c.Role == peering.Provider {
		return r.provide(ctx, c, stored)
	}
	return r.consume(ctx, c, stored)
}

func (r *Contracts) consume(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, corev1.ResourceList, error) {
	name := stored.Status.Node // a node keeps its name
	if name == "" {
		request, err := requestByID(ctx, r.Client, stored.Spec.RequestID)
		if err != nil {
			return 0, nil, err
		}
		name = stored.Name + v1alpha1.VirtualNodeSuffix
		if request != nil {
			name = request.Name + v1alpha1.VirtualNodeSuffix
		}
	}
	used, left, err := r.onNode(ctx, c, stored, name)
	if err != nil {
		return 0, nil, err
	}
	prices, err := store.Prices(stored.Spec.Price)
	if err != nil {
		return 0, nil, fmt.Errorf("contract %s: %w", stored.Name, err)
	}
	plan := planNode(*c, left, r.Now())
	spec := NodeSpec{
		Name: name, Contract: stored.Name, Peer: peering.ClusterID(stored.Spec.PeerID),
		Pool: stored.Spec.Pool, Labels: stored.Spec.NodeLabels, Selector: stored.Spec.NodeSelector, Capacity: stored.Spec.Resources, Prices: prices, AcceptNew: plan.acceptNew,
	}
	if plan.ensure {
		if err := r.Nodes.Ensure(ctx, spec); err != nil {
			return 0, nil, fmt.Errorf("virtual node of contract %s: %w", stored.Name, err)
		}
	}
	if plan.evict {
		if _, err := r.Nodes.Drain(ctx, stored.Name); err != nil {
			return 0, nil, fmt.Errorf("drain the node of contract %s: %w", stored.Name, err)
		}
	}
	*c = plan.contract
	if plan.remove {
		gone, err := r.Nodes.Remove(ctx, spec)
		if err != nil {
			return 0, nil, fmt.Errorf("remove the node of contract %s: %w", stored.Name, err)
		}
		if !gone {
			return removalPoll, nil, nil
		}
		stored.Status.Node, stored.Status.Pods, stored.Status.Used = "", 0, nil
		meta.RemoveStatusCondition(&stored.Status.Conditions, v1alpha1.ConditionNodeReady)
		return 0, nil, nil
	}
	node, ready := r.Nodes.Status(stored.Name), metav1.ConditionFalse
	if node.Ready {
		ready = metav1.ConditionTrue
	}
	r.condition(stored, v1alpha1.ConditionNodeReady, ready, node.Reason, node.Message)
	stored.Status.Node, stored.Status.Used, stored.Status.Pods = name, used, int32(min(node.Pods, 1<<30))
	return plan.again, used, nil
}

// requestByID returns the PeeringRequest with a UID; nil if it is gone.
func requestByID(ctx context.Context, reader client.Reader, id string) (*v1alpha1.PeeringRequest, error) {
	var list v1alpha1.PeeringRequestList
	if err := reader.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list peering requests: %w", err)
	}
	i := slices.IndexFunc(list.Items, func(s v1alpha1.PeeringRequest) bool { return string(s.UID) == id })
	if i < 0 {
		return nil, nil //nolint:nilnil // it is gone
	}
	return &list.Items[i], nil
}

func (r *Contracts) provide(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, corev1.ResourceList, error) {
	if !c.Desired().Capacity {
		gone, err := r.Offloaded.Close(ctx, stored)
		if err != nil {
			return 0, nil, fmt.Errorf("close contract %s: %w", stored.Name, err)
		}
		stored.Status.Used, stored.Status.Pods = nil, 0
		if !gone {
			return removalPoll, nil, nil
		}
		return 0, nil, nil
	}
	used, pods, err := r.Offloaded.Usage(ctx, stored.Name)
	if err != nil {
		return 0, nil, fmt.Errorf("use of contract %s: %w", stored.Name, err)
	}
	stored.Status.Used, stored.Status.Pods = used, int32(min(pods, 1<<30))
	switch {
	case c.State != peering.Draining:
		return 0, used, nil
	case pods == 0:
		*c, _ = c.Apply(peering.Drained{Now: r.Now()})
		return removalPoll, used, nil
	}
	return endingInterval, used, nil
}

// release removes the finalizer of a closed contract once nothing exists because of it, the peer knows or cannot be
// notified, and its use was stated. At the consumer the finalizer stays as long as the PeeringRequest needs the
// contract. A contract with a price is not deleted: with its statements it is the only proof of what is owed.
// Nothing depends on it then, and deleting it, then or before, takes effect at once.
func (r *Contracts) release(ctx context.Context, s *contractSnapshot) (reconcile.Result, error) {
	stored, closed := s.stored, r.Now().Sub(store.TimeOf(s.stored.Status.ClosedAt))
	if !knowsOfEnd(s, r.Now()) && r.notify(ctx, s) != nil {
		if !s.peer.DeletionTimestamp.IsZero() {
			return reconcile.Result{RequeueAfter: removalPoll}, nil // it is forgotten soon: see forgetWait
		}
		return reconcile.Result{RequeueAfter: endingInterval}, nil
	}
	if s.peer != nil && s.peer.DeletionTimestamp.IsZero() && !s.terms.Price.IsFree() && closed < statementGrace {
		return reconcile.Result{RequeueAfter: min(endingInterval, statementGrace-closed)}, nil
	}
	if stored.Spec.Role == v1alpha1.ContractConsumer {
		request, err := requestByID(ctx, r.Client, stored.Spec.RequestID)
		if err != nil || neededBy(request, stored, closed) {
			return reconcile.Result{RequeueAfter: endingInterval}, err
		}
	}
	if s.terms.Price.IsFree() && usage.Owed(stored).IsZero() || !stored.DeletionTimestamp.IsZero() {
		if err := r.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("delete contract %s: %w", stored.Name, err)
		}
	}
	before := stored.DeepCopy() // not locked: the deletion changed the version
	controllerutil.RemoveFinalizer(stored, v1alpha1.Finalizer)
	return reconcile.Result{}, client.IgnoreNotFound(store.Patch(ctx, r.Client, before, stored))
}

// takeDown removes a contract that this cluster did not sign, as when it lost its identity, with the objects that
// it caused. The peer knows this cluster under its former identity, so it is not notified.
func (r *Contracts) takeDown(ctx context.Context, stored *v1alpha1.Contract) (reconcile.Result, error) {
	role := peering.Consumer
	if stored.Spec.Role == v1alpha1.ContractProvider {
		role = peering.Provider
	}
	closed := peering.Restore(peering.Terms{ContractID: stored.Name}, peering.Hash{}, role, peering.Stored{Phase: peering.PhaseClosed, Reason: peering.EndedHere})
	after, _, err := r.act(ctx, &closed, stored)
	if err != nil || after > 0 {
		return reconcile.Result{RequeueAfter: after}, err
	}
	before := stored.DeepCopy()
	controllerutil.RemoveFinalizer(stored, v1alpha1.Finalizer)
	if err := store.Patch(ctx, r.Client, before, stored); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	return reconcile.Result{}, client.IgnoreNotFound(r.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID}))
}

// notify calls the peer to report that this side ended a contract, or ends it.
func (r *Contracts) notify(ctx context.Context, s *contractSnapshot) error {
	peer := peering.ClusterID(s.stored.Spec.PeerID)
	if s.peer == nil || r.asked.slow(peer, r.Now()) {
		return errors.New("the peer is no longer known, or did not respond shortly before")
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := r.Counterpart(peer).Terminate(ctx, s.stored.Name, s.stored.Status.Message, store.TimeOf(s.stored.Status.DrainUntil))
	r.asked.record(peer, s.stored.Name, "end", err, r.Now())
	return err
}

// pruneClosed deletes a released contract that was kept long enough, and those beyond the limit of its peer.
func (r *Contracts) pruneClosed(ctx context.Context, s *contractSnapshot) (reconcile.Result, error) {
	all, err := store.ContractsWith(ctx, r.Client, peering.ClusterID(s.stored.Spec.PeerID), client.UnsafeDisableDeepCopy)
	if err != nil {
		return reconcile.Result{}, err
	}
	drop := beyondMaxClosed(all)
	left := closedKept - r.Now().Sub(store.TimeOf(s.stored.Status.ClosedAt))
	if left <= 0 && s.doubt == "" {
		drop = append(drop, s.stored)
	}
	for _, c := range drop {
		err := r.Client.Delete(ctx, &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: c.Name}}, client.Preconditions{UID: &c.UID})
		if client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("delete contract %s: %w", c.Name, err)
		}
	}
	if s.doubt != "" {
		left = max(left, restInterval)
	}
	return reconcile.Result{RequeueAfter: max(left, 0)}, nil
}

// write writes the status, and reports whether it did: not if the contract changed meanwhile, or is gone.
func (r *Contracts) write(ctx context.Context, before, stored *v1alpha1.Contract) (bool, error) {
	err := store.PatchStatusLocked(ctx, r.Client, before, stored)
	switch {
	case err == nil:
		record(r.Events, stored, contractEvents(before, stored))
		return true, nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return false, nil
	}
	return false, err
}

func equalStatus(a, b *v1alpha1.Contract) bool {
	return equality.Semantic.DeepEqual(a.Status, b.Status)
}
