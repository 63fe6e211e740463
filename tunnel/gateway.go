package tunnel

import "slices"

// gatewayState is what probes say about one gateway of a peer.
type gatewayState struct {
	node string
	path PathState
	// carries tells that the gateway said it carries traffic to us.
	carries bool
}

// activeGateway picks the gateway that gets the aliases of a peer: of those in
// the best state, one that says that it carries us; else the one in use; else
// the first. So both clusters agree on a pair of gateways without talking about
// it, and nothing moves without need.
func activeGateway(gateways []gatewayState, current string) string {
	if len(gateways) == 0 {
		return ""
	}
	score := func(g gatewayState) int {
		s := map[PathState]int{PathUp: 8, PathUnknown: 4, PathDown: 0}[g.path]
		if g.path == PathUp && g.carries {
			s += 2
		}
		if g.node == current {
			s++
		}
		return s
	}
	best := slices.MaxFunc(gateways, func(a, b gatewayState) int { return score(a) - score(b) })
	return best.node
}
