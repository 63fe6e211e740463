package probe

import (
	"net/netip"
	"slices"
	"time"
)

// An end-to-end probe is one UDP datagram from a node's own address among its pods' to such an
// address of a node of a peer, as this cluster knows it. It takes the way that packets of pods
// take, with the translation, the routes and the firewalls on it, and its answer the way back. All
// integers are big endian.
//
//	0  4  "entp"
//	4  1  version, 1
//	5  1  kind: 10 probe, 11 answer
//	6  1  flags of an answer: bit 0 the node that answers does not forward packets of the
//	      family, so its pods are not reached though it is
//	7  1  zero
//	8  16 random bytes of the probe, so that only those who saw it can answer it
//	24 …  zero bytes; an answer is as long as its probe
type endProbe struct {
	answer  bool
	blocked bool
	nonce   endNonce
}

type endNonce [16]byte

const (
	kindEndProbe, kindEndAnswer = 10, 11

	endLen      = 24
	flagBlocked = 1 << 0
	// endHeaders4 and endHeaders6 are what IP and UDP add.
	endHeaders4 = 28
	endHeaders6 = 48
)

func (p endProbe) encode(size int) []byte {
	b := make([]byte, max(size, endLen))
	copy(b, probeMagic)
	b[4], b[5] = probeVersion, kindEndProbe
	if p.answer {
		b[5] = kindEndAnswer
	}
	if p.blocked {
		b[6] |= flagBlocked
	}
	copy(b[8:], p.nonce[:])
	return b
}

// decodeEndProbe reads a datagram. It returns false if that is not an end-to-end probe of this version.
func decodeEndProbe(b []byte) (endProbe, bool) {
	if len(b) < endLen || string(b[:4]) != probeMagic || b[4] != probeVersion || b[5] != kindEndProbe && b[5] != kindEndAnswer {
		return endProbe{}, false
	}
	p := endProbe{answer: b[5] == kindEndAnswer, nonce: endNonce(b[8:])}
	p.blocked = p.answer && b[6]&flagBlocked != 0
	return p, true
}

// EndState is the state of the way to an address, by its end-to-end probes.
type EndState int

// The states, from the best to the worst.
const (
	// EndUnknown: no probe was answered yet, and the first was sent a short time ago.
	EndUnknown EndState = iota
	// EndUp: probes are answered.
	EndUp
	// EndLargeLost: small probes are answered, and those of the size that the routes allow are not; with
	// IPv6, not even those of [MinMTU].
	EndLargeLost
	// EndBlocked: they are answered, by a node that does not forward packets to its pods.
	EndBlocked
	// EndDown: they are lost.
	EndDown
)

// String is the name of the state, in lower case.
func (s EndState) String() string {
	return [...]string{"unknown", "up", "large packets lost", "blocked", "down"}[s]
}

const (
	// endLoss is how many probes are lost in a row, over endAfter at least, until an end is down,
	// and endBack how many are answered in a row until it is up again. Full-size ones have more
	// time, in which the routes can be adapted to the size that passes.
	endLoss       = 3
	endBack       = 2
	endAfter      = 5 * time.Second
	endLargeAfter = 10 * time.Second
	// endFirst is how long the first answer may take: the agents have to announce this node to the
	// node at the other end first.
	endFirst = time.Minute
	// endPatience is how long an answer may take until its probe counts as lost.
	endPatience = 2 * time.Second
)

// row is the results of the last probes of one size.
type row struct {
	lost  int
	since time.Time // when the first of those was sent
	good  int       // answered since one was lost
}

func (r row) answered() row { return row{good: r.good + 1} }

func (r row) missed(sent time.Time) row {
	if r.lost == 0 {
		r.since = sent
	}
	return row{lost: r.lost + 1, since: r.since}
}

func (r row) fails(now time.Time, loss int, after time.Duration) bool {
	return r.lost >= loss && now.Sub(r.since) >= after
}

// EndPath is the history of the end-to-end probes of one address, as a value.
type EndPath struct {
	state        EndState
	since        time.Time
	small, large row
	// six says that the address is one of IPv6. There routers do not fragment, and a gateway that
	// has a lower path MTU to an address drops larger packets without notice, as its ICMP errors are
	// sent after the translation. So once the full size is lost the least one is tried as well.
	six bool
	// blocked and free count the answers in a row that say that pods are, and are not, cut off.
	blocked, free int
}

// State returns the state of the path, and since when it is in that state.
func (e EndPath) State() (EndState, time.Time) { return e.state, e.since }

// Answered notes an answer.
func (e EndPath) Answered(large, blocked bool, now time.Time) EndPath {
	if blocked {
		e.blocked, e.free = e.blocked+1, 0
	} else {
		e.blocked, e.free = 0, e.free+1
	}
	return e.Refused(large, now)
}

