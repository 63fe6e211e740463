package market

import (
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

func price(t *testing.T, currency, amount string) peering.Money {
	t.Helper()
	d, err := peering.ParseDecimal(amount)
	if err != nil {
		t.Fatal(err)
	}
	return peering.Money{Currency: currency, Amount: d}
}

func TestCheapestComparesPriceThenRoundTrip(t *testing.T) {
	t.Parallel()
	id := func(c string) peering.ClusterID { return peering.ClusterID(strings.Repeat(c, peering.ClusterIDLen)) }
	list := []Candidate{
		{Peer: id("a"), Hourly: price(t, "USD", "0.01"), RoundTrip: time.Millisecond},
		{Peer: id("b"), Hourly: price(t, "EUR", "0.5"), RoundTrip: 20 * time.Millisecond},
		{Peer: id("c"), Hourly: price(t, "EUR", "0.4")},
		{Peer: id("d"), Hourly: price(t, "EUR", "0.4"), RoundTrip: 5 * time.Millisecond},
		{Peer: id("e"), Hourly: price(t, "EUR", "0.4"), RoundTrip: 5 * time.Millisecond},
		{Peer: id("f"), Hourly: price(t, "CHF", "2"), RoundTrip: time.Millisecond},
		{Peer: id("g"), RoundTrip: time.Second},
		{Peer: id("h"), Hourly: price(t, "USD", "0"), RoundTrip: time.Minute},
	}
	for _, tt := range []struct{ currency, want string }{
		{"EUR", "g h d e c b f a"},
		{"USD", "g h a f d e c b"},
		{"", "g h a f d e c b"},
	} {
		var got []string
		for _, i := range Cheapest(list, tt.currency) {
			got = append(got, string(list[i].Peer[:1]))
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%q: %s, want %s", tt.currency, s, tt.want)
		}
	}
	if len(Cheapest(nil, "EUR")) != 0 {
		t.Error("something of nothing")
	}
}
