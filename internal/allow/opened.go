package allow

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sort"
)

// withOpened adds to exposures what other namespaces open to them, as far as it fits beside what each has of its own, so
// that nobody closes what is another's by opening much. The namespaces that open the least come first, each to all that
// it names or to none. It returns a text about those that were left out, if any.
func withOpened(sorted []Exposed) ([]Exposed, []string) {
	flows := map[string]int{}
	for _, e := range sorted {
		for namespace, to := range e.Opened {
			flows[namespace] += len(to)
		}
	}
	if len(flows) == 0 {
		return sorted, nil
	}
	order := slices.SortedFunc(maps.Keys(flows), func(a, b string) int { return cmp.Or(cmp.Compare(flows[a], flows[b]), cmp.Compare(a, b)) })
	own := sumOf(sorted)
	sum, few := own.flows, 0
	for few < len(order) && sum+flows[order[few]] <= maxOpenedFlows {
		sum += flows[order[few]]
		few++
	}
	fit := sort.Search(few, func(i int) bool { return !own.takes(sumOf(open(sorted, order[:i+1]))) })
	out := open(sorted, order[:fit])
	if fit == len(order) {
		return out, nil
	}
	return out, []string{fmt.Sprintf("what namespace %s opens to others stays closed, as of %d namespaces: with it, more would be open to the peer than a tunnel can list "+
		"(%d namespaces, %d addresses and ports, %d ports of an address, %d flows); open fewer or smaller Services, or to fewer namespaces",
		order[fit], len(order)-fit, MaxExposures, MaxExposed, maxPorts, maxOpenedFlows)}
}

// open returns exposures with what these namespaces open.
func open(list []Exposed, namespaces []string) []Exposed {
	out := slices.Clone(list)
	for i := range out {
		e := &out[i]
		for _, namespace := range namespaces {
			e.To = slices.Concat(e.To, e.Opened[namespace])
		}
	}
	return out
}

// sums is how much exposures list.
type sums struct{ exposures, listed, flows, crowded int }

func sumOf(list []Exposed) (out sums) {
	for _, e := range list {
		if e.Home != "" {
			continue // it comes after all of these
		}
		x, to := exposureOf(e)
		if len(to) == 0 || !x.AnySource && len(x.From) == 0 {
			continue
		}
		out.exposures++
		out.listed += len(x.From) + sizeOf(to)
		out.flows += len(x.From)
		for _, d := range to {
			out.flows += len(d.Addresses) * max(len(d.Ports), 1)
			if len(d.Ports) > maxPorts {
				out.crowded += len(d.Addresses)
			}
		}
	}
	return out
}

// takes reports whether a Tunnel has room for more than what namespaces have of their own.
func (own sums) takes(all sums) bool {
	return all.exposures <= MaxExposures && all.listed <= MaxExposed && all.crowded <= own.crowded
}

// together is what two exposures of a namespace have opened.
func together(a, b map[string][]Destination) map[string][]Destination {
	if len(a) == 0 {
		return b
	}
	out := maps.Clone(a)
	for namespace, to := range b {
		out[namespace] = slices.Concat(out[namespace], to)
	}
	return out
}
