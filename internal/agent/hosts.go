package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/allow"
)

// hostRefusal says why an address may not be exported; empty if it may. allowed is what the
// administrator allows, closed what nobody may export whatever is allowed, and nodes the
// addresses of nodes: what listens there trusts whoever gets so far, so each has to be allowed by
// itself.
func hostRefusal(a netip.Addr, allowed, closed, nodes []netip.Prefix) string {
	holds := func(p netip.Prefix) bool { return p.Contains(a) }
	alone := func(p netip.Prefix) bool { return p.IsSingleIP() && holds(p) }
	if len(allowed) == 0 {
		return "network.externalHosts, the prefixes that may be exported, is empty"
	}
	if !slices.ContainsFunc(allowed, holds) {
		return "it is in none of the prefixes of network.externalHosts"
	}
	if i := slices.IndexFunc(closed, holds); i >= 0 {
		return fmt.Sprintf("it is in %v, which is the API server's, of pods, Services or aliases", closed[i])
	}
	if err := discovery.Dialable(a, closed...); err != nil { // also what others take out of an IPv6 address
		return err.Error()
	}
	if discovery.Dialable(a, nodes...) != nil && !slices.ContainsFunc(allowed, alone) {
		return "it is a node's: network.externalHosts has to name it alone"
	}
	return ""
}

// reconcileHosts builds what says which hosts that are no pods are exported.
func (a *agent) reconcileHosts(_ context.Context, allowed []netip.Prefix) error {
	own := &lastKnown[ownSpace]{now: time.Now, log: a.log, what: "which hosts may not be exported", every: hostsLook, ask: func(ctx context.Context) (ownSpace, error) {
		return a.hostSpace(ctx)
	}}
	a.hosts = &allow.Hosts{
		Client: a.mgr.GetClient(), Changed: a.wakePeers,
		Refusal: func(ctx context.Context, addr netip.Addr) (string, error) {
			if len(allowed) == 0 {
				return hostRefusal(addr, nil, nil, nil), nil
			}
			space, err := own.get(ctx)
			return hostRefusal(addr, allowed, space.closed, space.nodes), err
		},
	}
	return a.hosts.SetupWithManager(a.mgr)
}

// ownSpace is what of the network is this cluster's own: what is no host beside it, and its nodes.
type ownSpace struct{ closed, nodes []netip.Prefix }

func (a *agent) hostSpace(ctx context.Context) (ownSpace, error) {
	var out ownSpace
	var err error
	if out.closed, err = closedRanges(ctx, a.direct, a.states.Reserved, &a.cfg); err != nil {
		return out, err
	}
	told, _, err := a.states.Prefixes(ctx) // of pods, as peers know them
	if err != nil {
		return out, err
	}
	out.closed = append(out.closed, told...)
	var nodes corev1.NodeList
	if err := a.mgr.GetCache().List(ctx, &nodes, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return out, fmt.Errorf("find out where nodes are: %w", err)
	}
	var pods []netip.Prefix
	pods, out.nodes = nodeRanges(nodes.Items)
	out.closed = append(out.closed, pods...)
	return out, nil
}
