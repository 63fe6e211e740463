package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

func TestDirectStateFollowsItsTunnel(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	up := directSeen{path: probe.PathUp, rate: directWorth}
	settled := directState{since: ago(time.Hour), up: ago(time.Hour), busy: now}
	for name, tt := range map[string]struct {
		state directState
		seen  directSeen
		// use says that packets may go through it, wanted that a tunnel is desired.
		use, wanted, leaving bool
	}{
		"a gateway's is there in any case":                {seen: directSeen{gateway: true}, wanted: true},
		"one that is up":                                  {state: directState{since: ago(time.Second), busy: now}, seen: up, use: true, wanted: true},
		"one on which probes are lost":                    {state: settled, seen: directSeen{path: probe.PathDown, rate: directWorth}, wanted: true},
		"one that large packets do not pass":              {state: settled, seen: directSeen{path: probe.PathUp, blocked: true, rate: directWorth}, wanted: true},
		"one that is back for a moment":                   {state: directState{since: ago(time.Hour), lost: ago(time.Second), busy: now}, seen: up, wanted: true},
		"one that is back for long":                       {state: directState{since: ago(time.Hour), lost: ago(time.Minute), up: ago(directStable), busy: now}, seen: up, use: true, wanted: true},
		"one that never answered, for a while":            {state: directState{since: ago(directTry - time.Second), busy: now}, seen: directSeen{rate: directWorth}, wanted: true},
		"one that never answered, for too long":           {state: directState{since: ago(directTry), busy: now}, seen: directSeen{rate: directWorth}},
		"one that does not answer any more, for too long": {state: directState{since: ago(time.Hour), lost: ago(directGone), busy: now}, seen: directSeen{path: probe.PathDown}},
		"one without traffic for too long":                {state: directState{since: ago(time.Hour), up: ago(time.Hour), busy: ago(directIdle)}, seen: directSeen{path: probe.PathUp}, wanted: true, leaving: true},
		"one whose end is announced":                      {state: directState{since: ago(time.Hour), up: ago(time.Hour), busy: ago(time.Hour), leaving: ago(time.Second)}, seen: up, wanted: true, leaving: true},
		"one whose end was announced long ago":            {state: directState{since: ago(time.Hour), up: ago(time.Hour), busy: ago(time.Hour), leaving: ago(directLeaves)}, seen: directSeen{path: probe.PathUp}},
		"one that was used before a restart":              {state: directState{since: now, busy: now, inherited: true}, seen: directSeen{}, use: true, wanted: true},
		"one that was used before, and is down":           {state: directState{since: now, busy: now, inherited: true}, seen: directSeen{path: probe.PathDown}, wanted: true},
	} {
		t.Run(name, func(t *testing.T) {
			got := tt.state.next(now, tt.seen)
			if got.use != tt.use || got.since.IsZero() == tt.wanted || got.leaving.IsZero() == tt.leaving {
				t.Errorf("got %+v, want use %v, wanted %v, leaving %v", got, tt.use, tt.wanted, tt.leaving)
			}
		})
	}
}

func TestDirectPausesDoubleUpToAMost(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	r, d := remote{"c", "n"}, directs{}
	var pauses []time.Duration
	var ended time.Time
	for begin := now; now.Sub(begin) < time.Hour; now = now.Add(time.Second) {
		was := !d[r].since.IsZero()
		d = d.next(now, map[remote]directSeen{r: {rate: directWorth}})
		switch is := !d[r].since.IsZero(); {
		case was && !is:
			ended = now
		case is && !was && !ended.IsZero():
			pauses = append(pauses, now.Sub(ended))
		}
	}
	want := []time.Duration{30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute}
	if len(pauses) < len(want) || !slices.Equal(pauses[:len(want)], want) {
		t.Errorf("pauses of %v, want %v", pauses, want)
	}
}

