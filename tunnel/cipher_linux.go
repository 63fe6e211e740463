package tunnel

import (
	"sync"
	"time"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// cipherDrops adds up, by cluster, the packets that the cipher of the tunnel process refused. Counts of a key
// begin at zero again with a new key of a node, and with a new process; the totals do not. They end with
// the last peer of the cluster.
type cipherDrops struct {
	mu     sync.Mutex
	last   map[plan.PublicKey]uint64
	totals map[string]uint64 // by cluster ID, empty for this node's own cluster
	logged map[string]time.Time
}

// observe adds what a report has more than the one before. It returns how many packets more
// each cluster has.
func (c *cipherDrops) observe(refused map[plan.PublicKey]uint64, peers []plan.WireGuardPeer) map[string]uint64 {
	clusters, owners := map[string]bool{}, map[plan.PublicKey]string{}
	for _, w := range peers {
		cluster := ""
		if w.Remote {
			cluster = w.Cluster
		}
		clusters[cluster] = true
		for _, key := range []plan.PublicKey{w.PublicKey, w.NextKey, w.FormerKey} {
			owners[key] = cluster
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	more, last := map[string]uint64{}, map[plan.PublicKey]uint64{}
	for key, n := range refused {
		cluster, known := owners[key]
		if !known {
			continue // it is added once it is known whose it is
		}
		before := c.last[key]
		if n < before {
			before = 0
		}
		last[key] = n
		if n > before {
			more[cluster] += n - before
		}
	}
	totals := map[string]uint64{}
	for cluster := range clusters {
		if n := c.totals[cluster] + more[cluster]; n > 0 {
			totals[cluster] = n
		}
	}
	c.last, c.totals = last, totals
	return more
}

// add adds the totals to those of the firewall.
func (c *cipherDrops) add(to firewall.Totals) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cluster, n := range c.totals {
		to.Dropped[firewall.Drop{Reason: firewall.Cipher, Peer: cluster}] = firewall.Count{Packets: n}
	}
}

// due returns the clusters, of those with more refused packets, of which a warning is due. Each is due at most once
// in each refusedLogEvery.
func (c *cipherDrops) due(now time.Time, more map[string]uint64) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	logged, out := map[string]time.Time{}, []string(nil)
	for cluster, at := range c.logged {
		if now.Sub(at) < refusedLogEvery {
			logged[cluster] = at
		}
	}
	for cluster := range more {
		if _, recent := logged[cluster]; !recent {
			logged[cluster] = now
			out = append(out, cluster)
		}
	}
	c.logged = logged
	return out
}

// countRefused reads the report of the tunnel process: its offloads, and what its cipher refused. The kernel's
// WireGuard counts that itself, of all peers together.
func (f *Fabric) countRefused(p *pass) {
	if p.status.Backend != BackendUserspace || !p.layout.Overlay.IsValid() || p.now.Sub(f.reportedAt) < reportEvery {
		return
	}
	f.reportedAt = p.now
	report, err := f.control.report()
	if err != nil {
		f.log.Debug("no report of the tunnel process", "err", err) // reading the device shows what is wrong with it
		return
	}
	f.noteOffloads(report.Offloads)
	more := f.cipher.observe(report.Refused, p.layout.Peers)
	for _, cluster := range f.cipher.due(p.now, more) {
		f.log.Warn("packets with a source that is not their sender's were dropped by WireGuard", "peer", cluster, "packets", more[cluster])
	}
}
