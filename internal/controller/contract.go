package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Nodes is the virtual nodes of this cluster. Each call is level-triggered and
// returns at once.
type Nodes interface {
	// Ensure makes the virtual node exist as given.
	Ensure(ctx context.Context, spec NodeSpec) error
	// Drain asks what runs on the node to leave, and says how many pods are left.
	Drain(ctx context.Context, contract string) (left int, err error)
	// Remove takes the node away, with what is left on it, and says whether it is
	// gone.
	Remove(ctx context.Context, spec NodeSpec) (gone bool, err error)
	// Status tells of the node.
	Status(contract string) NodeStatus
}

// NodeSpec is what a virtual node stands for.
type NodeSpec struct {
	Name     string
	Contract string
	Peer     peering.ClusterID
	Labels   map[string]string
	Capacity corev1.ResourceList
	// AcceptNew says whether new pods may be scheduled to it.
	AcceptNew bool
}

// NodeStatus tells of a virtual node.
type NodeStatus struct {
	Ready           bool
	Reason, Message string
	Pods            int
}

// Lent is what runs here for others. Each call is level-triggered.
type Lent interface {
	// Usage tells what live pods use of a contract.
	Usage(ctx context.Context, contract string) (used corev1.ResourceList, pods int, err error)
	// Close removes everything of a contract and says whether nothing is left.
	Close(ctx context.Context, contract *v1alpha1.Contract) (gone bool, err error)
}

// Counterpart is what one side of a contract asks the other, over the session.
type Counterpart interface {
	// Contract returns the newest revision that the peer holds, signed by both.
	Contract(ctx context.Context, peer peering.ClusterID, contract string) (peering.Envelope, error)
	// Statements returns the provider's statements of use that come after a sequence
	// number, oldest first.
	Statements(ctx context.Context, peer peering.ClusterID, contract string, after uint64) ([]peering.Envelope, error)
	// Terminate says that this side ended the contract: with notice until drainUntil,
	// or at once where that is zero.
	Terminate(ctx context.Context, peer peering.ClusterID, contract, message string, drainUntil time.Time) error
}

// Contracts keeps each contract's state, makes what it wants, and counts its use.
type Contracts struct {
	Client client.Client
	// Reader reads contracts from the API server itself: what a contract stands
	// for is taken down by what its status says stands, so that has to be true.
	Reader client.Reader
	// Identity is this cluster's, as of now.
	Identity    func() *identity.Identity
	Nodes       Nodes
	Lent        Lent
	Counterpart Counterpart
	// Wake makes the named Contract be looked at again.
	Wake source.Source
	// Events records when a contract begins and ends; nil records nothing.
	Events events.EventRecorder
	// Budget bounds what peers have written here. Required.
	Budget *store.WriteBudget
	Now    func() time.Time
	Log    *slog.Logger

	meters  meters
	asked   pauses
	written writeTimes
}

const (
	// restLook is how often a peer or a contract is looked at that nothing happens to:
	// all that matters to it wakes it.
	restLook = 5 * time.Minute
	// endLook is how often one is looked at that is ending, or that a peer has to say
	// something of.
	endLook = 15 * time.Second
	// endPoll is how often what is being taken down is looked at.
	endPoll = time.Second
	// tellTimeout bounds telling a peer of a contract, or asking it.
	tellTimeout = 5 * time.Second
	// lastWord is for how long a contract that costs is kept after it closed, so that
	// the last statement of use arrives.
	lastWord = time.Minute
	// tombstone is how long a closed contract whose peer could not be told is
	// kept, to tell it when it is back.
	tombstone = 7 * 24 * time.Hour
)

