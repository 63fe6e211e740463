package tunnel

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// busyRate is from how many bytes a second on a way is in use. Probes and their answers stay
// below it, also while they are sent often, and in the seconds in which some have full size: 600
// at rest, 3,100, and 3,600.
const busyRate = 8000

// A node has tunnels to those nodes of peers with whose pods its own have most traffic, so that it
// goes directly. Tunnels to all would be too many: 250 peers of 64 nodes are 16,000. What goes
// through carriers is counted by node; as both ends count the same packets, both come to want a
// tunnel at about the same time, and no word is needed. What a packet needs to pass is in
// [plan.Direct].
const (
	// directWorth is from how many bytes a second a tunnel is wanted.
	directWorth = 10_000
	// directTry is for how long one is tried, directGone for how long one that worked may not.
	directTry  = 20 * time.Second
	directGone = 2 * time.Minute
	// directPause is for how long it is not tried after it did not work, which doubles up to
	// directPauseMost.
	directPause     = 30 * time.Second
	directPauseMost = 10 * time.Minute
	// directIdle is for how long it is kept without traffic.
	directIdle = 5 * time.Minute
	// directHolds is for how long it is kept though others have more traffic.
	directHolds = time.Minute
	// directSettles is for how long probes have to pass again after they did not.
	directSettles = 10 * time.Second
	// directLeaves is how long before the end of a tunnel the other node is told: for several
	// probes.
	directLeaves = 3 * time.Second
	// directMeasure is how often traffic is measured at most: a pass is made each resyncEvery.
	directMeasure = time.Second
)

// remote names a node of a peer.
type remote struct{ cluster, node string }

// directSeen is what is observed of a node of a peer.
type directSeen struct {
	// gateway says that there is a tunnel to it in any case.
	gateway bool
	// rate is the bytes of pods' traffic with it a second, whichever way.
	rate float64
	path probe.PathState
	// blocked says that large packets do not pass the tunnel.
	blocked bool
}

// directState is how a node of a peer is reached directly. The zero value is one that no tunnel is
// wanted to.
type directState struct {
	// since is when its tunnel came to be wanted, up since when packets pass it, lost when they
	// last ceased to, busy when there was traffic last, leaving when it came to be given up.
	since, up, lost, busy, leaving time.Time
	// use says that packets pass, and did for long enough.
	use bool
	// standing says that packets were sent directly before this process began, and that nothing
	// else is known yet.
	standing bool
	// failed is how often in a row it did not work, and again when it is tried again.
	failed int
	again  time.Time
}

// directs are the nodes of peers of which something is to be remembered.
type directs map[remote]directState

// next returns what follows from what is observed: of all nodes that are in d, and of those with
// traffic or a tunnel.
func (d directs) next(now time.Time, seen map[remote]directSeen) directs {
	out := directs{}
	for r, o := range seen {
		if s := d[r].next(now, o); s != (directState{}) {
			out[r] = s
		}
	}
	out.admit(now, seen)
	return out
}

func (s directState) next(now time.Time, o directSeen) directState {
	if s.since.IsZero() {
		switch {
		case o.gateway:
			s = directState{since: now, busy: now}
		case now.Sub(s.again) >= directPauseMost:
			return directState{}
		default:
			return s
		}
	}
	s.standing = s.standing && o.path == probe.PathUnknown
	up := (o.path == probe.PathUp || s.standing) && !o.blocked
	switch {
	case up && s.up.IsZero():
		s.up = now
	case !up && !s.up.IsZero():
		s.up, s.lost = time.Time{}, now
	}
	if o.rate >= busyRate {
		s.busy = now
	}
	settled := s.lost.IsZero() || now.Sub(s.up) >= directSettles
	if s.use = up && settled && s.leaving.IsZero(); s.use {
		s.failed = 0
	}
	switch {
	case o.gateway:
		s.leaving = time.Time{}
	case !s.leaving.IsZero():
		if now.Sub(s.leaving) >= directLeaves {
			return directState{}
		}
	case !up && (s.lost.IsZero() && now.Sub(s.since) >= directTry || !s.lost.IsZero() && now.Sub(s.lost) >= directGone):
		return directState{failed: s.failed + 1, again: now.Add(min(directPause<<min(s.failed, 8), directPauseMost))}
	case now.Sub(s.busy) >= directIdle:
		s.leaving, s.use = now, false
	}
	return s
}

