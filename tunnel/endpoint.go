package tunnel

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// Way is how packets get to a peer of the device.
type Way string

// The ways, best first.
const (
	// WayDirect is at an endpoint that the peer announces.
	WayDirect Way = "Direct"
	// WayObserved is where the peer was seen: on the outside of an address translation.
	WayObserved Way = "Observed"
	// WayRelayed is through the agents.
	WayRelayed Way = "Relayed"
)

// dialer chooses the endpoint of one WireGuard peer. WireGuard itself follows a
// peer that moves, so a peer that answers is left alone; only a silent one
// gets another endpoint. A peer whose path broke a moment ago may be
// back in a moment: it is tried elsewhere too, and its endpoint is kept.
type dialer struct {
	// wrote is the endpoint that we configured last, when, and whether the peer announced it.
	wrote     netip.AddrPort
	wroteAt   time.Time
	announced bool
	// worked is when an endpoint was last in use by a live peer.
	worked map[netip.AddrPort]time.Time
	// tried is when a candidate was last written, or was found not to work any more.
	tried map[netip.AddrPort]time.Time
	// lost is since when nothing is received from the peer, zero while something is; tries is how
	// often another endpoint was written since. ever says that something was received once.
	lost  time.Time
	tries int
	ever  bool
	// detours is how the peer is tried elsewhere while its path is broken.
	detours detours
	// seen is the last state of the peer.
	seen endpointState
}

// detours is how a peer whose path broke is tried at other endpoints, alternating with the one where it
// was: WireGuard sends to one endpoint at a time. The session is kept, so one packet that arrives is
// enough for both sides to follow, and a packet from the old endpoint leads back there.
type detours struct {
	// home is where the peer was. Zero if it was not tried elsewhere since its path broke.
	home netip.AddrPort
	// written is how many endpoints were written since then, the last one at at.
	written int
	at      time.Time
	// over says that something was received since, though the path is still down: WireGuard has
	// followed the peer, whose fabric may just not run.
	over bool
}

// endpointState is the state of a peer by which its endpoint is chosen.
type endpointState struct {
	// endpoint is the one in the device. Zero if none.
	endpoint netip.AddrPort
	// alive says that something was received from the peer lately, if only a keepalive.
	alive bool
	// broken is since when the path to the peer is down and nothing is received from the peer. Zero
	// if the path works.
	broken time.Time
	// candidates are the resolved endpoints, in the order configured, observed where others see
	// the peer, relay is through the agents; zero if it is not.
	candidates, observed []netip.AddrPort
	relay                netip.AddrPort
}

