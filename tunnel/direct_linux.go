package tunnel

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// findDirect returns the nodes of peers to which this node should have direct tunnels. It keeps the
// prefixes that were announced to peers in d for a while after the announcement was withdrawn.
func (f *Fabric) findDirect(p *pass, desired, d *plan.Desired) []plan.Direct {
	if f.directory.of != desired {
		f.directory = newDirectory(desired)
	}
	var ends bool
	if d.Announced, ends = f.announced.next(p.now, desired.Announced); len(d.Announced) == 0 {
		f.directs = directs{}
		return nil
	}
	p.problems = append(p.problems, f.directory.problems...)
	if f.directs == nil {
		if p.device == nil {
			return nil // its peers are not known yet
		}
		f.directs = f.directBefore(p)
	}
	if f.meter.due(p.now, len(f.directory.counted)) {
		f.measure(p)
	}
	gateway := slices.ContainsFunc(desired.Nodes, func(n plan.Node) bool { return n.Name == desired.Node && n.Gateway })
	entries := entryRates(f.rates, f.directory.entrances)
	of := slices.Concat(slices.Collect(maps.Keys(f.directs)), slices.Collect(maps.Keys(f.rates)), slices.Collect(maps.Keys(entries)))
	if gateway {
		of = append(of, f.directory.gateways...)
	}
	seen := make(map[remote]directSeen, len(of))
	for _, r := range of {
		n, announced := f.directory.nodes[r]
		if !announced {
			continue
		}
		o := directSeen{gateway: gateway && n.IsGateway, rate: f.rates[r] + entries[r], entry: entries[r] > 0, entrance: f.directory.isEntrance[r]}
		if f.busy(n.PublicKey) {
			o.rate += f.traffic[n.PublicKey].rate
		}
		probed := f.prober.Status(overlayOf(n))
		o.path = probed.State
		o.blocked = probed.Search.Blocked() || probed.Search.Narrow() && slices.ContainsFunc(n.Aliases, func(a netip.Prefix) bool { return a.Addr().Is6() })
		seen[r] = o
	}
	f.directs = f.directs.next(p.now, seen)
	return f.directs.planned(f.directory, ends, func(n plan.RemoteNode) directHeard {
		probed := f.prober.Status(overlayOf(n))
		return directHeard{agreement: probed.Agreement, entry: probed.Entry, answered: !probed.Path.LastAnswer().IsZero(), bound: p.bound(n)}
	})
}

// bound returns the prefixes in entry form that the device sends to a node, sorted.
func (p *pass) bound(n plan.RemoteNode) (out []netip.Prefix) {
	for _, key := range []plan.PublicKey{n.PublicKey, n.NextKey} {
		if h := p.byKey[key]; h != nil {
			for _, a := range h.AllowedIPs {
				if prefix := prefixOf(a); plan.IsEntryForm(prefix) {
					out = append(out, prefix)
				}
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

func overlayOf(n plan.RemoteNode) netip.Addr {
	return plan.GatewayOverlay(plan.Peer{ClusterID: n.Cluster}, n.Gateway)
}

// measure reads the counters of nftables, unless there are none.
func (f *Fabric) measure(p *pass) {
	f.rates = nil
	if len(f.directory.counted) == 0 {
		return
	}
	counts, err := firewall.Counts()
	if err != nil {
		p.fail(err)
		return
	}
	f.rates = f.meter.measure(p.now, counts, f.directory.aliases)
}

// directBefore returns the direct tunnels from before this process began, by the device and by
// nftables: other nodes still send here directly.
func (f *Fabric) directBefore(p *pass) directs {
	out := directs{}
	open, err := firewall.Open()
	p.fail(err)
	for r, n := range f.directory.nodes {
		for _, key := range []plan.PublicKey{n.PublicKey, n.NextKey} {
			if h := p.byKey[key]; h != nil && slices.ContainsFunc(n.Aliases, func(a netip.Prefix) bool { return containsNet(h.AllowedIPs, plan.DirectForm(a)) }) {
				out[r] = directState{since: p.now, busy: p.now, inherited: open[n.Aliases[0].Addr()]}
			}
		}
	}
	return out
}
