package tunnel

import (
	"slices"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

const (
	// keyLate is the age of a handshake from which on the preshared keys of the two sides are assumed
	// to differ: WireGuard makes another one after 120 s.
	keyLate = 130 * time.Second
	// keyTry is how long each of several preshared keys is tried: two handshake attempts of WireGuard,
	// 5 s apart. So all three are tried before the session ends. Each further
	// round takes twice as long.
	keyTry    = 11 * time.Second
	keyRounds = 5
	// keyLead is how long the cluster that leads tries each key while both look for one that they have: longer
	// than the other takes to try all of its own, which are four at most.
	keyLead = 6 * keyTry
)

// presharedTrials finds the preshared key that the other side uses while one key replaces
// another. The two sides change it at about the same moment, unless one is cut off from its
// API server or its agent then. Of two clusters the one with the lower ID
// leads: it uses the current key of its desired state, and the other one tries the keys that it knows.
// Where a cluster lost its keys, that one may not be among them. Then both have the first key, too, and the one
// that leads tries its keys as well, each for longer than the other takes to try all.
type presharedTrials map[plan.PublicKey]presharedTrial

// presharedTrial is the key that is tried with a peer.
type presharedTrial struct {
	// desired is the desired key when the trial began.
	desired plan.PresharedKey
	// try counts the keys that were tried, the current one since since.
	try   int
	since time.Time
}

// choose sets the preshared keys of planned peers to those to use now. have are the keys
// in the device, leads reports whether this cluster leads another.
func (k presharedTrials) choose(now time.Time, peers []plan.WireGuardPeer, have []deviceKey, leads func(cluster string) bool) {
	keep := make(map[plan.PublicKey]bool, len(peers))
	handshakes := make(map[plan.PublicKey]time.Time, len(have))
	for _, h := range have {
		handshakes[h.key] = h.handshake
	}
	for i := range peers {
		w := &peers[i]
		keys := candidates(w)
		lead, lost := leads(w.Cluster), !w.Spare.First.IsZero()
		if len(keys) < 2 || lead && !lost {
			continue
		}
		keep[w.PublicKey] = true
		t, known := k[w.PublicKey]
		if !known || t.desired != keys[0] {
			t = presharedTrial{desired: keys[0], since: now}
		}
		patience := keyTry << min(t.try/len(keys), keyRounds)
		if lead {
			patience = keyLead
		} else if lost {
			patience = keyTry
		}
		t = t.next(now, handshakes[w.PublicKey], patience)
		k[w.PublicKey] = t
		w.PresharedKey = keys[t.try%len(keys)]
	}
	for key := range k {
		if !keep[key] {
			delete(k, key)
		}
	}
}

// next goes on to the next of several keys if no handshake was made with this one in time.
func (t presharedTrial) next(now, handshake time.Time, patience time.Duration) presharedTrial {
	if now.Sub(handshake) >= keyLate && now.Sub(t.since) >= patience {
		t.try, t.since = t.try+1, now
	}
	return t
}

// candidates are the preshared keys that a peer may use, the desired one first.
func candidates(w *plan.WireGuardPeer) []plan.PresharedKey {
	if w.KeyMissing || w.PresharedKey.IsZero() {
		return nil
	}
	out := []plan.PresharedKey{w.PresharedKey}
	for _, key := range []plan.PresharedKey{w.Spare.First, w.Spare.Next, w.Spare.Previous} {
		if !key.IsZero() && !slices.Contains(out, key) {
			out = append(out, key)
		}
	}
	return out
}
