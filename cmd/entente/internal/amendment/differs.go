package amendment

import (
	"maps"
	"slices"

	"github.com/entente-dev/entente/cmd/entente/internal/format"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Differs reports whether a request names anything that differs from what an existing one asks for. What
// it does not name does not matter, as an amended request keeps that.
func Differs(named *ententev1.CreatePeeringRequest, is *ententev1.Peering) bool {
	amounts := is.GetResources().GetAmounts()
	for name, amount := range named.GetResources().GetAmounts() {
		if has, ok := amounts[name]; !ok || !format.SameAmount(has, amount) {
			return true
		}
	}
	return named.GetDuration() != nil && named.GetDuration().AsDuration() != is.GetDuration().AsDuration() ||
		named.GetPriceCeiling() != nil && format.Money(named.GetPriceCeiling(), "") != format.Money(is.GetPriceCeiling(), "") ||
		named.GetNoRenewal() && !is.GetNoRenewal() || named.GetNoNetwork() && !is.GetNoNetwork() ||
		named.GetPool() != "" && named.GetPool() != is.GetPool() ||
		len(named.GetNodeSelector()) > 0 && !maps.Equal(named.GetNodeSelector(), is.GetNodeSelector()) ||
		otherClasses(named.GetStorageClasses(), is.GetStorageClasses()) || otherClasses(named.GetRuntimeClasses(), is.GetRuntimeClasses())
}

func otherClasses(named, is []string) bool {
	return len(named) > 0 && !slices.Equal(slices.Sorted(slices.Values(named)), slices.Sorted(slices.Values(is)))
}
