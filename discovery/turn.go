package discovery

import (
	"net/netip"
	"slices"
)

// A Claim is a value with the addresses that sent it.
type Claim[T comparable] struct {
	Of T
	// From are the addresses that sent it; none means one unknown address.
	From []netip.Addr
}

// InTurn returns at most room claimed values, each once: first the first value of each address,
// then the second of each, and so on; within a turn they are in the order of the list. So an
// address that sends many values takes no place from another, and no value loses its place because
// others send it, too.
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
