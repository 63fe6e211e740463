package services

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
)

// ApplySlice creates or updates an EndpointSlice; old is the current one, or nil. It calls take before it writes,
// which may return that the peer's budget of writes is spent.
func ApplySlice(ctx context.Context, c client.Client, old, want *discoveryv1.EndpointSlice, take func(client.Object) error) error {
	if old != nil && endpoints.SameSlice(old, want) {
		return nil
	}
	if err := take(want); err != nil {
		return err
	}
	if old == nil {
		if err := c.Create(ctx, want, client.FieldOwner(api.Manager)); err != nil {
			return fmt.Errorf("create endpoint slice %s: %w", want.Name, err)
		}
		return nil
	}
	now := old.DeepCopy()
	now.Endpoints, now.Ports, now.Labels, now.OwnerReferences = want.Endpoints, want.Ports, want.Labels, want.OwnerReferences
	if err := c.Update(ctx, now, client.FieldOwner(api.Manager)); err != nil {
		return fmt.Errorf("update endpoint slice %s: %w", want.Name, err)
	}
	return nil
}

// DeleteSlices deletes the EndpointSlices, by name, that are no longer wanted.
func DeleteSlices(ctx context.Context, c client.Client, slices map[string]*discoveryv1.EndpointSlice) error {
	for _, s := range slices {
		if err := c.Delete(ctx, s, client.Preconditions{UID: &s.UID}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete endpoint slice %s: %w", s.Name, err)
		}
	}
	return nil
}
