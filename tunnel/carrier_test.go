package tunnel

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

func TestGatewayOfThePeerIsChosen(t *testing.T) {
	for name, tt := range map[string]struct {
		gateways []peerGateway
		current  string
		want     string
	}{
		"none":                                   {nil, "", ""},
		"the best when nothing is known":         {[]peerGateway{{node: "a"}, {node: "b", rank: 1}}, "", "b"},
		"one that answers before one that may":   {[]peerGateway{{node: "a", rank: 1}, {node: "b", path: probe.PathUp}}, "a", "b"},
		"not one that is down":                   {[]peerGateway{{node: "a", path: probe.PathDown, rank: 1}, {node: "b"}}, "a", "b"},
		"the one in use among equals":            {[]peerGateway{{node: "a", path: probe.PathUp, rank: 1}, {node: "b", path: probe.PathUp}}, "b", "b"},
		"the one that carries us":                {[]peerGateway{{node: "a", path: probe.PathUp, rank: 1}, {node: "b", path: probe.PathUp, carries: true}}, "a", "b"},
		"the best of two that carry us":          {[]peerGateway{{node: "a", path: probe.PathUp, carries: true, rank: 1}, {node: "b", path: probe.PathUp, carries: true}}, "b", "a"},
		"not one that carried us before it died": {[]peerGateway{{node: "a", path: probe.PathUp}, {node: "b", path: probe.PathDown, carries: true}}, "b", "a"},
		"the one in use when all are down":       {[]peerGateway{{node: "a", path: probe.PathDown, rank: 1}, {node: "b", path: probe.PathDown}}, "b", "b"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := choosePeerGateway(tt.gateways, tt.current); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestGatewayClaimsAPeer(t *testing.T) {
	start := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	up := []peerGateway{{node: "x", path: probe.PathUp}}
	doubted := []peerGateway{{node: "x", path: probe.PathUp, doubted: true}}
	long := election{Claim: probe.Claim{Reach: probe.ReachCarrier}, since: start.Add(-time.Hour)}
	carrying := election{peer: "x", Claim: probe.Claim{Reach: probe.ReachCarrier, Carries: true}, since: start.Add(-time.Hour)}
	self := homeGateway{node: "self", rank: 5}
	other := func(rank uint64, alive bool, r probe.Reach, carries bool) homeGateway {
		return homeGateway{node: "other", rank: rank, alive: alive, Claim: probe.Claim{Reach: r, Carries: carries}}
	}
	for name, tt := range map[string]struct {
		election election
		peer     []peerGateway
		other    []homeGateway
		// listened is for how long the process has run.
		listened time.Duration
		carries  bool
		home     string
	}{
		"the only one, at once":                                                    {peer: up, carries: true, home: "self"},
		"not one that does not reach the peer":                                     {peer: []peerGateway{{node: "x", path: probe.PathDown}}, home: "self"},
		"one that is alone, when it has listened":                                  {election: long, peer: up, other: []homeGateway{other(9, false, probe.ReachNone, false)}, listened: time.Minute, carries: true, home: "self"},
		"not before it has listened":                                               {peer: up, other: []homeGateway{other(9, false, probe.ReachNone, false)}, listened: time.Second, home: "self"},
		"the one that carried before a restart":                                    {election: carrying, peer: up, other: []homeGateway{other(9, false, probe.ReachNone, false)}, carries: true, home: "self"},
		"one that carried before, while nothing is known":                          {election: carrying, peer: []peerGateway{{node: "x"}}, other: []homeGateway{other(9, true, probe.ReachCarrier, false)}, carries: true, home: "self"},
		"one that carried before, while another gateway of the peer answers first": {election: carrying, peer: []peerGateway{{node: "x"}, {node: "y", path: probe.PathUp}}, other: []homeGateway{other(9, true, probe.ReachCarrier, false)}, carries: true, home: "self"},
		"the best of two":                                                          {election: long, peer: up, other: []homeGateway{other(1, true, probe.ReachCarrier, false)}, listened: time.Minute, carries: true, home: "self"},
		"not the second of two":                                                    {election: long, peer: up, other: []homeGateway{other(9, true, probe.ReachCarrier, false)}, listened: time.Minute, home: "other"},
		"the second of two when the best reaches no gateway":                       {election: long, peer: up, other: []homeGateway{other(9, true, probe.ReachNone, false)}, listened: time.Minute, carries: true, home: "self"},
		"the second of two when the best is dead":                                  {election: long, peer: up, other: []homeGateway{other(9, false, probe.ReachCarrier, true)}, listened: time.Minute, carries: true, home: "self"},
		"the best, back for a moment, waits":                                       {peer: up, other: []homeGateway{other(1, true, probe.ReachCarrier, true)}, listened: time.Minute, home: "other"},
		"the best, back for long, takes it":                                        {election: long, peer: up, other: []homeGateway{other(1, true, probe.ReachCarrier, true)}, listened: time.Minute, carries: true, home: "self"},
		"not one that doubts its own way, from one that found another":             {election: long, peer: doubted, other: []homeGateway{other(1, true, probe.ReachSome, true)}, listened: time.Minute, home: "other"},
		"the carrier keeps it while its way is doubted":                            {election: carrying, peer: doubted, other: []homeGateway{other(1, true, probe.ReachCarrier, false)}, listened: time.Minute, carries: true, home: "self"},
		"the carrier keeps it from a worse one":                                    {election: carrying, peer: up, other: []homeGateway{other(1, true, probe.ReachCarrier, true)}, listened: time.Minute, carries: true, home: "self"},
		"the carrier yields to a better one":                                       {election: carrying, peer: up, other: []homeGateway{other(9, true, probe.ReachCarrier, true)}, listened: time.Minute, home: "other"},
		"the carrier waits until another claims":                                   {election: carrying, peer: up, other: []homeGateway{other(9, true, probe.ReachCarrier, false)}, listened: time.Minute, carries: true, home: "self"},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.election.next(situation{
				now: start, self: "self", leads: true, began: start.Add(-tt.listened), home: append([]homeGateway{self}, tt.other...), peer: tt.peer,
			})
			if got.Carries && got.peer != "x" {
				t.Errorf("it goes to %q", got.peer)
			}
			if got.Carries != tt.carries || got.home != tt.home {
				t.Errorf("it carries: %v, and %q is used; want %v, %q", got.Carries, got.home, tt.carries, tt.home)
			}
		})
	}
}

// carrierWorld is two clusters of gateways and a worker each, with every link between nodes up
// or down.
type carrierWorld struct {
	now   time.Time
	nodes [2][]*carrierNode
	// cut has the links that are down, by the names of both nodes in order.
	cut map[[2]string]bool
}

type carrierNode struct {
	name     string
	cluster  int
	gateway  bool
	dead     bool
	began    time.Time
	election election
	// claimed is the claim that others have received.
	claimed probe.Claim
}

func (w *carrierWorld) cutLink(a, b string, down bool) {
	w.cut[[2]string{min(a, b), max(a, b)}] = down
}

func (w *carrierWorld) up(a, b *carrierNode) bool {
	return !a.dead && !b.dead && !w.cut[[2]string{min(a.name, b.name), max(a.name, b.name)}]
}

func (w *carrierWorld) situation(n *carrierNode) situation {
	ids := [2]string{"aaa", "bbb"}
	own, other := ids[n.cluster], ids[1-n.cluster]
	s := situation{now: w.now, self: n.name, leads: own < other, began: n.began}
	for _, m := range w.nodes[n.cluster] {
		if m.gateway {
			s.home = append(s.home, homeGateway{node: m.name, rank: plan.Rank(own, other, m.name), alive: m == n || w.up(n, m), Claim: m.claimed})
		}
	}
	if n.gateway {
		for _, m := range w.nodes[1-n.cluster] {
			if m.gateway {
				state := probe.PathDown
				if w.up(n, m) {
					state = probe.PathUp
				}
				s.peer = append(s.peer, peerGateway{node: m.name, rank: plan.Rank(other, own, m.name), path: state, carries: m.claimed.Carries})
			}
		}
	}
	return s
}

// step runs the election once on every node, in any order, and then all receive the claims.
func (w *carrierWorld) step() (changed bool) {
	w.now = w.now.Add(250 * time.Millisecond)
	for _, side := range w.nodes {
		for _, n := range side {
			if n.dead {
				continue
			}
			before := n.election
			n.election = n.election.next(w.situation(n))
			changed = changed || before.home != n.election.home || before.Claim != n.election.Claim || n.election.Carries && before.peer != n.election.peer
		}
	}
	for _, side := range w.nodes {
		for _, n := range side {
			n.claimed = n.election.Claim
		}
	}
	return changed
}

// TestCarriersOfTwoClustersAgree has links and gateways of two clusters fail and come back, and
// wants that when they rest all nodes agree on one pair of gateways that reach each other.
func TestCarriersOfTwoClustersAgree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &carrierWorld{now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC), cut: map[[2]string]bool{}}
		var gateways [2][]*carrierNode
		for side := range 2 {
			for i := range rapid.IntRange(1, 4).Draw(t, "gateways") {
				n := &carrierNode{name: fmt.Sprintf("%c%d", 'a'+side, i), cluster: side, gateway: true, began: w.now}
				gateways[side], w.nodes[side] = append(gateways[side], n), append(w.nodes[side], n)
			}
			w.nodes[side] = append(w.nodes[side], &carrierNode{name: fmt.Sprintf("%cw", 'a'+side), cluster: side, began: w.now})
		}
		all := slices.Concat(gateways[0], gateways[1])
		for range rapid.IntRange(0, 30).Draw(t, "events") {
			switch rapid.IntRange(0, 2).Draw(t, "event") {
			case 0:
				a, b := rapid.SampledFrom(gateways[0]).Draw(t, "one end"), rapid.SampledFrom(gateways[1]).Draw(t, "other end")
				w.cutLink(a.name, b.name, rapid.Bool().Draw(t, "down"))
			case 1:
				n := rapid.SampledFrom(all).Draw(t, "node")
				if dead := rapid.Bool().Draw(t, "dead"); n.dead && !dead {
					n.dead, n.began, n.election, n.claimed = false, w.now, election{}, probe.Claim{}
				} else {
					n.dead = dead
				}
			}
			for range rapid.IntRange(0, 80).Draw(t, "steps") {
				w.step()
			}
		}
		for range 200 { // fifty seconds
			w.step()
		}
		for range 100 {
			if w.step() {
				t.Fatal("it does not come to rest")
			}
		}
		connected := false
		for _, a := range gateways[0] {
			connected = connected || slices.ContainsFunc(gateways[1], func(b *carrierNode) bool { return w.up(a, b) })
		}
		if !connected {
			return
		}
		var used [2]*carrierNode
		for side, nodes := range w.nodes {
			for _, n := range nodes {
				if n.dead {
					continue
				}
				i := slices.IndexFunc(nodes, func(m *carrierNode) bool { return m.name == n.election.home })
				if used[side] == nil {
					used[side] = nodes[i]
				}
				if nodes[i] != used[side] || nodes[i].dead || !nodes[i].election.Carries {
					t.Fatalf("%s uses %s, others use %s", n.name, n.election.home, used[side].name)
				}
			}
		}
		if !w.up(used[0], used[1]) || used[0].election.peer != used[1].name || used[1].election.peer != used[0].name {
			t.Fatalf("%s sends to %s, %s sends to %s", used[0].name, used[0].election.peer, used[1].name, used[1].election.peer)
		}
	})
}

