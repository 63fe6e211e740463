package market

import (
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/peeringtest"
)

// now is when the tests begin.
var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func resourcesOf(t *testing.T, texts map[string]string) peering.Resources {
	t.Helper()
	r, err := peering.ParseResources(texts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var decimal = peeringtest.Decimal

// eur is a price list in euros: names and amounts by turns.
func eur(t *testing.T, pairs ...string) peering.PriceList {
	t.Helper()
	list := peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{}}
	for i := 0; i < len(pairs); i += 2 {
		list.PerHour[pairs[i]] = decimal(t, pairs[i+1])
	}
	return list
}
