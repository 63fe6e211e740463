package admin

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// closed reports whether a contract ended.
func closed(c *v1alpha1.Contract) bool { return c.Status.Phase == peering.PhaseClosed.String() }

func (s *service) ListContracts(ctx context.Context, req *ententev1.ListContractsRequest) (*ententev1.ListContractsResponse, error) {
	var list v1alpha1.ContractList
	if err := s.cfg.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list contracts: %w", err)
	}
	contracts := list.Items
	// A contract outlives a peer that was forgotten, so the peer need not be known.
	if peer := peerName(req.GetPeer()); peer != "" {
		contracts = slices.DeleteFunc(contracts, func(c v1alpha1.Contract) bool {
			return c.Spec.ForeignCluster != peer && c.Spec.PeerID != peer
		})
	}
	part, next, err := pageOf(req, "contracts of "+req.GetPeer(), contracts, func(c *v1alpha1.Contract) string { return c.Name }, contractMessage)
	return &ententev1.ListContractsResponse{Contracts: part, NextPageToken: next}, err
}

func (s *service) GetContract(ctx context.Context, req *ententev1.AdminServiceGetContractRequest) (*ententev1.AdminServiceGetContractResponse, error) {
	c, err := s.contract(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	m := contractMessage(c)
	m.Envelope = c.Spec.Envelope
	return &ententev1.AdminServiceGetContractResponse{Contract: m}, nil
}

func (s *service) contract(ctx context.Context, resource string) (*v1alpha1.Contract, error) {
	name := named("contracts", resource)
	var c v1alpha1.Contract
	err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &c)
	if apierrors.IsNotFound(err) {
		return nil, unknown(peering.ReasonContractUnknown, "contract", name, "there is no contract %q", name)
	}
	if err != nil {
		return nil, fmt.Errorf("get contract %s: %w", name, err)
	}
	return &c, nil
}

// TerminateContract implements AdminService. A contract that ended is not changed.
func (s *service) TerminateContract(ctx context.Context, req *ententev1.AdminServiceTerminateContractRequest) (*ententev1.AdminServiceTerminateContractResponse, error) {
	c, err := s.contract(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if !closed(c) {
		if err := s.terminate(ctx, c, req.GetNow()); err != nil {
			return nil, err
		}
	}
	return &ententev1.AdminServiceTerminateContractResponse{Contract: contractMessage(c)}, nil
}

// terminate writes that a contract is to end: at once with now, otherwise by draining, which has
// no effect if its end was asked for already. Draining can be cut short, and not the other way
// round.
func (s *service) terminate(ctx context.Context, c *v1alpha1.Contract, now bool) error {
	mode := v1alpha1.TerminateDrain
	if now {
		mode = v1alpha1.TerminateNow
	}
	if c.Spec.Termination == v1alpha1.TerminateNow || c.Spec.Termination != "" && mode == v1alpha1.TerminateDrain {
		return nil
	}
	before := c.DeepCopy()
	c.Spec.Termination = mode
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, v1alpha1.AnnotationEndedBy, s.by(ctx, string(mode)))
	err := s.cfg.Client.Patch(ctx, c, ctrlclient.MergeFrom(before), ctrlclient.FieldOwner(adminFieldManager))
	if ctrlclient.IgnoreNotFound(err) != nil {
		return fmt.Errorf("terminate contract %s: %w", c.Name, err)
	}
	s.decided(ctx, c, "Terminated", string(mode))
	return nil
}

func (s *service) RolloverIdentity(ctx context.Context, _ *ententev1.RolloverIdentityRequest) (*ententev1.RolloverIdentityResponse, error) {
	root, overlap, err := s.cfg.Rollover(ctx)
	if err != nil {
		return nil, fmt.Errorf("roll over the identity: %w", err)
	}
	return &ententev1.RolloverIdentityResponse{RootExpireTime: timeMessage(root), OverlapEndTime: timeMessage(overlap)}, nil
}
