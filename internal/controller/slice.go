package controller

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

const (
	// askTimeout bounds one round of negotiation.
	askTimeout = 10 * time.Second
	// askAgain is how long to wait after a no, askSoon when nobody answered.
	askAgain = 30 * time.Second
	askSoon  = 2 * time.Second
	// backdate is how far a contract begins before it is signed, so that a
	// provider whose clock is a little behind takes it up at once.
	backdate = time.Minute
)

// Provider is what a consumer asks of a provider, over the session.
type Provider interface {
	Request(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (wire.Advertisement, error)
	Sign(ctx context.Context, peer peering.ClusterID, envelope peering.Envelope) (peering.Envelope, error)
	Terminate(ctx context.Context, peer peering.ClusterID, contract, message string) error
}

// Slices turns ResourceSlices into contracts.
type Slices struct {
	Client client.Client
	// Reader reads from the API server itself: a cache that lags would sign twice.
	Reader   client.Reader
	Identity *identity.Identity
	Provider Provider
	Now      func() time.Time
}

// SetupWithManager registers the reconciler.
func (r *Slices) SetupWithManager(mgr ctrl.Manager) error {
	byPeer := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.slicesOf(ctx, func(s *v1alpha1.ResourceSlice) bool { return s.Spec.ForeignCluster == o.GetName() })
	})
	byContract := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.slicesOf(ctx, func(s *v1alpha1.ResourceSlice) bool { return string(s.UID) == o.(*v1alpha1.Contract).Spec.RequestID })
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("slices").
		For(&v1alpha1.ResourceSlice{}).
		Watches(&v1alpha1.ForeignCluster{}, byPeer).
		Watches(&v1alpha1.Contract{}, byContract).
		Complete(r)
}

func (r *Slices) slicesOf(ctx context.Context, match func(*v1alpha1.ResourceSlice) bool) []reconcile.Request {
	var list v1alpha1.ResourceSliceList
	if err := r.Client.List(ctx, &list); err != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if match(&list.Items[i]) {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKey{Name: list.Items[i].Name}})
		}
	}
	return out
}

// Reconcile implements reconcile.Reconciler.
func (r *Slices) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var slice v1alpha1.ResourceSlice
	if err := r.Client.Get(ctx, req.NamespacedName, &slice); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	contract, err := r.contract(ctx, string(slice.UID))
	if err != nil {
		return reconcile.Result{}, err
	}
	if !slice.DeletionTimestamp.IsZero() {
		return r.end(ctx, &slice, contract)
	}
	if controllerutil.AddFinalizer(&slice, v1alpha1.Finalizer) {
		if err := r.Client.Update(ctx, &slice, client.FieldOwner(v1alpha1.Manager)); err != nil {
			return reconcile.Result{}, fmt.Errorf("hold resource slice %s: %w", slice.Name, err)
		}
	}
	before := slice.DeepCopy()
	accepted, after := r.accepted(ctx, &slice, contract)
	accepted.ObservedGeneration = slice.Generation
	meta.SetStatusCondition(&slice.Status.Conditions, accepted)
	if !equality.Semantic.DeepEqual(before.Status, slice.Status) {
		if err := r.Client.Status().Patch(ctx, &slice, client.MergeFrom(before), client.FieldOwner(v1alpha1.Manager)); err != nil {
			return reconcile.Result{}, fmt.Errorf("status of resource slice %s: %w", slice.Name, err)
		}
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// contract returns the newest contract for a request, one in force before one
// that is over; nil if there is none.
func (r *Slices) contract(ctx context.Context, request string) (*v1alpha1.Contract, error) {
	contracts, err := contractsOf(ctx, r.Reader)
	if err != nil {
		return nil, err
	}
	var found *v1alpha1.Contract
	for i := range contracts {
		c := &contracts[i]
		if c.Spec.RequestID != request || c.Spec.Role != v1alpha1.ContractConsumer {
			continue
		}
		if found == nil || (inForce(c) && !inForce(found)) ||
			(inForce(c) == inForce(found) && found.Spec.NotBefore.Before(&c.Spec.NotBefore)) {
			found = c
		}
	}
	return found, nil
}

// accepted makes sure that there is a contract, and says so, or why there is
// none and when to look again.
func (r *Slices) accepted(ctx context.Context, slice *v1alpha1.ResourceSlice, contract *v1alpha1.Contract) (metav1.Condition, time.Duration) {
	no := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason, message)
	}
	if contract != nil && !inForce(contract) && endedByPeer(contract) {
		return no("EndedByProvider", "the provider ended the contract; delete this ResourceSlice, and create another to ask again"), 0
	}
	if contract == nil || !inForce(contract) {
		var err error
		if contract, err = r.ask(ctx, slice); err != nil {
			e := wire.FromStatus(err)
			after := askSoon
			switch e.Reason { //nolint:exhaustive // everything else may be over in a moment
			case wire.ReasonPolicyRefused, wire.ReasonPolicyPending, wire.ReasonCapacityExhausted, wire.ReasonRequestInvalid,
				wire.ReasonPeerUnknown, wire.ReasonPeerNotTrusted, wire.ReasonContractMismatch, wire.ReasonSignatureInvalid:
				after = askAgain
			}
			return no(camel(string(e.Reason)), e.Message), max(after, e.RetryAfter)
		}
	}
	slice.Status.Contract = contract.Name
	slice.Status.Node = contract.Status.Node
	return condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, "Contracted", "contract "+contract.Name+" was signed by both"), 0
}

