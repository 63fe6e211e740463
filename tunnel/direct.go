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

// busyRate is the rate, in bytes a second, from which on a way counts as in use. Probes and their
// answers stay below it: 600 at rest, 3,100 while they are sent often, and 3,600 in the seconds in which
// some have full size.
const busyRate = 8000

// A node has direct tunnels to the nodes of peers with whose pods its own pods have most traffic.
// Tunnels to all would be too many: 250 peers of 64 nodes are 16,000. Traffic through carriers is
// counted by node; both ends count the same packets, so both open a tunnel at about the same time
// without a message. [plan.Direct] says when packets take it.
const (
	// directWorth is the rate, in bytes a second, from which on a tunnel is opened.
	directWorth = 10_000
	// directTry is for how long a tunnel is tried, directGone for how long one that worked may fail.
	directTry  = 20 * time.Second
	directGone = 2 * time.Minute
	// directPause is the pause after a tunnel failed, which doubles up to
	// directPauseMost.
	directPause     = 30 * time.Second
	directPauseMost = 10 * time.Minute
	// entryPause is that of a gateway at which traffic may enter: shorter than a try, so that one meets the first
	// try of a gateway that has just begun to carry.
	entryPause = 10 * time.Second
	// directIdle is for how long it is kept without traffic.
	directIdle = 5 * time.Minute
	// directKept is for how long it is kept though other nodes have more traffic.
	directKept = time.Minute
	// directStable is for how long probes have to pass again after some were lost.
	directStable = 10 * time.Second
	// directLeaves is how long before its end a tunnel is announced to end: several probes.
	directLeaves = 3 * time.Second
	// entrancesMost is at how many gateways of a peer its traffic may enter: as many as clusters have
	// without labels.
	entrancesMost = 3
	// directMeasure is how often traffic is measured at most: a pass is made each resyncEvery.
	directMeasure = time.Second
)

// remote names a node of a peer.
type remote struct{ cluster, node string }

// directSeen is what this node observes of a node of a peer.
type directSeen struct {
	// gateway says that there is a tunnel to it in any case, entrance that it is a gateway at which
	// traffic with its cluster may enter that, and entry that there is such traffic now.
	gateway, entrance, entry bool
	// rate is the pods' traffic with it in bytes a second, by any way.
	rate float64
	path probe.PathState
	// blocked says that the tunnel does not pass large packets.
	blocked bool
}

// directState is how a node of a peer is reached directly. The zero value means that no tunnel to it
// is desired.
type directState struct {
	// since is when its tunnel was first desired, up since when packets pass it, lost when they last
	// ceased to, busy when there last was traffic, leaving since when it is being given up.
	since, up, lost, busy, leaving time.Time
	// use says that packets have passed for long enough.
	use bool
	// inherited says that packets were sent directly before this process began, and that no probe
	// was answered or lost yet.
	inherited bool
	// failed is how often in a row the tunnel failed, and again when it is tried again.
	failed int
	again  time.Time
}

// directs are the nodes of peers with a tunnel, or one that failed.
type directs map[remote]directState

// next returns the states that follow from what is observed of all nodes in d, and of those with
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
	s.inherited = s.inherited && o.path == probe.PathUnknown
	up := (o.path == probe.PathUp || s.inherited) && !o.blocked
	switch {
	case up && s.up.IsZero():
		s.up = now
	case !up && !s.up.IsZero():
		s.up, s.lost = time.Time{}, now
	}
	if o.rate >= busyRate {
		s.busy = now
	}
	stable := s.lost.IsZero() || now.Sub(s.up) >= directStable
	if s.use = up && stable && s.leaving.IsZero(); s.use {
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
		return directState{failed: s.failed + 1, again: now.Add(o.pause(s.failed))}
	case now.Sub(s.busy) >= directIdle:
		s.leaving, s.use = now, false
	}
	return s
}

// pause is for how long a tunnel is not tried that failed, after so many failures before. A gateway may
// become the one that carries at any time.
func (o directSeen) pause(failed int) time.Duration {
	if o.entry {
		return entryPause
	}
	return min(directPause<<min(failed, 8), directPauseMost)
}

// entryRates returns, by gateway of a peer, the rate of the traffic that could enter its cluster there: that
// with pods on other nodes of it which does not go directly. The gateway that carries it counts the same
// packets.
func entryRates(rates map[remote]float64, entrances []remote) map[remote]float64 {
	all := map[string]float64{}
	for r, rate := range rates {
		all[r.cluster] += rate
	}
	out := map[remote]float64{}
	for _, g := range entrances {
		if rate := all[g.cluster] - rates[g]; rate > 0 {
			out[g] = rate
		}
	}
	return out
}

// candidate is a node of a peer that has a tunnel or should have one, by the traffic that it would have.
type candidate struct {
	remote
	weight float64
}

