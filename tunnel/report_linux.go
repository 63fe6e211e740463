package tunnel

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
	"github.com/entente-dev/entente/tunnel/userspace"
)

// report publishes the result of a pass.
func (f *Fabric) report(p *pass) {
	s := p.status
	if s.Backend == BackendUserspace {
		s.Offloads = f.offloads
	}
	s.Peers, s.Sources, s.Switches = f.peerStatus(p), p.layout.Sources, maps.Clone(f.switches)
	for _, e := range p.layout.Ends {
		s.Ends = append(s.Ends, EndStatus{e.Cluster, f.prober.Ends().Status(e.Cluster)})
	}
	overlays := make(map[plan.PublicKey]netip.Addr, len(p.layout.Peers))
	for _, w := range p.layout.Peers {
		overlays[w.PublicKey] = w.Overlay
	}
	for _, q := range s.Peers {
		if q.OnDemand || q.Remote && s.Unfiltered != "" {
			continue // carriers serve where it does not, and nothing passes without firewall rules
		}
		if text := f.problemOf(p.now, q, f.prober.Status(overlays[q.PublicKey])); text != "" {
			p.problems = append(p.problems, plan.Problem{Peer: q.Cluster, Text: text})
		}
	}
	s.Problems = p.problems
	for _, problem := range s.Problems {
		if !f.logged[problem] {
			f.log.Warn("problem", "peer", problem.Peer, "text", problem.Text)
		}
	}
	clear(f.logged)
	for _, problem := range s.Problems {
		f.logged[problem] = true
	}
	f.forget(p)

	before := make(map[plan.PublicKey]PeerStatus, len(f.status.Peers))
	for _, was := range f.status.Peers {
		before[was.PublicKey] = was
	}
	for _, q := range s.Peers {
		if was := before[q.PublicKey]; was.Direct != q.Direct || was.Entry != q.Entry {
			f.log.Info("another way to pods of a peer", "peer", q.Cluster, "node", q.Node, "direct", q.Direct, "entry", q.Entry)
		}
	}
	f.mu.Lock()
	differs := !sameStatus(f.status, s)
	f.status = s
	f.mu.Unlock()
	if differs {
		select {
		case f.changed <- struct{}{}:
		default:
		}
	}
}

func (f *Fabric) peerStatus(p *pass) []PeerStatus {
	var out []PeerStatus
	for _, w := range p.layout.Peers {
		seen := f.prober.Status(w.Overlay)
		q := PeerStatus{
			Cluster: w.Cluster, Node: w.Node, Remote: w.Remote, OnDemand: w.OnDemand, Direct: w.Direct, Entry: w.Entry, PublicKey: w.PublicKey, State: seen.State, Since: seen.Since,
			RTT: seen.Path.RTT(), Probes: seen.Path.Next(), Times: seen.Path.Times(), MTU: seen.Search.MTU(), LargeLost: seen.State == probe.PathUp && (seen.Search.Blocked() || seen.Search.Narrow() && p.six(w)),
			KeyNumber: w.Spare.Number, NextKey: !w.Spare.Next.IsZero(),
			Active: p.layout.Leads(w),
		}
		if h := p.byKey[w.PublicKey]; h != nil {
			q.LastHandshake, q.Received, q.Sent = h.LastHandshakeTime, h.ReceiveBytes, h.TransmitBytes
			if h.LastHandshakeTime.Unix() <= 0 {
				q.LastHandshake = time.Time{}
			}
			if h.Endpoint != nil {
				q.Endpoint, q.Way = f.wayOf(w.PublicKey, unmapPort(h.Endpoint.AddrPort()))
			}
		}
		out = append(out, q)
	}
	slices.SortFunc(out, func(a, b PeerStatus) int {
		return strings.Compare(a.Cluster+"\x00"+a.Node, b.Cluster+"\x00"+b.Node)
	})
	return out
}

// six reports whether IPv6 packets of pods may be sent to a peer of the device. A home node may carry
// any peer, so the aliases of all peers count for it.
func (p *pass) six(w plan.WireGuardPeer) bool {
	return slices.ContainsFunc(p.peers, func(q plan.Peer) bool {
		return (!w.Remote || q.ClusterID == w.Cluster) && slices.ContainsFunc(q.Aliases(), func(a netip.Prefix) bool { return a.Addr().Is6() })
	})
}

