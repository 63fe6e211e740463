package market

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/entente-dev/entente/peering"
)

// Candidate is a provider's offer, to be compared with others.
type Candidate struct {
	Peer peering.ClusterID
	// Hourly is what the whole costs an hour.
	Hourly peering.Money
	// RoundTrip is the round-trip time to the provider; 0 while it is not measured.
	RoundTrip time.Duration
}

// Cheapest returns the indexes of candidates, best first: those free of charge,
// then those priced in currency, by price, then those in other currencies, whose
// exchange rates are unknown. Among equal candidates the nearest is first, then
// the lower ID. An empty currency means that of the first candidate with a
// price.
func Cheapest(c []Candidate, currency string) []int {
	for i := 0; currency == "" && i < len(c); i++ {
		currency = c[i].Hourly.Currency
	}
	class := func(m peering.Money) int {
		switch {
		case m.Amount.IsZero():
			return 0
		case m.Currency == currency:
			return 1
		}
		return 2
	}
	order := make([]int, len(c))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := c[i], c[j]
		return cmp.Or(
			cmp.Compare(class(a.Hourly), class(b.Hourly)),
			cmp.Compare(paid(a.Hourly), paid(b.Hourly)),
			a.Hourly.Amount.Cmp(b.Hourly.Amount),
			cmp.Compare(distance(a), distance(b)),
			cmp.Compare(a.Peer, b.Peer),
		)
	})
	return order
}

// paid returns the currency of an amount; empty if it is zero.
func paid(m peering.Money) string {
	if m.Amount.IsZero() {
		return ""
	}
	return m.Currency
}

// distance returns the round-trip time, the longest possible while it is not measured.
func distance(c Candidate) time.Duration {
	if c.RoundTrip <= 0 {
		return math.MaxInt64
	}
	return c.RoundTrip
}
