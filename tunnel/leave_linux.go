package tunnel

import (
	"context"
	"slices"

	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/tunnel/plan"
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

// demote keeps this node a gateway while it hands its peers over, if it ceased to be one.
func (f *Fabric) demote(p *pass, d *plan.Desired) {
	self := slices.IndexFunc(d.Nodes, func(n plan.Node) bool { return n.Name == d.Node })
	if self < 0 {
		return
	}
	gateway := &d.Nodes[self].Gateway // findPods has copied the nodes
	if p.demoted = f.demotion.lasts(p.now, *gateway, f.carrying.Load() > 0); p.demoted {
		*gateway = true
		f.askAgain(f.demotion.until.Sub(p.now))
	}
}
