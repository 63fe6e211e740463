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

// backdate is how far a contract begins before it is signed, so that a
// provider whose clock is a little behind takes it up at once.
const backdate = time.Minute

// BeginOf is when a contract begins that is signed now.
func BeginOf(now time.Time) time.Time { return now.UTC().Add(-backdate).Truncate(time.Second) }

// EndOf is when a contract ends that an offer makes when it is signed now.
func EndOf(offer peering.Advertisement, now time.Time) time.Time {
	end := BeginOf(now).Add(offer.Duration)
	if !offer.NotAfter.IsZero() && offer.NotAfter.Before(end) {
		end = offer.NotAfter
	}
	return end
}

// TermsOf returns the contract that an offer makes when it is signed now.
func TermsOf(offer peering.Advertisement, consumer, provider peering.Party, now time.Time) peering.Terms {
	return peering.Terms{
		ContractID: offer.ContractID, RequestID: offer.RequestID, Revision: offer.Revision, Previous: offer.PreviousHash,
		Consumer: consumer, Provider: provider, NotBefore: BeginOf(now), NotAfter: EndOf(offer, now), Clauses: offer.Clauses,
	}
}

// Agreed is what an offer is compared with besides the ask.
type Agreed struct {
	// Held is the contract that the offer revises; nil for a new one.
	Held *peering.Terms
	// Price is what the newest contract of the request with this provider costs; nil if
	// there was none.
	Price *peering.PriceList
}

// AgreedBefore is what a request agreed on before with a provider, where it has no
// contract with it now. Prices that cannot be read were agreed on by nobody.
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

// Unacceptable says in what an offer is worse than the ask, or than what was agreed
// before; nil is in nothing. The provider said that it decided by the ask; this is
// where it is not believed.
func Unacceptable(ask peering.Ask, offer peering.Advertisement, before Agreed, now time.Time) error {
	worse := cmp.Or(Worse(ask, offer.Grant, before.Held), short(ask, offer, before.Held, now))
	if worse != "" {
		return peering.Errorf(peering.ReasonContractMismatch, "the provider offers something else than was asked for: %s", worse)
	}
	dear := tooDear(ask.PriceCeiling, offer.Grant)
	if dear == "" && ask.PriceCeiling.IsNone() && before.Price != nil {
		dear = dearer(*before.Price, offer.Grant)
	}
	if dear != "" {
		return peering.Errorf(peering.ReasonPriceAboveCeiling, "the provider offers it at another price: %s", dear)
	}
	return nil
}

// Worse says in what a grant is worse than the ask, or than the contract that it is
// to revise; empty is in nothing.
func Worse(ask peering.Ask, g peering.Grant, held *peering.Terms) string {
	for name, amount := range ask.Resources {
		if got := g.Resources[name]; got.Cmp(amount) != 0 {
			return fmt.Sprintf("%s of %s instead of %s", got, name, amount)
		}
	}
	// Pods that were not asked for limit what there is; anything else would be paid for.
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
	case held != nil && stricter(g.PodSecurity, held.PodSecurity):
		return fmt.Sprintf("Pod Security level %s instead of the %s that holds now: pods that run would be refused", g.PodSecurity, held.PodSecurity)
	}
	if held != nil && !g.LimitRange.Equal(held.LimitRange) {
		return "the limit range differs from the one that holds now: pods that run would count differently"
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

// short says that an offer is of a contract that ends before it can be of use, and
// would be renewed all the time; empty is that it is not. Who asks for less than
// minDuration gets it, and a contract in force may be revised up to its end.
func short(ask peering.Ask, offer peering.Advertisement, held *peering.Terms, now time.Time) string {
	least := minDuration
	if ask.Duration > 0 {
		least = min(least, ask.Duration)
	}
	if offer.Duration >= least && EndOf(offer, now).Sub(BeginOf(now)) >= least || held != nil && !EndOf(offer, now).Before(held.NotAfter) {
		return ""
	}
	return fmt.Sprintf("for %s, and less than %s is taken only if spec.duration asks for it", max(EndOf(offer, now).Sub(BeginOf(now)), 0), least)
}

// dearer says in what a grant costs more than was agreed before; empty is in nothing.
// Each resource counts by itself: which of them are used is known later.
func dearer(before peering.PriceList, g peering.Grant) string {
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

// tooDear says in what a grant costs more than the ceiling; empty is in nothing.
func tooDear(ceiling peering.Money, g peering.Grant) string {
	hourly, err := g.Price.Hourly(g.Resources)
	switch {
	case err != nil:
		return "a price that cannot be told: " + err.Error()
	case ceiling.IsNone() || hourly.Amount.IsZero():
		return ""
	case hourly.Currency != ceiling.Currency:
		return fmt.Sprintf("a price of %s an hour, and the ceiling is %s: they are of two currencies", hourly, ceiling)
	case hourly.Amount.Cmp(ceiling.Amount) > 0:
		return fmt.Sprintf("a price of %s an hour, more than the ceiling of %s", hourly, ceiling)
	}
	return ""
}

// stricter says whether a Pod Security level refuses more than another.
func stricter(a, b peering.PodSecurity) bool {
	levels := []peering.PodSecurity{peering.PodSecurityPrivileged, peering.PodSecurityBaseline, peering.PodSecurityRestricted}
	return slices.Index(levels, a) > slices.Index(levels, b)
}
