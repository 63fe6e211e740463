package tunnel

import (
	"slices"
	"time"
)

// demotion is the time in which a node that ceased to be a gateway goes on as one that hands its peers over.
// Otherwise the gateways of a peer would send to it until its silence shows that it has no tunnel with them.
type demotion struct {
	// gateway says that the node was a gateway. until is when it stops handing over, latest when at the latest.
	gateway       bool
	until, latest time.Time
}

// lasts reports whether the node hands its peers over. carries says that it still carries some that another
// gateway could carry.
func (m *demotion) lasts(now time.Time, gateway, carries bool) bool {
	switch {
	case gateway:
		*m = demotion{gateway: true}
		return false
	case !m.gateway:
		return false
	case m.latest.IsZero():
		m.until, m.latest = now.Add(leaveLinger), now.Add(demoteMost)
	case carries:
		m.until = now.Add(leaveLinger) // for packets on their way
	}
	if m.until.After(m.latest) {
		m.until = m.latest
	}
	if now.Before(m.until) {
		return true
	}
	*m = demotion{}
	return false
}

// retiring are the other nodes of the cluster that ceased to be gateways. Nodes hear of that at different moments. One that
// turned away from such a gateway at once would drop what it still sends, and send to another that does not carry the
// peer yet. So it counts as a gateway until it has handed its peers over, by what it announces, for demoteMost at most.
type retiring struct {
	gateways []string // of the last time
	nodes    []retiringNode
}

// retiringNode is one of these nodes, and when it stops counting as a gateway at the latest.
type retiringNode struct {
	name   string
	latest time.Time
}

// next returns the nodes that count as gateways beside those that are some. inUse says that a node carries peers.
func (r *retiring) next(now time.Time, gateways []string, inUse func(node string) bool) (kept []string) {
	for _, n := range r.gateways {
		if !slices.Contains(gateways, n) {
			r.nodes = append(r.nodes, retiringNode{n, now.Add(demoteMost)})
		}
	}
	r.gateways = gateways
	r.nodes = slices.DeleteFunc(r.nodes, func(n retiringNode) bool {
		return slices.Contains(gateways, n.name) || !now.Before(n.latest) || !inUse(n.name)
	})
	for _, n := range r.nodes {
		kept = append(kept, n.name)
	}
	return kept
}
