package tunnel

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// The messages with which wireguard-go says that it decrypted a packet of a peer and dropped it, as its
// source is not in the AllowedIPs of that peer, or as it is not a packet of IP. It counts neither.
const (
	refused4     = "IPv4 packet with disallowed source address from %v"
	refused6     = "IPv6 packet with disallowed source address from %v"
	refusedNotIP = "Packet with invalid IP version from %v"
)

// refusals counts these packets by the peer that sent them. note is the verbose log of a device.
type refusals struct {
	counts sync.Map // by *device.Peer, *atomic.Uint64
	peers  atomic.Int64
}

// note counts a packet. It is called for each one, also by a peer that floods, so it only compares the
// format, which is fast where lengths differ, and formats nothing.
func (r *refusals) note(format string, args ...any) {
	switch format {
	case refused4, refused6, refusedNotIP:
	default:
		return
	}
	if len(args) == 0 {
		return
	}
	peer, ok := args[0].(*device.Peer)
	if !ok {
		return
	}
	n, known := r.counts.Load(peer)
	if !known {
		if r.peers.Load() >= maxRefusedPeers {
			return
		}
		if n, known = r.counts.LoadOrStore(peer, new(atomic.Uint64)); !known {
			r.peers.Add(1)
		}
	}
	n.(*atomic.Uint64).Add(1)
}

// read returns the counts by the peers' keys, and forgets peers that the device no longer has.
func (r *refusals) read(dev *device.Device) map[device.NoisePublicKey]uint64 {
	if r.peers.Load() == 0 {
		return nil
	}
	keys, err := peerKeys(dev)
	if err != nil {
		return nil // it is closed
	}
	out, present := map[device.NoisePublicKey]uint64{}, map[any]bool{}
	for _, key := range keys {
		if peer := dev.LookupPeer(key); peer != nil {
			present[peer] = true
			if n, ok := r.counts.Load(peer); ok {
				out[key] = n.(*atomic.Uint64).Load()
			}
		}
	}
	r.counts.Range(func(peer, _ any) bool {
		if !present[peer] {
			r.counts.Delete(peer)
			r.peers.Add(-1)
		}
		return true
	})
	return out
}

// peerKeys returns the keys of the peers of a device.
func peerKeys(dev *device.Device) ([]device.NoisePublicKey, error) {
	text, err := dev.IpcGet()
	if err != nil {
		return nil, err
	}
	var out []device.NoisePublicKey
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "public_key="); ok {
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != device.NoisePublicKeySize {
				return nil, fmt.Errorf("read the peers of the device: malformed key %q", value)
			}
			out = append(out, device.NoisePublicKey(b))
		}
	}
	return out, nil
}

// reportRequest asks the tunnel process, on its control socket, for what WireGuard's protocol does not have.
// The answer has the form of WireGuard's.
const reportRequest = "get=entente\n\n"

// tunnelProcess is what the tunnel process knows of its device.
type tunnelProcess struct {
	dev     *device.Device
	refused *refusals
	// offloads reads those in use; nil reports none.
	offloads func() Offloads
}

// handle serves a control connection: one report, or any number of WireGuard's own requests.
func (p tunnelProcess) handle(c net.Conn) {
	in := bufio.NewReader(c)
	// All requests of WireGuard's protocol begin with other bytes, and none is shorter than these.
	if head, err := in.Peek(len("get=e")); err != nil || string(head) != reportRequest[:len("get=e")] {
		p.dev.IpcHandle(readConn{c, in})
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deviceTimeout))
	request := make([]byte, len(reportRequest))
	if _, err := io.ReadFull(in, request); err != nil || string(request) != reportRequest {
		return
	}
	_, _ = io.WriteString(c, p.report())
}

// report answers a reportRequest.
func (p tunnelProcess) report() string {
	var b strings.Builder
	for key, n := range p.refused.read(p.dev) {
		fmt.Fprintf(&b, "public_key=%x\nrefused_packets=%d\n", key[:], n)
	}
	if p.offloads != nil {
		b.WriteString(p.offloads().lines())
	}
	return b.String() + "errno=0\n\n"
}

// lines are offloads in a report.
func (o Offloads) lines() string {
	var b strings.Builder
	for name, on := range o {
		fmt.Fprintf(&b, "offload_%s=%t\n", name, on)
	}
	return b.String()
}

// readConn is a connection of which some was read before.
type readConn struct {
	net.Conn
	in io.Reader
}

func (c readConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// processReport is what the tunnel process reports.
type processReport struct {
	// refused is how many packets of each peer its cipher refused; peers without any may be left out.
	refused map[plan.PublicKey]uint64
	// offloads are those in use.
	offloads Offloads
}

// askProcess asks the tunnel process for its report.
func askProcess(device string) (processReport, error) {
	c, err := net.DialTimeout("unix", controlPath(device), deviceTimeout) //nolint:noctx // bounded by its timeout
	if err != nil {
		return processReport{}, fmt.Errorf("ask the tunnel process: %w", err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(deviceTimeout))
	if _, err := io.WriteString(c, reportRequest); err != nil {
		return processReport{}, fmt.Errorf("ask the tunnel process: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(c, maxReport))
	if err != nil {
		return processReport{}, fmt.Errorf("read the report of the tunnel process: %w", err)
	}
	return parseReport(string(text))
}

// parseReport reads a report. It skips what it does not know: the process may be newer.
func parseReport(text string) (processReport, error) {
	out := processReport{refused: map[plan.PublicKey]uint64{}, offloads: Offloads{}}
	var key plan.PublicKey
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if offload, ok := strings.CutPrefix(name, "offload_"); ok {
			if slices.Contains(offloadNames(), Offload(offload)) {
				out.offloads[Offload(offload)] = value == "true"
			}
			continue
		}
		switch name {
		case "public_key":
			b, err := hex.DecodeString(value)
			if err != nil || len(b) != len(key) {
				return out, fmt.Errorf("parse the report of the tunnel process: malformed key %q", value)
			}
			key = plan.PublicKey(b)
		case "refused_packets":
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return out, fmt.Errorf("parse the report of the tunnel process: %w", err)
			}
			out.refused[key] = n
		case "errno":
			if value != "0" {
				return out, fmt.Errorf("the tunnel process reports error %s", value)
			}
			return out, nil
		}
	}
	return out, errors.New("the tunnel process does not report: it is of another version")
}

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

// countRefused reads the report of the tunnel process: its offloads, and what its cipher of the tunnel process refused. The kernel's WireGuard counts that itself, of
// all peers together.
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
	f.noteOffloads(report.offloads)
	more := f.cipher.observe(report.refused, p.layout.Peers)
	for _, cluster := range f.cipher.due(p.now, more) {
		f.log.Warn("packets with a source that is not their sender's were dropped by WireGuard", "peer", cluster, "packets", more[cluster])
	}
}
