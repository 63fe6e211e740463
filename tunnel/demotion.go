package tunnel

import "time"

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
