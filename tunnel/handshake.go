package tunnel

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/plan"
)

const (
	// handshakeFirst is after how long an unanswered first handshake is restarted; each
	// further try waits twice as long.
	handshakeFirst = time.Second
	// handshakeTries is how often. After that WireGuard's own retries, each 5 s, have to suffice: on a
	// very slow path restarts would prevent the handshake.
	handshakeTries = 3
	// handshakeYield is for how long the side with the higher key lets the other
	// begin.
	handshakeYield = 500 * time.Millisecond
)

// handshakes completes a new peer's first handshake soon. WireGuard retries after 5 s (its
// REKEY_TIMEOUT) and loses time in two cases: the side that learns about the other first sends to a
// device that does not know it yet and drops the packet; and if both begin in the same
// moment, each drops the other's answer, at each retry.
//
// So the side with the lower key begins at once, the other after handshakeYield, and both
// restart, with different pauses, until a probe was answered.
type handshakes map[plan.PublicKey]waiting

// waiting is a peer that did not answer since it was last put into the device.
type waiting struct {
	// known is when the peer was first missing in the device, since when its handshake began.
	known, since time.Time
	tries        int
}

// begin records a peer before the device has it: a new one, or one of a device that was made again, whose next
// handshake earlier answers say nothing of.
func (h handshakes) begin(now time.Time, peer plan.PublicKey) {
	if _, noted := h[peer]; !noted {
		h[peer] = waiting{known: now}
	}
}

// yields records a peer that the device cannot dial yet, and reports whether to let it begin,
// and for how much longer.
func (h handshakes) yields(now time.Time, self, peer plan.PublicKey) (time.Duration, bool) {
	h.begin(now, peer)
	if bytes.Compare(self[:], peer[:]) <= 0 {
		return 0, false
	}
	left := handshakeYield - now.Sub(h[peer].known)
	return left, left > 0
}

// due returns the peers whose first handshake should be restarted now, and after how long to ask again;
// zero means only after a change. have are the peers of the device, answered reports
// whether a probe to one was answered since the device has it. A peer that already had a handshake when this process
// found it in the device is left alone.
func (h handshakes) due(now time.Time, self plan.PublicKey, have []wgtypes.Peer, answered func(plan.PublicKey) bool) (again []plan.PublicKey, next time.Duration) {
	present := map[plan.PublicKey]bool{}
	for _, p := range have {
		key := plan.PublicKey(p.PublicKey)
		if _, noted := h[key]; answered(key) || !noted && !p.LastHandshakeTime.IsZero() {
			continue
		}
		present[key] = true
		if p.Endpoint == nil {
			continue // it has not begun
		}
		first := handshakeFirst
		if bytes.Compare(self[:], key[:]) > 0 {
			first = first * 7 / 5 // not again in the same moment
		}
		w := h[key]
		if w.since.IsZero() {
			w.since = now
		}
		wait := first << w.tries
		if w.tries < handshakeTries && now.Sub(w.since) >= wait {
			again = append(again, key)
			w.since, w.tries = now, w.tries+1
			wait = first << w.tries
		}
		if left := wait - now.Sub(w.since); w.tries < handshakeTries && (next == 0 || left < next) {
			next = left
		}
		h[key] = w
	}
	for key, w := range h {
		// A peer that will be added is not in the device yet.
		if !present[key] && now.Sub(w.known) > handshakeYield {
			delete(h, key)
		}
	}
	return again, next
}

// restart returns changes that remove peers and add them again as planned, which restarts
// their handshakes with the next packet.
func restart(again []plan.PublicKey, want []plan.WireGuardPeer, have []wgtypes.Peer, dial map[plan.PublicKey]netip.AddrPort) []wgtypes.PeerConfig {
	var out []wgtypes.PeerConfig
	for _, key := range again {
		i := slices.IndexFunc(have, func(p wgtypes.Peer) bool { return plan.PublicKey(p.PublicKey) == key })
		j := slices.IndexFunc(want, func(p plan.WireGuardPeer) bool { return p.PublicKey == key })
		if i < 0 || j < 0 || want[j].KeyMissing {
			continue // without its key it could not be put back
		}
		if _, ok := dial[key]; !ok && have[i].Endpoint != nil {
			e := have[i].Endpoint.AddrPort()
			dial[key] = netip.AddrPortFrom(e.Addr().Unmap(), e.Port())
		}
		out = append(out, wgtypes.PeerConfig{PublicKey: wgtypes.Key(key), UpdateOnly: true, Remove: true})
		out = append(out, peerChanges(want[j:j+1], nil, dial)...)
	}
	return out
}
