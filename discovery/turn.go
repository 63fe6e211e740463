package discovery

import (
	"net/netip"
	"slices"
)

// A Claim is something that addresses say.
type Claim[T comparable] struct {
	Of T
	// From is who says it; none is one whose address is not known.
	From []netip.Addr
}

// InTurn returns at most room of what is claimed, each once: what comes first among all
// that one address says, of each address, then what comes second, and so on. Within a turn
// the order is that of the list. So an address that says much takes no place of another,
// and nothing loses its place because others say it, too.
func InTurn[T comparable](list []Claim[T], room int) []T {
	turns, said := map[T]int{}, map[netip.Addr]map[T]bool{}
	var order []T
	for _, c := range list {
		from := c.From
		if len(from) == 0 {
			from = []netip.Addr{{}}
		}
		for _, addr := range from {
			if said[addr][c.Of] {
				continue
			}
			if said[addr] == nil {
				said[addr] = map[T]bool{}
			}
			turn, known := turns[c.Of]
			if !known {
				order = append(order, c.Of)
			}
			if n := len(said[addr]); !known || n < turn {
				turns[c.Of] = n
			}
			said[addr][c.Of] = true
		}
	}
	slices.SortStableFunc(order, func(a, b T) int { return turns[a] - turns[b] })
	return order[:min(len(order), room)]
}
