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

// hostRefusal returns why an address may not be exported; empty if it may. allowed is the prefixes that the
// administrator allows, closed what may not be exported even if it is allowed, and nodes the addresses of nodes:
// services there trust every client that reaches them, so each address has to be allowed by itself.
func hostRefusal(a netip.Addr, allowed, closed, nodes []netip.Prefix) string {
	contains := func(p netip.Prefix) bool { return p.Contains(a) }
	alone := func(p netip.Prefix) bool { return p.IsSingleIP() && contains(p) }
	if len(allowed) == 0 {
		return "network.externalHosts, the prefixes that may be exported, is empty"
	}
	if !slices.ContainsFunc(allowed, contains) {
		return "it is in none of the prefixes of network.externalHosts"
	}
	if i := slices.IndexFunc(closed, contains); i >= 0 {
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

// reconcileHosts builds the reconciler of ExternalHosts, which decides the exported hosts other than pods.
func (a *agent) reconcileHosts(_ context.Context, allowed []netip.Prefix) error {
	own := &lastKnown[ownSpace]{now: time.Now, log: a.log, what: "which hosts may not be exported", every: hostsPause, ask: func(ctx context.Context) (ownSpace, error) {
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

// ownSpace is the addresses of this cluster itself, which are not external hosts, and its nodes.
type ownSpace struct{ closed, nodes []netip.Prefix }

func (a *agent) hostSpace(ctx context.Context) (ownSpace, error) {
	var out ownSpace
	var err error
	if out.closed, err = closedRanges(ctx, a.direct, a.states.Reserved, &a.cfg); err != nil {
		return out, err
	}
	prefixes, _, err := a.states.Prefixes(ctx) // the pods' prefixes, as peers know them
	if err != nil {
		return out, err
	}
	out.closed = append(out.closed, prefixes...)
	var nodes corev1.NodeList
	if err := a.mgr.GetCache().List(ctx, &nodes, ctrlclient.UnsafeDisableDeepCopy); err != nil {
		return out, fmt.Errorf("list nodes: %w", err)
	}
	var pods []netip.Prefix
	pods, out.nodes = nodeRanges(nodes.Items)
	out.closed = append(out.closed, pods...)
	return out, nil
}
