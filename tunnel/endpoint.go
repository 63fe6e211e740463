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
// peer that moves, so a peer that answers is left alone; only one that is
// silent is given another endpoint.
type dialer struct {
	// wrote is the endpoint that we configured last, when, and whether the peer announced it.
	wrote     netip.AddrPort
	wroteAt   time.Time
	announced bool
	// worked is when an endpoint was last in use by a live peer.
	worked map[netip.AddrPort]time.Time
	// tried is when a candidate was last written, or found to work no more.
	tried map[netip.AddrPort]time.Time
	// lost is since when nothing comes from the peer, zero while something does; tries is how
	// often another endpoint was written since. ever says that something came once.
	lost  time.Time
	tries int
	ever  bool
	// seen is the last sighting.
	seen sighting
}

// sighting is the state of a peer by which its endpoint is chosen.
type sighting struct {
	// endpoint is the one in the device. Zero if none.
	endpoint netip.AddrPort
	// alive says that something came from the peer lately, if only a keepalive.
	alive bool
	// candidates are the resolved endpoints, in the order configured, observed where others see
	// the peer, relay is through the agents; zero if it is not.
	candidates, observed []netip.AddrPort
	relay                netip.AddrPort
}

// all are all candidates.
func (s sighting) all() []netip.AddrPort {
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
func (s sighting) way(e netip.AddrPort) Way {
	switch {
	case e.Addr().IsLoopback():
		return WayRelayed
	case slices.Contains(s.candidates, e):
		return WayDirect
	}
	return WayObserved
}

// choose returns the endpoint to write now, or when to look again; both are zero if nothing is to
// be done. quick is for how long an endpoint is tried at first.
func (d *dialer) choose(now time.Time, s sighting, quick time.Duration) (netip.AddrPort, time.Duration) {
	if d.worked == nil {
		d.worked, d.tried = map[netip.AddrPort]time.Time{}, map[netip.AddrPort]time.Time{}
	}
	d.seen = s
	d.forget(s)
	all := s.all()
	if s.alive && s.endpoint.IsValid() {
		d.worked[s.endpoint] = now
		d.lost, d.tries, d.ever = time.Time{}, 0, true
		// Ours, and withdrawn: follow the configuration. Not ours: it roams, or others see it.
		withdrawn := s.endpoint == d.wrote && d.announced && len(s.candidates) > 0 && !slices.Contains(all, s.endpoint)
		if !withdrawn {
			return netip.AddrPort{}, 0
		}
		return d.write(now, s.candidates[0]), 0
	}
	if len(all) == 0 {
		return netip.AddrPort{}, 0
	}
	if d.lost.IsZero() {
		d.lost = now
		if d.ever && s.endpoint.IsValid() && len(all) > 1 {
			d.tried[s.endpoint] = now.Add(-1) // before the one that is written now
		}
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

func (d *dialer) write(now time.Time, e netip.AddrPort) netip.AddrPort {
	d.wrote, d.wroteAt, d.announced = e, now, slices.Contains(d.seen.candidates, e)
	d.tried[e] = now
	d.tries++
	return e
}

// order sorts candidates: those tried longest ago first, so that all get their
// turn while nothing works; among equals the relay, once another was lost or the others had
// their time; then by last success, then as configured.
func (d *dialer) order(now time.Time, candidates []netip.AddrPort) []netip.AddrPort {
	out := slices.Clone(candidates)
	relays := func(e netip.AddrPort) int {
		if e == d.seen.relay && (d.ever || now.Sub(d.lost) >= relayAfter) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(out, func(a, b netip.AddrPort) int {
		return cmp.Or(d.turn(a).Compare(d.turn(b)), cmp.Compare(relays(a), relays(b)), d.worked[b].Compare(d.worked[a]))
	})
	return out
}

// turn is when a candidate was last tried without success.
func (d *dialer) turn(e netip.AddrPort) time.Time {
	if d.worked[e].After(d.tried[e]) {
		return time.Time{}
	}
	return d.tried[e]
}

// forget drops endpoints that are no longer candidates.
func (d *dialer) forget(s sighting) {
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
