package main

import (
	"strings"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// parseMoney reads an amount as people write it: EUR 0.5.
func parseMoney(flag, s string) (*ententev1.Money, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // none is an answer
	}
	words := strings.Fields(s)
	if len(words) != 2 || !isCurrency(words[0]) {
		return nil, usageError("%s %q: want a currency and an amount, as \"EUR 0.5\"", flag, s)
	}
	amount := words[1]
	if strings.Contains(amount, ".") {
		amount = strings.TrimSuffix(strings.TrimRight(amount, "0"), ".")
	}
	d, err := peering.ParseDecimal(amount)
	if err != nil {
		return nil, usageError("%s %q: %w", flag, s, err)
	}
	return &ententev1.Money{Currency: words[0], Amount: d.String()}, nil
}

func isCurrency(s string) bool {
	return len(s) == 3 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// money is an amount for people; none says what an unset one is.
func money(m *ententev1.Money, none string) string {
	if m.GetCurrency() == "" {
		return none
	}
	return m.GetCurrency() + " " + m.GetAmount()
}

// perHour is what something costs an hour, for people.
func perHour(m *ententev1.Money) string {
	if m.GetCurrency() == "" {
		return "free"
	}
	return money(m, "") + " an hour"
}

// prices is a price list for people, an hour: EUR: cpu 0.02, memory 0.005 a GiB.
func prices(p *ententev1.PriceList) string {
	if p.GetCurrency() == "" || len(p.GetPerHour()) == 0 {
		return "free"
	}
	var parts []string
	for _, name := range resourceNames(p.GetPerHour()) {
		part := name + " " + p.GetPerHour()[name]
		if peering.InBytes(name) {
			part += " a GiB"
		}
		parts = append(parts, part)
	}
	return p.GetCurrency() + " an hour: " + strings.Join(parts, ", ")
}

// priceText is prices of the core, for people.
func priceText(p peering.PriceList) string { return prices(wire.PriceListTo(p)) }
