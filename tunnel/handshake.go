package tunnel

import (
	"bytes"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

const (
	// handshakeFirst is when a first handshake that led to nothing is begun anew;
	// each further try waits twice as long.
	handshakeFirst = time.Second
	// handshakeTries is how often. Then WireGuard's own pace has to do, which is
	// 5 s: a path that slow must not be interrupted for ever.
	handshakeTries = 3
	// handshakeYield is for how long the side with the higher key lets the other
	// begin.
	handshakeYield = 500 * time.Millisecond
)

// handshakes sees to it that a new peer's first handshake is soon done. Two
// things cost WireGuard, which tries again after 5 s (its REKEY_TIMEOUT), most of
// the time that a peering takes: the side that learns of the other first sends
// to a device that does not know it yet, which drops that; and where both begin
// in the same moment, each drops the other's answer, and so on at each try.
//
// So the side with the lower key begins at once, the other when it heard nothing
// for a moment, and either begins anew, each at its own pace, until an answer to
// a probe was seen.
type handshakes map[PublicKey]waiting

// waiting is a peer that never answered.
type waiting struct {
	// known is when the peer was first seen, since when its handshake began.
	known, since time.Time
	tries        int
}

// yields notes a peer that the device cannot dial yet, and says whether to leave
// the first word to it, and for how long yet.
func (h handshakes) yields(now time.Time, self, peer PublicKey) (time.Duration, bool) {
	w, ok := h[peer]
	if !ok {
		w.known = now
		h[peer] = w
	}
	if bytes.Compare(self[:], peer[:]) <= 0 {
		return 0, false
	}
	left := handshakeYield - now.Sub(w.known)
	return left, left > 0
}

// due returns the peers whose first handshake should begin anew now, and when to
// ask again; zero is not before something changes. have is the peers of the
// device, answered says whether a probe to one was ever answered. A peer that was
// found in the device with a handshake done, after a restart, is left alone.
func (h handshakes) due(now time.Time, self PublicKey, have []wgtypes.Peer, answered func(PublicKey) bool) (again []PublicKey, next time.Duration) {
	present := map[PublicKey]bool{}
	for _, p := range have {
		key := PublicKey(p.PublicKey)
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
		// A peer that is to be added has no place in the device yet.
		if !present[key] && now.Sub(w.known) > handshakeYield {
			delete(h, key)
		}
	}
	return again, next
}

// anew returns changes that take peers away and put them back as they are
// wanted, which begins their handshake with the next packet.
func anew(again []PublicKey, want []WireGuardPeer, have []wgtypes.Peer, dial map[PublicKey]netip.AddrPort) []wgtypes.PeerConfig {
	var out []wgtypes.PeerConfig
	for _, key := range again {
		i := slices.IndexFunc(have, func(p wgtypes.Peer) bool { return PublicKey(p.PublicKey) == key })
		j := slices.IndexFunc(want, func(p WireGuardPeer) bool { return p.PublicKey == key })
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
