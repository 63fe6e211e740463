package market

import (
	"fmt"
	"strings"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// NoneGrants returns the error of a request that may ask several providers, of which none grants what it asks for. refusals
// is why those that were asked do not, dear how many of these only cost more than its ceiling, and not why the others
// were not asked.
func NoneGrants(request *v1alpha1.PeeringRequest, asked, dear int, refusals, not []string) error {
	none := "no cluster that spec.clusterSelector selects"
	if selector := request.Spec.ClusterSelector; len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
		none = "no trusted cluster" // its author named no labels
	}
	switch {
	case asked == 0:
		return peering.Errorf(peering.ReasonPeerUnknown, "%s can be asked%s", none, listed(not))
	case dear == asked:
		return peering.Errorf(peering.ReasonPriceAboveCeiling, "the price is above the ceiling at all %d clusters that can be asked%s", dear, listed(append(refusals, not...)))
	}
	return peering.Errorf(peering.ReasonCapacityExhausted, "%s grants it%s", none, listed(append(refusals, not...)))
}

// listed joins the first reasons for a message.
func listed(reasons []string) string {
	const most = 5
	if len(reasons) == 0 {
		return ""
	}
	text := ": " + strings.Join(reasons[:min(len(reasons), most)], "; ")
	if n := len(reasons) - most; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	return text
}