// admit opens tunnels to the nodes with most traffic, and gives up others for them. A node with a
// tunnel loses it only to one with twice its traffic. Entrances, of which each has the traffic of a whole
// peer, and other nodes have half of the tunnels each, and what the others do not need.
func (d directs) admit(now time.Time, seen map[remote]directSeen) {
	var entrances, others []candidate
	slots := 0
	for r, o := range seen {
		c := candidate{remote: r, weight: o.rate}
		switch s := d[r]; {
		case o.gateway:
			continue
		case !s.since.IsZero():
			slots++
			if !s.leaving.IsZero() {
				continue
			}
			c.weight *= 2
		case o.rate < directWorth || now.Before(s.again):
			continue
		}
		if o.entrance {
			entrances = append(entrances, c)
		} else {
			others = append(others, c)
		}
	}
	admit := func(list []candidate, most int) {
		for i, c := range ranked(list) {
			s := d[c.remote]
			switch {
			case i < most && s.since.IsZero() && slots < directMost:
				slots++
				s.since, s.busy = now, now
			case i >= most && !s.since.IsZero() && now.Sub(s.since) >= directKept:
				s.leaving, s.use = now, false
			default:
				continue
			}
			d[c.remote] = s
		}
	}
	admit(others, max(directMost/2, directMost-len(entrances)))
	admit(entrances, max(directMost/2, directMost-len(others)))
}

// ranked sorts nodes so that each peer gets as many tunnels as the others before one gets more, those with most
// traffic first.
func ranked(list []candidate) []candidate {
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), compareRemotes(a.remote, b.remote))
	})
	level, count := map[remote]int{}, map[string]int{} // how many nodes of the same peer are before each
	for _, c := range list {
		level[c.remote] = count[c.cluster]
		count[c.cluster]++
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(level[a.remote], level[b.remote]) })
	return list
}

func compareRemotes(a, b remote) int {
	return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.node, b.node))
}

// directMeter measures the traffic with nodes of peers by the counters of their prefixes.
type directMeter struct {
	at     time.Time
	counts map[netip.Addr]uint64
}

// due reports whether it is time to read the counters. Many are read less often.
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
		// Counts from before this process began, or from a time without measurements, do not count.
		if n > was && known && announced && took > 0 {
			rates[r] += float64(n-was) / took
		}
	}
	m.at, m.counts = now, counts
	return rates
}

// directory is the nodes of peers that can be reached directly, by a desired state.
type directory struct {
	of *plan.Desired
	// nodes are by name. aliases are the nodes by the first address of each of their prefixes.
	nodes    map[remote]plan.RemoteNode
	gateways []remote
	// entrances are the gateways of each peer that carry its traffic first, entrancesMost of them.
	entrances  []remote
	isEntrance map[remote]bool
	aliases    map[netip.Addr]remote
	counted    []netip.Prefix
	problems   []plan.Problem
}

// newDirectory reads a desired state.
func newDirectory(d *plan.Desired) directory {
	out := directory{of: d, nodes: map[remote]plan.RemoteNode{}, isEntrance: map[remote]bool{}, aliases: map[netip.Addr]remote{}}
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
	out.entrances = entrances(d.ClusterID, out.gateways)
	for _, g := range out.entrances {
		out.isEntrance[g] = true
	}
	return out
}

// entrances returns the gateways of each peer that are first to carry its traffic, the best first.
func entrances(home string, gateways []remote) (out []remote) {
	byRank := slices.SortedFunc(slices.Values(gateways), func(a, b remote) int {
		return cmp.Compare(plan.Rank(b.cluster, home, b.node), plan.Rank(a.cluster, home, a.node))
	})
	has := map[string]int{}
	for _, g := range byRank {
		if has[g.cluster]++; has[g.cluster] <= entrancesMost {
			out = append(out, g)
		}
	}
	return out
}

// announced is the prefixes of this node's pods that were announced to peers.
type announced struct {
	pods []netip.Prefix
	gone time.Time // when the announcement was withdrawn
}

// next returns the prefixes that are accepted directly, and whether that is about to end.
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

// directHeard is what a node of a peer announced last, whether it ever answered, and what the device sends to
// it in entry form.
type directHeard struct {
	agreement, entry uint64
	answered         bool
	bound            []netip.Prefix
}

// planned returns the nodes with tunnels as input of a plan, sorted. ends says that all tunnels are
// about to be given up. heard returns what is known from a node.
func (d directs) planned(known directory, ends bool, heard func(plan.RemoteNode) directHeard) []plan.Direct {
	var out []plan.Direct
	for _, r := range slices.SortedFunc(maps.Keys(d), compareRemotes) {
		s, n := d[r], known.nodes[r]
		if s.since.IsZero() {
			continue
		}
		h := heard(n)
		out = append(out, plan.Direct{
			RemoteNode: n, Use: s.use && !ends, Received: h.agreement, Inherited: s.inherited && !h.answered, Leaving: ends || !s.leaving.IsZero(),
			EntryReceived: h.entry, Bound: h.bound,
		})
	}
	return out
}
