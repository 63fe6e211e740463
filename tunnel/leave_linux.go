package tunnel

import (
	"context"
	"slices"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// Leave hands over the peers that this node carries to other gateways, before this node stops. It returns
// once they carry them, at once if no other gateway can, or at the end of ctx. Run must run meanwhile.
// Packets on their way still pass, and this node does not take a peer back.
func (f *Fabric) Leave(ctx context.Context) {
	f.leaving.Store(true)
	f.hurry()
	before := f.elections.Load()
	carried := false
	for f.carrying.Load() > 0 || f.elections.Load() < before+2 {
		carried = carried || f.carrying.Load() > 0
		if !notify.Pause(ctx, leaveCheckEvery) {
			return
		}
	}
	if carried {
		notify.Pause(ctx, leaveLinger)
	}
}

// demote keeps nodes gateways that ceased to be some while they hand their peers over.
func (f *Fabric) demote(p *pass, d *plan.Desired) {
	self := slices.IndexFunc(d.Nodes, func(n plan.Node) bool { return n.Name == d.Node })
	if self < 0 {
		return
	}
	if p.demoted = f.demotion.lasts(p.now, d.Nodes[self].Gateway, f.carrying.Load() > 0); p.demoted {
		p.kept = append(p.kept, d.Node)
		f.askAgain(f.demotion.until.Sub(p.now))
	}
	var gateways []string
	for i, n := range d.Nodes {
		if n.Gateway && i != self {
			gateways = append(gateways, n.Name)
		}
	}
	p.kept = append(p.kept, f.retiring.next(p.now, gateways, func(node string) bool { return f.inUse(*d, node) })...)
	for i, n := range d.Nodes { // findPods has copied them
		d.Nodes[i].Gateway = n.Gateway || slices.Contains(p.kept, n.Name)
	}
}

// inUse reports whether another node of the cluster, which answers, says that it carries peers, or is sent packets
// for some.
func (f *Fabric) inUse(d plan.Desired, node string) bool {
	return slices.ContainsFunc(d.Peers, func(q plan.Peer) bool {
		claim, alive := f.prober.ClaimOf(plan.Overlay(d.ClusterID, node), probe.PeerKeyOf(q.ClusterID))
		return alive && (claim.Carries || f.carriers[q.ClusterID].home == node)
	})
}
