package store

import (
	"fmt"
	"maps"
	"slices"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Prices returns a price list as a value of package peering; nil means free.
func Prices(p *v1alpha1.PriceList) (peering.PriceList, error) {
	if p == nil || len(p.PerHour) == 0 {
		return peering.PriceList{}, nil
	}
	out := peering.PriceList{Currency: p.Currency, PerHour: make(map[string]peering.Decimal, len(p.PerHour))}
	for _, name := range slices.Sorted(maps.Keys(p.PerHour)) {
		price, err := peering.ParseDecimal(string(p.PerHour[name]))
		if err != nil {
			return peering.PriceList{}, fmt.Errorf("price of %s: %w", name, err)
		}
		out.PerHour[name] = price
	}
	return out, out.Check()
}

// PricesOf returns a price list as custom resources have it; nil means free.
func PricesOf(p peering.PriceList) *v1alpha1.PriceList {
	if len(p.PerHour) == 0 {
		return nil
	}
	out := &v1alpha1.PriceList{Currency: p.Currency, PerHour: make(map[string]v1alpha1.Decimal, len(p.PerHour))}
	for name, price := range p.PerHour {
		out.PerHour[name] = v1alpha1.Decimal(price.String())
	}
	return out
}

// Money returns money as a value of package peering; nil means none.
func Money(m *v1alpha1.Money) (peering.Money, error) {
	if m == nil {
		return peering.Money{}, nil
	}
	amount, err := peering.ParseDecimal(m.Amount)
	if err != nil {
		return peering.Money{}, err
	}
	out := peering.Money{Currency: m.Currency, Amount: amount}
	return out, out.Check()
}

// MoneyOf returns money as custom resources have it; nil means none.
func MoneyOf(m peering.Money) *v1alpha1.Money {
	if m.IsNone() || m.Currency == "" {
		return nil
	}
	return &v1alpha1.Money{Currency: m.Currency, Amount: m.Amount.String()}
}
