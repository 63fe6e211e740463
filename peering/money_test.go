package peering_test

import (
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/peeringtest"
)

var decimal = peeringtest.Decimal

func money(t testing.TB, currency, amount string) peering.Money {
	t.Helper()
	return peering.Money{Currency: currency, Amount: decimal(t, amount)}
}

func eur(t testing.TB, amount string) peering.Money {
	t.Helper()
	return money(t, "EUR", amount)
}

func prices(t testing.TB, currency string, kv ...string) peering.PriceList {
	t.Helper()
	p := peering.PriceList{Currency: currency, PerHour: map[string]peering.Decimal{}}
	for i := 0; i < len(kv); i += 2 {
		p.PerHour[kv[i]] = decimal(t, kv[i+1])
	}
	return p
}

func TestDecimalHasOneForm(t *testing.T) {
	for _, s := range []string{"0", "1", "10", "0.1", "0.000000001", "999999999.999999999", "100.001", "42.5"} {
		if got := decimal(t, s).String(); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	for _, s := range []string{
		"", ".", "1.", ".5", "0.50", "00", "01", "1.0", "-1", "+1", "1e3", " 1", "1 ", "1,5", "0x1", "1_000", "٣", "1.2.3",
		"1000000000", "0.0000000001", "999999999.9999999990", "NaN", "Inf", strings.Repeat("1", 1000),
	} {
		if d, err := peering.ParseDecimal(s); err == nil {
			t.Errorf("%q was read as %s", s, d)
		}
	}
	if _, err := peering.ParseDecimal("1.50"); err == nil || !strings.Contains(err.Error(), "write 1.5") {
		t.Errorf("got %v", err)
	}
}

func TestDecimalArithmetic(t *testing.T) {
	if sum, err := decimal(t, "0.1").Add(decimal(t, "0.2")); err != nil || sum != decimal(t, "0.3") {
		t.Errorf("0.1 + 0.2 is %s, %v", sum, err)
	}
	if _, err := decimal(t, "999999999.999999999").Add(decimal(t, "0.000000001")); err == nil {
		t.Error("a sum beyond the range")
	}
	if decimal(t, "2").Cmp(decimal(t, "10")) != -1 || decimal(t, "10").Cmp(decimal(t, "2")) != 1 || decimal(t, "2").Cmp(decimal(t, "2")) != 0 {
		t.Error("order")
	}
	if !decimal(t, "0").IsZero() || decimal(t, "0.000000001").IsZero() {
		t.Error("zero")
	}
}

func TestMoneyIsParsedAddedAndRounded(t *testing.T) {
	if s := eur(t, "0.42").String(); s != "EUR 0.42" {
		t.Error(s)
	}
	if s := (peering.Money{}).String(); s != "0" {
		t.Error(s)
	}
	for _, tt := range []struct {
		m  peering.Money
		ok bool
	}{
		{peering.Money{}, true},
		{eur(t, "0"), true},
		{eur(t, "1"), true},
		{money(t, "", "1"), false},
		{money(t, "eur", "1"), false},
		{money(t, "EURO", "1"), false},
		{money(t, "EÜR", "1"), false},
		{money(t, "E R", "1"), false},
	} {
		if err := tt.m.Check(); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.m, err)
		}
	}
	if !(peering.Money{}).IsNone() || eur(t, "0").IsNone() {
		t.Error("none")
	}
}

