package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// ContractCalls serves calls of peers about contracts with them.
type ContractCalls struct {
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	// Identity is this cluster's identity as it is now.
	Identity func() *identity.Identity
	// Events records that a peer ended a contract; nil records nothing.
	Events events.EventRecorder
	// Budget bounds what peers have written here. Required.
	Budget *store.WriteBudget
	Now    func() time.Time
}

// contract returns a contract with a peer, in either role.
func (a *ContractCalls) contract(ctx context.Context, peer peering.ClusterID, id string) (*v1alpha1.Contract, error) {
	var c v1alpha1.Contract
	err := a.Reader.Get(ctx, client.ObjectKey{Name: id}, &c)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read contract %s: %w", id, err)
	}
	if err != nil || c.Spec.PeerID != string(peer) {
		return nil, peering.Errorf(peering.ReasonContractUnknown, "there is no contract %s with this cluster", id)
	}
	return &c, nil
}

// Contract returns the newest revision of a contract with a peer, in either role, unless the contract is over.
func (a *ContractCalls) Contract(ctx context.Context, peer peering.ClusterID, id string) (peering.Envelope, error) {
	c, err := a.contract(ctx, peer, id)
	if err != nil {
		return peering.Envelope{}, err
	}
	if store.Released(c) {
		return peering.Envelope{}, peering.Errorf(peering.ReasonContractClosed, "contract %s is over", id)
	}
	return peering.ParseEnvelope([]byte(c.Spec.Envelope))
}

// Statements returns, oldest first, the statements of use with a later sequence number, of a contract by which the
// peer consumes.
func (a *ContractCalls) Statements(ctx context.Context, peer peering.ClusterID, id string, after uint64) ([]peering.Envelope, error) {
	c, err := a.contract(ctx, peer, id)
	if err != nil {
		return nil, err
	}
	if c.Spec.Role != v1alpha1.ContractProvider {
		return nil, peering.Errorf(peering.ReasonContractUnknown, "this cluster grants nothing by contract %s", id)
	}
	var out []peering.Envelope
	for _, s := range c.Status.Statements {
		if s.Sequence < 0 || uint64(s.Sequence) <= after {
			continue
		}
		e, err := peering.ParseEnvelope([]byte(s.Envelope))
		if err != nil {
			return nil, fmt.Errorf("statement %d of contract %s: %w", s.Sequence, id, err)
		}
		out = append(out, e)
	}
	return out, nil
}

// Terminate ends a contract because the peer ended it.
func (a *ContractCalls) Terminate(ctx context.Context, peer peering.ClusterID, id, _ string, drainUntil time.Time) error {
	var c v1alpha1.Contract
	if err := a.Reader.Get(ctx, client.ObjectKey{Name: id}, &c); err != nil {
		return client.IgnoreNotFound(err)
	}
	if c.Spec.PeerID != string(peer) {
		return nil // of another peer: the caller must not learn that it exists
	}
	before := c.DeepCopy()
	err := peerEnds(ctx, a.Client, a.Budget, &c, a.Identity().ID(), drainUntil, a.Now())
	if later, ok := errors.AsType[*store.LaterError](err); ok {
		return &peering.Error{Reason: peering.ReasonRateLimited, Message: "the end of the contract was changed too often", RetryAfter: later.After}
	}
	if err != nil {
		return err
	}
	record(a.Events, &c, contractEvents(before, &c))
	return nil
}
