package controller

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

const (
	// askTimeout bounds one round of negotiation.
	askTimeout = 10 * time.Second
	// askAgain is how long to wait after a refusal, askSoon after no response.
	askAgain = 30 * time.Second
	askSoon  = 2 * time.Second
	// previewTimeout bounds asking one of several providers what it offers.
	previewTimeout = 5 * time.Second
)

// Provider is the calls of a consumer to a provider, over the session.
type Provider interface {
	// Request asks what the provider offers, which it reserves for a moment.
	Request(ctx context.Context, ask peering.Ask) (peering.Advertisement, error)
	// Preview asks the same, and reserves nothing.
	Preview(ctx context.Context, ask peering.Ask) (peering.Advertisement, error)
	// Sign sends a contract that this cluster signed, and returns it signed by both.
	Sign(ctx context.Context, envelope peering.Envelope) (peering.Envelope, error)
}

// Requests turns PeeringRequests into contracts, and keeps them as the requests ask.
type Requests struct {
	Client client.Client
	// Reader reads from the API server itself: with a stale cache it would sign twice.
	Reader client.Reader
	// Identity is this cluster's current identity.
	Identity func() *identity.Identity
	// Provider calls a peer.
	Provider func(peer peering.ClusterID) Provider
	// Events records the outcome of a request; nil records nothing.
	Events events.EventRecorder
	Now    func() time.Time
}