// fabricRestart is how long a fabric may not answer while its tunnel works, as during a restart.
const fabricRestart = 30 * time.Second

// problemOf returns why a peer cannot be reached, and what to do; empty if it can be reached.
func (f *Fabric) problemOf(now time.Time, q PeerStatus, seen probe.Status) string {
	at := fmt.Sprintf("at %v", q.Endpoint)
	if q.Way == WayRelayed {
		at = "through the agents, which was tried last"
	}
	fresh := !q.LastHandshake.IsZero() && now.Sub(q.LastHandshake) < userspace.SessionLife
	switch {
	case q.State == probe.PathUp && !seen.Path.Answers(now) && now.Sub(seen.Path.LastAnswer()) > fabricRestart:
		return fmt.Sprintf("the fabric of %s has not answered since %s, though its tunnel passes packets: look at its pod", q.Node, seen.Path.LastAnswer().UTC().Format(time.RFC3339))
	case q.LargeLost:
		size, why := probe.MinMTU, ", which IPv6 needs"
		if seen.Search.Blocked() {
			size, why = probe.LeastMTU, ""
		}
		return fmt.Sprintf("packets of %d bytes%s, do not pass the tunnel to %s though small ones do: the network between has to pass packets of %d bytes, or fragments", size, why, q.Node, size+wireGuardOverhead)
	case q.State != probe.PathDown:
		return ""
	case !q.Endpoint.IsValid():
		return fmt.Sprintf("%s has no endpoint to dial and has not dialled us: one of the two sides must be reachable, on UDP port %d here", q.Node, f.cfg.ListenPort)
	case !fresh:
		return fmt.Sprintf("no WireGuard handshake with %s %s: check that UDP to there passes the firewalls and that the peer runs", q.Node, at)
	default:
		return fmt.Sprintf("WireGuard has a session with %s %s, but probes are lost since %s: check the fabric of that node", q.Node, at, q.Since.UTC().Format(time.RFC3339))
	}
}

// forget drops the state of peers that are gone.
func (f *Fabric) forget(p *pass) {
	if p.layout.Overlay == (netip.Addr{}) {
		return
	}
	keep := map[plan.PublicKey]bool{}
	for _, w := range p.layout.Peers {
		keep[w.PublicKey] = true
	}
	for k := range f.dialers {
		if !keep[k] {
			delete(f.dialers, k)
			delete(f.betters, k)
			delete(f.traffic, k)
		}
	}
}

// sameStatus compares all but counters, handshakes and similar round trips.
func sameStatus(a, b Status) bool {
	return a.PublicKey == b.PublicKey && a.NextKey == b.NextKey && a.KeyWaits == b.KeyWaits && a.ListenPort == b.ListenPort && a.Backend == b.Backend && a.MTU == b.MTU && maps.Equal(a.Offloads, b.Offloads) && a.Overlay == b.Overlay && a.Unfiltered == b.Unfiltered &&
		slices.Equal(a.Problems, b.Problems) && slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.Sources, b.Sources) &&
		slices.EqualFunc(a.Ends, b.Ends, func(x, y EndStatus) bool { return x.Cluster == y.Cluster && !x.Differs(y.EndStatus) }) &&
		slices.EqualFunc(a.Peers, b.Peers, func(x, y PeerStatus) bool {
			return x.Cluster == y.Cluster && x.Node == y.Node && x.PublicKey == y.PublicKey && x.Endpoint == y.Endpoint && x.Way == y.Way &&
				x.State == y.State && x.Active == y.Active && x.OnDemand == y.OnDemand && x.Direct == y.Direct && x.Entry == y.Entry && x.LastHandshake.IsZero() == y.LastHandshake.IsZero() && x.MTU == y.MTU &&
				x.KeyNumber == y.KeyNumber && x.NextKey == y.NextKey && probe.Similar(x.RTT, y.RTT)
		})
}

// dialling is whether and where to dial a peer.
type dialling struct {
	// endpoint is what to write to the device; the zero AddrPort means no change.
	endpoint netip.AddrPort
	// stale says that the peer has no session that can still be used.
	stale bool
	// again is after how long to choose again; zero means only after a change.
	again time.Duration
	// detour says that the endpoint is tried for a moment only.
	detour bool
}

