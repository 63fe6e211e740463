package tunnel

import (
	"cmp"
	"slices"
	"time"

	"github.com/entente-dev/entente/tunnel/probe"
)

// The gateways agree by probes alone, without an API server, on which home gateway carries a peer's
// traffic and to which gateway of the peer it sends. Of the gateways that reach the peer the best one
// by [plan.Rank] claims it and announces that in its probes; all other nodes of the cluster, and the
// peer's gateways, follow. Both clusters do the same, so the two gateways reach each other.
const (
	// carrierStable is how long a gateway must have reached a peer before it takes over the peer's
	// traffic from another that reaches the peer as well as it does.
	carrierStable = 10 * time.Second
	// carrierTakes is the same where the other one reaches the peer less well.
	carrierTakes = time.Second
	// carrierListens is for how long a gateway that just came to reach a peer waits for the claims
	// of all others before it claims the peer.
	carrierListens = 5 * time.Second
)

// homeGateway is a gateway of the home cluster as this node sees it.
type homeGateway struct {
	node string
	rank uint64
	// alive says that its probes are answered and that it sent its claims. It is true for
	// this node itself.
	alive bool
	probe.Claim
}

// better reports whether of two gateways that are alive the first should carry the peer.
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
	// no answer was received since.
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

// replaceable reports whether another gateway of the home cluster can carry the peer.
func (s situation) replaceable() bool {
	return slices.ContainsFunc(s.home, func(g homeGateway) bool { return g.node != s.self && g.alive && g.Reach != probe.ReachNone })
}

// election is which gateway carries a peer's traffic, in the view of one node. The zero value is that of
// a node that knows no gateway yet.
type election struct {
	// home is the home gateway in use, peer the gateway of the peer that is used where this
	// node carries.
	home, peer string
	// Claim is that of this node. Its Reach has been the same since since. It is zero
	// on a node that is not a gateway.
	probe.Claim
	since time.Time
}

// countSwitches counts, for each peer that is left, how often its way changed to other gateways.
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

// next returns the election that follows in a situation.
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
		if s.leaving && s.replaceable() {
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

// reachOf returns how well this node reaches the peer. Unless this node carries the peer, doubted
// gateways do not count: it would take the peer from a node that noticed a death sooner, and lose it
// again.
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

// claims reports whether this node, gateway i of its cluster, carries the peer.
func (e election) claims(s situation, i int) bool {
	if e.Reach == probe.ReachNone {
		return false
	}
	self := s.home[i]
	self.Claim = e.Claim
	reaches, silent := s.now.Sub(e.since), false
	for j, other := range s.home {
		switch {
		case j == i:
		case !other.alive:
			silent = true
		case other.Carries && e.Carries:
			if other.better(self) {
				return false
			}
		case other.Carries:
			patience := carrierStable
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
	return e.Carries || !silent || min(reaches, s.now.Sub(s.began)) >= carrierListens
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

// choosePeerGateway picks the gateway of a peer that its traffic is sent to: of those in the best
// state the best of those that announce that they carry this cluster's traffic; else the one in use;
// else the best.
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
