package admin

import (
	"cmp"
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// validatePeering asks the API server to check a PeeringRequest, and returns what the provider
// would offer. Nothing is written here or there.
func (s *service) validatePeering(ctx context.Context, request *v1alpha1.PeeringRequest) (*ententev1.CreatePeeringResponse, error) {
	request.Name = cmp.Or(request.Name, nameFor(""))
	stored := request.DeepCopy()
	err := s.cfg.Client.Create(ctx, stored, ctrlclient.DryRunAll, ctrlclient.FieldOwner(adminFieldManager))
	if apierrors.IsAlreadyExists(err) {
		return s.peeringExists(ctx, request)
	}
	if err != nil {
		return nil, fmt.Errorf("check peering request %s: %w", request.Name, err)
	}
	provider, offer, err := s.cfg.Preview(ctx, stored)
	if err != nil {
		return nil, previewError(stored, err)
	}
	return &ententev1.CreatePeeringResponse{PeeringRequest: request.Name, Provider: "peers/" + provider, Advertisement: previewMessage(offer)}, nil
}

// previewMessage returns an offer that is not binding, or nil for nil. It leaves out the request
// ID, which callers cannot use.
func previewMessage(a *peering.Advertisement) *ententev1.Advertisement {
	if a == nil {
		return nil
	}
	m := wire.AdvertisementTo(*a)
	m.RequestId = ""
	return m
}

// previewRevision adds to a response what the provider would offer for a changed peering.
func (s *service) previewRevision(ctx context.Context, request *v1alpha1.PeeringRequest, resp *ententev1.UpdatePeeringResponse) error {
	provider, offer, err := s.cfg.Preview(ctx, request)
	if err != nil {
		return previewError(request, err)
	}
	resp.Advertisement = previewMessage(offer)
	if offer != nil {
		resp.Peering.Provider = "peers/" + provider
	}
	return nil
}

// previewError adds the peer that was asked, if the request names it.
func previewError(request *v1alpha1.PeeringRequest, err error) error {
	name := request.Spec.ForeignCluster
	if name == "" {
		return err
	}
	e := *wire.FromStatus(err)
	if wire.Code(e.Reason) == codes.Internal {
		return fmt.Errorf("ask peer %s: %w", name, err)
	}
	e.Message, e.Err = fmt.Sprintf("peer %s: %s", name, e.Message), err
	return &e
}
