package tunnel

import (
	"slices"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// keyTrial is how long each of several clusters that announce the same WireGuard
// key has to complete a handshake with it.
const keyTrial = 30 * time.Second

// keyProofs remembers for which cluster the device has a key, and whether there
// was a handshake since: only a node with the private key and the preshared key of that
// peering completes one.
type keyProofs map[plan.PublicKey]keyProof

type keyProof struct {
	cluster string
	since   time.Time
	proven  bool
}

// deviceKey is the key of a peer of the device.
type deviceKey struct {
	key       plan.PublicKey
	psk       plan.PresharedKey
	handshake time.Time
}

// observe notes handshakes. A key in the device that is not known yet is from before
// this process began; it counts as proven if its session can still be used.
func (k keyProofs) observe(now time.Time, have []deviceKey, peers []plan.Peer) {
	for _, h := range have {
		if proof, ok := k[h.key]; ok {
			if h.handshake.After(proof.since) {
				proof.proven = true
				k[h.key] = proof
			}
			continue
		}
		for _, q := range peers {
			if !h.psk.IsZero() && isShared(q, h.psk) && now.Sub(h.handshake) < userspace.SessionLife {
				k[h.key] = keyProof{cluster: q.ClusterID, since: h.handshake, proven: true}
			}
		}
	}
}

// isShared reports whether a preshared key is one of a peer's.
func isShared(q plan.Peer, psk plan.PresharedKey) bool {
	if psk.IsZero() {
		return q.PresharedKey.IsZero() && !q.KeyMissing
	}
	return slices.Contains([]plan.PresharedKey{q.PresharedKey, q.Spare.Next, q.Spare.Previous, q.Spare.First}, psk)
}

// moved notes that the device has the next key of a planned peer from now on, for the cluster of that peer.
func (k keyProofs) moved(now time.Time, w plan.WireGuardPeer) {
	k[w.NextKey] = keyProof{cluster: w.Cluster, since: now}
}

// planned notes for which cluster the device has each key from now on.
func (k keyProofs) planned(now time.Time, peers []plan.WireGuardPeer) {
	keep := make(map[plan.PublicKey]bool, len(peers))
	for _, w := range peers {
		keep[w.PublicKey] = true
		if k[w.PublicKey].cluster != w.Cluster {
			k[w.PublicKey] = keyProof{cluster: w.Cluster, since: now}
		}
	}
	for key := range k {
		if !keep[key] {
			delete(k, key)
		}
	}
}

// proven returns the cluster that has proven each key.
func (k keyProofs) proven() map[plan.PublicKey]string {
	out := map[plan.PublicKey]string{}
	for key, proof := range k {
		if proof.proven {
			out[key] = proof.cluster
		}
	}
	return out
}
