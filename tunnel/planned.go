package tunnel

import (
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/tunnel/plan"
)

// planned is the last plan, and what it was made of.
type planned struct {
	of     wanted
	layout *plan.Layout
}

// wanted is what a plan is made of.
type wanted struct {
	// desired is what was set, which nobody changes.
	desired *plan.Desired
	// pods are where this node's pods are, and announced the prefixes of them that peers were told,
	// which take the place of what desired says.
	pods, announced []netip.Prefix
	observed        plan.Observed
}

func (w wanted) equal(o wanted) bool {
	return w.desired == o.desired && slices.Equal(w.pods, o.pods) && slices.Equal(w.announced, o.announced) && w.observed.Equal(o.observed)
}

// next returns the plan of what is wanted now, and whether it was made now: if nothing changed it is
// the last one. d is the desired state with what takes the place of some of it.
func (l *planned) next(w wanted, d plan.Desired) (layout *plan.Layout, made bool, err error) {
	if l.layout != nil && !l.layout.Contested {
		w.observed.Turn = l.of.observed.Turn
	}
	if l.layout != nil && l.of.equal(w) {
		return l.layout, false, nil
	}
	next, err := plan.Plan(d, w.observed)
	if err != nil {
		return nil, false, err
	}
	*l = planned{of: w, layout: &next}
	return l.layout, true, nil
}
