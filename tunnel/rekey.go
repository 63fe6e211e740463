package tunnel

import (
	"net/netip"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// A node replaces its WireGuard key in three steps, so that no packet is lost:
//
//  1. It announces the next key, and asks those that it has tunnels with, inside of these, whether
//     they know it. Nothing else is done with it.
//  2. When all do it tells them in how many milliseconds it will use it. It gives its device the new key then. WireGuard still
//     takes in what comes by the old sessions; what is to be sent waits in the device.
//  3. The others follow [probe.RekeyMargin] later: in one step they make the new key a peer of their
//     device and give it the prefixes of the old one, and begin a handshake. When it is done what waited is sent.
//
// WireGuard accepts a source from one key only, which is why the others must not do that before: what is
// sent with the old key would be dropped.

// rekeying is what is known of keys that are being replaced.
type rekeying struct {
	// due has a value when somebody is to be followed.
	due chan struct{}
	// peers is the last plan.
	peers []plan.WireGuardPeer
	// moves is, by overlay address, whose next key was taken for its own, rests until when
	// nobody is followed there, because the last time there was no handshake.
	moves map[netip.Addr]keyMove
	rests map[netip.Addr]time.Time

	// next is the key by which this node replaces its own, waits what that waits for.
	next  privateKey
	waits string
	// asked is when others were asked last, again not to be before.
	asked, again time.Time
}

// keyMove is a next key that is in use.
type keyMove struct {
	key    plan.PublicKey
	at     time.Time
	proven bool
	// tries is how often a handshake was begun.
	tries int
}

func newRekeying() rekeying {
	return rekeying{due: make(chan struct{}, 1), moves: map[netip.Addr]keyMove{}, rests: map[netip.Addr]time.Time{}}
}

// inUse returns which nodes use their next keys. A key that was taken for a node's own shows by a
// handshake that it is; if it does not, the old one counts again.
func (r *rekeying) inUse(now time.Time, d plan.Desired, held []heldKey) map[netip.Addr]plan.PublicKey {
	handshakes := make(map[plan.PublicKey]time.Time, len(held))
	for _, h := range held {
		handshakes[h.key] = h.handshake
	}
	out, known := map[netip.Addr]plan.PublicKey{}, map[netip.Addr]bool{}
	look := func(overlay netip.Addr, key, next plan.PublicKey) {
		known[overlay] = true
		m, moved := r.moves[overlay]
		switch {
		case next.IsZero() || moved && m.key != next:
			delete(r.moves, overlay) // what was announced is in use, or is another
		case handshakes[next].After(handshakes[key]):
			r.moves[overlay] = keyMove{key: next, at: m.at, proven: true, tries: m.tries}
			out[overlay] = next
		case moved && (m.proven || now.Sub(m.at) < rekeyTrial):
			out[overlay] = next
		case moved:
			delete(r.moves, overlay)
			r.rests[overlay] = now.Add(rekeyRest)
		}
	}
	for _, n := range d.Nodes {
		look(plan.Overlay(d.ClusterID, n.Name), n.PublicKey, n.NextKey)
	}
	for _, q := range d.Peers {
		for _, g := range q.Gateways {
			look(plan.GatewayOverlay(q, g), g.PublicKey, g.NextKey)
		}
		for _, n := range q.Nodes {
			look(plan.GatewayOverlay(q, n), n.PublicKey, n.NextKey)
		}
	}
	for overlay := range r.moves {
		if !known[overlay] {
			delete(r.moves, overlay)
		}
	}
	for overlay, until := range r.rests {
		if !known[overlay] || !now.Before(until) {
			delete(r.rests, overlay)
		}
	}
	return out
}

// shake returns the next keys, by overlay address, with which a handshake is to be begun again, and
// when to ask next; zero is not before something changes.
func (r *rekeying) shake(now time.Time) (again map[netip.Addr]plan.PublicKey, next time.Duration) {
	again = map[netip.Addr]plan.PublicKey{}
	for overlay, m := range r.moves {
		if m.proven || now.Sub(m.at) >= rekeyTrial {
			continue
		}
		wait := rekeyShake << m.tries
		if now.Sub(m.at) >= wait {
			m.tries++
			r.moves[overlay], again[overlay] = m, m.key
			wait = rekeyShake << m.tries
		}
		if left := wait - now.Sub(m.at); next == 0 || left < next {
			next = left
		}
	}
	return again, max(0, next)
}

// follows is the tag of the key to which a planned peer is followed; zero means none.
func (r *rekeying) follows(w plan.WireGuardPeer) probe.KeyTag {
	if _, rests := r.rests[w.Overlay]; rests {
		return probe.KeyTag{}
	}
	return probe.KeyTagOf(w.NextKey)
}

func (r *rekeying) planned(peers []plan.WireGuardPeer) { r.peers = peers }

// pause is how long to wait before others are asked again: not all that replace their keys at
// the same time try again at the same time.
func rekeyPause(self plan.PublicKey, tries int) time.Duration {
	return rekeyAgain + time.Duration((int(self[0])+97*tries)%16)*rekeyAgain/16
}
