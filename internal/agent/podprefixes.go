package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/entente-dev/entente/internal/controller"
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
		out := controller.LearntPods{Prefixes: l.Prefixes, LeftOut: l.LeftOut}
		for _, s := range l.Sources {
			out.Sources = append(out.Sources, string(s))
		}
		return out, err
	}
}

// clusterPods returns this cluster's pod prefixes for the fabric of its nodes, and where they were learnt.
func (a *agent) clusterPods(ctx context.Context) (prefixes []netip.Prefix, sources []string, err error) {
	p, err := a.states.PodPrefixes(ctx)
	return p.Prefixes, p.Sources, err
}