// SetupWithManager registers the reconciler.
func (r *Requests) SetupWithManager(mgr ctrl.Manager) error {
	byPeer := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.requestsOf(ctx, func(s *v1alpha1.PeeringRequest) bool { return asks(s, o) })
	})
	byName := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.requestsOf(ctx, func(s *v1alpha1.PeeringRequest) bool { return s.Spec.ForeignCluster == o.GetName() })
	})
	byContract := handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		return r.requestsOf(ctx, func(s *v1alpha1.PeeringRequest) bool { return string(s.UID) == o.(*v1alpha1.Contract).Spec.RequestID })
	})
	return ctrl.NewControllerManagedBy(mgr).
		Named("slices").
		// An annotation lists the providers not to ask.
		For(&v1alpha1.PeeringRequest{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&v1alpha1.ForeignCluster{}, byPeer, kube.Updates(mayChangeRequests)).
		Watches(&v1alpha1.ForeignCluster{}, byName, kube.Updates(offerMessageChanged)).
		Watches(&v1alpha1.Contract{}, byContract, kube.Updates(func(a, b *v1alpha1.Contract) bool {
			return a.Generation != b.Generation || a.Status.Phase != b.Status.Phase || a.Status.Reason != b.Status.Reason || a.Status.Node != b.Status.Node
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: contractWorkers}).
		Complete(r)
}

// asks reports whether a PeeringRequest may ask a ForeignCluster.
func asks(s *v1alpha1.PeeringRequest, fc client.Object) bool {
	if s.Spec.ClusterSelector == nil {
		return s.Spec.ForeignCluster == fc.GetName()
	}
	selector, err := metav1.LabelSelectorAsSelector(s.Spec.ClusterSelector)
	return err == nil && (selector.Matches(labels.Set(fc.GetLabels())) || s.Status.ForeignCluster == fc.GetName())
}

// mayChangeRequests reports whether a change of a ForeignCluster may change the outcome of an ask. Most of its
// status changes with every state of the peer.
func mayChangeRequests(a, b *v1alpha1.ForeignCluster) bool {
	return a.Generation != b.Generation || !equality.Semantic.DeepEqual(a.Labels, b.Labels) ||
		(market.Unusable(a) == "") != (market.Unusable(b) == "") || !slices.Equal(a.Status.Offer.OfferedPools(), b.Status.Offer.OfferedPools())
}

// offerMessageChanged reports whether a peer changed the message of its offer, as it does when an administrator
// there decided about a request. Only requests that name that peer are reconciled: a peer cannot make this cluster
// ask others.
func offerMessageChanged(before, after *v1alpha1.ForeignCluster) bool {
	a, b := before.Status.Offer, after.Status.Offer
	return a != nil && b != nil && a.Message != b.Message
}

func (r *Requests) requestsOf(ctx context.Context, match func(*v1alpha1.PeeringRequest) bool) []reconcile.Request {
	var list v1alpha1.PeeringRequestList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil { // match only reads
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
func (r *Requests) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var request v1alpha1.PeeringRequest
	if err := r.Reader.Get(ctx, req.NamespacedName, &request); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	contracts, err := requestContracts(ctx, r.Reader, string(request.UID))
	if err != nil {
		return reconcile.Result{}, err
	}
	if !request.DeletionTimestamp.IsZero() {
		return r.end(ctx, &request, contracts)
	}
	if err := store.AddFinalizer(ctx, r.Client, &request); err != nil {
		return reconcile.Result{}, fmt.Errorf("add the finalizer of peering request %s: %w", request.Name, err)
	}
	edit := &requestEdit{client: r.Client, written: request.DeepCopy(), PeeringRequest: &request}
	after := r.converge(ctx, edit, contracts)
	before := edit.written
	if err := edit.write(ctx); err != nil {
		return reconcile.Result{}, err
	}
	record(r.Events, &request, requestEvents(before, &request))
	return reconcile.Result{RequeueAfter: after}, nil
}

// requestEdit is a PeeringRequest whose status is changed in memory before it is written.
type requestEdit struct {
	*v1alpha1.PeeringRequest
	client client.Client
	// written is the request as it is stored.
	written *v1alpha1.PeeringRequest
}

func (e *requestEdit) write(ctx context.Context) error {
	err := store.PatchStatus(ctx, e.client, e.written, e.PeeringRequest)
	if err == nil {
		e.written = e.DeepCopy()
	}
	return err
}

func (e *requestEdit) setCondition(c metav1.Condition) {
	c.ObservedGeneration = e.Generation
	meta.SetStatusCondition(&e.Status.Conditions, c)
}

// requestContracts returns a request's contracts: first those that are not closed, then those that are over, each
// newest first.
func requestContracts(ctx context.Context, reader client.Reader, request string) ([]*v1alpha1.Contract, error) {
	var all v1alpha1.ContractList
	if err := reader.List(ctx, &all); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	var found []*v1alpha1.Contract
	for i := range all.Items {
		if c := &all.Items[i]; c.Spec.RequestID == request && c.Spec.Role == v1alpha1.ContractConsumer {
			found = append(found, c)
		}
	}
	sortContracts(found)
	return found, nil
}

// converge carries out the plan for a PeeringRequest, records the outcome in its status, and
// returns when to reconcile again.
func (r *Requests) converge(ctx context.Context, request *requestEdit, contracts []*v1alpha1.Contract) time.Duration {
	current, gone, err := r.current(ctx, contracts)
	if err != nil {
		request.setCondition(store.Condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, "ContractInvalid", err.Error()))
		return askAgain
	}
	plan := planRequest(request.PeeringRequest, current, gone, remainingNode(contracts), r.Now())
	accepted, after := plan.accepted, plan.after
	switch plan.course {
	case courseKeep:
	case courseAsk:
		if current, err = r.ask(ctx, request, contracts); err != nil {
			accepted, after = refused(err, ""), retryAfter(err)
			break
		}
		accepted = store.Condition(v1alpha1.ConditionAccepted, metav1.ConditionTrue, reasonContracted, "contract "+current.stored.Name+" was signed by both")
		meta.RemoveStatusCondition(&request.Status.Conditions, conditionRenewed)
	case courseAmend:
		err := r.revise(ctx, request.PeeringRequest, current, courseAmend)
		if err == nil {
			after = max(peering.RenewAt(current.state).Sub(r.Now()), askSoon)
			break
		}
		accepted, after = refused(err, fmt.Sprintf("contract %s goes on as it is; the change of spec was not accepted: ", current.stored.Name)), retryAfter(err)
		// It is renewed although it cannot be changed.
		if plan.renewal && current.terms.Renewable {
			after = min(after, r.renew(ctx, request, current))
		}
	case courseRenew:
		after = r.renew(ctx, request, current)
	}
	if plan.renewal && !current.terms.Renewable {
		request.setCondition(store.Condition(conditionRenewed, metav1.ConditionFalse, "NotRenewable", fmt.Sprintf(
			"the provider does not renew contract %s, which ends at %s; another is asked for then", current.stored.Name, current.terms.NotAfter.Format(time.RFC3339))))
	}
	request.setCondition(accepted)
	if current != nil && !store.Closed(current.stored) {
		request.Status.Contract, request.Status.ForeignCluster = current.stored.Name, current.stored.Spec.ForeignCluster
		request.Status.Node = current.stored.Status.Node
		request.Status.Agreed = &v1alpha1.AgreedPrice{ClusterID: current.stored.Spec.PeerID, Price: current.stored.Spec.Price}
		request.Status.ObservedGeneration = store.Fulfils(current.stored).Generation
	}
	return after
}

// remainingNode names the virtual node of a contract that is over; empty if there is none.
// The next contract's node has the same name.
func remainingNode(contracts []*v1alpha1.Contract) string {
	for _, c := range contracts {
		if store.Closed(c) && c.Status.Node != "" {
			return c.Status.Node
		}
	}
	return ""
}

// current returns the contract of a request that counts, or nil, and whether its ForeignCluster is gone or being
// deleted.
func (r *Requests) current(ctx context.Context, contracts []*v1alpha1.Contract) (*currentContract, bool, error) {
	if len(contracts) == 0 {
		return nil, false, nil
	}
	h, err := r.readCurrent(contracts[0])
	if err != nil {
		return nil, false, err
	}
	fc, err := store.Cached(ctx, r.Client, peering.ClusterID(h.stored.Spec.PeerID))
	return h, fc == nil || !fc.DeletionTimestamp.IsZero(), err
}

func (r *Requests) readCurrent(stored *v1alpha1.Contract) (*currentContract, error) {
	state, terms, err := store.ReadContract(stored, r.Identity().ID())
	return &currentContract{stored: stored, state: state, terms: terms}, err
}

// refused returns the condition that there is no contract as asked for, and why.
func refused(err error, context string) metav1.Condition {
	e := peering.AsError(err)
	return store.Condition(v1alpha1.ConditionAccepted, metav1.ConditionFalse, e.Reason.Condition(), context+e.Error())
}

// retryAfter is how long to wait after an ask failed.
func retryAfter(err error) time.Duration {
	e := peering.AsError(err)
	switch {
	case e.Reason == peering.ReasonPolicyPending && e.RetryAfter > 0:
		return max(askSoon, e.RetryAfter) // an administrator there decides soon
	case e.Reason == peering.ReasonContractClosed && e.RetryAfter > 0:
		return max(askSoon, e.RetryAfter) // the provider learns soon that the contract before is over
	case definite(e):
		return max(askAgain, e.RetryAfter)
	}
	return max(askSoon, e.RetryAfter)
}

// definite reports whether an ask was refused, so that nothing was signed. Any other error may be temporary, and
// may have occurred after the provider signed.
func definite(e *peering.Error) bool {
	switch e.Reason { //nolint:exhaustive // see above
	case peering.ReasonPolicyRefused, peering.ReasonPolicyPending, peering.ReasonPriceAboveCeiling, peering.ReasonCapacityExhausted,
		peering.ReasonRequestInvalid, peering.ReasonPeerUnknown, peering.ReasonPeerNotTrusted, peering.ReasonTrustDenied,
		peering.ReasonContractMismatch, peering.ReasonSignatureInvalid, peering.ReasonContractClosed, peering.ReasonContractUnknown:
		return true
	}
	return false
}

// ask negotiates a contract and stores it. It can be repeated at any point: a provider knows the request by its
// UID. Among several providers, the one that is about to sign is first recorded in the request's status: if its
// response is lost it is asked again before any other, since it may have signed.
func (r *Requests) ask(ctx context.Context, request *requestEdit, contracts []*v1alpha1.Contract) (*currentContract, error) {
	var h *currentContract
	err := r.tryProviders(ctx, request.PeeringRequest, contracts, func(ctx context.Context, fc *v1alpha1.ForeignCluster, ask peering.Ask) (err error) {
		h, err = r.contract(ctx, request.PeeringRequest, fc, ask, func(ctx context.Context) error {
			if request.Spec.ClusterSelector == nil {
				return nil
			}
			request.Status.ForeignCluster, request.Status.Contract, request.Status.Node = fc.Name, "", ""
			return request.write(ctx)
		})
		return err
	})
	return h, err
}

// tryProviders tries the providers that a PeeringRequest may ask, in order, until try
// succeeds with one or fails with an error that may be temporary.
func (r *Requests) tryProviders(
	ctx context.Context, request *v1alpha1.PeeringRequest, contracts []*v1alpha1.Contract, try func(context.Context, *v1alpha1.ForeignCluster, peering.Ask) error,
) error {
	ask, err := market.AskOf(request)
	if err != nil {
		return err
	}
	if request.Spec.ClusterSelector != nil {
		return r.trySelected(ctx, request, ask, contracts, try)
	}
	var fc v1alpha1.ForeignCluster
	if err := r.Client.Get(ctx, client.ObjectKey{Name: request.Spec.ForeignCluster}, &fc); err != nil {
		if apierrors.IsNotFound(err) {
			return r.unknown(ctx, request.Spec.ForeignCluster)
		}
		return err
	}
	if fc.Spec.TrustBundle == "" || !fc.DeletionTimestamp.IsZero() {
		return peering.Errorf(peering.ReasonPeerNotTrusted, "ForeignCluster %s is not trusted: join it first", fc.Name)
	}
	return try(ctx, &fc, ask)
}

// unknown returns the error that there is no ForeignCluster of a name. If discovery used that name for a cluster
// that is trusted by now, the error has its new name.
func (r *Requests) unknown(ctx context.Context, name string) error {
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil { // they are only read
		return fmt.Errorf("list foreign clusters: %w", err)
	}
	for i := range list.Items {
		fc := &list.Items[i]
		if fc.Spec.TrustBundle != "" && fc.DeletionTimestamp.IsZero() && store.HintName(name, peering.ClusterID(fc.Spec.ClusterID)) {
			return peering.Errorf(peering.ReasonPeerUnknown, "%s was what discovery called a cluster that is trusted now, as %s: delete this PeeringRequest, and create another that asks %s", name, fc.Name, fc.Name)
		}
	}
	return peering.Errorf(peering.ReasonPeerUnknown, "there is no ForeignCluster %s: join it first", name)
}

// trySelected tries the providers that spec.clusterSelector selects and that grant what is asked for, cheapest
// first. One that may have signed already is tried before them.
func (r *Requests) trySelected(
	ctx context.Context, request *v1alpha1.PeeringRequest, ask peering.Ask, contracts []*v1alpha1.Contract, try func(context.Context, *v1alpha1.ForeignCluster, peering.Ask) error,
) error {
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("list foreign clusters: %w", err)
	}
	peers, not := market.Eligible(request, list.Items, contracts, r.Now())
	if request.Status.Contract == "" && request.Status.ForeignCluster != "" {
		for _, fc := range peers {
			if fc.Name != request.Status.ForeignCluster {
				continue
			}
			if err := try(ctx, fc, ask); err == nil || !definite(peering.AsError(err)) {
				return err
			}
		}
	}
	ordered, refusals, dear := r.compare(ctx, request, peers, ask)
	for _, fc := range ordered {
		err := try(ctx, fc, ask)
		if err == nil || !definite(peering.AsError(err)) {
			return err
		}
		refusals = append(refusals, fc.Name+": "+peering.AsError(err).Error())
		if peering.ReasonOf(err) == peering.ReasonPriceAboveCeiling {
			dear++
		}
	}
	request.Status.ForeignCluster = ""
	return market.NoneGrants(request, len(peers), dear, refusals, not)
}