// SetupWithManager registers the reconciler.
func (r *Contracts) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	// with has the contracts looked at that an object concerns.
	with := func(find func(context.Context, client.Object) ([]v1alpha1.Contract, error)) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			contracts, err := find(ctx, o)
			if err != nil {
				return nil
			}
			var out []reconcile.Request
			for i := range contracts {
				if !store.Settled(&contracts[i]) {
					out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: contracts[i].Name}})
				}
			}
			return out
		})
	}
	const read = client.UnsafeDisableDeepCopy // they are only read
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, byNode, nodeOf); err != nil {
		return fmt.Errorf("index pods by node: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("contracts").
		For(&v1alpha1.Contract{}).
		Watches(&v1alpha1.ForeignCluster{}, with(func(ctx context.Context, o client.Object) ([]v1alpha1.Contract, error) {
			return store.ContractsWith(ctx, r.Client, peering.ClusterID(o.(*v1alpha1.ForeignCluster).Spec.ClusterID), read)
		})).
		Watches(&v1alpha1.PeeringRequest{}, with(func(ctx context.Context, o client.Object) ([]v1alpha1.Contract, error) {
			return store.ContractsFor(ctx, r.Client, string(o.GetUID()), read)
		})).
		Watches(&corev1.Pod{}, with(func(ctx context.Context, o client.Object) ([]v1alpha1.Contract, error) {
			return store.ContractsOn(ctx, r.Client, o.(*corev1.Pod).Spec.NodeName, read)
		}), builder.WithPredicates(predicate.Funcs{
			CreateFunc: func(e event.CreateEvent) bool { return nodeOf(e.Object) != nil },
			UpdateFunc: func(e event.UpdateEvent) bool {
				return changesUse(e.ObjectOld.(*corev1.Pod), e.ObjectNew.(*corev1.Pod))
			},
			DeleteFunc: func(e event.DeleteEvent) bool { return nodeOf(e.Object) != nil },
		})).
		WatchesRawSource(r.Wake).
		WithOptions(controller.Options{MaxConcurrentReconciles: contractWorkers}).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Contracts) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var stored v1alpha1.Contract
	if err := r.Reader.Get(ctx, req.NamespacedName, &stored); err != nil {
		if apierrors.IsNotFound(err) {
			r.meters.forget(req.Name)
			r.asked.forget(req.Name)
			r.written.forget(req.Name)
		}
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if store.Settled(&stored) {
		return r.keep(ctx, &stored)
	}
	before := stored.DeepCopy()
	contract, terms, err := store.ReadContract(&stored, r.Identity().ID())
	if err != nil {
		// Nobody signed this, so it binds nobody; what stands because of it stays
		// until a person looks.
		stored.Status.Message = err.Error()
		_, err := r.write(ctx, before, &stored)
		return reconcile.Result{RequeueAfter: time.Minute}, err
	}
	fc, err := store.Cached(ctx, r.Client, peering.ClusterID(stored.Spec.PeerID))
	if err != nil {
		return reconcile.Result{}, err
	}
	later, behind := r.catchUp(ctx, &stored, fc)
	if later {
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil // on the new terms
	}
	if behind != nil {
		r.Log.Warn("this side is behind", "contract", stored.Name, "err", behind) // and goes on by what it holds
	}
	if r.unknownToProvider(ctx, &stored, fc) {
		return reconcile.Result{RequeueAfter: time.Millisecond}, terminate(ctx, r.Client, &stored, v1alpha1.TerminatePeer)
	}
	was := contract.State
	contract = r.hear(contract, &stored, fc)
	after, use, err := r.make(ctx, &contract, &stored)
	if err != nil {
		return reconcile.Result{}, err
	}
	store.WriteState(&stored, contract)
	wait, err := r.pace(contract, before, &stored)
	if err != nil {
		return reconcile.Result{}, err
	}
	measured, err := r.measure(contract, terms, &stored, before, use)
	if err != nil {
		return reconcile.Result{}, err
	}
	if contract.Role == peering.Consumer && wait == 0 {
		r.statements(ctx, contract, terms, &stored, fc)
	}
	written, err := r.writeMeasured(ctx, before, &stored, measured)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case !written:
		return reconcile.Result{RequeueAfter: endPoll}, nil
	case contract.State == peering.Closed && after == 0:
		return r.bury(ctx, &stored, fc, terms)
	case was == peering.Active && contract.State == peering.Draining && contract.Reason == peering.EndedHere:
		_ = r.tell(ctx, &stored, fc) // a courtesy: the session's state says the same
	}
	again := lookAgain(contract, measured, &stored, fc, r.Now())
	if after > 0 {
		again = min(again, after)
	}
	if wait > 0 {
		again = min(again, wait)
	}
	if behind != nil {
		again = min(again, askSoon)
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// lookAgain is how long a contract that is made as it wants to be can be left alone
// if nothing wakes it: what it uses, what stands because of it, and what its peer
// says all do. Time alone changes its state, ends a period of its meter, and makes
// what is in use be counted; and a peer has to be asked again that did not answer.
func lookAgain(c peering.Contract, meter *peering.Meter, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster, now time.Time) time.Duration {
	after := restLook
	at := func(t time.Time) { after = min(after, max(t.Sub(now), endPoll)) }
	if deadline := deadlineOf(c); !deadline.IsZero() {
		at(deadline)
	}
	if meter != nil && c.State != peering.Closed {
		at(meter.Since.Add(meter.Period))
		if kept := stored.Status.Usage; kept != nil && len(meter.Using) > 0 {
			at(kept.Until.Add(keepEvery))
		}
	}
	switch said := saidOf(fc, stored.Name); {
	case c.Role != peering.Consumer && said == nil, fc == nil:
	case said == nil:
		after = min(after, endLook) // see unknownToProvider
	case said.Revision > stored.Spec.Revision, c.Role == peering.Consumer && uint64(max(said.Statement, 0)) > lastStatement(stored).sequence:
		after = min(after, fetchAgain)
	}
	return after
}

// deadlineOf is when time changes something about a contract.
func deadlineOf(c peering.Contract) time.Time {
	at := c.Deadline()
	if evict := evictAt(c); c.State == peering.Draining && !evict.IsZero() && evict.Before(at) {
		return evict
	}
	return at
}

// evictAt is when what runs on the node of a contract that drains is asked to
// leave. When this side ended it, or it reached its end, that is at once, which is
// the zero time. A notice of the provider's is time to run on: the first half of it
// is left in peace, the second is for moving away as disruption budgets allow.
func evictAt(c peering.Contract) time.Time {
	if c.Reason != peering.EndedByPeer || c.Notice <= 0 {
		return time.Time{}
	}
	return c.DrainUntil.Add(-c.Notice / 2)
}

// catchUp takes over a later revision if the peer says that it has one, and says
// whether it did. This cluster's own signature on it is the proof of having agreed:
// it missed the answer, or was restored from a backup.
func (r *Contracts) catchUp(ctx context.Context, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) (bool, error) {
	said, peer := saidOf(fc, stored.Name), peering.ClusterID(stored.Spec.PeerID)
	if said == nil || said.Revision <= stored.Spec.Revision || !r.asked.due(peer, stored.Name, "revision", r.Now()) {
		return false, nil
	}
	failed := func(err error) error {
		return fmt.Errorf("take over revision %d of contract %s from %s: %w", said.Revision, stored.Name, stored.Spec.PeerID, err)
	}
	self := r.Identity().ID()
	askCtx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	envelope, err := r.Counterpart.Contract(askCtx, peer, stored.Name)
	if err == nil {
		err = laterRevision(stored, envelope, self)
	}
	r.asked.answered(peer, stored.Name, "revision", err, r.Now())
	if err != nil {
		return false, failed(err)
	}
	if _, err := replaceRevision(ctx, r.Client, r.Reader, stored, envelope, self, nil); err != nil {
		return false, failed(err)
	}
	return true, nil
}

// laterRevision says why an envelope is no later revision of a contract; nil is
// that it is one. Unlike Apply it takes one of a contract that is over, too: statements
// of its use may have the prices of that revision.
func laterRevision(stored *v1alpha1.Contract, envelope peering.Envelope, self peering.ClusterID) error {
	state, held, err := store.ReadContract(stored, self)
	if err != nil {
		return err
	}
	terms, err := envelope.Verify()
	if err != nil {
		return err
	}
	if terms.ContractID != held.ContractID || terms.RequestID != held.RequestID || terms.Consumer.ID != held.Consumer.ID || terms.Provider.ID != held.Provider.ID {
		return fmt.Errorf("it is of contract %s between %s and %s", terms.ContractID, terms.Consumer.ID, terms.Provider.ID)
	}
	if terms.Revision <= held.Revision {
		return fmt.Errorf("it is revision %d, and revision %d is held", terms.Revision, held.Revision)
	}
	if terms.Revision == held.Revision+1 && terms.Previous != state.Hash {
		return fmt.Errorf("revision %d does not follow the revision %d that is held", terms.Revision, held.Revision)
	}
	return nil
}

// saidOf returns what the peer last said of a contract, or nil.
func saidOf(fc *v1alpha1.ForeignCluster, contract string) *v1alpha1.PeerContract {
	if fc == nil {
		return nil
	}
	for i := range fc.Status.Contracts {
		if fc.Status.Contracts[i].ID == contract {
			return &fc.Status.Contracts[i]
		}
	}
	return nil
}

// hear applies to a contract all that is known to have happened.
func (r *Contracts) hear(c peering.Contract, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) peering.Contract {
	now := r.Now()
	events := []peering.Event{peering.Tick{Now: now}}
	switch {
	case stored.Spec.Termination == v1alpha1.TerminatePeer:
		events = append(events, peering.PeerSaid{Revision: c.Revision, Phase: peering.PhaseClosed, Now: now})
	case stored.Spec.Termination == v1alpha1.TerminateNow, !stored.DeletionTimestamp.IsZero(), fc == nil:
		events = append(events, peering.Terminate{By: c.Role, Mode: peering.Now, Now: now})
	case stored.Spec.Termination == v1alpha1.TerminateDrain && c.Role == peering.Provider:
		events = append(events, peering.Terminate{By: c.Role, Mode: peering.Drain, Now: now, Grace: c.Notice})
	case stored.Spec.Termination == v1alpha1.TerminateDrain:
		events = append(events, peering.Terminate{By: c.Role, Mode: peering.Drain, Now: now})
	}
	if said := saidOf(fc, stored.Name); said != nil {
		e := peering.PeerSaid{Revision: uint64(max(said.Revision, 0)), Phase: peering.ParsePhase(said.Phase), Now: now}
		// What is as good as what is known already is no news: clocks drift. And what it
		// says again and again is written as the budget allows.
		until := ownClock(fc, timeOf(said.DrainUntil))
		earlier := !until.IsZero() && c.DrainUntil.Sub(until) > drainSlack
		if c.State != peering.Draining || earlier && r.Budget.Take(peering.ClusterID(stored.Spec.PeerID), stored) == nil {
			e.DrainUntil = until
		}
		events = append(events, e)
	}
	for _, e := range events {
		// A refusal leaves the contract as it is, which is all there is to do.
		c, _ = c.Apply(e)
	}
	return c
}

// ownClock returns a moment that the peer named by its clock as it is by this
// cluster's; zero while it is not known how far the two are apart.
func ownClock(fc *v1alpha1.ForeignCluster, t time.Time) time.Time {
	if t.IsZero() || fc == nil || fc.Status.Session == nil || fc.Status.Session.ClockSkew == nil {
		return time.Time{}
	}
	return t.Add(-fc.Status.Session.ClockSkew.Duration)
}

// peerEnds records that the peer ended a contract: at once, or with notice until
// drainUntil, by its clock. It is the peer's call; the session's state says the same
// again.
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
	value, _ = value.Apply(peering.PeerSaid{Revision: value.Revision, Phase: peering.PhaseDraining, DrainUntil: ownClock(fc, drainUntil), Now: now})
	before := stored.DeepCopy()
	store.WriteState(stored, value)
	if equality.Semantic.DeepEqual(before.Status, stored.Status) {
		return nil
	}
	// A contract ends once, and may say without end that it ends a little earlier.
	if err := b.Take(peering.ClusterID(stored.Spec.PeerID), stored); err != nil {
		return err
	}
	if err := store.PatchStatusLocked(ctx, c, before, stored); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// make makes what the contract wants. It says when to look again, 0 for not
// before something changes, and what is in use.
func (r *Contracts) make(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, corev1.ResourceList, error) {
	if c.Role == peering.Provider {
		return r.lend(ctx, c, stored)
	}
	return r.consume(ctx, c, stored)
}

func (r *Contracts) consume(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, corev1.ResourceList, error) {
	name, err := r.nodeName(ctx, stored)
	if err != nil {
		return 0, nil, err
	}
	used, left, err := r.onNode(ctx, name)
	if err != nil {
		return 0, nil, err
	}
	spec := NodeSpec{
		Name: name, Contract: stored.Name, Peer: peering.ClusterID(stored.Spec.PeerID),
		Labels: nodeLabels(stored), Capacity: stored.Spec.Resources, AcceptNew: c.Wants().AcceptNew,
	}
	if c.Wants().Evict {
		if err := r.Nodes.Ensure(ctx, spec); err != nil {
			return 0, nil, fmt.Errorf("virtual node of contract %s: %w", stored.Name, err)
		}
		if !r.Now().Before(evictAt(*c)) {
			if _, err := r.Nodes.Drain(ctx, stored.Name); err != nil {
				return 0, nil, fmt.Errorf("drain the node of contract %s: %w", stored.Name, err)
			}
		}
		// The node's own count begins at nothing after a restart.
		if left == 0 {
			*c, _ = c.Apply(peering.Drained{Now: r.Now()})
		}
	}
	wants := c.Wants()
	if !wants.Node {
		gone, err := r.Nodes.Remove(ctx, spec)
		if err != nil {
			return 0, nil, fmt.Errorf("remove the node of contract %s: %w", stored.Name, err)
		}
		if !gone {
			return endPoll, nil, nil
		}
		stored.Status.Node, stored.Status.Pods, stored.Status.Used = "", 0, nil
		meta.RemoveStatusCondition(&stored.Status.Conditions, ConditionNodeReady)
		return 0, nil, nil
	}
	if err := r.Nodes.Ensure(ctx, spec); err != nil {
		return 0, nil, fmt.Errorf("virtual node of contract %s: %w", stored.Name, err)
	}
	stored.Status.Node = name
	r.nodeStatus(stored)
	stored.Status.Used = used
	if wants.Evict && !r.Now().Before(evictAt(*c)) {
		return endPoll, used, nil
	}
	return whileEnding(c), used, nil
}

// nodeLabels returns the labels of a contract's virtual node: all of the nodes on
// which its pods run have those by which they were chosen.
func nodeLabels(stored *v1alpha1.Contract) map[string]string {
	out := maps.Clone(stored.Spec.NodeLabels)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, stored.Spec.NodeSelector)
	return out
}

func (r *Contracts) nodeStatus(stored *v1alpha1.Contract) {
	s := r.Nodes.Status(stored.Name)
	ready := condition(ConditionNodeReady, metav1.ConditionFalse, s.Reason, s.Message)
	if s.Ready {
		ready.Status = metav1.ConditionTrue
	}
	ready.ObservedGeneration = stored.Generation
	meta.SetStatusCondition(&stored.Status.Conditions, ready)
	stored.Status.Pods = int32(min(s.Pods, 1<<30))
}

// nodeName returns the virtual node's name: that of the PeeringRequest with the
// suffix of virtual nodes. Once given it stays.
func (r *Contracts) nodeName(ctx context.Context, stored *v1alpha1.Contract) (string, error) {
	if stored.Status.Node != "" {
		return stored.Status.Node, nil
	}
	var list v1alpha1.PeeringRequestList
	if err := r.Client.List(ctx, &list); err != nil {
		return "", fmt.Errorf("list peering requests: %w", err)
	}
	for i := range list.Items {
		if string(list.Items[i].UID) == stored.Spec.RequestID {
			return list.Items[i].Name + v1alpha1.VirtualNodeSuffix, nil
		}
	}
	return stored.Name + v1alpha1.VirtualNodeSuffix, nil
}

func (r *Contracts) lend(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, corev1.ResourceList, error) {
	if !c.Wants().Capacity {
		gone, err := r.Lent.Close(ctx, stored)
		if err != nil {
			return 0, nil, fmt.Errorf("close contract %s: %w", stored.Name, err)
		}
		stored.Status.Used, stored.Status.Pods = nil, 0
		if !gone {
			return endPoll, nil, nil
		}
		return 0, nil, nil
	}
	used, pods, err := r.Lent.Usage(ctx, stored.Name)
	if err != nil {
		return 0, nil, fmt.Errorf("use of contract %s: %w", stored.Name, err)
	}
	stored.Status.Used, stored.Status.Pods = used, int32(min(pods, 1<<30))
	if c.State == peering.Draining && pods == 0 {
		*c, _ = c.Apply(peering.Drained{Now: r.Now()})
		return endPoll, used, nil
	}
	return whileEnding(c), used, nil
}

// whileEnding is when to look at a contract again because it drains; 0 if it does
// not.
func whileEnding(c *peering.Contract) time.Duration {
	if c.State == peering.Draining {
		return endLook
	}
	return 0
}

// bury lets a closed contract go, once nothing stands because of it, the peer
// knows or cannot be told, and what it cost was said. At the consumer it stays as
// long as its PeeringRequest needs it. One that had a price is kept on: with its
// statements it is the only proof of what is owed. Nothing hangs on it then, and
// whoever deletes it, or did before, is done with it at once.
func (r *Contracts) bury(ctx context.Context, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster, terms peering.Terms) (reconcile.Result, error) {
	closed := r.Now().Sub(timeOf(stored.Status.ClosedAt))
	if fc != nil && !r.told(ctx, stored, fc) {
		if !fc.DeletionTimestamp.IsZero() {
			return reconcile.Result{RequeueAfter: endPoll}, nil // it is not waited for long
		}
		return reconcile.Result{RequeueAfter: endLook}, nil
	}
	if fc != nil && fc.DeletionTimestamp.IsZero() && !terms.Price.IsFree() && closed < lastWord {
		return reconcile.Result{RequeueAfter: min(endLook, lastWord-closed)}, nil
	}
	if wanted, err := r.requestWants(ctx, stored, closed); err != nil || wanted {
		return reconcile.Result{RequeueAfter: endLook}, err
	}
	if terms.Price.IsFree() && owedBy(stored).IsZero() || !stored.DeletionTimestamp.IsZero() {
		if err := r.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID}); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("bury contract %s: %w", stored.Name, err)
		}
	}
	before := stored.DeepCopy() // not locked: the deletion changed the version
	controllerutil.RemoveFinalizer(stored, v1alpha1.Finalizer)
	return reconcile.Result{}, client.IgnoreNotFound(store.Patch(ctx, r.Client, before, stored))
}

