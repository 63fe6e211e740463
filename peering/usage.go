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
// comparable with ==. It stops at 2^128-1 millionths, more than anything that has
// a Quantity uses in the life of a contract.
type UnitSeconds struct{ hi, lo uint64 }

// unitSecond is one unit-second.
const unitSecond = 1_000_000

// unitSecondPlaces is how many places after the point that is.
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

// ParseUnitSeconds reads what String wrote, and nothing else.
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

// IsZero says whether nothing was used.
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

// Usage is what was used of some resources. What was not used is not in it.
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

// Check says what is wrong with the names, if anything.
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

// Equal says whether the same was used.
func (u Usage) Equal(o Usage) bool { return maps.Equal(u, o) }

// with returns what was used when q was in use for d besides.
func (u Usage) with(r Resources, d time.Duration) Usage {
	more := Usage{}
	for name, q := range r {
		if v := unitSecondsOf(q, d); !v.IsZero() {
			more[name] = v
		}
	}
	return u.Add(more)
}

// Meter counts use, period by period. It is a value; what it was at the last
// observation is all that has to be kept.
type Meter struct {
	// Since is when the current period began, in whole seconds.
	Since time.Time
	// Period is how long each lasts, in whole seconds.
	Period time.Duration
	// Sequence is how many periods have ended.
	Sequence uint64
	// Until is up to when it counted, in whole milliseconds.
	Until time.Time
	// Using is what was in use then.
	Using Resources
	// Used is what was used in the current period.
	Used Usage
}

// Period is what was used in a period that ended.
type Period struct {
	// Sequence counts periods from 1.
	Sequence uint64
	From, To time.Time
	Used     Usage
}

// NewMeter returns a meter that counts from begin on. A period below
// MinStatementPeriod counts as that.
func NewMeter(begin time.Time, period time.Duration) Meter {
	begin = normTime(begin)
	return Meter{Since: begin, Period: max(period.Truncate(time.Second), MinStatementPeriod), Until: begin}
}

// Observe says what is in use from now on. It counts what was in use since the
// last observation and returns the periods that ended meanwhile, at most
// MaxPeriods: if as many as that are returned, observe again for the rest.
//
// If the last observation is longer than MaxSample ago nobody was watching. Then
// of each resource the lesser of what was in use before and now counts, so that
// what is counted was surely used. Time that goes back adds nothing, nor is
// anything counted twice when it comes again.
func (m Meter) Observe(now time.Time, using Resources) (Meter, []Period) {
	return m.count(meterTime(now), using)
}

// End is Observe at the end of what is counted: nothing is in use any more, and
// the current period ends too, whole or not. To say it again returns nothing more.
// The end is cut to whole seconds; if more than that was counted, it is the next
// whole second after.
func (m Meter) End(at time.Time) (Meter, []Period) {
	at = normTime(at)
	if at.Before(m.Until) {
		at = wholeAfter(m.Until)
	}
	m, ended := m.count(at, nil)
	if len(ended) == MaxPeriods || !m.Since.Before(at) {
		return m, ended
	}
	m, last := m.close(at)
	return m, append(ended, last)
}

// count is Observe for a time in milliseconds.
func (m Meter) count(now time.Time, using Resources) (Meter, []Period) {
	if now.Sub(m.Until) > MaxSample {
		m.Using = lesser(m.Using, using)
	}
	var ended []Period
	for m.Until.Before(now) {
		if len(ended) == MaxPeriods {
			return m, ended // there is more to count, of what was in use until then
		}
		to := m.end()
		next := now
		if to.Before(next) {
			next = to
		}
		m.Used = m.Used.with(m.Using, next.Sub(m.Until))
		m.Until = next
		if !next.Before(to) {
			var p Period
			m, p = m.close(to)
			ended = append(ended, p)
		}
	}
	m.Using = using.Clone()
	return m, ended
}

// end is when the current period ends. If periods became shorter meanwhile, it
// ends with what was counted already.
func (m Meter) end() time.Time {
	to := m.Since.Add(m.Period)
	if to.Before(m.Until) {
		return wholeAfter(m.Until)
	}
	return to
}

// wholeAfter returns the first whole second that is not before t.
func wholeAfter(t time.Time) time.Time { return normTime(t.Add(time.Second - time.Millisecond)) }

// close ends the current period.
func (m Meter) close(to time.Time) (Meter, Period) {
	p := Period{Sequence: m.Sequence + 1, From: m.Since, To: to, Used: m.Used}
	m.Sequence, m.Since, m.Used = m.Sequence+1, to, Usage{}
	return m, p
}

// lesser returns the smaller amount of each resource.
func lesser(a, b Resources) Resources {
	r := Resources{}
	for name, q := range a {
		if least := q.Min(b[name]); !least.IsZero() {
			r[name] = least
		}
	}
	return r
}

// meterTime makes times that differ by less than a millisecond the same, so that
// counting in two steps gives what one gives.
func meterTime(t time.Time) time.Time { return t.Round(0).UTC().Truncate(time.Millisecond) }

var errStatementPeriod = errors.New("from and to have to be whole seconds, UTC, from 1970 to 9999, in order")
