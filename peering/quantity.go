package peering

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Quantity is an amount of a resource, exact to a thousandth, never negative, at
// most 2^63-1. It is comparable with ==, which also compares how it is written;
// Cmp compares amounts.
//
// It reads and writes the Kubernetes notation: a decimal number with one of the
// suffixes m, k, M, G, T, P, E, or Ki, Mi, Gi, Ti, Pi, Ei, or without a suffix. Other forms of
// Kubernetes are refused with an error: exponents (1e3), less than a thousandth (n, u), and
// fractions of a unit in binary notation.
type Quantity struct {
	units int64 // whole units
	milli int16 // thousandths, 0 to 999
	// binary means that it was written with a suffix like Ki.
	binary bool
}

// ErrQuantityRange is the error that an amount is below zero or above 2^63-1.
var ErrQuantityRange = errors.New("amount is out of range")

var (
	decimalSuffixes = []string{"", "k", "M", "G", "T", "P", "E"}       //nolint:gochecknoglobals // a constant list
	binarySuffixes  = []string{"", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"} //nolint:gochecknoglobals // a constant list
)

// Whole returns the quantity of n whole units, in decimal notation. A negative n
// counts as 0.
func Whole(n int64) Quantity { return Quantity{units: max(n, 0)} }

// ParseQuantity reads a Kubernetes quantity.
func ParseQuantity(s string) (Quantity, error) {
	if s == "" || len(s) > MaxQuantityLen {
		return Quantity{}, fmt.Errorf("quantity has %d characters, want 1 to %d", len(s), MaxQuantityLen)
	}
	end := strings.LastIndexAny(s, digits+".") + 1
	number, suffix := s[:end], s[end:]
	mantissa, scale, err := parseNumber(number)
	if err != nil {
		return Quantity{}, fmt.Errorf("quantity %q: %w", s, err)
	}
	factor, binary, err := suffixMilli(suffix)
	if err != nil {
		return Quantity{}, fmt.Errorf("quantity %q: %w", s, err)
	}
	milli := new(big.Int).Mul(mantissa, factor)
	milli, rest := milli.QuoRem(milli, scale, new(big.Int))
	if rest.Sign() != 0 {
		return Quantity{}, fmt.Errorf("quantity %q is finer than a thousandth", s)
	}
	q, err := fromMilli(milli, binary)
	if err != nil {
		return Quantity{}, fmt.Errorf("quantity %q: %w", s, err)
	}
	if binary && q.milli != 0 {
		return Quantity{}, fmt.Errorf("quantity %q is not a whole number of units", s)
	}
	return q, nil
}

// parseNumber reads digits with at most one point as mantissa / scale.
func parseNumber(s string) (mantissa, scale *big.Int, err error) {
	whole, fraction, _ := strings.Cut(strings.TrimPrefix(s, "+"), ".")
	number := whole + fraction
	if number == "" || !only(digits, number) {
		if strings.HasPrefix(s, "-") {
			return nil, nil, errors.New("below zero")
		}
		return nil, nil, errors.New("not a decimal number")
	}
	mantissa, _ = new(big.Int).SetString(number, 10)
	scale = new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(fraction))), nil)
	return mantissa, scale, nil
}

// suffixMilli returns how many thousandths a suffix means.
func suffixMilli(suffix string) (milli *big.Int, binary bool, err error) {
	if suffix == "m" {
		return big.NewInt(1), false, nil
	}
	if i := slices.Index(decimalSuffixes, suffix); i >= 0 {
		return new(big.Int).Exp(big.NewInt(1000), big.NewInt(int64(i+1)), nil), false, nil
	}
	if i := slices.Index(binarySuffixes, suffix); i >= 0 {
		n := new(big.Int).Lsh(big.NewInt(1000), uint(10*i))
		return n, true, nil
	}
	return nil, false, fmt.Errorf("unknown suffix %q", suffix)
}

func fromMilli(milli *big.Int, binary bool) (Quantity, error) {
	units, rest := new(big.Int).QuoRem(milli, big.NewInt(1000), new(big.Int))
	if milli.Sign() < 0 || !units.IsInt64() || units.Int64() == math.MaxInt64 && rest.Sign() > 0 {
		return Quantity{}, ErrQuantityRange
	}
	return Quantity{units: units.Int64(), milli: int16(rest.Int64()), binary: binary}.normal(), nil
}

