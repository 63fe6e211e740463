package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/entente-dev/entente/api/v1alpha1"
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

// Contracts keeps each contract's state, and makes what it wants.
type Contracts struct {
	Client client.Client
	// Reader reads contracts from the API server itself: what a contract stands
	// for is taken down by what its status says stands, so that has to be true.
	Reader   client.Reader
	Self     peering.ClusterID
	Nodes    Nodes
	Lent     Lent
	Provider Provider
	// Wake makes the named Contract be looked at again.
	Wake <-chan event.GenericEvent
	Now  func() time.Time
}

const (
	// usageEvery is how often use is counted while nothing else happens.
	usageEvery = 15 * time.Second
	// endPoll is how often what is being taken down is looked at.
	endPoll = time.Second
	// tellTimeout bounds telling a peer that a contract ended.
	tellTimeout = 5 * time.Second
	// tombstone is how long a closed contract whose peer could not be told is
	// kept, to tell it when it is back.
	tombstone = 7 * 24 * time.Hour
)

// SetupWithManager registers the reconciler.
func (r *Contracts) SetupWithManager(mgr ctrl.Manager) error {
	all := func(match func(c *v1alpha1.Contract, o client.Object) bool) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			contracts, err := contractsOf(ctx, r.Client)
			if err != nil {
				return nil
			}
			var out []reconcile.Request
			for i := range contracts {
				if match(&contracts[i], o) {
					out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: contracts[i].Name}})
				}
			}
			return out
		})
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("contracts").
		For(&v1alpha1.Contract{}).
		Watches(&v1alpha1.ForeignCluster{}, all(func(c *v1alpha1.Contract, o client.Object) bool {
			return c.Spec.PeerID == o.(*v1alpha1.ForeignCluster).Spec.ClusterID
		})).
		Watches(&v1alpha1.ResourceSlice{}, all(func(c *v1alpha1.Contract, o client.Object) bool {
			return c.Spec.RequestID == string(o.GetUID())
		})).
		WatchesRawSource(source.Channel(r.Wake, &handler.EnqueueRequestForObject{})).
		Complete(r)
}

// Reconcile implements reconcile.Reconciler.
func (r *Contracts) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var stored v1alpha1.Contract
	if err := r.Reader.Get(ctx, req.NamespacedName, &stored); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	before := stored.DeepCopy()
	contract, _, err := store.ReadContract(&stored, r.Self)
	if err != nil {
		// Nobody signed this, so it binds nobody; what stands because of it stays
		// until a person looks.
		stored.Status.Message = err.Error()
		return r.write(ctx, before, &stored, time.Minute)
	}
	fc, err := foreignCluster(ctx, r.Client, peering.ClusterID(stored.Spec.PeerID))
	if err != nil {
		return reconcile.Result{}, err
	}
	contract = r.hear(contract, &stored, fc)
	after, err := r.make(ctx, &contract, &stored)
	if err != nil {
		return reconcile.Result{}, err
	}
	stored.Status.Phase = contract.Phase().String()
	if stored.Status.Message == "" || contract.Reason != peering.NoReason {
		stored.Status.Message = contract.Reason.String()
	}
	if !contract.ClosedAt.IsZero() {
		closed := metav1.NewTime(contract.ClosedAt)
		stored.Status.ClosedAt = &closed
	}
	if contract.State == peering.Closed && after == 0 {
		return r.bury(ctx, before, &stored, fc)
	}
	if deadline := contract.Deadline(); !deadline.IsZero() {
		if left := max(deadline.Sub(r.Now()), endPoll); after == 0 || left < after {
			after = left
		}
	}
	return r.write(ctx, before, &stored, after)
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
	case stored.Spec.Termination == v1alpha1.TerminateDrain:
		events = append(events, peering.Terminate{By: c.Role, Mode: peering.Drain, Now: now})
	}
	if fc != nil {
		for _, said := range fc.Status.Contracts {
			if said.ID == stored.Name {
				events = append(events, peering.PeerSaid{Revision: uint64(said.Revision), Phase: peering.ParsePhase(said.Phase), Now: now})
			}
		}
	}
	for _, e := range events {
		// A refusal leaves the contract as it is, which is all there is to do.
		c, _ = c.Apply(e)
	}
	return c
}

// make makes what the contract wants, and says when to look again; 0 is not
// before something changes.
func (r *Contracts) make(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, error) {
	if c.Role == peering.Provider {
		return r.lend(ctx, c, stored)
	}
	return r.consume(ctx, c, stored)
}