// endedByPeer says whether the other side ended a contract, however this one
// heard of it: by a call, or by what the peer says over the session.
func endedByPeer(c *v1alpha1.Contract) bool {
	return c.Spec.Termination == v1alpha1.TerminatePeer || c.Status.Message == peering.ReasonEndedByPeer.String()
}

// ask negotiates a contract and stores it. It can be repeated at any point: the
// provider knows the request by the slice's UID.
func (r *Slices) ask(ctx context.Context, slice *v1alpha1.ResourceSlice) (*v1alpha1.Contract, error) {
	var fc v1alpha1.ForeignCluster
	if err := r.Client.Get(ctx, client.ObjectKey{Name: slice.Spec.ForeignCluster}, &fc); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, wire.Errorf(wire.ReasonPeerUnknown, "there is no ForeignCluster %s: join it first", slice.Spec.ForeignCluster)
		}
		return nil, err
	}
	if fc.Spec.TrustBundle == "" {
		return nil, wire.Errorf(wire.ReasonPeerNotTrusted, "ForeignCluster %s is not trusted: join it first", fc.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	peer := peering.ClusterID(fc.Spec.ClusterID)
	resources, err := store.Resources(slice.Spec.Resources)
	if err != nil {
		return nil, wire.Errorf(wire.ReasonRequestInvalid, "spec.resources: %s", err)
	}
	ask := peering.Ask{RequestID: string(slice.UID), Resources: resources, Network: slice.Spec.Network != v1alpha1.NetworkNone}
	if slice.Spec.Duration != nil {
		ask.Duration = slice.Spec.Duration.Duration
	}
	offer, err := r.Provider.Request(ctx, peer, ask)
	if err != nil {
		return nil, err
	}
	if why := unacceptable(ask, offer); why != "" {
		return nil, wire.Errorf(wire.ReasonContractMismatch, "the provider offers something else than was asked for: %s", why)
	}
	envelope, err := r.signed(offer, fc)
	if err != nil {
		return nil, err
	}
	if envelope, err = r.Provider.Sign(ctx, peer, envelope); err != nil {
		return nil, err
	}
	// An envelope that carries our signature is one that we signed: this one, or
	// one of an earlier round whose answer was lost.
	terms, err := envelope.Verify()
	if err != nil {
		return nil, wire.Errorf(wire.ReasonSignatureInvalid, "what the provider returned: %s", err)
	}
	if terms.RequestID != ask.RequestID || terms.Provider.ID != peer {
		return nil, wire.Errorf(wire.ReasonContractMismatch, "the provider returned a contract of another request")
	}
	contract, err := store.NewContract(envelope, r.Identity.ID(), fc.Name)
	if err != nil {
		return nil, err
	}
	err = r.Client.Create(ctx, contract, client.FieldOwner(v1alpha1.Manager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("keep contract %s: %w", contract.Name, err)
	}
	return contract, nil
}

// unacceptable says in what an offer is worse than the ask; empty is in nothing.
func unacceptable(ask peering.Ask, offer wire.Advertisement) string {
	for name, amount := range ask.Resources {
		if got := offer.Grant.Resources[name]; got.Cmp(amount) != 0 {
			return fmt.Sprintf("%s of %s instead of %s", got, name, amount)
		}
	}
	if len(ask.Resources) > 0 && len(offer.Grant.Resources) != len(ask.Resources) {
		return "resources that were not asked for"
	}
	if offer.Grant.Network != ask.Network {
		return "network differs"
	}
	if ask.Duration > 0 && offer.Grant.Duration > ask.Duration {
		return fmt.Sprintf("for %s instead of %s", offer.Grant.Duration, ask.Duration)
	}
	return ""
}

// signed returns the contract that an offer makes, with this cluster's signature.
func (r *Slices) signed(offer wire.Advertisement, fc v1alpha1.ForeignCluster) (peering.Envelope, error) {
	provider, err := identity.ParseBundlePEM(peering.ClusterID(fc.Spec.ClusterID), []byte(fc.Spec.TrustBundle))
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("trust bundle of %s: %w", fc.Name, err)
	}
	begin := r.Now().UTC().Add(-backdate).Truncate(time.Second)
	terms := peering.Terms{
		ContractID: offer.ContractID, RequestID: offer.RequestID, Revision: 1,
		Consumer:  peering.Party{ID: r.Identity.ID(), PublicKey: r.Identity.PublicKey()},
		Provider:  peering.Party{ID: peering.ClusterID(fc.Spec.ClusterID)},
		Resources: offer.Grant.Resources, NotBefore: begin, NotAfter: begin.Add(offer.Grant.Duration),
		Network: offer.Grant.Network, PodSecurity: offer.Grant.PodSecurity, NodeLabels: offer.Grant.NodeLabels,
	}
	for _, root := range provider {
		if peering.ClusterIDOfSPKI(root.RawSubjectPublicKeyInfo) == terms.Provider.ID {
			terms.Provider.PublicKey = root.RawSubjectPublicKeyInfo
		}
	}
	envelope, err := peering.NewEnvelope(terms)
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("contract %s: %w", offer.ContractID, err)
	}
	return envelope.Sign(rand.Reader, r.Identity.Signer())
}