// TestCarrierFailsOverAtOnce counts how long two clusters of three gateways each do not agree
// after the death of one that carries.
func TestCarrierFailsOverAtOnce(t *testing.T) {
	w := &carrierWorld{now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC), cut: map[[2]string]bool{}}
	for side := range 2 {
		for i := range 3 {
			w.nodes[side] = append(w.nodes[side], &carrierNode{name: fmt.Sprintf("%c%d", 'a'+side, i), cluster: side, gateway: true, began: w.now})
		}
	}
	for range 100 {
		w.step()
	}
	for _, n := range slices.Clone(w.nodes[0]) {
		if n.election.home == n.name {
			n.dead = true
		}
	}
	for range 3 { // one decides and claims; others receive the claim; their answers are received
		w.step()
	}
	for _, n := range slices.Concat(w.nodes[0], w.nodes[1]) {
		if n.dead {
			continue
		}
		i := slices.IndexFunc(w.nodes[n.cluster], func(m *carrierNode) bool { return m.name == n.election.home })
		if carrier := w.nodes[n.cluster][i]; carrier.dead || !carrier.election.Carries {
			t.Errorf("%s still uses %s", n.name, n.election.home)
		}
	}
}

func TestSwitchesAreCountedWhileAPeerIsThere(t *testing.T) {
	at := func(home, peer string) map[string]election {
		return map[string]election{"p": {home: home, peer: peer}}
	}
	var counts map[string]uint64
	before := map[string]election{}
	for i, step := range []struct {
		now  map[string]election
		want uint64
	}{
		{at("", ""), 0}, {at("a", ""), 0}, {at("a", "x"), 0}, {at("a", "x"), 0}, {at("b", "x"), 1}, {at("b", "y"), 2}, {at("", ""), 2}, {at("c", ""), 2},
	} {
		counts = countSwitches(counts, before, step.now)
		if counts["p"] != step.want {
			t.Errorf("step %d: %d, want %d", i, counts["p"], step.want)
		}
		before = step.now
	}
	if counts = countSwitches(counts, before, nil); len(counts) != 0 {
		t.Errorf("a peer that is gone has %v", counts)
	}
}