func (r *Contracts) consume(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, error) {
	name, err := r.nodeName(ctx, stored)
	if err != nil {
		return 0, err
	}
	spec := NodeSpec{
		Name: name, Contract: stored.Name, Peer: peering.ClusterID(stored.Spec.PeerID),
		Labels: stored.Spec.NodeLabels, Capacity: stored.Spec.Resources, AcceptNew: c.Wants().AcceptNew,
	}
	if c.Wants().Evict {
		if err := r.Nodes.Ensure(ctx, spec); err != nil {
			return 0, fmt.Errorf("virtual node of contract %s: %w", stored.Name, err)
		}
		left, err := r.Nodes.Drain(ctx, stored.Name)
		if err != nil {
			return 0, fmt.Errorf("drain the node of contract %s: %w", stored.Name, err)
		}
		if left == 0 {
			*c, _ = c.Apply(peering.Drained{Now: r.Now()})
		}
	}
	switch wants := c.Wants(); {
	case wants.Node:
		if err := r.Nodes.Ensure(ctx, spec); err != nil {
			return 0, fmt.Errorf("virtual node of contract %s: %w", stored.Name, err)
		}
		stored.Status.Node = name
		r.nodeStatus(stored)
		if wants.Evict {
			return endPoll, nil
		}
		return usageEvery, nil
	case c.State == peering.Closed:
		gone, err := r.Nodes.Remove(ctx, spec)
		if err != nil {
			return 0, fmt.Errorf("remove the node of contract %s: %w", stored.Name, err)
		}
		if !gone {
			return endPoll, nil
		}
		stored.Status.Node, stored.Status.Pods = "", 0
		meta.RemoveStatusCondition(&stored.Status.Conditions, ConditionNodeReady)
	}
	return 0, nil
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

// nodeName returns the virtual node's name: that of the ResourceSlice. Once
// given it stays.
func (r *Contracts) nodeName(ctx context.Context, stored *v1alpha1.Contract) (string, error) {
	if stored.Status.Node != "" {
		return stored.Status.Node, nil
	}
	var list v1alpha1.ResourceSliceList
	if err := r.Client.List(ctx, &list); err != nil {
		return "", fmt.Errorf("list resource slices: %w", err)
	}
	for i := range list.Items {
		if string(list.Items[i].UID) == stored.Spec.RequestID {
			return list.Items[i].Name, nil
		}
	}
	return stored.Name, nil
}

func (r *Contracts) lend(ctx context.Context, c *peering.Contract, stored *v1alpha1.Contract) (time.Duration, error) {
	if c.State == peering.Closed {
		gone, err := r.Lent.Close(ctx, stored)
		if err != nil {
			return 0, fmt.Errorf("close contract %s: %w", stored.Name, err)
		}
		stored.Status.Used, stored.Status.Pods = nil, 0
		if !gone {
			return endPoll, nil
		}
		return 0, nil
	}
	used, pods, err := r.Lent.Usage(ctx, stored.Name)
	if err != nil {
		return 0, fmt.Errorf("use of contract %s: %w", stored.Name, err)
	}
	stored.Status.Used, stored.Status.Pods = used, int32(min(pods, 1<<30))
	if c.State == peering.Draining && pods == 0 {
		*c, _ = c.Apply(peering.Drained{Now: r.Now()})
		return endPoll, nil
	}
	return usageEvery, nil
}

// bury lets a closed contract go, once nothing stands because of it and the peer
// knows, or cannot be told. At the consumer it stays as long as its
// ResourceSlice does, to say why that has none.
func (r *Contracts) bury(ctx context.Context, before, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) (reconcile.Result, error) {
	if result, err := r.write(ctx, before, stored, 0); err != nil {
		return result, err
	}
	if fc != nil && !r.told(ctx, stored, fc) {
		return reconcile.Result{RequeueAfter: usageEvery}, nil
	}
	if wanted, err := r.sliceWants(ctx, stored); err != nil || wanted {
		return reconcile.Result{RequeueAfter: usageEvery}, err
	}
	if err := r.Client.Delete(ctx, stored, client.Preconditions{UID: &stored.UID}); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("bury contract %s: %w", stored.Name, err)
	}
	controllerutil.RemoveFinalizer(stored, v1alpha1.Finalizer)
	stored.ResourceVersion = "" // the delete changed it; only the finalizer is ours to drop
	patch := []byte(`{"metadata":{"finalizers":null}}`)
	err := r.Client.Patch(ctx, stored, client.RawPatch("application/merge-patch+json", patch), client.FieldOwner(v1alpha1.Manager))
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("bury contract %s: %w", stored.Name, err)
	}
	return reconcile.Result{}, nil
}

// told says whether the peer knows that a contract is over, telling it if it can
// be told now.
func (r *Contracts) told(ctx context.Context, stored *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) bool {
	if endedByPeer(stored) {
		return true
	}
	for _, said := range fc.Status.Contracts {
		if said.ID == stored.Name && peering.ParsePhase(said.Phase) == peering.PhaseClosed {
			return true
		}
	}
	if stored.Status.ClosedAt != nil && r.Now().Sub(stored.Status.ClosedAt.Time) > tombstone {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	err := r.Provider.Terminate(ctx, peering.ClusterID(stored.Spec.PeerID), stored.Name, stored.Status.Message)
	// A peer that is being forgotten is told as well as can be.
	return err == nil || !fc.DeletionTimestamp.IsZero()
}

func (r *Contracts) sliceWants(ctx context.Context, stored *v1alpha1.Contract) (bool, error) {
	if stored.Spec.Role != v1alpha1.ContractConsumer {
		return false, nil
	}
	var list v1alpha1.ResourceSliceList
	if err := r.Client.List(ctx, &list); err != nil {
		return false, fmt.Errorf("list resource slices: %w", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		if string(s.UID) == stored.Spec.RequestID {
			return s.DeletionTimestamp.IsZero() && (s.Status.Contract == stored.Name || s.Status.Contract == ""), nil
		}
	}
	return false, nil
}

func (r *Contracts) write(ctx context.Context, before, stored *v1alpha1.Contract, after time.Duration) (reconcile.Result, error) {
	if !equality.Semantic.DeepEqual(before.Status, stored.Status) {
		patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
		if err := r.Client.Status().Patch(ctx, stored, patch, client.FieldOwner(v1alpha1.Manager)); err != nil {
			if apierrors.IsConflict(err) {
				return reconcile.Result{RequeueAfter: endPoll}, nil
			}
			if apierrors.IsNotFound(err) {
				return reconcile.Result{}, nil
			}
			return reconcile.Result{}, fmt.Errorf("status of contract %s: %w", stored.Name, err)
		}
	}
	return reconcile.Result{RequeueAfter: after}, nil
}