// end ends the contract and waits until this cluster took down what it stood
// for; the provider may be dead.
func (r *Slices) end(ctx context.Context, slice *v1alpha1.ResourceSlice, contract *v1alpha1.Contract) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(slice, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	if contract != nil && inForce(contract) {
		if err := terminate(ctx, r.Client, contract, v1alpha1.TerminateDrain); err != nil {
			return reconcile.Result{}, err
		}
	}
	if contract != nil && (inForce(contract) || contract.Status.Node != "") {
		return reconcile.Result{RequeueAfter: askSoon}, nil
	}
	controllerutil.RemoveFinalizer(slice, v1alpha1.Finalizer)
	if err := r.Client.Update(ctx, slice, client.FieldOwner(v1alpha1.Manager)); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("release resource slice %s: %w", slice.Name, err)
	}
	return reconcile.Result{}, nil
}

// camel turns UPPER_SNAKE into the UpperCamel of Kubernetes' reasons.
func camel(reason string) string {
	out := make([]byte, 0, len(reason))
	upper := true
	for i := range len(reason) {
		b := reason[i]
		switch {
		case b == '_':
			upper = true
			continue
		case !upper && b >= 'A' && b <= 'Z':
			b += 'a' - 'A'
		}
		out = append(out, b)
		upper = false
	}
	return string(out)
}