// normal makes equal amounts of one notation equal values: below 1024 Kubernetes
// writes binary amounts in decimal.
func (q Quantity) normal() Quantity {
	if q.units < 1024 {
		q.binary = false
	}
	return q
}

func (q Quantity) bigMilli() *big.Int {
	n := new(big.Int).Mul(big.NewInt(q.units), big.NewInt(1000))
	return n.Add(n, big.NewInt(int64(q.milli)))
}

// String returns the canonical form, the one that Kubernetes writes.
func (q Quantity) String() string {
	if q.milli != 0 {
		return q.bigMilli().String() + "m"
	}
	base, suffixes := int64(1000), decimalSuffixes
	if q.binary {
		base, suffixes = 1024, binarySuffixes
	}
	n, i := q.units, 0
	for n != 0 && n%base == 0 && i < len(suffixes)-1 {
		n, i = n/base, i+1
	}
	return strconv.FormatInt(n, 10) + suffixes[i]
}

// IsZero reports whether the amount is 0.
func (q Quantity) IsZero() bool { return q.units == 0 && q.milli == 0 }

// IsWhole reports whether the amount is a whole number of units.
func (q Quantity) IsWhole() bool { return q.milli == 0 }

// Units returns the amount in whole units, rounded down.
func (q Quantity) Units() int64 { return q.units }

// Cmp returns -1, 0 or 1 as q is less than, equal to or more than o.
func (q Quantity) Cmp(o Quantity) int {
	return cmp.Or(cmp.Compare(q.units, o.units), cmp.Compare(q.milli, o.milli))
}

// Add returns q + o in q's notation, or ErrQuantityRange.
func (q Quantity) Add(o Quantity) (Quantity, error) {
	if o.units > math.MaxInt64-q.units {
		return Quantity{}, ErrQuantityRange
	}
	units, milli := q.units+o.units, q.milli+o.milli
	if milli >= 1000 {
		if units == math.MaxInt64 {
			return Quantity{}, ErrQuantityRange
		}
		units, milli = units+1, milli-1000
	}
	if units == math.MaxInt64 && milli > 0 {
		return Quantity{}, ErrQuantityRange
	}
	return Quantity{units: units, milli: milli, binary: q.notation(o)}.normal(), nil
}

// Sub returns q - o, or 0 if o is more than q.
func (q Quantity) Sub(o Quantity) Quantity {
	if q.Cmp(o) <= 0 {
		return Quantity{}
	}
	units, milli := q.units-o.units, q.milli-o.milli
	if milli < 0 {
		units, milli = units-1, milli+1000
	}
	return Quantity{units: units, milli: milli, binary: q.notation(o)}.normal()
}

// notation is binary if one of the two is and the result is whole.
func (q Quantity) notation(o Quantity) bool {
	return (q.binary || o.binary) && (int(q.milli)+int(o.milli))%1000 == 0
}

// Percent returns p hundredths of q, rounded down to a thousandth. Below 0 counts
// as 0, above 100 as 100.
func (q Quantity) Percent(p int) Quantity { return q.percent(min(p, 100)) }

// percent is Percent without the limit of 100, up to the largest Quantity.
func (q Quantity) percent(p int) Quantity {
	n := q.bigMilli()
	n.Mul(n, big.NewInt(int64(max(p, 0))))
	n.Quo(n, big.NewInt(100))
	r, err := fromMilli(n, false)
	if err != nil {
		return Quantity{units: math.MaxInt64}
	}
	if r.milli == 0 {
		r.binary = q.binary
	}
	return r.normal()
}

// Floor returns q rounded down to whole units.
func (q Quantity) Floor() Quantity {
	q.milli = 0
	return q
}

// Min returns the smaller of two, or q if they are equal.
func (q Quantity) Min(o Quantity) Quantity {
	if o.Cmp(q) < 0 {
		return o
	}
	return q
}

// max returns the larger of two.
func (q Quantity) max(o Quantity) Quantity {
	if o.Cmp(q) > 0 {
		return o
	}
	return q
}

// MarshalText writes the canonical form.
func (q Quantity) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// UnmarshalText reads a quantity.
func (q *Quantity) UnmarshalText(b []byte) error {
	return readText(q, b, ParseQuantity)
}

// readText sets a value to the result of parse.
func readText[T any](to *T, text []byte, parse func(string) (T, error)) (err error) {
	v, err := parse(string(text))
	if err == nil {
		*to = v
	}
	return err
}