func TestPriceListIsChecked(t *testing.T) {
	many := prices(t, "EUR")
	for i := range peering.MaxResources + 1 {
		many.PerHour["r"+strings.Repeat("x", i%60)+string(rune('a'+i/60))] = peering.Decimal{}
	}
	for name, p := range map[string]peering.PriceList{
		"no currency":            prices(t, "", "cpu", "1"),
		"a currency of no price": prices(t, "EUR"),
		"a name of a currency":   prices(t, "euro", "cpu", "1"),
		"a resource of no name":  prices(t, "EUR", "", "1"),
		"a resource with spaces": prices(t, "EUR", "c p u", "1"),
		"too many":               many,
	} {
		if err := p.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for _, p := range []peering.PriceList{{}, prices(t, "EUR", "cpu", "0"), prices(t, "EUR", "nvidia.com/gpu", "1.5")} {
		if err := p.Check(); err != nil {
			t.Error(err)
		}
	}
	if !(peering.PriceList{}).IsFree() || !prices(t, "EUR", "cpu", "0").IsFree() || prices(t, "EUR", "cpu", "0.000000001").IsFree() {
		t.Error("free")
	}
	p := prices(t, "EUR", "cpu", "1")
	c := p.Clone()
	c.PerHour["cpu"] = decimal(t, "2")
	if p.PerHour["cpu"] != decimal(t, "1") || p.Equal(c) || !p.Equal(p.Clone()) {
		t.Error("a copy is the list itself")
	}
}

func TestHourlyPrice(t *testing.T) {
	list := prices(t, "EUR", "cpu", "0.025", "memory", "0.003", "nvidia.com/gpu", "1.1", "requests.storage", "0.0001",
		"fast.storageclass.storage.k8s.io/requests.storage", "0.0002", "hugepages-2Mi", "0.01", "example.com/storage", "3")
	for _, tt := range []struct {
		name string
		r    peering.Resources
		want string
	}{
		{"nothing", nil, "0"},
		{"what has no price", resources(t, "pods", "110"), "0"},
		{"a core and a half", resources(t, "cpu", "1500m"), "0.0375"},
		{"memory by the gibibyte", resources(t, "memory", "8Gi"), "0.024"},
		{"a byte, rounded", resources(t, "memory", "1"), "0"},
		{"179 bytes, half a billionth, to even", resources(t, "memory", "178956970"), "0.0005"},
		{"all kinds of storage", resources(t, "requests.storage", "100Gi", "fast.storageclass.storage.k8s.io/requests.storage", "100Gi"), "0.03"},
		{"huge pages", resources(t, "hugepages-2Mi", "512Mi"), "0.005"},
		{"a device that is only called so", resources(t, "example.com/storage", "2"), "6"},
		{"all", resources(t, "cpu", "4", "memory", "16Gi", "nvidia.com/gpu", "2", "pods", "10"), "2.348"},
	} {
		got, err := list.Hourly(tt.r)
		if err != nil || got != eur(t, tt.want) {
			t.Errorf("%s: %s, %v, want %s", tt.name, got, err, tt.want)
		}
	}
	if got, err := (peering.PriceList{}).Hourly(resources(t, "cpu", "1")); err != nil || !got.IsNone() {
		t.Errorf("free of charge: %s, %v", got, err)
	}
	if _, err := prices(t, "EUR", "cpu", "999999999").Hourly(resources(t, "cpu", "2")); err == nil {
		t.Error("a price beyond the range")
	}
}

// Rounding is half to even, once for the whole.
func TestPriceRoundsHalfToEven(t *testing.T) {
	nano := prices(t, "EUR", "cpu", "0.000000001", "requests.cpu", "0.000000001")
	for _, tt := range []struct{ cpu, requests, want string }{
		{"500m", "0", "0"},
		{"501m", "0", "0.000000001"},
		{"1500m", "0", "0.000000002"},
		{"2500m", "0", "0.000000002"},
		{"250m", "250m", "0"},
		{"300m", "300m", "0.000000001"},
	} {
		got, err := nano.Hourly(resources(t, "cpu", tt.cpu, "requests.cpu", tt.requests))
		if err != nil || got != eur(t, tt.want) {
			t.Errorf("%s and %s: %s, %v, want %s", tt.cpu, tt.requests, got, err, tt.want)
		}
	}
}

// Against exact fractions: what it costs is never off by more than half of the
// last place, whatever is used.
func TestCostIsExact(t *testing.T) {
	names := []string{"cpu", "memory", "nvidia.com/gpu"}
	rapid.Check(t, func(rt *rapid.T) {
		p := peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{}}
		used, exact := map[string]string{}, new(big.Rat)
		for _, name := range names {
			nano := rapid.OneOf(rapid.Int64Range(0, 1e10), rapid.Int64Range(0, 1e15)).Draw(rt, "price")
			price := decimal(t, trim(new(big.Rat).SetFrac64(nano, 1e9).FloatString(9)))
			p.PerHour[name] = price
			micro := rapid.Int64Range(1, 1<<50).Draw(rt, "used")
			seconds := new(big.Rat).SetFrac64(micro, 1e6)
			used[name] = trim(seconds.FloatString(6))
			cost := new(big.Rat).Mul(seconds, new(big.Rat).SetFrac64(nano, 1e9*3600))
			if name == "memory" {
				cost.Quo(cost, new(big.Rat).SetInt64(1<<30))
			}
			exact.Add(exact, cost)
		}
		u, err := peering.ParseUsage(used)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := p.Cost(u)
		limit := new(big.Rat).SetInt64(1e9)
		if err != nil {
			if exact.Cmp(limit) < 0 {
				rt.Fatalf("%s: %v", exact, err)
			}
			return
		}
		off, _ := new(big.Rat).SetString(got.Amount.String())
		off.Sub(off, exact).Abs(off)
		if off.Cmp(new(big.Rat).SetFrac64(1, 2e9)) > 0 {
			rt.Fatalf("%s, exactly %s", got, exact.FloatString(12))
		}
	})
}

// trim takes the zeros away that a decimal does not have.
func trim(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }

func TestDifferenceOfMoneyIsExact(t *testing.T) {
	for _, tt := range []struct {
		a, b peering.Money
		want string
	}{
		{peering.Money{}, peering.Money{}, "0"},
		{eur(t, "0"), money(t, "USD", "0"), "0"},
		{eur(t, "1"), eur(t, "1"), "0"},
		{eur(t, "1"), eur(t, "2"), "50"},
		{eur(t, "2"), eur(t, "1"), "50"},
		{eur(t, "1"), eur(t, "0"), "100"},
		{eur(t, "1"), peering.Money{}, "100"},
		{eur(t, "1"), money(t, "USD", "1"), "100"},
		{eur(t, "3"), eur(t, "2"), "33.33"},
		{eur(t, "99.5"), eur(t, "100"), "0.5"},
		{eur(t, "999999999.999999999"), eur(t, "0.000000001"), "100"},
		{eur(t, "999999999.999999999"), eur(t, "999999999.999999998"), "0"},
	} {
		if got := peering.Difference(tt.a, tt.b); got != tt.want {
			t.Errorf("%s and %s: %s, want %s", tt.a, tt.b, got, tt.want)
		}
	}
}

func FuzzParseDecimal(f *testing.F) {
	for _, s := range []string{"0", "1", "0.025", "999999999.999999999", "0.000000001", "1.50", "00.1", "1e9", "-1", "1."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := peering.ParseDecimal(s)
		if err != nil {
			return
		}
		if d.String() != s {
			t.Fatalf("%q was read as %s", s, d)
		}
		want, ok := new(big.Rat).SetString(s)
		if got, _ := new(big.Rat).SetString(d.String()); !ok || got.Cmp(want) != 0 {
			t.Fatalf("%q is %s", s, d)
		}
	})
}
