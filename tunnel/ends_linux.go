package tunnel

import (
	"net/netip"

	"github.com/entente-dev/entente/internal/sysctl"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// ends returns the setup of end-to-end probes. While the firewall is not in place no probe is
// answered.
func (f *Fabric) ends(p *pass, layout plan.Layout, nodes int, sizes map[netip.Addr]int, filtered bool) probe.EndSetup {
	out := probe.EndSetup{Index: p.index(), Nodes: nodes, Sources: layout.Sources, Blocked4: !forwards(false), Blocked6: !forwards(true)}
	for _, e := range layout.Ends {
		peer := probe.EndPeer{Cluster: e.Cluster, Down: f.prober.Status(e.Way).State == probe.PathDown}
		if filtered {
			peer.From = e.Probers
		}
		for _, t := range e.Targets {
			size := sizes[e.Way]
			if size > 0 && t.Addr.Is6() {
				size = max(size, probe.MinMTU) // like the MTU of the route
			}
			peer.Targets = append(peer.Targets, probe.EndTarget{Node: t.Node, Addr: t.Addr, Size: size})
		}
		out.Peers = append(out.Peers, peer)
	}
	return out
}

// forwards reports whether this node forwards packets of a family.
func forwards(six bool) bool {
	if six {
		return sysctl.Number("net/ipv6/conf/all/forwarding") != 0
	}
	return sysctl.Number("net/ipv4/ip_forward") != 0
}