// Pods is the name of the resource that counts pods.
const Pods = "pods"

// Resources are amounts by Kubernetes resource name.
type Resources map[string]Quantity

// Clone returns a copy, never nil.
func (r Resources) Clone() Resources {
	c := make(Resources, len(r))
	maps.Copy(c, r)
	return c
}

// Names returns the resources' names, sorted.
func (r Resources) Names() []string { return slices.Sorted(maps.Keys(r)) }

// String lists the amounts by name, as in "cpu=4, memory=8Gi".
func (r Resources) String() string {
	parts := make([]string, 0, len(r))
	for _, name := range r.Names() {
		parts = append(parts, name+"="+r[name].String())
	}
	return strings.Join(parts, ", ")
}

// Fits reports whether o has every amount of r, and otherwise names one that it does not.
func (r Resources) Fits(o Resources) (name string, ok bool) {
	for _, name := range r.Names() {
		if r[name].Cmp(o[name]) > 0 {
			return name, false
		}
	}
	return "", true
}

// Add returns the sums. A sum that is out of range is an error.
func (r Resources) Add(o Resources) (Resources, error) {
	sum := r.Clone()
	for name, q := range o {
		s, err := sum[name].Add(q)
		if err != nil {
			return nil, fmt.Errorf("resource %s: %w", name, err)
		}
		sum[name] = s
	}
	return sum, nil
}

// Sub returns r without o. No amount is below 0.
func (r Resources) Sub(o Resources) Resources {
	left := r.Clone()
	for name, q := range left {
		left[name] = q.Sub(o[name])
	}
	return left
}

// KeepUnnamed returns r with the amounts of before for resources that r does not name. It is what
// the next revision of a contract gets if r is asked for; otherwise a resource that is left out
// would have no limit.
func (r Resources) KeepUnnamed(before Resources) Resources {
	next := before.Clone()
	maps.Copy(next, r)
	return next
}

// ParseResources reads amounts written as Kubernetes quantities, and checks names
// and their number.
func ParseResources(m map[string]string) (Resources, error) {
	if len(m) > MaxResources {
		return nil, fmt.Errorf("%d resources, more than %d", len(m), MaxResources)
	}
	r := make(Resources, len(m))
	for name, s := range m {
		if err := checkResourceName(name); err != nil {
			return nil, err
		}
		q, err := ParseQuantity(s)
		if err != nil {
			return nil, fmt.Errorf("resource %s: %w", name, err)
		}
		r[name] = q
	}
	return r, nil
}

// Strings writes each amount in canonical form.
func (r Resources) Strings() map[string]string {
	m := make(map[string]string, len(r))
	for name, q := range r {
		m[name] = q.String()
	}
	return m
}

// checkResourceName checks a resource name: a qualified name, as of a label.
func checkResourceName(s string) error {
	if s == "" || len(s) > MaxResourceNameLen {
		return fmt.Errorf("resource name has %d characters, want 1 to %d", len(s), MaxResourceNameLen)
	}
	if err := checkQualifiedName(s); err != nil {
		return fmt.Errorf("resource name %q: %w", s, err)
	}
	return nil
}

// InBytes reports whether a resource is counted in bytes: memory and storage. Its price is per
// gibibyte.
func InBytes(resource string) bool {
	if strings.Contains(resource, "/") {
		return StorageClass(resource) != ""
	}
	name := strings.TrimPrefix(strings.TrimPrefix(resource, "requests."), "limits.")
	return name == "memory" || strings.HasSuffix(name, "storage") || strings.HasPrefix(name, "hugepages-")
}

// storageSuffix is how a ResourceQuota of Kubernetes calls the storage of a class.
const storageSuffix = ".storageclass.storage.k8s.io/requests.storage"

// StorageResource is the resource for storage of a class, in bytes.
func StorageResource(class string) string { return class + storageSuffix }

// StorageClass returns the class of a storage resource, or nothing for other resources.
func StorageClass(resource string) string {
	class, ok := strings.CutSuffix(resource, storageSuffix)
	if !ok {
		return ""
	}
	return class
}

// Fractional reports whether a resource may be granted in parts of a unit. Only cpu may: half a
// pod or half a GPU is of no use.
func Fractional(resource string) bool {
	return resource == "cpu" || resource == "requests.cpu" || resource == "limits.cpu"
}