// compare asks several providers concurrently what they offer. It returns those that grant what is asked
// for, cheapest first, why the others do not, and how many of these cost more than the ceiling.
func (r *Requests) compare(ctx context.Context, request *v1alpha1.PeeringRequest, peers []*v1alpha1.ForeignCluster, ask peering.Ask) (ordered []*v1alpha1.ForeignCluster, no []string, dear int) {
	type previewResult struct {
		hourly peering.Money
		no     string
		dear   bool
	}
	results := make([]previewResult, len(peers))
	var group errgroup.Group
	group.SetLimit(maxPreviews)
	for i, fc := range peers {
		group.Go(func() error {
			offer, err := r.quote(ctx, request, fc, ask, nil, previewTimeout)
			if err != nil {
				results[i].no, results[i].dear = peering.AsError(err).Error(), peering.ReasonOf(err) == peering.ReasonPriceAboveCeiling
				return nil
			}
			if results[i].hourly, err = offer.Price.Hourly(offer.Resources); err != nil {
				results[i].no = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() // each keeps its own error
	var would []*v1alpha1.ForeignCluster
	var candidates []market.Candidate
	for i, fc := range peers {
		if results[i].dear {
			dear++
		}
		if results[i].no != "" {
			no = append(no, fc.Name+": "+results[i].no)
			continue
		}
		c := market.Candidate{Peer: peering.ClusterID(fc.Spec.ClusterID), Hourly: results[i].hourly}
		if s := fc.Status.Session; s != nil && s.RoundTrip != nil {
			c.RoundTrip = s.RoundTrip.Duration
		}
		would, candidates = append(would, fc), append(candidates, c)
	}
	ordered = make([]*v1alpha1.ForeignCluster, 0, len(would))
	for _, i := range market.Cheapest(candidates, ask.PriceCeiling.Currency) {
		ordered = append(ordered, would[i])
	}
	return ordered, no, dear
}

// contract makes a contract with one provider and stores it. commit is called before this side's signature is sent
// to the provider.
func (r *Requests) contract(
	ctx context.Context, request *v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster, ask peering.Ask, commit func(context.Context) error,
) (*currentContract, error) {
	envelope, fulfils, err := r.agree(ctx, request, fc, ask, nil, commit)
	if err != nil {
		return nil, err
	}
	contract, err := store.NewContract(envelope, r.Identity().ID(), fc.Name)
	if err != nil {
		return nil, err
	}
	if err := store.SetFulfils(contract, fulfils); err != nil {
		return nil, err
	}
	err = r.Client.Create(ctx, contract, client.FieldOwner(v1alpha1.Manager))
	if apierrors.IsAlreadyExists(err) {
		return r.storedMeanwhile(ctx, contract)
	}
	if err != nil {
		return nil, fmt.Errorf("keep contract %s: %w", contract.Name, err)
	}
	return r.readCurrent(contract)
}

// storedMeanwhile returns the contract that was stored under the name of one that was just signed, if it is the
// same: it was adopted as an orphan.
func (r *Requests) storedMeanwhile(ctx context.Context, signed *v1alpha1.Contract) (*currentContract, error) {
	var stored v1alpha1.Contract
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(signed), &stored); err != nil {
		return nil, fmt.Errorf("read contract %s: %w", signed.Name, err)
	}
	err := takenID(&stored, signed.Spec.PeerID, signed.Spec.RequestID)
	if err == nil && stored.Spec.Revision <= signed.Spec.Revision && stored.Spec.Envelope != signed.Spec.Envelope {
		err = peering.Errorf(peering.ReasonContractMismatch, "this cluster has another contract %s with the same provider: end it to ask for one again", stored.Name)
	}
	if err != nil {
		return nil, peering.Errorf(peering.ReasonResponseInvalid, "the contract was signed and cannot be stored: %s", err)
	}
	return r.readCurrent(&stored)
}

// checkUntaken returns an error if this cluster has a contract with the ID of an offer for a first revision. A
// provider chooses IDs, and must not use one twice: the second contract could not be stored.
func (r *Requests) checkUntaken(ctx context.Context, offer peering.Advertisement, peer peering.ClusterID) error {
	var stored v1alpha1.Contract
	err := r.Reader.Get(ctx, client.ObjectKey{Name: offer.ContractID}, &stored)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read contract %s: %w", offer.ContractID, err)
	}
	return takenID(&stored, string(peer), offer.RequestID)
}

// takenID returns why a peer cannot name a contract for a request as the stored one; nil if the stored one is that
// contract, and is not over.
func takenID(stored *v1alpha1.Contract, peer, request string) error {
	taken := func(by string) error {
		return peering.Errorf(peering.ReasonContractMismatch, "the provider names the contract %s, as %s is named here: tell its administrators that each contract needs an ID of its own, "+
			"or ask another provider", stored.Name, by)
	}
	switch {
	case stored.Spec.PeerID != peer:
		return taken("one with another peer")
	case stored.Spec.Role != v1alpha1.ContractConsumer:
		return taken("one by which this cluster provides")
	case stored.Spec.RequestID != request:
		return taken("one of another PeeringRequest")
	case store.Released(stored):
		return peering.Errorf(peering.ReasonContractClosed, "the provider offers contract %s again, which is over: it is asked for another until it offers one", stored.Name)
	case store.Closed(stored):
		return &peering.Error{Reason: peering.ReasonContractClosed, RetryAfter: askSoon, Message: fmt.Sprintf(
			"contract %s is over, and the provider does not know that yet: it is asked for another in a moment", stored.Name)}
	}
	return nil
}

// agree negotiates a contract, or the next revision of the current one, and returns it signed by both, with the
// part of the request that it fulfils.
func (r *Requests) agree(
	ctx context.Context, request *v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster, ask peering.Ask, current *currentContract, commit func(context.Context) error,
) (signed peering.Envelope, fulfils store.Fulfilment, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	peer, self := peering.ClusterID(fc.Spec.ClusterID), r.Identity()
	offer, envelope, err := r.draft(ctx, request, fc, ask, current, r.Provider(peer).Request)
	if err != nil {
		return signed, fulfils, err
	}
	if current == nil {
		if err := r.checkUntaken(ctx, offer, peer); err != nil {
			return signed, fulfils, err
		}
	}
	if envelope, err = envelope.Sign(rand.Reader, self.ID(), self.Signer()); err != nil {
		return signed, fulfils, fmt.Errorf("sign contract %s: %w", offer.ContractID, err)
	}
	if err := commit(ctx); err != nil {
		return signed, fulfils, err
	}
	if signed, err = r.Provider(peer).Sign(ctx, envelope); err != nil {
		return signed, fulfils, err
	}
	// An envelope with this cluster's signature is one that it signed: this one, or one of an earlier round whose
	// response was lost.
	terms, err := signed.Verify()
	if err != nil {
		return signed, fulfils, peering.Errorf(peering.ReasonResponseInvalid, "what the provider returned: %s", err)
	}
	if terms.RequestID != ask.RequestID || terms.Provider.ID != peer || terms.Consumer.ID != self.ID() || terms.ContractID != offer.ContractID {
		return signed, fulfils, peering.Errorf(peering.ReasonResponseInvalid, "the provider returned a contract of another request")
	}
	got := peering.Grant{Clauses: terms.Clauses, Duration: terms.NotAfter.Sub(terms.NotBefore), StorageClasses: offer.StorageClasses}
	if signed.Hash() != envelope.Hash() && market.Worse(ask, got, nil) != "" {
		return signed, fulfils, nil // of an earlier spec: the next revision corrects it
	}
	return signed, store.Fulfilment{Generation: request.Generation, Duration: ask.Duration}, nil
}

// draft calls a provider for an offer, and makes it the contract, or the next revision of the current one, that
// this cluster would sign. The error is why it would not sign.
func (r *Requests) draft(
	ctx context.Context, request *v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster, ask peering.Ask, current *currentContract,
	call func(context.Context, peering.Ask) (peering.Advertisement, error),
) (offer peering.Advertisement, envelope peering.Envelope, err error) {
	peer := peering.ClusterID(fc.Spec.ClusterID)
	bundle, err := identity.ReadBundlePEM(peer, []byte(fc.Spec.TrustBundle))
	if err != nil {
		return offer, envelope, fmt.Errorf("trust bundle of %s: %w", fc.Name, err)
	}
	if offer, err = call(ctx, ask); err != nil {
		return offer, envelope, asUnreachable(err)
	}
	before := market.AgreedBefore(request, fc)
	if current != nil {
		before = market.Agreed{Contract: &current.terms, Price: &current.terms.Price}
		if offer.Revision != current.state.Revision+1 || offer.PreviousHash != current.state.Hash {
			return offer, envelope, peering.Errorf(peering.ReasonRevisionStale, "the provider offers revision %d and this cluster has revision %d: they agree on the newest first", offer.Revision, current.state.Revision)
		}
	}
	if err := market.Unacceptable(ask, offer, before, r.Now()); err != nil {
		return offer, envelope, err
	}
	terms := market.TermsOf(offer, r.Identity().Party(), bundle.Party(peer), r.Now())
	if terms.ContractID == "" { // a preview names none
		terms.ContractID = cmp.Or(ask.ContractID, "preview")
	}
	if envelope, err = peering.NewEnvelope(terms); err != nil {
		return offer, envelope, peering.Errorf(peering.ReasonContractMismatch, "the offer does not make a contract: %s", err)
	}
	return offer, envelope, nil
}

// nextRevision returns the provider of the current contract, and what to ask it for.
func (r *Requests) nextRevision(ctx context.Context, request *v1alpha1.PeeringRequest, current *currentContract, why course) (*v1alpha1.ForeignCluster, peering.Ask, error) {
	ask, err := market.AskOf(request)
	if err != nil {
		return nil, peering.Ask{}, err
	}
	fc, err := store.Cached(ctx, r.Client, peering.ClusterID(current.stored.Spec.PeerID))
	if err != nil {
		return nil, peering.Ask{}, err
	}
	if fc == nil || fc.Spec.TrustBundle == "" {
		return nil, peering.Ask{}, peering.Errorf(peering.ReasonPeerNotTrusted, "the provider of contract %s is not trusted any more", current.stored.Name)
	}
	return fc, nextAsk(ask, request, current, why, r.Now()), nil
}

// revise makes the next revision of the current contract and stores it.
func (r *Requests) revise(ctx context.Context, request *v1alpha1.PeeringRequest, current *currentContract, why course) error {
	fc, ask, err := r.nextRevision(ctx, request, current, why)
	if err != nil {
		return err
	}
	envelope, fulfils, err := r.agree(ctx, request, fc, ask, current, func(context.Context) error { return nil })
	if err != nil {
		return err
	}
	if fulfils.Duration = market.DurationOf(request); why == courseRenew {
		// A renewal changes the end alone, also where the spec changed meanwhile.
		fulfils = store.Fulfils(current.stored)
	}
	terms, err := envelope.Verify()
	if err != nil {
		return err
	}
	if _, err := current.state.Apply(peering.Countersigned{Role: peering.Consumer, Terms: terms, Hash: envelope.Hash(), Now: r.Now()}); err != nil {
		return peering.Errorf(peering.ReasonResponseInvalid, "what the provider returned: %s", err)
	}
	revised, err := replaceRevision(ctx, r.Client, r.Reader, current.stored, envelope, r.Identity().ID(), &fulfils)
	if err != nil {
		return err
	}
	record(r.Events, revised, amended(revised))
	next, err := r.readCurrent(revised)
	if err != nil {
		return err
	}
	*current = *next
	return nil
}

// replaceRevision stores a later revision of a contract by compare-and-swap: if the contract was revised meanwhile,
// to this revision or a later one, it stays as it is. fulfils is recorded with it unless it is nil.
func replaceRevision(
	ctx context.Context, c client.Client, reader client.Reader, stored *v1alpha1.Contract, envelope peering.Envelope, self peering.ClusterID, fulfils *store.Fulfilment,
) (*v1alpha1.Contract, error) {
	terms, err := envelope.Verify()
	if err != nil {
		return nil, err
	}
	current := stored.DeepCopy()
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := reader.Get(ctx, client.ObjectKeyFromObject(stored), current); err != nil {
			return err
		}
		if current.UID != stored.UID {
			return errors.New("another contract took its name")
		}
		if uint64(current.Spec.Revision) >= terms.Revision {
			return nil
		}
		if err := store.Revise(current, envelope, self); err != nil {
			return err
		}
		if fulfils != nil {
			if err := store.SetFulfils(current, *fulfils); err != nil {
				return err
			}
		}
		return c.Update(ctx, current, client.FieldOwner(v1alpha1.Manager))
	})
	if err != nil {
		return nil, fmt.Errorf("keep revision %d of contract %s: %w", terms.Revision, stored.Name, err)
	}
	return current, nil
}

