package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// A node replaces its WireGuard key in three steps, so that no packet is lost:
//
//  1. It announces the next key, and asks the nodes that it has tunnels with, inside the tunnels, whether
//     they know it. The key is not used yet.
//  2. When all know it the node announces in how many milliseconds it will use it. Then it configures its
//     device with the new key. WireGuard still accepts packets of the old sessions; packets to send wait
//     in the device.
//  3. The others follow [probe.RekeyMargin] later: in one step they make the new key a peer of their
//     device and move the prefixes of the old one to it, and begin a handshake. After it the waiting
//     packets are sent.
//
// WireGuard accepts a source from one key only, so the others must not follow earlier: packets that are
// sent with the old key would be dropped.

// rekeying is the state of keys that are being replaced.
type rekeying struct {
	// due has a value when it is time to follow another node.
	due chan struct{}
	// paused is when a pass last waited for another node.
	paused time.Time
	// peers is the last plan.
	peers []plan.WireGuardPeer
	// moves are, by overlay address, the nodes whose next key is in use. rests is until when a node is
	// not followed, because the last time no handshake was completed.
	moves map[netip.Addr]keyMove
	rests map[netip.Addr]time.Time

	// next is the key by which this node replaces its own, waits is what the replacement waits for.
	next  privateKey
	waits string
	// replaced is when this node last began to use another key, whether or not it kept it.
	replaced time.Time
	// asked is when others were last asked, again when they may be asked next.
	asked, again time.Time
}

// keyMove is a next key that is in use.
type keyMove struct {
	key    plan.PublicKey
	at     time.Time
	proven bool
	// tries is how often a handshake was begun again.
	tries int
}

func newRekeying() rekeying {
	return rekeying{due: make(chan struct{}, 1), moves: map[netip.Addr]keyMove{}, rests: map[netip.Addr]time.Time{}}
}

// inUse returns the nodes that use their next keys, with these keys. A next key stays in use if a
// handshake with it is completed within rekeyTrial; otherwise the old one is used again. Several peers may
// announce the same key: a handshake counts for the one with whose preshared key it was made. What a peer
// announces of a node with an overlay address of another cluster is not that node's.
func (r *rekeying) inUse(now time.Time, d plan.Desired, have []deviceKey) map[netip.Addr]plan.PublicKey {
	device := make(map[plan.PublicKey]deviceKey, len(have))
	for _, h := range have {
		device[h.key] = h
	}
	out, known := map[netip.Addr]plan.PublicKey{}, map[netip.Addr]bool{}
	check := func(overlay netip.Addr, key, next plan.PublicKey, shared func(plan.PresharedKey) bool) {
		known[overlay] = true
		m, moved := r.moves[overlay]
		switch {
		case next.IsZero() || moved && m.key != next:
			delete(r.moves, overlay) // it was announced as the current key, or replaced by another one
		case device[next].handshake.After(device[key].handshake) && shared(device[next].psk):
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
		check(plan.Overlay(d.ClusterID, n.Name), n.PublicKey, n.NextKey, func(plan.PresharedKey) bool { return true })
	}
	for _, q := range d.Peers {
		for _, n := range slices.Concat(q.Gateways, q.Nodes) {
			if !q.HasOverlay(n) {
				continue
			}
			old, exists := device[n.PublicKey]
			check(plan.GatewayOverlay(q, n), n.PublicKey, n.NextKey, func(psk plan.PresharedKey) bool {
				return isShared(q, psk) || exists && psk == old.psk // the keys of q may be missing
			})
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

// soon returns until when a pass may wait for other nodes. It does so once a second at most: some nodes may
// announce again and again that they replace their keys.
func (r *rekeying) soon(now time.Time) time.Time {
	if now.Sub(r.paused) < rekeyPaused {
		return now
	}
	return now.Add(rekeySoon)
}

// isTaken reports whether another node was followed to a key.
func (r *rekeying) isTaken(overlay netip.Addr, key plan.PublicKey) bool {
	for other, m := range r.moves {
		if other != overlay && m.key == key {
			return true
		}
	}
	return false
}

// unshaken returns the next keys, by overlay address, with which to begin a handshake again, and after
// how long to ask again; zero means only after a change.
func (r *rekeying) unshaken(now time.Time) (again map[netip.Addr]plan.PublicKey, next time.Duration) {
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

// follows returns the tag of the next key to which this node follows a planned peer; zero means that it
// does not follow.
func (r *rekeying) follows(w plan.WireGuardPeer) probe.KeyTag {
	if _, rests := r.rests[w.Overlay]; rests {
		return probe.KeyTag{}
	}
	return probe.KeyTagOf(w.NextKey)
}

// mayRest says until when others may not follow this node because they completed no handshake with its last key;
// empty if they follow it. This node does not learn which do not.
func (r *rekeying) mayRest(now time.Time) string {
	until := r.replaced.Add(rekeyTrial + rekeyRest)
	if r.replaced.IsZero() || !now.Before(until) {
		return ""
	}
	return fmt.Sprintf(": this node replaced its key at %s, and a node that completed no handshake by that key for %s follows it to another one from %s on",
		r.replaced.UTC().Format(clockTime), rekeyTrial, until.UTC().Format(clockTime))
}

const clockTime = "15:04:05 MST"

func (r *rekeying) planned(peers []plan.WireGuardPeer) { r.peers = peers }

// callsOff reports whether a node that is late with its next key calls its replacement off. It must not while the
// others use that key: they would not reach it until they use the old one again, and then not follow it
// for a while.
func callsOff(late time.Duration) bool {
	followed := late >= probe.RekeyMargin-rekeyLate && late < rekeyTrial/2
	return late > rekeyLate && !followed
}

// rekeyPause returns how long to wait before others are asked again. It differs between nodes, so that
// those that replace their keys at the same time do not try again at the same time.
func rekeyPause(self plan.PublicKey, tries int) time.Duration {
	return rekeyAgain + time.Duration((int(self[0])+97*tries)%16)*rekeyAgain/16
}
