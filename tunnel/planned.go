package tunnel

import (
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/tunnel/plan"
)

// planned is the last plan, and what it was made from.
type planned struct {
	of     input
	layout *plan.Layout
}

// input is what a plan is made from.
type input struct {
	// desired is the value that was set, which does not change.
	desired *plan.Desired
	// kept are nodes that count as gateways nevertheless.
	kept []string
	// pods are the prefixes of this node's pods, and announced those that were announced to peers. They
	// take the place of those in desired.
	pods, announced []netip.Prefix
	observed        plan.Observed
}

func (i input) equal(o input) bool {
	return i.desired == o.desired && slices.Equal(i.kept, o.kept) && slices.Equal(i.pods, o.pods) && slices.Equal(i.announced, o.announced) && i.observed.Equal(o.observed)
}

// next returns the plan for an input, and whether it was made now: if the input did not change it is
// the last one. d is the desired state with the pods and announced prefixes of the input.
func (l *planned) next(i input, d plan.Desired) (layout *plan.Layout, made bool, err error) {
	if l.layout != nil && !l.layout.Contested {
		i.observed.Turn = l.of.observed.Turn
	}
	if l.layout != nil && l.of.equal(i) {
		return l.layout, false, nil
	}
	next, err := plan.Plan(d, i.observed)
	if err != nil {
		return nil, false, err
	}
	*l = planned{of: i, layout: &next}
	return l.layout, true, nil
}