// renew asks for a later end of the current contract, records the outcome, and returns when to reconcile again.
func (r *Requests) renew(ctx context.Context, request *requestEdit, current *currentContract) time.Duration {
	until := current.terms.NotAfter
	err := r.revise(ctx, request.PeeringRequest, current, courseRenew)
	if err == nil {
		request.setCondition(store.Condition(conditionRenewed, metav1.ConditionTrue, "Renewed", fmt.Sprintf(
			"contract %s was renewed until %s, at %s", current.stored.Name, current.terms.NotAfter.Format(time.RFC3339), priceText(current.terms))))
		return max(peering.RenewAt(current.state).Sub(r.Now()), askSoon)
	}
	e := peering.AsError(err)
	request.setCondition(store.Condition(conditionRenewed, metav1.ConditionFalse, e.Reason.Condition(), fmt.Sprintf(
		"contract %s ends at %s and was not renewed: %s", current.stored.Name, until.Format(time.RFC3339), e.Error())))
	// A short contract leaves little time to ask again.
	return min(retryAfter(err), max(until.Sub(r.Now())/4, askSoon))
}

// priceText formats what a contract costs an hour.
func priceText(t peering.Terms) string {
	hourly, err := t.Price.Hourly(t.Resources)
	switch {
	case err != nil:
		return "a price that cannot be computed"
	case hourly.Amount.IsZero():
		return "no cost"
	}
	return hourly.String() + " an hour"
}

// end ends the contract and waits until what existed here because of it is removed; the provider may be dead.
func (r *Requests) end(ctx context.Context, request *v1alpha1.PeeringRequest, contracts []*v1alpha1.Contract) (reconcile.Result, error) {
	if !controllerutil.ContainsFinalizer(request, v1alpha1.Finalizer) {
		return reconcile.Result{}, nil
	}
	remains := false
	for _, c := range contracts {
		if !store.Closed(c) {
			if err := terminate(ctx, r.Client, c, v1alpha1.TerminateDrain); err != nil {
				return reconcile.Result{}, err
			}
		}
		remains = remains || !store.Closed(c) || c.Status.Node != ""
	}
	if remains {
		return reconcile.Result{RequeueAfter: askSoon}, nil
	}
	if err := store.RemoveFinalizer(ctx, r.Client, request); err != nil {
		return reconcile.Result{}, fmt.Errorf("remove the finalizer of peering request %s: %w", request.Name, err)
	}
	return reconcile.Result{}, nil
}