// all are all candidates.
func (s endpointState) all() []netip.AddrPort {
	out := slices.Clone(s.candidates)
	for _, e := range s.observed {
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	if s.relay.IsValid() {
		out = append(out, s.relay)
	}
	return out
}

// way is how packets get to an endpoint.
func (s endpointState) way(e netip.AddrPort) Way {
	switch {
	case e.Addr().IsLoopback():
		return WayRelayed
	case slices.Contains(s.candidates, e):
		return WayDirect
	}
	return WayObserved
}

// choose returns the endpoint to write now, or after how long to choose again; both are zero if there is
// nothing to do. quick is for how long an endpoint is tried at first.
func (d *dialer) choose(now time.Time, s endpointState, quick time.Duration) (netip.AddrPort, time.Duration) {
	if d.worked == nil {
		d.worked, d.tried = map[netip.AddrPort]time.Time{}, map[netip.AddrPort]time.Time{}
	}
	d.seen = s
	d.forget(s)
	all := s.all()
	if s.alive && s.endpoint.IsValid() {
		return d.follow(now, s, all)
	}
	if len(all) == 0 {
		return netip.AddrPort{}, 0
	}
	if d.lost.IsZero() {
		d.lost = now
		if d.ever && s.endpoint.IsValid() && len(all) > 1 {
			d.tried[d.detours.from(s.endpoint)] = now.Add(-1) // before the one that is written now
		}
		d.detours = detours{}
	}
	best := d.order(now, all)[0]
	if !s.endpoint.IsValid() {
		return d.write(now, best), 0
	}
	if len(all) == 1 && best == s.endpoint {
		return netip.AddrPort{}, 0
	}
	patience := endpointTry
	if d.tries < 2*len(all) {
		patience = min(quick, endpointTry)
	}
	if left := patience - now.Sub(d.wroteAt); left > 0 {
		return netip.AddrPort{}, left
	}
	return d.write(now, best), 0
}

// follow is choose for a peer from which something was received lately.
func (d *dialer) follow(now time.Time, s endpointState, all []netip.AddrPort) (netip.AddrPort, time.Duration) {
	d.lost, d.tries, d.ever = time.Time{}, 0, true
	// An endpoint that we wrote and that was withdrawn is left. Another one shows that the peer roams.
	if s.endpoint == d.wrote && d.announced && len(s.candidates) > 0 && !slices.Contains(all, s.endpoint) {
		d.detours = detours{}
		return d.write(now, s.candidates[0]), 0
	}
	if s.broken.IsZero() {
		d.detours = detours{}
		d.worked[s.endpoint] = now
		return netip.AddrPort{}, 0
	}
	d.detours.over = d.detours.over || d.detours.home.IsValid() && s.broken.After(d.detours.at)
	if d.detours.over {
		return netip.AddrPort{}, 0
	}
	if left := detourAfter - now.Sub(s.broken); left > 0 {
		return netip.AddrPort{}, left
	}
	return d.detour(now, s, all)
}

// detour returns where to try a peer whose path is broken next: through the agents, then at its
// other endpoints, and in between at the endpoint where it was.
func (d *dialer) detour(now time.Time, s endpointState, all []netip.AddrPort) (netip.AddrPort, time.Duration) {
	home := d.detours.from(s.endpoint)
	others := slices.DeleteFunc(all, func(e netip.AddrPort) bool { return e == home })
	if len(others) == 0 {
		return netip.AddrPort{}, 0
	}
	if left := detourTry - now.Sub(d.detours.at); left > 0 {
		return netip.AddrPort{}, left
	}
	slices.SortStableFunc(others, func(a, b netip.AddrPort) int {
		return cmp.Or(compareBool(b == s.relay, a == s.relay), d.worked[b].Compare(d.worked[a]))
	})
	e := home
	if d.detours.written%2 == 0 {
		e = others[d.detours.written/2%len(others)]
	}
	d.detours = detours{home: home, written: d.detours.written + 1, at: now}
	d.wrote, d.announced = e, slices.Contains(s.candidates, e)
	return e, detourTry
}

// from returns the endpoint at which a peer counts as being: during detours the one where it was, else
// that in the device.
func (t detours) from(endpoint netip.AddrPort) netip.AddrPort {
	if t.home.IsValid() && !t.over {
		return t.home
	}
	return endpoint
}

func (d *dialer) write(now time.Time, e netip.AddrPort) netip.AddrPort {
	d.wrote, d.wroteAt, d.announced = e, now, slices.Contains(d.seen.candidates, e)
	d.tried[e] = now
	d.tries++
	return e
}

// order sorts candidates: those tried longest ago first, so that all are tried
// while none works; among equals the relay, once the peer was lost or the others were tried for
// relayAfter; then by last success, then as configured. A device that was made again has lost all
// peers, whose ways still work.
func (d *dialer) order(now time.Time, candidates []netip.AddrPort) []netip.AddrPort {
	out := slices.Clone(candidates)
	relays := func(e netip.AddrPort) int {
		if e == d.seen.relay && (d.ever && d.seen.endpoint.IsValid() || now.Sub(d.lost) >= relayAfter) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(out, func(a, b netip.AddrPort) int {
		return cmp.Or(d.failedAt(a).Compare(d.failedAt(b)), cmp.Compare(relays(a), relays(b)), d.worked[b].Compare(d.worked[a]))
	})
	return out
}

// failedAt is when a candidate was last tried without success.
func (d *dialer) failedAt(e netip.AddrPort) time.Time {
	if d.worked[e].After(d.tried[e]) {
		return time.Time{}
	}
	return d.tried[e]
}

// forget drops endpoints that are no longer candidates.
func (d *dialer) forget(s endpointState) {
	all := s.all()
	keep := func(e netip.AddrPort) bool { return slices.Contains(all, e) || e == s.endpoint }
	for e := range d.worked {
		if !keep(e) {
			delete(d.worked, e)
		}
	}
	for e := range d.tried {
		if !keep(e) {
			delete(d.tried, e)
		}
	}
}
