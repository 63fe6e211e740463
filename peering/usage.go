package peering

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"math/bits"
	"slices"
	"strings"
	"time"
)

// UnitSeconds is an amount of a resource times how long it was in use, exact to
// the millionth of a unit-second: thousandths of a unit times milliseconds. It is
// comparable with ==. Its limit is 2^128-1 millionths, more than any Quantity can come to in the
// life of a contract.
type UnitSeconds struct{ hi, lo uint64 }

// unitSecond is one unit-second.
const unitSecond = 1_000_000

// unitSecondPlaces is how many places after the point a UnitSeconds has.
const unitSecondPlaces = 6

func unitSecondsOf(q Quantity, d time.Duration) UnitSeconds {
	n := q.bigMilli()
	return unitSecondsFrom(n.Mul(n, big.NewInt(max(d.Milliseconds(), 0))))
}

// unitSecondsFrom returns n millionths, n not below zero.
func unitSecondsFrom(n *big.Int) UnitSeconds {
	if n.BitLen() > 128 {
		return UnitSeconds{^uint64(0), ^uint64(0)}
	}
	var b [16]byte
	n.FillBytes(b[:])
	return UnitSeconds{binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])}
}

func (u UnitSeconds) big() *big.Int {
	n := new(big.Int).SetUint64(u.hi)
	return n.Lsh(n, 64).Or(n, new(big.Int).SetUint64(u.lo))
}

// ParseUnitSeconds reads only what String wrote.
func ParseUnitSeconds(s string) (UnitSeconds, error) {
	if s == "" || len(s) > MaxUnitSecondsLen {
		return UnitSeconds{}, fmt.Errorf("use has %d characters, want 1 to %d", len(s), MaxUnitSecondsLen)
	}
	whole, fraction, point := strings.Cut(s, ".")
	number := func(t string) bool { return t != "" && only(digits, t) }
	if !number(whole) || point && (!number(fraction) || len(fraction) > unitSecondPlaces) {
		return UnitSeconds{}, fmt.Errorf("use %q is not decimal with at most %d places", s, unitSecondPlaces)
	}
	n, _ := new(big.Int).SetString(whole+fraction+strings.Repeat("0", unitSecondPlaces-len(fraction)), 10)
	if n.BitLen() > 128 {
		return UnitSeconds{}, fmt.Errorf("use %q is out of range", s)
	}
	u := unitSecondsFrom(n)
	if u.String() != s {
		return UnitSeconds{}, fmt.Errorf("use %q has zeros too many, write %s", s, u)
	}
	return u, nil
}

// String returns unit-seconds in decimal, without zeros at the end.
func (u UnitSeconds) String() string { return fixed(u.big(), unitSecondPlaces) }

// fixed writes n, of which the last places digits are after the point.
func fixed(n *big.Int, places int) string {
	s := n.String()
	if missing := places + 1 - len(s); missing > 0 {
		s = strings.Repeat("0", missing) + s
	}
	whole, fraction := s[:len(s)-places], strings.TrimRight(s[len(s)-places:], "0")
	if fraction == "" {
		return whole
	}
	return whole + "." + fraction
}

// IsZero reports whether nothing was used.
func (u UnitSeconds) IsZero() bool { return u == UnitSeconds{} }

// Add returns the sum.
func (u UnitSeconds) Add(o UnitSeconds) UnitSeconds {
	lo, carry := bits.Add64(u.lo, o.lo, 0)
	hi, carry := bits.Add64(u.hi, o.hi, carry)
	if carry != 0 {
		return UnitSeconds{^uint64(0), ^uint64(0)}
	}
	return UnitSeconds{hi, lo}
}

// MarshalText writes the text form.
func (u UnitSeconds) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads the text form.
func (u *UnitSeconds) UnmarshalText(b []byte) error {
	return readText(u, b, ParseUnitSeconds)
}

// Usage is how much was used, by resource. Resources that were not used are missing.
type Usage map[string]UnitSeconds

// ParseUsage reads what Strings wrote, and checks names and their number.
func ParseUsage(m map[string]string) (Usage, error) {
	if len(m) > MaxResources {
		return nil, fmt.Errorf("use of %d resources, more than %d", len(m), MaxResources)
	}
	u := make(Usage, len(m))
	for name, s := range m {
		v, err := ParseUnitSeconds(s)
		if err != nil {
			return nil, fmt.Errorf("resource %.140q: %w", name, err)
		}
		u[name] = v
	}
	return u, u.Check()
}

// Check returns what is wrong with the names, if anything.
func (u Usage) Check() error {
	if len(u) > MaxResources {
		return fmt.Errorf("use of %d resources, more than %d", len(u), MaxResources)
	}
	for _, name := range slices.Sorted(maps.Keys(u)) {
		if err := checkResourceName(name); err != nil {
			return err
		}
		if u[name].IsZero() {
			return fmt.Errorf("resource %s was not used and should not be named", name)
		}
	}
	return nil
}

// Strings writes each amount in unit-seconds.
func (u Usage) Strings() map[string]string {
	m := make(map[string]string, len(u))
	for name, v := range u {
		m[name] = v.String()
	}
	return m
}

// Hours returns unit-hours, in gibibytes of what is counted in bytes, decimal
// with at most three places, rounded half to even. It is for people to read.
func (u Usage) Hours() map[string]string {
	const places, thousandths = 3, 1000
	m := make(map[string]string, len(u))
	for name, v := range u {
		per := big.NewInt(unitSecond * secondsPerHour)
		if InBytes(name) {
			per.Mul(per, big.NewInt(gibi))
		}
		n := v.big()
		m[name] = fixed(divHalfEven(n.Mul(n, big.NewInt(thousandths)), per), places)
	}
	return m
}

// Add returns the sums.
func (u Usage) Add(o Usage) Usage {
	sum := make(Usage, max(len(u), len(o)))
	maps.Copy(sum, u)
	for name, v := range o {
		sum[name] = sum[name].Add(v)
	}
	return sum
}

// Equal reports whether the same was used.
func (u Usage) Equal(o Usage) bool { return maps.Equal(u, o) }

// With returns the use plus that of r for d.
func (u Usage) With(r Resources, d time.Duration) Usage {
	more := Usage{}
	for name, q := range r {
		if v := unitSecondsOf(q, d); !v.IsZero() {
			more[name] = v
		}
	}
	return u.Add(more)
}

var errStatementPeriod = errors.New("from and to have to be whole seconds, UTC, from 1970 to 9999, in order")