// The traffic with a cluster may enter it at a few of its gateways: it counts for each of them, as it does for
// the one that carries it.
func TestTrafficCountsForGatewaysAtWhichItMayEnter(t *testing.T) {
	var gateways []remote
	for _, g := range []string{"g1", "g2", "g3", "g4", "g5"} {
		gateways = append(gateways, remote{"c", g}, remote{"quiet", g})
	}
	few := entrances("home", gateways)
	if len(few) != 2*entrancesMost {
		t.Fatalf("entrances %v, want %d of each cluster", few, entrancesMost)
	}
	for _, g := range gateways { // those that are left out have a lower rank
		i := slices.IndexFunc(few, func(e remote) bool {
			return e.cluster == g.cluster && plan.Rank(e.cluster, "home", e.node) < plan.Rank(g.cluster, "home", g.node)
		})
		if !slices.Contains(few, g) && i >= 0 {
			t.Errorf("%v is left out, and %v is not", g, few[i])
		}
	}
	first := few[slices.IndexFunc(few, func(e remote) bool { return e.cluster == "c" })]
	got := entryRates(map[remote]float64{{"c", "w1"}: 3, {"c", "w2"}: 4, first: 8, {"another", "w"}: 16}, few)
	if len(got) != entrancesMost || got[first] != 7 {
		t.Errorf("rates %v, want 7 at %v", got, first)
	}
	for _, e := range few {
		if want := map[bool]float64{true: 15}[e.cluster == "c" && e != first]; e != first && got[e] != want {
			t.Errorf("rate %v at %v, want %v", got[e], e, want)
		}
	}
}

func TestAGatewayAtWhichTrafficMayEnterIsTriedAgainSoon(t *testing.T) {
	for failed := range 12 {
		if got := (directSeen{entry: true}).pause(failed); got >= directTry {
			t.Errorf("after %d failures the pause is %v", failed, got)
		}
	}
}

// Whatever the traffic: there are never more tunnels than the limit, each peer gets its share, and
// a node with a tunnel keeps it when another has hardly more traffic.
func TestDirectTunnelsAreBoundedAndShared(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, d := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC), directs{}
		clusters := rapid.IntRange(1, 4).Draw(t, "clusters")
		var seen map[remote]directSeen
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			seen = map[remote]directSeen{}
			for c := range clusters {
				for n := range rapid.IntRange(0, 100).Draw(t, "nodes") {
					seen[remote{fmt.Sprint(c), fmt.Sprint(n)}] = directSeen{path: probe.PathUp, rate: float64(rapid.SampledFrom([]int{0, 100, directWorth, 10 * directWorth}).Draw(t, "rate"))}
				}
			}
			for range rapid.IntRange(1, 20).Draw(t, "times") {
				now = now.Add(5 * time.Second)
				d = d.next(now, seen)
				tunnels := 0
				for _, s := range d {
					if !s.since.IsZero() {
						tunnels++
					}
				}
				if tunnels > directMost {
					t.Fatalf("%d tunnels, the limit is %d", tunnels, directMost)
				}
			}
		}
		for range 40 { // it rests
			now = now.Add(5 * time.Second)
			d = d.next(now, seen)
		}
		wanted, has := map[string]int{}, map[string]int{}
		for r, o := range seen {
			if o.rate >= directWorth {
				wanted[r.cluster]++
				if !d[r].since.IsZero() {
					has[r.cluster]++
				}
			}
		}
		for c, n := range wanted {
			if share := min(n, directMost/clusters); has[c] < share {
				t.Fatalf("cluster %s has %d tunnels to nodes with traffic, its share is %d: %v of %v", c, has[c], share, has, wanted)
			}
		}
	})
}

