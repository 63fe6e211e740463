package tunnel

import (
	"net/netip"
	"slices"
	"time"
)

// dialer chooses the endpoint of one WireGuard peer. WireGuard itself follows a
// peer that moves, so a peer that answers is left alone; only one that is
// silent is given another endpoint.
type dialer struct {
	// wrote is the endpoint that we configured last, and when.
	wrote   netip.AddrPort
	wroteAt time.Time
	// worked is when an endpoint was last in use by a live peer.
	worked map[netip.AddrPort]time.Time
	// tried is when a candidate was last written.
	tried map[netip.AddrPort]time.Time
}

// sighting is the state of a peer by which its endpoint is chosen.
type sighting struct {
	// endpoint is the one in the device. Zero if none.
	endpoint netip.AddrPort
	// alive says that something came from the peer lately, if only a keepalive.
	alive bool
	// candidates are the resolved endpoints, in the order configured.
	candidates []netip.AddrPort
}

// choose returns the endpoint to write, if one is to be written now.
func (d *dialer) choose(now time.Time, s sighting) (netip.AddrPort, bool) {
	if d.worked == nil {
		d.worked, d.tried = map[netip.AddrPort]time.Time{}, map[netip.AddrPort]time.Time{}
	}
	d.forget(s)
	if s.alive && s.endpoint.IsValid() {
		d.worked[s.endpoint] = now
		// Ours, and withdrawn: follow the configuration. Not ours: it roams.
		withdrawn := s.endpoint == d.wrote && len(s.candidates) > 0 && !slices.Contains(s.candidates, s.endpoint)
		if !withdrawn {
			return netip.AddrPort{}, false
		}
		return d.write(now, s.candidates[0])
	}
	if len(s.candidates) == 0 {
		return netip.AddrPort{}, false
	}
	best := d.order(s.candidates)
	if !s.endpoint.IsValid() {
		return d.write(now, best[0])
	}
	if now.Sub(d.wroteAt) < endpointTry {
		return netip.AddrPort{}, false
	}
	if len(s.candidates) == 1 && best[0] == s.endpoint {
		return netip.AddrPort{}, false
	}
	return d.write(now, best[0])
}

func (d *dialer) write(now time.Time, e netip.AddrPort) (netip.AddrPort, bool) {
	d.wrote, d.wroteAt = e, now
	d.tried[e] = now
	return e, true
}

// order sorts candidates: those tried longest ago first, so that all get their
// turn while nothing works; among equals by last success, then as configured.
func (d *dialer) order(candidates []netip.AddrPort) []netip.AddrPort {
	out := slices.Clone(candidates)
	slices.SortStableFunc(out, func(a, b netip.AddrPort) int {
		if c := d.turn(a).Compare(d.turn(b)); c != 0 {
			return c
		}
		return d.worked[b].Compare(d.worked[a])
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
	keep := func(e netip.AddrPort) bool { return slices.Contains(s.candidates, e) || e == s.endpoint }
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
