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
	// RoundTrip is that to the provider; zero if it is not known.
	RoundTrip time.Duration
}

// Cheapest returns the indexes of candidates, best first: what is free of charge,
// then what is priced in currency, by price, then the other currencies, of which
// nobody knows what they are worth. Of equal ones the nearest is better, then
// the lower ID. Without a currency that of the first candidate with a price
// counts.
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

// paid is the currency in which something is paid at all.
func paid(m peering.Money) string {
	if m.Amount.IsZero() {
		return ""
	}
	return m.Currency
}

// distance is the round trip, the longest there is where it is not known.
func distance(c Candidate) time.Duration {
	if c.RoundTrip <= 0 {
		return math.MaxInt64
	}
	return c.RoundTrip
}
