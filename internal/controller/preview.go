package controller

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Preview returns what reconciling a PeeringRequest would result in now, whether it is stored or not: the
// ForeignCluster that would be the provider, and the offer that would be signed. The offer is nil if the contract
// already is as the request asks, and the error is why nothing would be signed. An offer that an administrator of
// the provider has to approve first says so. Preview writes nothing, here or there.
func (r *Requests) Preview(ctx context.Context, request *v1alpha1.PeeringRequest) (provider string, offer *peering.Advertisement, err error) {
	request = request.DeepCopy()
	request.UID = cmp.Or(request.UID, "preview-"+uuid.NewUUID())
	if !request.DeletionTimestamp.IsZero() {
		return "", nil, peering.Errorf(peering.ReasonContractClosed, "peering request %s is being deleted", request.Name)
	}
	contracts, err := requestContracts(ctx, r.Client, string(request.UID)) // a stale cache does no harm: nothing is signed
	if err != nil {
		return "", nil, err
	}
	current, gone, err := r.current(ctx, contracts)
	if err != nil {
		return "", nil, err
	}
	plan := planRequest(request, current, gone, remainingNode(contracts), r.Now())
	quote := func(ctx context.Context, fc *v1alpha1.ForeignCluster, ask peering.Ask) error {
		got, err := r.quote(ctx, request, fc, ask, current, askTimeout)
		if err == nil {
			provider, offer = fc.Name, &got
		}
		return err
	}
	switch plan.course {
	case courseKeep:
		if plan.accepted.Reason != reasonContracted {
			err = peering.Errorf(peering.ReasonContractClosed, "%s", plan.accepted.Message)
		}
	case courseAsk:
		current = nil // it is over
		err = r.tryProviders(ctx, request, contracts, quote)
	case courseAmend, courseRenew:
		var fc *v1alpha1.ForeignCluster
		var ask peering.Ask
		if fc, ask, err = r.nextRevision(ctx, request, current, plan.course); err == nil {
			err = quote(ctx, fc, ask)
		}
	}
	return provider, offer, err
}

// quote asks a provider what it offers, and checks the response as before signing. A request that chooses among
// providers refuses an offer that waits for an administrator.
func (r *Requests) quote(
	ctx context.Context, request *v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster, ask peering.Ask, current *currentContract, timeout time.Duration,
) (peering.Advertisement, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	offer, _, err := r.draft(ctx, request, fc, ask, current, r.Provider(peering.ClusterID(fc.Spec.ClusterID)).Preview)
	if err == nil && current == nil && request.Spec.ClusterSelector != nil && offer.NeedsApproval {
		err = peering.Errorf(peering.ReasonPolicyPending, "an administrator there has to approve each request: ask it by name")
	}
	return offer, err
}

// asUnreachable turns the error of a call without a response into one that callers know.
func asUnreachable(err error) error {
	e := peering.AsError(err)
	switch e.Reason { //nolint:exhaustive // others are responses
	case peering.ReasonUnavailable, peering.ReasonDeadlineExceeded:
		return &peering.Error{Reason: peering.ReasonPeerUnreachable, Message: e.Message, RetryAfter: e.RetryAfter, Err: err}
	}
	return err
}