func TestAGatewayLeavesPeersThatAnotherCanCarry(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	carries := election{home: "a", peer: "x", Claim: probe.Claim{Reach: probe.ReachCarrier, Carries: true}, since: now.Add(-time.Hour)}
	other := func(alive bool, reach probe.Reach) []homeGateway {
		return []homeGateway{{node: "a", rank: 2, alive: true}, {node: "b", rank: 1, alive: alive, Claim: probe.Claim{Reach: reach}}}
	}
	for name, tt := range map[string]struct {
		leaving bool
		home    []homeGateway
		claims  bool
	}{
		"it stays":                            {false, other(true, probe.ReachCarrier), true},
		"another reaches the peer":            {true, other(true, probe.ReachSome), false},
		"the other does not reach the peer":   {true, other(true, probe.ReachNone), true},
		"the other is dead":                   {true, other(false, probe.ReachCarrier), true},
		"there is no other, so it stays, too": {true, other(true, probe.ReachSome)[:1], true},
	} {
		s := situation{now: now, self: "a", leads: true, began: now.Add(-time.Hour), leaving: tt.leaving, home: tt.home, peer: []peerGateway{{node: "x", path: probe.PathUp}}}
		got := carries.next(s)
		if got.Carries != tt.claims || tt.claims != (got.Reach != probe.ReachNone) {
			t.Errorf("%s: claims %v with reach %v, want %v", name, got.Carries, got.Reach, tt.claims)
		}
	}
}
