package market

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// backdate is how long before its signature a contract begins, so that it is in force at
// once for a provider whose clock is slightly behind.
const backdate = time.Minute

// BeginOf returns when a contract that is signed now begins.
func BeginOf(now time.Time) time.Time { return now.UTC().Add(-backdate).Truncate(time.Second) }

// EndOf returns when the contract of an offer that is signed now ends.
func EndOf(offer peering.Advertisement, now time.Time) time.Time {
	end := BeginOf(now).Add(offer.Duration)
	if !offer.NotAfter.IsZero() && offer.NotAfter.Before(end) {
		end = offer.NotAfter
	}
	return end
}

// TermsOf returns the terms of the contract of an offer that is signed now.
func TermsOf(offer peering.Advertisement, consumer, provider peering.Party, now time.Time) peering.Terms {
	return peering.Terms{
		ContractID: offer.ContractID, RequestID: offer.RequestID, Revision: offer.Revision, Previous: offer.PreviousHash,
		Consumer: consumer, Provider: provider, NotBefore: BeginOf(now), NotAfter: EndOf(offer, now), Clauses: offer.Clauses,
	}
}

// Agreed is what was agreed before, with which an offer is compared as with the ask.
type Agreed struct {
	// Contract is the contract that the offer revises; nil for a new one.
	Contract *peering.Terms
	// Price is that of the request's newest contract with this provider; nil if there was
	// no contract.
	Price *peering.PriceList
}

// AgreedBefore returns what a request without a contract agreed on before with a provider.
// Prices that cannot be read count as free of charge.
func AgreedBefore(s *v1alpha1.PeeringRequest, fc *v1alpha1.ForeignCluster) Agreed {
	if s.Status.Agreed == nil || s.Status.Agreed.ClusterID != fc.Spec.ClusterID {
		return Agreed{}
	}
	price, err := store.Prices(s.Status.Agreed.Price)
	if err != nil {
		price = peering.PriceList{}
	}
	return Agreed{Price: &price}
}

// Unacceptable returns how an offer is worse than the ask, or than what was agreed
// before; nil if it is not. The consumer does not rely on the provider for
// this.
func Unacceptable(ask peering.Ask, offer peering.Advertisement, before Agreed, now time.Time) error {
	worse := cmp.Or(Worse(ask, offer.Grant, before.Contract), short(ask, offer, before.Contract, now))
	if worse != "" {
		return peering.Errorf(peering.ReasonContractMismatch, "the provider offers something else than was asked for: %s", worse)
	}
	price := aboveCeiling(ask.PriceCeiling, offer.Grant)
	if price == "" && ask.PriceCeiling.IsNone() && before.Price != nil {
		price = abovePrevious(*before.Price, offer.Grant)
	}
	if price != "" {
		return peering.Errorf(peering.ReasonPriceAboveCeiling, "the provider offers it at another price: %s", price)
	}
	return nil
}

// Worse returns how a grant is worse than the ask, or than current, the contract that it
// revises; empty if it is not.
func Worse(ask peering.Ask, g peering.Grant, current *peering.Terms) string {
	for name, amount := range ask.Resources {
		if got := g.Resources[name]; got.Cmp(amount) != 0 {
			return fmt.Sprintf("%s of %s instead of %s", got, name, amount)
		}
	}
	// A number of pods that was not asked for is a limit; any other resource would be paid for.
	for name := range g.Resources {
		if _, named := ask.Resources[name]; !named && len(ask.Resources) > 0 && name != peering.Pods {
			return "resources that were not asked for"
		}
	}
	if _, bounded := g.Resources[peering.Pods]; !bounded {
		return "no number of pods"
	}
	switch {
	case g.Network != ask.Network:
		return "network differs"
	case g.Pool != ask.Pool:
		return fmt.Sprintf("pool %q instead of %q: a provider that names none may be too old to know pools", g.Pool, ask.Pool)
	case ask.Duration > 0 && g.Duration > ask.Duration:
		return fmt.Sprintf("for %s instead of %s", g.Duration, ask.Duration)
	case current != nil && stricter(g.PodSecurity, current.PodSecurity):
		return fmt.Sprintf("Pod Security level %s instead of the current %s: running pods would be refused", g.PodSecurity, current.PodSecurity)
	}
	if current != nil && !g.LimitRange.Equal(current.LimitRange) {
		return "the limit range differs from the current one: running pods would count differently"
	}
	for key, value := range ask.NodeSelector {
		if got, ok := g.NodeSelector[key]; !ok || got != value {
			return fmt.Sprintf("nodes without the label %s=%s", key, value)
		}
	}
	for _, class := range ask.RuntimeClasses {
		if !slices.Contains(g.RuntimeClasses, class) {
			return "no runtime class " + class
		}
	}
	for _, class := range ask.StorageClasses {
		if !slices.Contains(g.StorageClasses, class) {
			return "no storage class " + class
		}
	}
	return ""
}

// short returns how an offer's contract is too short to be of use, and would be renewed all
// the time; empty if it is not. An ask for less than minDuration accepts less, and a contract
// in force may be revised up to its end.
func short(ask peering.Ask, offer peering.Advertisement, current *peering.Terms, now time.Time) string {
	least := minDuration
	if ask.Duration > 0 {
		least = min(least, ask.Duration)
	}
	if offer.Duration >= least && EndOf(offer, now).Sub(BeginOf(now)) >= least || current != nil && !EndOf(offer, now).Before(current.NotAfter) {
		return ""
	}
	return fmt.Sprintf("for %s, and less than %s is taken only if spec.duration asks for it", max(EndOf(offer, now).Sub(BeginOf(now)), 0), least)
}

// abovePrevious returns how a grant costs more than was agreed before; empty if it does not.
// Each resource counts by itself, since it is not known yet which will be used.
func abovePrevious(before peering.PriceList, g peering.Grant) string {
	for _, name := range g.Resources.Names() {
		now, was := g.Price.PerHour[name], before.PerHour[name]
		switch {
		case now.IsZero():
		case was.IsZero():
			return fmt.Sprintf("%s %s an hour for %s, which was free of charge; set spec.priceCeiling to agree", g.Price.Currency, now, name)
		case g.Price.Currency != before.Currency:
			return fmt.Sprintf("in %s, and in %s before; set spec.priceCeiling to agree", g.Price.Currency, before.Currency)
		case now.Cmp(was) > 0:
			return fmt.Sprintf("%s %s an hour for %s, and %s before; set spec.priceCeiling to agree", g.Price.Currency, now, name, was)
		}
	}
	return ""
}

// aboveCeiling returns how a grant costs more than the ceiling; empty if it does not.
func aboveCeiling(ceiling peering.Money, g peering.Grant) string {
	hourly, err := g.Price.Hourly(g.Resources)
	switch {
	case err != nil:
		return "a price that cannot be computed: " + err.Error()
	case ceiling.IsNone() || hourly.Amount.IsZero():
		return ""
	case hourly.Currency != ceiling.Currency:
		return fmt.Sprintf("a price of %s an hour, and the ceiling is %s: the currencies differ", hourly, ceiling)
	case hourly.Amount.Cmp(ceiling.Amount) > 0:
		return fmt.Sprintf("a price of %s an hour, more than the ceiling of %s", hourly, ceiling)
	}
	return ""
}

// stricter reports whether a Pod Security level refuses more than another.
func stricter(a, b peering.PodSecurity) bool {
	levels := []peering.PodSecurity{peering.PodSecurityPrivileged, peering.PodSecurityBaseline, peering.PodSecurityRestricted}
	return slices.Index(levels, a) > slices.Index(levels, b)
}
