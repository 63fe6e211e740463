package format

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/duration"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// Moment is a point in time, in UTC.
func Moment(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().Format(time.RFC3339)
}

// Since is how long before now something was, as kubectl writes it.
func Since(now time.Time, t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t.AsTime()))
}

// Until is how long after now something is.
func Until(now time.Time, t *timestamppb.Timestamp) string {
	switch {
	case t == nil:
		return "-"
	case !t.AsTime().After(now):
		return "over"
	}
	return duration.HumanDuration(t.AsTime().Sub(now))
}

// Span is a duration as text; none is the text of an unset one.
func Span(d *durationpb.Duration, none string) string {
	if d == nil {
		return none
	}
	return spanOf(d.AsDuration())
}

// spanOf is a duration without the units that are zero: 24h, not 24h0m0s.
func spanOf(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Money is an amount for people; none is the text of an unset one.
func Money(m *ententev1.Money, none string) string {
	if m.GetCurrency() == "" {
		return none
	}
	return m.GetCurrency() + " " + m.GetAmount()
}

// PerHour is a price per hour, for people.
func PerHour(m *ententev1.Money) string {
	if m.GetCurrency() == "" {
		return "free"
	}
	return Money(m, "") + " an hour"
}

// Prices is a list of prices per hour, for people: EUR: cpu 0.02, memory 0.005 a GiB.
func Prices(p *ententev1.PriceList) string {
	if p.GetCurrency() == "" || len(p.GetPerHour()) == 0 {
		return "free"
	}
	var parts []string
	for _, name := range ResourceNames(p.GetPerHour()) {
		part := name + " " + p.GetPerHour()[name]
		if peering.InBytes(name) {
			part += " a GiB"
		}
		parts = append(parts, part)
	}
	return p.GetCurrency() + " an hour: " + strings.Join(parts, ", ")
}

// PriceText is Prices for a price list of the core.
func PriceText(p peering.PriceList) string { return Prices(wire.PriceListTo(p)) }

// OfPool adds the pool of nodes that amounts are from, if one was named.
func OfPool(pool, amounts string) string {
	if pool == "" {
		return amounts
	}
	return "pool " + pool + ": " + amounts
}

// Amounts lists resources by name, the usual ones first.
func Amounts(r *ententev1.ResourceList) string { return Listed(r.GetAmounts()) }

// SameAmount reports whether two amounts are equal, however they are written.
func SameAmount(a, b string) bool {
	x, err := peering.ParseQuantity(a)
	y, otherErr := peering.ParseQuantity(b)
	return a == b || err == nil && otherErr == nil && x.Cmp(y) == 0
}

// Briefly lists CPU and memory, and the number of other resources besides pods.
func Briefly(r *ententev1.ResourceList) string {
	var parts []string
	others := 0
	for _, name := range ResourceNames(r.GetAmounts()) {
		switch amount := r.GetAmounts()[name]; name {
		case "cpu":
			parts = append(parts, amount+" CPU")
		case "memory":
			parts = append(parts, amount)
		case "pods":
		default:
			others++
		}
	}
	if others > 0 {
		parts = append(parts, fmt.Sprintf("+%d", others))
	}
	if len(parts) == 0 {
		return Amounts(r)
	}
	return strings.Join(parts, ", ")
}

// Listed lists amounts by name, the usual ones first.
func Listed(amounts map[string]string) string {
	var parts []string
	for _, name := range ResourceNames(amounts) {
		parts = append(parts, name+" "+amounts[name])
	}
	return cmp.Or(strings.Join(parts, ", "), "nothing")
}

// ResourceNames are the names of amounts, the usual ones first.
func ResourceNames(amounts map[string]string) []string {
	rank := map[string]int{"cpu": -3, "memory": -2, "pods": -1}
	names := make([]string, 0, len(amounts))
	for name := range amounts {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if rank[a] != rank[b] {
			return rank[a] - rank[b]
		}
		return strings.Compare(a, b)
	})
	return names
}

// YesNo is yes or no.
func YesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// Pairs writes labels like a selector.
func Pairs(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, ",")
}

// Count is a number with its noun.
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