// admit has tunnels be wanted to the nodes with most traffic, and others be given up for these.
// One of which there is a tunnel has to be surpassed by far. Each peer gets as many as the others
// before one gets more.
func (d directs) admit(now time.Time, seen map[remote]directSeen) {
	type entry struct {
		remote
		weight float64
		level  int // how many of the same peer are before it
	}
	var all []entry
	slots := 0
	for r, o := range seen {
		switch s := d[r]; {
		case o.gateway:
		case !s.since.IsZero():
			slots++
			if s.leaving.IsZero() {
				all = append(all, entry{remote: r, weight: 2 * o.rate})
			}
		case o.rate >= directWorth && !now.Before(s.again):
			all = append(all, entry{remote: r, weight: o.rate})
		}
	}
	slices.SortFunc(all, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), compareRemotes(a.remote, b.remote))
	})
	levels := map[string]int{}
	for i := range all {
		all[i].level = levels[all[i].cluster]
		levels[all[i].cluster]++
	}
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.level, b.level) })
	for i, e := range all {
		s := d[e.remote]
		switch {
		case i < directMost && s.since.IsZero() && slots < directMost:
			slots++
			s.since, s.busy = now, now
		case i >= directMost && !s.since.IsZero() && now.Sub(s.since) >= directHolds:
			s.leaving, s.use = now, false
		default:
			continue
		}
		d[e.remote] = s
	}
}

func compareRemotes(a, b remote) int {
	return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.node, b.node))
}

// directMeter measures the traffic with nodes of peers by the counters of their prefixes.
type directMeter struct {
	at     time.Time
	counts map[netip.Addr]uint64
}

// due says that it is time to read the counters. Many are read less often.
func (m directMeter) due(now time.Time, counters int) bool {
	return now.Sub(m.at) >= max(directMeasure, time.Duration(counters)*time.Millisecond)
}

// measure returns the bytes a second since the last time.
func (m *directMeter) measure(now time.Time, counts map[netip.Addr]uint64, owner map[netip.Addr]remote) map[remote]float64 {
	rates := map[remote]float64{}
	took := now.Sub(m.at).Seconds()
	for a, n := range counts {
		was, known := m.counts[a]
		r, announced := owner[a]
		// What was counted before this process began, or while nothing was measured, is not news.
		if n > was && known && announced && took > 0 {
			rates[r] += float64(n-was) / took
		}
	}
	m.at, m.counts = now, counts
	return rates
}

// directory is the nodes of peers that can be reached directly, as a desired state has them.
type directory struct {
	of *plan.Desired
	// nodes are by name, aliases lead from the first address of a prefix to who has it.
	nodes    map[remote]plan.RemoteNode
	gateways []remote
	aliases  map[netip.Addr]remote
	counted  []netip.Prefix
	problems []plan.Problem
}

// newDirectory reads a desired state.
func newDirectory(d *plan.Desired) directory {
	out := directory{of: d, nodes: map[remote]plan.RemoteNode{}, aliases: map[netip.Addr]remote{}}
	var nodes []plan.RemoteNode
	nodes, out.problems = plan.RemoteNodes(*d)
	for _, n := range nodes {
		r := remote{n.Cluster, n.Node}
		out.nodes[r] = n
		if n.IsGateway {
			out.gateways = append(out.gateways, r)
		}
		for _, a := range n.Aliases {
			out.aliases[a.Addr()] = r
			out.counted = append(out.counted, a)
		}
	}
	slices.SortFunc(out.counted, netip.Prefix.Compare)
	return out
}

// announced is the prefixes of this node's pods that peers were told.
type announced struct {
	pods []netip.Prefix
	gone time.Time // when they were told none any more
}

// next returns what is accepted, and whether that is about to end.
func (a *announced) next(now time.Time, pods []netip.Prefix) (accepted []netip.Prefix, ends bool) {
	switch {
	case len(pods) > 0:
		*a = announced{pods: pods}
	case a.gone.IsZero():
		a.gone = now
	case now.Sub(a.gone) >= directLeaves:
		a.pods = nil
	}
	return a.pods, len(pods) == 0
}

// planned is what a plan is to know of the nodes that there are tunnels to, in order. ends says
// that all are about to be given up.
func (d directs) planned(known directory, ends bool, told func(plan.RemoteNode) (uint64, bool)) []plan.Direct {
	var out []plan.Direct
	for _, r := range slices.SortedFunc(maps.Keys(d), compareRemotes) {
		s, n := d[r], known.nodes[r]
		if s.since.IsZero() {
			continue
		}
		agreement, heard := told(n)
		out = append(out, plan.Direct{RemoteNode: n, Use: s.use && !ends, Told: agreement, Standing: s.standing && !heard, Leaving: ends || !s.leaving.IsZero()})
	}
	return out
}