// Refused notes that the kernel of the node answered that the port is closed: the probe arrived, and
// does not show whether the node's pods are reached.
func (e EndPath) Refused(large bool, now time.Time) EndPath {
	if large {
		e.large = e.large.answered()
	} else {
		e.small = e.small.answered()
	}
	return e.judged(now)
}

// Paused forgets the losses that did not change the state yet: the tunnel on the way is down and
// caused them.
func (e EndPath) Paused() EndPath {
	e.small, e.large = row{}, row{}
	return e
}

// Lost notes that a probe that was sent then was not answered.
func (e EndPath) Lost(large bool, sent, now time.Time) EndPath {
	if large {
		e.large = e.large.missed(sent)
	} else {
		e.small = e.small.missed(sent)
	}
	return e.judged(now)
}

func (e EndPath) judged(now time.Time) EndPath {
	next, was := EndUp, e.state
	if was == EndDown && e.small.good >= endBack {
		e.large = row{} // what was lost meanwhile was not lost for its size
	}
	switch {
	case was == EndUnknown && e.small.good+e.large.good == 0 && !e.small.fails(now, endLoss, endFirst):
		return e
	case e.small.fails(now, endLoss, endAfter), was == EndDown && e.small.good < endBack:
		next = EndDown
	case e.blocked >= endBack, was == EndBlocked && e.free < endBack:
		next = EndBlocked
	case e.large.fails(now, e.largeLoss(), endLargeAfter), was == EndLargeLost && e.large.good < endBack:
		next = EndLargeLost
	}
	if next != was {
		e.state, e.since = next, now
	}
	return e
}

// largeLoss is how many large probes are lost in a row until large packets are.
func (e EndPath) largeLoss() int {
	if e.six {
		return 2 * endLoss // of both sizes
	}
	return endLoss
}

// doubted reports whether the next probes may change the state for the worse, and so are sent soon.
func (e EndPath) doubted() bool {
	return e.state == EndUp && (e.small.lost > 0 || e.large.lost > 0 || e.blocked > 0)
}

// smallFirst reports whether the next probe is a small one: where small ones were lost or the path is
// down, large ones show nothing more. Where only large ones are lost both sizes are sent in turn.
func (e EndPath) smallFirst() bool {
	return e.small.lost > 0 || e.state >= EndBlocked || e.blocked > 0
}

// EndTarget is an address of a node of a peer, as this cluster knows it.
type EndTarget struct {
	Node string
	Addr netip.Addr
	// Size is that of packets that the routes to it allow, zero while that is not known.
	Size int
}

// EndPeer is a cluster that is probed end to end, and whose nodes probe this one.
type EndPeer struct {
	Cluster string
	Targets []EndTarget
	// From are the addresses of its nodes, as this cluster knows them. Only they are answered.
	From []netip.Addr
	// Down says that the tunnel on the way to it is down, so it is not probed.
	Down bool
}

// EndStatus is the state of a peer by its end-to-end probes: the worst of those of its nodes.
type EndStatus struct {
	State EndState
	Since time.Time
	// Node and Addr are those of the first node in that state, if it is not up. Bad is how many
	// nodes are not up.
	Node string
	Addr netip.Addr
	Bad  int
	// Ways is the number of addresses that are probed, Known that of those with a known state.
	Ways, Known int
}

// Differs reports whether two statuses differ in more than the number of ways.
func (s EndStatus) Differs(o EndStatus) bool {
	return s.State != o.State || s.Node != o.Node || s.Addr != o.Addr || s.Bad != o.Bad
}

// endPeer is the state of a peer.
type endPeer struct {
	EndPeer

	paths map[netip.Addr]*endPath
	due   time.Time
	turn  int // the index of the target that was probed last
	again int // the same among those that are not up
	// answers is how many probes of it were answered in the second from counted.
	answers int
	counted time.Time
	// reported is the status that was reported last, at reportedAt, and changed says that a probe was
	// answered or lost since. spent is how many changes were reported lately; each endReportEvery from
	// paid on one of them is forgotten.
	reported   EndStatus
	reportedAt time.Time
	changed    bool
	spent      int
	paid       time.Time
}

// endPath is a target with its history.
type endPath struct {
	EndPath

	target  EndTarget
	waiting []endSent // oldest first
	padded  bool      // the last probe had the full size
}

type endSent struct {
	nonce endNonce
	at    time.Time
	large bool
	size  int // of the datagram
}

// endWaiting is how many probes of a path wait for an answer at most.
const endWaiting = 8

