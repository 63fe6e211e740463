package peering

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Decimal is a number that is never below zero, exact to the ninth place after
// the point, at most 999999999.999999999. It is comparable with ==. Its text has
// one form: digits, and after a point as many as it needs, the last of them not
// 0.
type Decimal struct{ nano int64 }

const (
	decimalPlaces = 9
	nanoPerUnit   = 1_000_000_000
	maxDecimal    = 1_000_000_000*nanoPerUnit - 1
	// maxDecimalLen is the length of 999999999.999999999.
	maxDecimalLen = 19
)

// errDecimalRange is the error that a number is above 999999999.999999999.
var errDecimalRange = errors.New("number is above 999999999.999999999")

// ParseDecimal reads a decimal in its one form.
func ParseDecimal(s string) (Decimal, error) {
	if s == "" || len(s) > maxDecimalLen {
		return Decimal{}, fmt.Errorf("number has %d characters, want 1 to %d", len(s), maxDecimalLen)
	}
	whole, fraction, point := strings.Cut(s, ".")
	number := func(t string) bool { return t != "" && len(t) <= decimalPlaces && only(digits, t) }
	if !number(whole) || point && !number(fraction) {
		return Decimal{}, fmt.Errorf("number %q is not up to %d digits, and up to %d after a point", s, decimalPlaces, decimalPlaces)
	}
	n, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", decimalPlaces-len(fraction)), 10, 64)
	if err != nil {
		return Decimal{}, fmt.Errorf("number %q is not decimal", s) // cannot be: 18 digits at most
	}
	d := Decimal{n}
	if d.String() != s {
		return Decimal{}, fmt.Errorf("number %q has zeros too many, write %s", s, d)
	}
	return d, nil
}

func (d Decimal) String() string {
	s := strconv.FormatInt(d.nano/nanoPerUnit, 10)
	if rest := d.nano % nanoPerUnit; rest != 0 {
		s += "." + strings.TrimRight(fmt.Sprintf("%0*d", decimalPlaces, rest), "0")
	}
	return s
}

// Cmp returns -1, 0 or 1 as d is less than, equal to or more than o.
func (d Decimal) Cmp(o Decimal) int { return cmp.Compare(d.nano, o.nano) }

// IsZero reports whether the number is 0.
func (d Decimal) IsZero() bool { return d.nano == 0 }

// CeilMilli returns the number in thousandths, rounded up.
func (d Decimal) CeilMilli() int64 {
	const nanoPerMilli = nanoPerUnit / 1000
	return (d.nano + nanoPerMilli - 1) / nanoPerMilli
}

// Add returns d + o, or errDecimalRange.
func (d Decimal) Add(o Decimal) (Decimal, error) {
	if d.nano > maxDecimal-o.nano {
		return Decimal{}, errDecimalRange
	}
	return Decimal{d.nano + o.nano}, nil
}

// MarshalText writes the text form.
func (d Decimal) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text form.
func (d *Decimal) UnmarshalText(b []byte) error {
	return readText(d, b, ParseDecimal)
}

// Money is an amount in a currency. The zero Money means that no amount was set.
type Money struct {
	Amount Decimal `json:"amount"`
	// Currency is three capital letters, as in ISO 4217.
	Currency string `json:"currency"`
}

// IsNone reports whether no amount was set. An amount of 0 in a currency is set.
func (m Money) IsNone() bool { return m == Money{} }

// String returns currency and amount, as in "EUR 0.42"; "0" without a currency.
func (m Money) String() string {
	if m.Currency == "" {
		return m.Amount.String()
	}
	return m.Currency + " " + m.Amount.String()
}

// Check returns what is wrong with it, if anything. The zero Money is valid.
func (m Money) Check() error {
	if m.IsNone() {
		return nil
	}
	return checkCurrency(m.Currency)
}

func checkCurrency(s string) error {
	if len(s) != 3 || !only(upper, s) {
		return fmt.Errorf("currency %.16q is not three capital letters", s)
	}
	return nil
}

// PriceList is what resources cost. The zero PriceList means free of charge.
type PriceList struct {
	// Currency is three capital letters; empty if there are no prices.
	Currency string `json:"currency"`
	// PerHour is what one unit costs an hour, by resource. A unit is one core, pod or device, or
	// one gibibyte of what is counted in bytes. What is not listed costs nothing.
	PerHour map[string]Decimal `json:"perHour"`
}

