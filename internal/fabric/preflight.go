package fabric

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/preflight"
	"github.com/entente-dev/entente/tunnel"
)

// checks are the results of a node's checks of itself. Only the goroutine of report uses it.
type checks struct {
	// observe reads the node. Nil means that the node does not check itself.
	observe func(preflight.Fabric) preflight.Observed
	// at is when that was last done, for the device in this state, and last is the result.
	at     time.Time
	device deviceState
	last   *v1alpha1.FabricPreflight
}

// deviceState is the state of the fabric's device and firewall on which a check depends.
type deviceState struct {
	backend    tunnel.Backend
	port       int
	unfiltered string
}

// preflight checks the node, unless it did so a moment ago. It returns nil until the configuration of the
// fabric is known.
func (n *node) preflight(ctx context.Context, s tunnel.Status, own *corev1.Node, now time.Time) *v1alpha1.FabricPreflight {
	device := deviceState{s.Backend, s.ListenPort, s.Unfiltered}
	c := &n.checks
	switch {
	case c.observe == nil || (s.PublicKey.IsZero() && len(s.Problems) == 0):
		return c.last
	case c.last != nil && c.device == device && now.Sub(c.at) < preflightEvery:
		return c.last
	}
	var nodes v1alpha1.FabricNodeList
	var tunnels v1alpha1.TunnelList
	if err := errors.Join(n.client.List(ctx, &nodes), n.client.List(ctx, &tunnels)); err != nil {
		n.cfg.Log.Warn("cannot check the node: which prefixes are in use is not known", "err", err)
		return c.last
	}
	f := preflightOf(n.cfg, s, own, nodes.Items, tunnels.Items)
	observed := c.observe(f)
	before := c.last
	c.at, c.device, c.last = now, device, findings(preflight.Check(f, observed), preflight.Overlaps(f, observed))
	for _, f := range c.last.Findings {
		if before == nil || !slices.Contains(before.Findings, f) {
			n.cfg.Log.Warn("finding on this node", "reason", f.Reason, "severity", f.Severity, "message", f.Message)
		}
	}
	return c.last
}

// preflightOf returns the configuration of the fabric on the node, as the input of a check.
func preflightOf(cfg Config, s tunnel.Status, own *corev1.Node, nodes []v1alpha1.FabricNode, tunnels []v1alpha1.Tunnel) preflight.Fabric {
	f := preflight.Fabric{
		Device: cfg.Interface, Port: cfg.Port, HasDevice: s.Backend != "", Listening: s.ListenPort == cfg.Port, Unfiltered: s.Unfiltered,
		Pool: cfg.AliasPool, Services: cfg.ServiceCIDRs, Pods: slices.Clone(cfg.PodCIDRs), OwnPods: kube.Prefixes(own.Spec.PodCIDRs),
	}
	if s.PodCIDRs != nil {
		f.OwnPods = slices.Clone(s.PodCIDRs)
	}
	for i := range nodes {
		if nodes[i].Name == cfg.Node {
			f.Services = slices.Concat(f.Services, kube.Prefixes(nodes[i].Spec.ServiceCIDRs))
			spec := &nodes[i].Spec
			f.Pods, f.PodSources, f.PodAdvice = append(f.Pods, kube.Prefixes(spec.ClusterPodCIDRs)...), spec.ClusterPodCIDRSources, spec.ClusterPodCIDRAdvice
			f.CiliumRouting, f.CiliumSettings = preflight.Routing(spec.CiliumHostRouting), spec.CiliumSettings
		}
		f.Pods = append(f.Pods, kube.Prefixes(nodes[i].Status.PodCIDRs)...)
	}
	for i := range tunnels {
		for _, p := range tunnels[i].Spec.Local {
			f.Pods = append(f.Pods, kube.Prefixes([]string{p.Prefix})...)
		}
		for _, m := range Mappings(tunnels[i].Spec.Remote, nil) {
			f.Aliases = append(f.Aliases, m.Alias)
		}
		f.Aliases = append(f.Aliases, kube.Prefixes(tunnels[i].Spec.RemoteAliasBlocks)...)
	}
	f.Pods, f.Aliases, f.Services = sorted(f.Pods), sorted(f.Aliases), sorted(slices.Clone(f.Services))
	for _, e := range nodeEndpoints(own, cfg.Port) {
		if at, err := netip.ParseAddrPort(e); err == nil {
			f.Announced = append(f.Announced, at.Addr().Unmap())
		}
	}
	return f
}

func sorted(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

// findings returns the findings for the status of a FabricNode.
func findings(found []preflight.Finding, overlaps []netip.Prefix) *v1alpha1.FabricPreflight {
	out := &v1alpha1.FabricPreflight{}
	for _, p := range overlaps {
		out.Overlaps = append(out.Overlaps, p.String())
	}
	for _, f := range found {
		out.Findings = append(out.Findings, v1alpha1.FabricFinding{
			Reason: string(f.Reason), Severity: string(f.Severity), Message: f.Message, Remedy: f.Remedy,
		})
	}
	return out
}