// choose returns the paths that are probed now: one in turn; one that lost a probe, if any, until
// it is decided; and one of those that are not up, in turn.
func (q *endPeer) choose() []*endPath {
	var out, bad []*endPath
	var doubted *endPath
	if n := len(q.Targets); n > 0 {
		q.turn = (q.turn + 1) % n
		out = append(out, q.paths[q.Targets[q.turn].Addr])
	}
	for _, t := range q.Targets {
		switch p := q.paths[t.Addr]; {
		case p.doubted():
			if doubted == nil || p.small.lost+p.large.lost > doubted.small.lost+doubted.large.lost {
				doubted = p
			}
		case p.state > EndUp:
			bad = append(bad, p)
		}
	}
	if doubted != nil && !slices.Contains(out, doubted) {
		out = append(out, doubted)
	}
	if len(bad) > 0 {
		q.again = (q.again + 1) % len(bad)
		if p := bad[q.again]; !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// next is whether the next probe of a path has the full size.
func (p *endPath) next() bool {
	p.padded = !p.padded && p.target.Size > 0 && !p.smallFirst()
	return p.padded
}

// size is that of a probe, without headers.
func (p *endPath) size(large bool) int {
	headers, size := endHeaders4, p.target.Size
	if p.six {
		headers = endHeaders6
		if p.large.lost >= endLoss || p.state == EndLargeLost {
			size = min(size, MinMTU)
		}
	}
	if !large {
		return endLen
	}
	return max(endLen, size-headers)
}

// overdue notes the probes of a path that were not answered in time.
func (p *endPath) overdue(now time.Time) {
	for len(p.waiting) > 0 && (now.Sub(p.waiting[0].at) >= endPatience || len(p.waiting) > endWaiting) {
		p.EndPath = p.Lost(p.waiting[0].large, p.waiting[0].at, now)
		p.waiting = p.waiting[1:]
	}
}

// overdue notes the probes of a peer that were not answered in time.
func (q *endPeer) overdue(now time.Time) {
	for _, p := range q.paths {
		if len(p.waiting) > 0 && now.Sub(p.waiting[0].at) >= endPatience {
			p.overdue(now)
			q.changed = true
		}
	}
}

// report reports whether the status of a peer changed since it was last reported. Changes of the worst
// node, or of the number of nodes, are gathered for endGather. A peer whose nodes answer now and then
// gets endReports reports at once and later one each endReportEvery, since each node writes them to
// the API server.
func (q *endPeer) report(now time.Time) bool {
	if !q.changed {
		return false
	}
	s := q.status()
	differs := s.Differs(q.reported)
	if differs {
		if s.State == q.reported.State && now.Sub(q.reportedAt) < endGather {
			return false
		}
		for q.spent > 0 && now.Sub(q.paid) >= endReportEvery {
			q.spent, q.paid = q.spent-1, q.paid.Add(endReportEvery)
		}
		if q.spent >= endReports {
			return false
		}
		if q.spent == 0 {
			q.paid = now
		}
		q.spent, q.reportedAt = q.spent+1, now
	}
	q.reported, q.changed = s, false
	return differs
}

// take returns the probe that an answer is to.
func (p *endPath) take(is func(endSent) bool) (endSent, bool) {
	i := slices.IndexFunc(p.waiting, is)
	if i < 0 {
		return endSent{}, false
	}
	sent := p.waiting[i]
	p.waiting = slices.Delete(p.waiting, i, i+1)
	return sent, true
}

// set replaces the targets. Histories of those that stay are kept.
func (q *endPeer) set(to EndPeer) {
	paths := make(map[netip.Addr]*endPath, len(to.Targets))
	for _, t := range to.Targets {
		p := q.paths[t.Addr]
		if p == nil || p.target.Node != t.Node {
			p = &endPath{EndPath: EndPath{six: t.Addr.Is6()}}
		}
		if p.target.Size != t.Size {
			p.EndPath.large = row{} // other packets pass or are lost
			p.waiting = slices.DeleteFunc(p.waiting, func(s endSent) bool { return s.large })
		}
		if t.Size == 0 && p.state == EndLargeLost {
			p.EndPath.state = EndUp // large probes are not sent any more
		}
		if to.Down {
			p.EndPath, p.waiting = p.Paused(), nil
		}
		p.target, paths[t.Addr] = t, p
	}
	q.EndPeer, q.paths, q.changed = to, paths, true
}

// status returns the worst state of a peer's nodes.
func (q *endPeer) status() EndStatus {
	var out EndStatus
	bad := map[string]bool{}
	for _, t := range q.Targets {
		state, since := q.paths[t.Addr].State()
		if state != EndUnknown {
			out.Known++
		}
		if state > EndUp {
			bad[t.Node] = true
		}
		if state > out.State {
			out.State, out.Since = state, since
			if state > EndUp {
				out.Node, out.Addr = t.Node, t.Addr
			}
		}
	}
	out.Bad, out.Ways = len(bad), len(q.Targets)
	return out
}

// endPace is the pause between two probes of a peer, for a number of peers that this node probes and
// of nodes of its cluster that probe them.
func endPace(peers, nodes int) time.Duration {
	return max(endEvery, time.Duration(peers)*time.Second/endsPerSecond, time.Duration(nodes)*time.Second/endsOfCluster)
}