// Check returns what is wrong with the list, if anything.
func (p PriceList) Check() error {
	if len(p.PerHour) == 0 {
		if p.Currency != "" {
			return errors.New("price list has a currency and no price")
		}
		return nil
	}
	if len(p.PerHour) > MaxResources {
		return fmt.Errorf("%d prices, more than %d", len(p.PerHour), MaxResources)
	}
	if err := checkCurrency(p.Currency); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.PerHour)) {
		if err := checkResourceName(name); err != nil {
			return fmt.Errorf("price: %w", err)
		}
	}
	return nil
}

// IsFree reports whether nothing costs anything.
func (p PriceList) IsFree() bool {
	for _, price := range p.PerHour {
		if !price.IsZero() {
			return false
		}
	}
	return true
}

// Clone returns a copy.
func (p PriceList) Clone() PriceList {
	p.PerHour = maps.Clone(p.PerHour)
	return p
}

// written returns the list as it is in a payload, in which the prices are never nil, and read
// undoes that.
func (p PriceList) written() PriceList { return PriceList{p.Currency, orEmpty(p.PerHour)} }

func (p PriceList) read() PriceList {
	if len(p.PerHour) == 0 {
		p.PerHour = nil
	}
	return p
}

// Equal reports whether two lists have the same prices.
func (p PriceList) Equal(o PriceList) bool {
	return p.Currency == o.Currency && maps.Equal(p.PerHour, o.PerHour)
}

// Hourly returns what r costs for an hour, exact but for the last place, which is rounded half to
// even.
func (p PriceList) Hourly(r Resources) (Money, error) {
	sum := new(big.Int)
	for name, price := range p.PerHour {
		sum.Add(sum, priced(name, price, r[name].bigMilli()))
	}
	return p.money(sum, 1000)
}

// Cost returns what the use cost, exact but for the last place, which is rounded
// half to even, once for the whole.
func (p PriceList) Cost(u Usage) (Money, error) {
	sum := new(big.Int)
	for name, price := range p.PerHour {
		sum.Add(sum, priced(name, price, u[name].big()))
	}
	return p.money(sum, unitSecond*secondsPerHour)
}

const (
	gibi           = 1 << 30
	secondsPerHour = 3600
)

// priced returns amount times price, in billionths of the price of 1/2^30 of the amount's unit.
func priced(name string, price Decimal, amount *big.Int) *big.Int {
	n := new(big.Int).Mul(amount, big.NewInt(price.nano))
	if InBytes(name) {
		return n
	}
	return n.Mul(n, big.NewInt(gibi))
}

// money divides a sum of priced by how many of its amounts make one unit for one hour.
func (p PriceList) money(sum *big.Int, perUnit int64) (Money, error) {
	n := divHalfEven(sum, new(big.Int).Mul(big.NewInt(perUnit), big.NewInt(gibi)))
	if !n.IsInt64() || n.Int64() > maxDecimal {
		return Money{}, fmt.Errorf("price in %s: %w", p.Currency, errDecimalRange)
	}
	return Money{Currency: p.Currency, Amount: Decimal{n.Int64()}}, nil
}

// divHalfEven returns a / b, rounded half to even. Neither is below zero, and b is not zero.
func divHalfEven(a, b *big.Int) *big.Int {
	quotient, rest := new(big.Int).QuoRem(a, b, new(big.Int))
	switch rest.Lsh(rest, 1).Cmp(b) {
	case 1:
		quotient.Add(quotient, big.NewInt(1))
	case 0:
		if quotient.Bit(0) == 1 {
			quotient.Add(quotient, big.NewInt(1))
		}
	}
	return quotient
}

// Difference returns by how much two amounts differ, in percent of the larger, decimal with at
// most two places, rounded half to even. It is "0" if both are the same, and "100" if they are of
// two currencies or one of them is zero.
func Difference(a, b Money) string {
	small, large := a.Amount.nano, b.Amount.nano
	if small > large {
		small, large = large, small
	}
	switch {
	case large == 0:
		return "0"
	case a.Currency != b.Currency:
		return "100"
	}
	n := new(big.Int).Mul(big.NewInt(large-small), big.NewInt(100*100))
	hundredths := divHalfEven(n, big.NewInt(large)).Int64()
	return Decimal{hundredths * (nanoPerUnit / 100)}.String()
}
