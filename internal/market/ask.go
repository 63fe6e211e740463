package market

import (
	"slices"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// AskOf returns what a PeeringRequest asks for.
func AskOf(s *v1alpha1.PeeringRequest) (peering.Ask, error) {
	resources, err := store.Resources(s.Spec.Resources)
	if err != nil {
		return peering.Ask{}, peering.Errorf(peering.ReasonRequestInvalid, "spec.resources: %s", err)
	}
	ceiling, err := store.Money(s.Spec.PriceCeiling)
	if err != nil {
		return peering.Ask{}, peering.Errorf(peering.ReasonRequestInvalid, "spec.priceCeiling: %s", err)
	}
	ask := peering.Ask{
		RequestID: string(s.UID), Duration: DurationOf(s), Resources: resources, Network: s.Spec.Network != v1alpha1.NetworkNone, PriceCeiling: ceiling,
		Pool: s.Spec.Pool, NodeSelector: s.Spec.NodeSelector, StorageClasses: sortedNames(s.Spec.StorageClasses), RuntimeClasses: sortedNames(s.Spec.RuntimeClasses),
	}
	return ask, nil
}

// DurationOf returns for how long a PeeringRequest asks, 0 for what the policy gives.
func DurationOf(s *v1alpha1.PeeringRequest) time.Duration {
	if s.Spec.Duration == nil {
		return 0
	}
	return s.Spec.Duration.Duration.Truncate(time.Second)
}

func sortedNames(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}
