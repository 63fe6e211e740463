package tunnel

import (
	"cmp"
	"slices"
	"time"

	"github.com/entente-dev/entente/tunnel/probe"
)

// Which home gateway carries a peer's traffic, and which gateway of the peer it goes to, is
// agreed upon by probes alone: no API server takes part. A gateway that reaches the peer and
// is the best of those that do claims the peer, and says so in its probes; all other nodes of
// the cluster, and the peer's gateways, follow. Both clusters do the same, so the pair of
// gateways that results is one that reach each other.
// Which is the best is said by [plan.Rank].
const (
	// carrierSettles is how long a gateway reaches a peer before it takes the peer's traffic
	// from another that carries it well.
	carrierSettles = 10 * time.Second
	// carrierTakes is how long before it takes it from one that does not.
	carrierTakes = time.Second
	// carrierListens is for how long a gateway that just came to reach a peer waits to hear
	// from all others before it claims the peer.
	carrierListens = 5 * time.Second
)

// homeGateway is a gateway of the home cluster as this node sees it.
type homeGateway struct {
	node string
	rank uint64
	// alive says that its probes are answered and that it said what it claims. It is true of
	// this node itself.
	alive bool
	probe.Claim
}

// better says that of two gateways that are alive the first should carry the peer.
func (g homeGateway) better(h homeGateway) bool {
	return cmp.Or(cmp.Compare(g.Reach, h.Reach), cmp.Compare(g.rank, h.rank)) > 0
}

// peerGateway is a gateway of the peer as this node sees it.
type peerGateway struct {
	node string
	rank uint64
	path probe.PathState
	// carries says that the gateway announced that it carries traffic to us.
	carries bool
	// relayed says that it is reached through the agents.
	relayed bool
	// doubted says that a probe was lost, here or at another node of this cluster, and that
	// nothing was heard of it since.
	doubted bool
}

// situation is what a node knows about the ways to a peer at a time.
type situation struct {
	now time.Time
	// self is the name of this node.
	self string
	// leads says that the home cluster has the lower ID.
	leads bool
	// began is when this process began to listen.
	began time.Time
	// leaving says that this node is about to stop.
	leaving bool
	home    []homeGateway
	peer    []peerGateway
}

// replaced says whether another gateway of the home cluster can carry the peer.
func (s situation) replaced() bool {
	return slices.ContainsFunc(s.home, func(g homeGateway) bool { return g.node != s.self && g.alive && g.Reach != probe.ReachNone })
}

// election is who carries a peer's traffic, as one node has it. The zero value knows nothing.
type election struct {
	// home is the home gateway in use, peer the gateway of the peer that is used where this
	// node carries.
	home, peer string
	// claim is that of this node, which has reached the peer so well since a time. Zero on a
	// node that is no gateway.
	probe.Claim
	since time.Time
}

// countSwitches counts, of each peer that there is still, that its way leads over other gateways
// than before.
func countSwitches(counts map[string]uint64, before, now map[string]election) map[string]uint64 {
	out := make(map[string]uint64, len(now))
	for peer, e := range now {
		was, known := before[peer]
		out[peer] = counts[peer]
		if known && was.home != "" && e.home != "" && (was.home != e.home || was.peer != "" && e.peer != "" && was.peer != e.peer) {
			out[peer]++
		}
	}
	return out
}

// next returns the election in a situation.
func (e election) next(s situation) election {
	// After a restart nothing is known yet of the gateway that is in use, and another may answer first.
	fresh := e.Carries && slices.ContainsFunc(s.peer, func(g peerGateway) bool { return g.node == e.peer && g.path == probe.PathUnknown })
	if !fresh {
		e.peer = choosePeerGateway(s.peer, e.peer)
	}
	i := slices.IndexFunc(s.home, func(g homeGateway) bool { return g.node == s.self })
	if i < 0 {
		e.Claim, e.since = probe.Claim{}, time.Time{}
	} else {
		now := reachOf(s, e.Carries)
		if fresh {
			now = e.Reach
		}
		if s.leaving && s.replaced() {
			now = probe.ReachNone // others take over, and this node follows
		}
		if now != e.Reach || e.since.IsZero() {
			e.Reach, e.since = now, s.now
		}
		e.Carries = e.claims(s, i)
		s.home = slices.Clone(s.home)
		s.home[i].alive, s.home[i].Claim = true, e.Claim
	}
	e.home = chooseHomeGateway(s.home, e.home)
	return e
}

// reachOf is how well this node reaches the peer. What is doubted does not count unless it carries
// the peer: it would take the peer from another node that found sooner who died, to lose it again.
func reachOf(s situation, carries bool) probe.Reach {
	best := probe.ReachNone
	for _, g := range s.peer {
		switch {
		case g.path != probe.PathUp, g.doubted && !carries:
		case g.relayed:
			best = max(best, probe.ReachRelayed)
		case s.leads, g.carries:
			best = probe.ReachCarrier
		default:
			best = max(best, probe.ReachSome)
		}
	}
	return best
}

// claims says whether this node, gateway i of its cluster, carries the peer.
func (e election) claims(s situation, i int) bool {
	if e.Reach == probe.ReachNone {
		return false
	}
	self := s.home[i]
	self.Claim = e.Claim
	reaches, unheard := s.now.Sub(e.since), false
	for j, other := range s.home {
		switch {
		case j == i:
		case !other.alive:
			unheard = true
		case other.Carries && e.Carries:
			if other.better(self) {
				return false
			}
		case other.Carries:
			patience := carrierSettles
			if other.Reach < e.Reach {
				patience = carrierTakes
			}
			if other.better(self) || reaches < patience {
				return false
			}
		case !e.Carries && other.better(self):
			return false // it is about to claim
		}
	}
	return e.Carries || !unheard || min(reaches, s.now.Sub(s.began)) >= carrierListens
}

// chooseHomeGateway picks the gateway that a peer's traffic is sent to: the best of those that
// claim the peer; else that in use; else the best.
func chooseHomeGateway(gateways []homeGateway, current string) string {
	if len(gateways) == 0 {
		return ""
	}
	best := slices.MaxFunc(gateways, func(a, b homeGateway) int {
		return cmp.Or(
			compareBool(a.alive && a.Carries, b.alive && b.Carries), compareBool(a.alive, b.alive),
			cmp.Compare(a.Reach, b.Reach), cmp.Compare(a.rank, b.rank))
	})
	if best.alive && best.Carries || !slices.ContainsFunc(gateways, func(g homeGateway) bool { return g.node == current }) {
		return best.node
	}
	return current
}

// choosePeerGateway picks the gateway of a peer that its traffic is sent to: of those in the
// best state, one that says that it carries us, the best of several; else the one in use; else
// the best.
func choosePeerGateway(gateways []peerGateway, current string) string {
	if len(gateways) == 0 {
		return ""
	}
	state := map[probe.PathState]int{probe.PathUp: 2, probe.PathUnknown: 1, probe.PathDown: 0}
	carries := func(g peerGateway) bool { return g.path == probe.PathUp && g.carries }
	return slices.MaxFunc(gateways, func(a, b peerGateway) int {
		return cmp.Or(
			cmp.Compare(state[a.path], state[b.path]), compareBool(carries(a), carries(b)),
			compareBool(!carries(a) && a.node == current, !carries(b) && b.node == current), cmp.Compare(a.rank, b.rank))
	}).node
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
