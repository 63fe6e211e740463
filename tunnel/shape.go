package tunnel

import (
	"fmt"
	"slices"
	"strings"
)

func comparePair(a, b Pair) int {
	if c := comparePrefix(a.Source, b.Source); c != 0 {
		return c
	}
	return comparePrefix(a.Destination, b.Destination)
}

// shape is what all pairs of one set have in common.
type shape struct {
	six                         bool
	sourceBits, destinationBits int
}

// pairShapes lists the shapes among pairs, most common first.
func pairShapes(pairs []Pair) []shape {
	count := map[shape]int{}
	for _, p := range pairs {
		count[shapeOf(p)]++
	}
	shapes := make([]shape, 0, len(count))
	for s := range count {
		shapes = append(shapes, s)
	}
	slices.SortFunc(shapes, func(a, b shape) int {
		if c := count[b] - count[a]; c != 0 {
			return c
		}
		return strings.Compare(a.name(), b.name())
	})
	return shapes
}

func shapeOf(p Pair) shape {
	return shape{six: p.Source.Addr().Is6(), sourceBits: p.Source.Bits(), destinationBits: p.Destination.Bits()}
}

func (s shape) name() string {
	family := "4"
	if s.six {
		family = "6"
	}
	return fmt.Sprintf("inbound%s-%d-%d", family, s.sourceBits, s.destinationBits)
}