// keep keeps a settled contract for as long as somebody may want to see what was
// owed and why, and of each peer's no more than a few.
func (r *Contracts) keep(ctx context.Context, stored *v1alpha1.Contract) (reconcile.Result, error) {
	all, err := store.ContractsWith(ctx, r.Client, peering.ClusterID(stored.Spec.PeerID), client.UnsafeDisableDeepCopy)
	if err != nil {
		return reconcile.Result{}, err
	}
	drop := tooMany(all)
	left := closedKept - r.Now().Sub(timeOf(stored.Status.ClosedAt))
	if left <= 0 {
		drop = append(drop, stored)
	}
	for _, c := range drop {
		err := r.Client.Delete(ctx, &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: c.Name}}, client.Preconditions{UID: &c.UID})
		if client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, fmt.Errorf("drop contract %s: %w", c.Name, err)
		}
	}
	return reconcile.Result{RequeueAfter: max(left, 0)}, nil
}

// tooMany returns the settled contracts of a peer that are not kept: those that came
// to the least go first, so that many small ones do not make a large one be
// forgotten, and of equals the oldest.
func tooMany(contracts []v1alpha1.Contract) []*v1alpha1.Contract {
	var over []*v1alpha1.Contract
	for i := range contracts {
		if c := &contracts[i]; store.Settled(c) {
			over = append(over, c)
		}
	}
	if len(over) <= maxClosed {
		return nil
	}
	owed := make(map[string]peering.Decimal, len(over))
	for _, c := range over {
		owed[c.Name] = owedBy(c)
	}
	slices.SortFunc(over, func(a, b *v1alpha1.Contract) int {
		return cmp.Or(owed[a.Name].Cmp(owed[b.Name]), timeOf(a.Status.ClosedAt).Compare(timeOf(b.Status.ClosedAt)), cmp.Compare(a.Name, b.Name))
	})
	return over[:len(over)-maxClosed]
}

