package controller

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

const (
	// orphanAge is how long a provider has to report a contract that this cluster does not have before it counts as
	// an orphan: one that is being signed, or was just deleted, is not.
	orphanAge = 10 * time.Second
	// orphanAgain is how often orphans are checked.
	orphanAgain = 30 * time.Second
)

// Orphans resolves contracts that a provider reports with this cluster as consumer, and that this cluster does not
// have: the response to its signature was lost, and its PeeringRequest changed before it asked again. Such a
// contract is adopted if its PeeringRequest still wants one, and otherwise ended.
type Orphans struct {
	Client client.Client
	// Reader reads from the API server itself.
	Reader      client.Reader
	Self        peering.ClusterID
	Counterpart func(peer peering.ClusterID) Counterpart
	Now         func() time.Time

	// seen is when each was first reported. After a restart the provider reports them again.
	seen map[string]time.Time
}

// SetupWithManager registers the reconciler.
func (r *Orphans) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		Named("orphans").
		For(&v1alpha1.ForeignCluster{}, kube.Updates(orphansDiffer)).
		Complete(r)
}

// orphansDiffer reports whether orphans of a peer have to be resolved again: it reports other contracts, or can be
// asked about those that it reported before.
func orphansDiffer(a, b *v1alpha1.ForeignCluster) bool {
	return !equality.Semantic.DeepEqual(a.Status.Contracts, b.Status.Contracts) || market.Unusable(a) != "" && market.Unusable(b) == ""
}

// Reconcile implements reconcile.Reconciler.
func (r *Orphans) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var fc v1alpha1.ForeignCluster
	if err := r.Client.Get(ctx, req.NamespacedName, &fc); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if market.Unusable(&fc) != "" {
		return reconcile.Result{}, nil
	}
	orphans, err := r.orphans(ctx, &fc)
	if err != nil || len(orphans) == 0 {
		return reconcile.Result{}, err
	}
	again := orphanAgain
	for i, id := range orphans {
		if i == maxOrphans {
			break
		}
		if age := r.Now().Sub(r.seen[id]); age < orphanAge {
			again = min(again, orphanAge-age)
			continue
		}
		if err := r.resolve(ctx, &fc, id); err != nil {
			return reconcile.Result{RequeueAfter: orphanAgain}, nil //nolint:nilerr // only the peer can mend it
		}
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// orphans returns the IDs of contracts that the peer reports as in force and that this cluster does not have with
// it, or has only as closed.
func (r *Orphans) orphans(ctx context.Context, fc *v1alpha1.ForeignCluster) ([]string, error) {
	var out []string
	for _, report := range fc.Status.Contracts {
		if peering.ParsePhase(report.Phase) != peering.PhaseActive {
			continue
		}
		var own v1alpha1.Contract
		err := r.Reader.Get(ctx, client.ObjectKey{Name: report.ID}, &own)
		switch {
		case err == nil && !store.Released(&own) && own.Spec.PeerID == fc.Spec.ClusterID:
			delete(r.seen, report.ID)
		case err == nil, apierrors.IsNotFound(err):
			out = append(out, report.ID)
			r.remember(report.ID)
		default:
			return nil, fmt.Errorf("read contract %s: %w", report.ID, err)
		}
	}
	return out, nil
}

func (r *Orphans) remember(id string) {
	if r.seen == nil || len(r.seen) >= maxSightings {
		r.seen = map[string]time.Time{}
	}
	if _, ok := r.seen[id]; !ok {
		r.seen[id] = r.Now()
	}
}

// resolve adopts an orphan or ends it.
func (r *Orphans) resolve(ctx context.Context, fc *v1alpha1.ForeignCluster, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	peer := peering.ClusterID(fc.Spec.ClusterID)
	envelope, err := r.Counterpart(peer).Contract(ctx, id)
	if err != nil {
		return err
	}
	terms, err := envelope.Verify()
	if err != nil {
		return err
	}
	if terms.ContractID != id || terms.Consumer.ID != r.Self || terms.Provider.ID != peer {
		return nil // not ours to consume
	}
	requested, err := r.requested(ctx, terms)
	if err != nil {
		return err
	}
	if !requested {
		return r.Counterpart(peer).Terminate(ctx, id, "the consumer does not have this contract", time.Time{})
	}
	contract, err := store.NewContract(envelope, r.Self, fc.Name)
	if err != nil {
		return err
	}
	err = r.Client.Create(ctx, contract, client.FieldOwner(v1alpha1.Manager))
	if apierrors.IsAlreadyExists(err) {
		var own v1alpha1.Contract
		switch err := r.Reader.Get(ctx, client.ObjectKey{Name: id}, &own); {
		case err != nil:
			return client.IgnoreNotFound(err)
		case own.Spec.PeerID != string(peer):
			return r.Counterpart(peer).Terminate(ctx, id, "the consumer has a contract of this ID with another peer", time.Time{})
		case store.Released(&own):
			return r.Counterpart(peer).Terminate(ctx, id, "the contract is over", time.Time{}) // the peer was not notified
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep contract %s: %w", id, err)
	}
	return nil
}

// requested reports whether the PeeringRequest of a contract exists and has no contract.
func (r *Orphans) requested(ctx context.Context, terms peering.Terms) (bool, error) {
	if !r.Now().Before(terms.NotAfter) {
		return false, nil
	}
	contracts, err := requestContracts(ctx, r.Reader, terms.RequestID)
	if err != nil || len(contracts) > 0 && !store.Closed(contracts[0]) {
		return false, err
	}
	request, err := requestByID(ctx, r.Reader, terms.RequestID)
	return request != nil && request.DeletionTimestamp.IsZero(), err
}