// chooseEndpoint decides whether to dial a peer at another endpoint.
func (f *Fabric) chooseEndpoint(ctx context.Context, p *pass, w plan.WireGuardPeer) dialling {
	var have wgtypes.Peer
	if h := p.byKey[w.PublicKey]; h != nil {
		have = *h
	}
	last, known := f.traffic[w.PublicKey]
	last = last.measure(p.now, have.ReceiveBytes+have.TransmitBytes)
	f.traffic[w.PublicKey] = last
	if have.ReceiveBytes != last.bytes || !known {
		// The first time, a session that can still be used counts. A lower counter means
		// that the device was created again.
		if known && have.ReceiveBytes > last.bytes || !known && !have.LastHandshakeTime.IsZero() && p.now.Sub(have.LastHandshakeTime) < userspace.SessionLife {
			last.at = p.now
		}
		last.bytes = have.ReceiveBytes
		f.traffic[w.PublicKey] = last
	}
	if p.table == firewall.Absent && p.now.Sub(have.LastHandshakeTime) < userspace.SessionLife {
		last.at = p.now // its packets are dropped and may not count: it is not dialled elsewhere
		f.traffic[w.PublicKey] = last
	}
	alive := p.now.Sub(last.at) < silence
	seen, every := f.prober.Status(w.Overlay), resolveEvery
	if !alive || seen.State == probe.PathDown {
		every = resolveDead
	}
	candidates, bad := f.resolver.candidates(ctx, p.now, w.Endpoints, every, p.layout.Remote)
	if !alive && !w.OnDemand {
		for _, text := range bad {
			p.problems = append(p.problems, plan.Problem{Peer: w.Cluster, Text: fmt.Sprintf("endpoint of %s: %s", w.Node, text)})
		}
	}
	if f.dialers[w.PublicKey] == nil {
		f.dialers[w.PublicKey] = &dialer{}
	}
	s := endpointState{alive: alive, candidates: p.elsewhere(candidates), relay: w.Relay, observed: p.elsewhere(w.Observed)}
	if have.Endpoint != nil {
		s.endpoint = unmapPort(have.Endpoint.AddrPort())
	}
	if seen.State == probe.PathDown {
		s.broken = later(last.at, seen.Since)
	}
	quick := endpointQuick
	if bytes.Compare(p.device.PublicKey[:], w.PublicKey[:]) > 0 {
		quick += handshakeYield // both sides do not begin in the same moment again and again
	}
	d := f.dialers[w.PublicKey]
	e, again := d.choose(p.now, s, quick)
	return dialling{endpoint: e, stale: !alive, again: again, detour: e.IsValid() && d.detours.home.IsValid()}
}

// wayOf returns the endpoint of a peer for which the device has another one during a detour, and how
// packets get there.
func (f *Fabric) wayOf(key plan.PublicKey, endpoint netip.AddrPort) (netip.AddrPort, Way) {
	if d := f.dialers[key]; d != nil {
		endpoint = d.detours.from(endpoint)
		return endpoint, d.seen.way(endpoint)
	}
	return endpoint, WayDirect
}

// relayed reports whether a peer is reached through the agents.
func (f *Fabric) relayed(key plan.PublicKey) bool {
	d := f.dialers[key]
	return d != nil && d.seen.endpoint.Addr().IsLoopback()
}

// elsewhere returns the endpoints that are neither this node's own addresses, as where the private
// networks of two clusters have the same addresses, nor inside a tunnel.
func (p *pass) elsewhere(endpoints []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(endpoints), func(e netip.AddrPort) bool {
		return slices.ContainsFunc(p.local, func(a nodeAddress) bool { return a.Addr == e.Addr() }) || plan.CheckDial(e.Addr(), p.layout.Remote) != nil
	})
}

func unmapPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// counted updates the rate from the count of bytes, at most twice a second: shorter spans are too noisy.
func (t peerTraffic) measure(now time.Time, both int64) peerTraffic {
	took := now.Sub(t.counted)
	if !t.counted.IsZero() && took < 500*time.Millisecond {
		return t
	}
	t.rate = 0
	if !t.counted.IsZero() && both > t.both {
		t.rate = float64(both-t.both) / took.Seconds()
	}
	t.both, t.counted = both, now
	return t
}