// owedBy sums up what the statements of a contract come to, in the contract's
// currency.
func owedBy(c *v1alpha1.Contract) peering.Decimal {
	var sum peering.Decimal
	for _, kept := range c.Status.Statements {
		e, err := peering.ParseEnvelope([]byte(kept.Envelope))
		if err != nil {
			continue
		}
		s, err := peering.ParseStatement(e.Payload)
		if err != nil {
			continue
		}
		if total, err := sum.Add(s.Amount.Amount); err == nil {
			sum = total
		}
	}
	return sum
}

// told says whether the peer knows that a contract is over, telling it if it can
// be told now.
func (r *Contracts) told(ctx context.Context, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) bool {
	if store.EndedByPeer(stored) || fc.Spec.Decision == v1alpha1.DecisionDenied {
		return true
	}
	if said := saidOf(fc, stored.Name); said != nil && peering.ParsePhase(said.Phase) == peering.PhaseClosed {
		return true
	}
	if stored.Status.ClosedAt != nil && r.Now().Sub(stored.Status.ClosedAt.Time) > tombstone {
		return true
	}
	return letGo(fc) || r.tell(ctx, stored, fc) == nil
}

// tell tells the peer that this side ended a contract, or ends it.
func (r *Contracts) tell(ctx context.Context, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) error {
	peer := peering.ClusterID(stored.Spec.PeerID)
	if fc == nil || r.asked.slow(peer, r.Now()) {
		return errors.New("the peer is not known any more, or did not answer a moment ago")
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	err := r.Counterpart.Terminate(ctx, peer, stored.Name, stored.Status.Message, timeOf(stored.Status.DrainUntil))
	r.asked.answered(peer, stored.Name, "end", err, r.Now())
	return err
}

// requestWants says whether a PeeringRequest needs a contract that is over: to say why
// it has none, or to know whom not to ask again.
func (r *Contracts) requestWants(ctx context.Context, stored *v1alpha1.Contract, closed time.Duration) (bool, error) {
	if stored.Spec.Role != v1alpha1.ContractConsumer {
		return false, nil
	}
	var list v1alpha1.PeeringRequestList
	if err := r.Client.List(ctx, &list); err != nil {
		return false, fmt.Errorf("list peering requests: %w", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		if string(s.UID) != stored.Spec.RequestID {
			continue
		}
		leaveOut := s.Spec.ClusterSelector != nil && store.EndedByPeer(stored) && closed < market.LeftOut
		return s.DeletionTimestamp.IsZero() && (s.Status.Contract == stored.Name || s.Status.Contract == "" || leaveOut), nil
	}
	return false, nil
}

func timeOf(t *metav1.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.Time
}

// write writes the status, and says whether it did: not if the contract changed
// meanwhile, or is gone.
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

// writeMeasured writes the status, and remembers a reading of the contract's meter
// if it did: what the status was to say of it is said.
func (r *Contracts) writeMeasured(ctx context.Context, before, stored *v1alpha1.Contract, measured *peering.Meter) (bool, error) {
	ok, err := r.write(ctx, before, stored)
	if ok && measured != nil {
		r.meters.note(stored, *measured)
	}
	return ok, err
}

func equalStatus(a, b *v1alpha1.Contract) bool {
	return equality.Semantic.DeepEqual(a.Status, b.Status)
}