// However many peers have traffic, gateways at which it enters leave tunnels for nodes, and the other way round.
func TestEntrancesAndNodesLeaveEachOtherTunnels(t *testing.T) {
	const half = directMost / 2
	for name, tt := range map[string]struct {
		// peers have so many busy entrances and nodes each.
		peers, entrances, nodes int
		// first is those that are busy some minutes before the others are.
		first string
		// want is to how many entrances and nodes there are tunnels.
		wantEntrances, wantNodes int
	}{
		"there is room for all":                {peers: 10, entrances: 3, nodes: 3, wantEntrances: 30, wantNodes: 30},
		"entrances alone":                      {peers: 30, entrances: 3, wantEntrances: directMost},
		"nodes alone":                          {peers: 30, nodes: 3, wantNodes: directMost},
		"many of both":                         {peers: 22, entrances: 3, nodes: 3, wantEntrances: half, wantNodes: half},
		"many entrances, and then nodes":       {peers: 22, entrances: 3, nodes: 3, first: "entrance", wantEntrances: half, wantNodes: half},
		"many nodes, and then entrances":       {peers: 22, entrances: 3, nodes: 3, first: "node", wantEntrances: half, wantNodes: half},
		"many entrances and few nodes":         {peers: 50, entrances: 3, nodes: 1, first: "entrance", wantEntrances: half, wantNodes: half},
		"many nodes of few peers":              {peers: 2, entrances: 3, nodes: 60, wantEntrances: 6, wantNodes: directMost - 6},
		"many nodes of few peers were first":   {peers: 2, entrances: 3, nodes: 60, first: "node", wantEntrances: 6, wantNodes: directMost - 6},
		"a single peer has its three gateways": {peers: 1, entrances: 3, nodes: 200, wantEntrances: 3, wantNodes: directMost - 3},
	} {
		t.Run(name, func(t *testing.T) {
			seen, early := map[remote]directSeen{}, map[remote]directSeen{}
			add := func(kind string, cluster, count int, o directSeen) {
				for n := range count {
					r := remote{fmt.Sprint("c", cluster), fmt.Sprint(kind, n)}
					seen[r] = o
					if tt.first == kind {
						early[r] = o
					}
				}
			}
			for c := range tt.peers {
				add("entrance", c, tt.entrances, directSeen{path: probe.PathUp, entrance: true, entry: true, rate: 100 * directWorth})
				add("node", c, tt.nodes, directSeen{path: probe.PathUp, rate: directWorth})
			}
			now, d := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC), directs{}
			for i := range 120 {
				now = now.Add(5 * time.Second)
				is := seen
				if i < 60 && tt.first != "" {
					is = early
				}
				d = d.next(now, is)
			}
			entrances, nodes, peers := 0, 0, map[string]int{}
			for r, s := range d {
				switch {
				case s.since.IsZero():
				case seen[r].entrance:
					entrances++
				default:
					nodes++
					peers[r.cluster]++
				}
			}
			if entrances != tt.wantEntrances || nodes != tt.wantNodes {
				t.Errorf("tunnels to %d entrances and %d nodes, want %d and %d", entrances, nodes, tt.wantEntrances, tt.wantNodes)
			}
			if least := min(tt.nodes, tt.wantNodes/tt.peers); least > 0 && len(peers) < tt.peers {
				t.Errorf("only %d of %d peers have tunnels to nodes", len(peers), tt.peers)
			}
		})
	}
}

func TestDirectMeterCountsNewBytesOnly(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	a, b, c := netip.MustParseAddr("198.18.1.0"), netip.MustParseAddr("198.18.2.0"), netip.MustParseAddr("198.18.3.0")
	owner := map[netip.Addr]remote{a: {"c", "n"}, b: {"c", "n"}}
	var m directMeter
	if got := m.measure(now, map[netip.Addr]uint64{a: 1 << 40}, owner); len(got) > 0 {
		t.Errorf("what was counted before is a rate of %v", got)
	}
	got := m.measure(now.Add(2*time.Second), map[netip.Addr]uint64{a: 1<<40 + 3000, b: 1 << 30, c: 9}, owner)
	if len(got) != 1 || got[remote{"c", "n"}] != 1500 {
		t.Errorf("rates %v, want 1500 a second", got)
	}
	got = m.measure(now.Add(4*time.Second), map[netip.Addr]uint64{a: 10, b: 1<<30 + 200}, owner)
	if got[remote{"c", "n"}] != 100 {
		t.Errorf("rates %v after counters began again, want 100 a second", got)
	}
}

func TestAnnouncedPodsAreAcceptedForAWhileLonger(t *testing.T) {
	now, pods := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC), []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	var a announced
	for _, step := range []struct {
		at        time.Duration
		announced []netip.Prefix
		want      int
		ends      bool
	}{
		{0, nil, 0, true},
		{time.Second, pods, 1, false},
		{2 * time.Second, nil, 1, true},
		{3 * time.Second, nil, 1, true},
		{2*time.Second + directLeaves, nil, 0, true},
		{time.Minute, pods, 1, false},
	} {
		if got, ends := a.next(now.Add(step.at), step.announced); len(got) != step.want || ends != step.ends {
			t.Errorf("after %v: %v, ends %v; want %d prefixes, %v", step.at, got, ends, step.want, step.ends)
		}
	}
}
