package agent

import (
	"context"
	"time"

	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/podprefixes"
)

// learnInterval is how often the cluster is asked where its pods have their addresses.
const learnInterval = 2 * time.Minute

// learnPods returns a function for where this cluster's pods have their addresses besides spec.podCIDRs of nodes.
func (a *agent) learnPods(reserved controller.Reserved) func(context.Context) (controller.LearntPods, error) {
	reader := &podprefixes.Reader{Cached: a.mgr.GetCache(), Direct: a.direct, Reserved: reserved, Now: time.Now, Log: a.log}
	learnt := &lastKnown[podprefixes.Learnt]{now: time.Now, log: a.log, every: learnInterval, what: "where pods have their addresses", ask: reader.Learn}
	return func(ctx context.Context) (controller.LearntPods, error) {
		l, err := learnt.get(ctx)
		return controller.LearntPods{Prefixes: l.Prefixes, Sources: l.Names(), LeftOut: l.LeftOut, Advice: l.Advice}, err
	}
}

// podNetwork returns a function for what the nodes need to know about the network of this cluster's pods.
func (a *agent) podNetwork() func(context.Context) (gateways.PodNetwork, error) {
	cilium := &podprefixes.Routing{Direct: a.direct, Now: time.Now, Log: a.log}
	return func(ctx context.Context) (gateways.PodNetwork, error) {
		p, err := a.states.PodPrefixes(ctx)
		out := gateways.PodNetwork{Prefixes: p.Prefixes, Sources: p.Sources, Advice: p.Advice}
		out.HostRouting, out.HostRoutingBy = cilium.Get(ctx)
		return out, err
	}
}
