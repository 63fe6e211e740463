package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func (s *service) GetNetworkStatus(ctx context.Context, req *ententev1.GetNetworkStatusRequest) (*ententev1.GetNetworkStatusResponse, error) {
	peers, err := s.foreignClusters(ctx)
	if err != nil {
		return nil, err
	}
	only := ""
	if req.GetPeer() != "" {
		fc, err := s.foreignCluster(ctx, req.GetPeer())
		if err != nil {
			return nil, err
		}
		only = fc.Spec.ClusterID
	}
	var nodes v1alpha1.FabricNodeList
	if err := readAll(ctx, s.cfg.Client, &nodes); err != nil {
		return nil, err
	}
	return networkStatus(nodes.Items, peers, only, s.cfg.Now()), nil
}

// networkStatus returns what the fabrics of nodes report of the network. If only is a cluster ID,
// it has the paths to that peer alone.
func networkStatus(nodes []v1alpha1.FabricNode, peers []v1alpha1.ForeignCluster, only string, now time.Time) *ententev1.GetNetworkStatusResponse {
	resp := &ententev1.GetNetworkStatusResponse{}
	for i := range nodes {
		n := &nodes[i]
		silent := now.Sub(n.Status.ObservedAt.Time) > FabricFresh
		resp.Nodes = append(resp.Nodes, nodeMessage(n, silent))
		for _, p := range n.Status.Paths {
			if only != "" && p.PeerID != only {
				continue
			}
			m := pathMessage(n, p, silent)
			if fc := byClusterID(peers, p.PeerID); fc != nil && p.PeerID != n.Spec.ClusterID {
				m.Peer, m.InBand = "peers/"+fc.Name, fc.Spec.InBand != nil && len(n.Status.Relays) > 0
				if s := fc.Status.Session; s != nil && p.ConnectionType == pathRelayed {
					m.Through = s.Through
				}
			}
			resp.Paths = append(resp.Paths, m)
		}
		for _, p := range n.Status.DirectPaths {
			if only != "" && p.PeerID != only {
				continue
			}
			m := pathMessage(n, v1alpha1.FabricPath{
				Node: p.Node, Endpoint: p.Endpoint, State: p.State, MTU: p.MTU, Standby: !p.InUse, Message: p.Message, RoundTripMicroseconds: p.RoundTripMicroseconds, ConnectionType: p.ConnectionType,
			}, silent)
			m.Direct = true
			if fc := byClusterID(peers, p.PeerID); fc != nil {
				m.Peer = "peers/" + fc.Name
			}
			resp.Paths = append(resp.Paths, m)
		}
	}
	rank := func(p *ententev1.NetworkPath) int {
		return slices.Index([]string{"Down", "Unknown", pathUp}, p.GetState())
	}
	byRank := func(a, b *ententev1.NetworkPath) int { return cmp.Compare(rank(a), rank(b)) }
	byName := func(a, b *ententev1.NetworkPath) int {
		return cmp.Or(cmp.Compare(a.GetPeer(), b.GetPeer()), cmp.Compare(a.GetNode(), b.GetNode()), cmp.Compare(a.GetGateway(), b.GetGateway()))
	}
	nodeRank := func(n *ententev1.NetworkNode) int {
		switch {
		case len(n.GetProblems())+len(n.GetFindings()) > 0 || slices.ContainsFunc(n.GetConditions(), func(c *ententev1.Condition) bool { return c.GetStatus() == string(metav1.ConditionFalse) }):
			return 0
		case n.GetGateway():
			return 1
		}
		return 2
	}
	slices.SortFunc(resp.GetPaths(), func(a, b *ententev1.NetworkPath) int { return cmp.Or(byRank(a, b), byName(a, b)) })
	slices.SortFunc(resp.GetNodes(), func(a, b *ententev1.NetworkNode) int {
		return cmp.Or(cmp.Compare(nodeRank(a), nodeRank(b)), cmp.Compare(a.GetName(), b.GetName()))
	})
	resp.Omitted = int32(max(0, len(resp.GetPaths())-MaxNetworkPaths) + max(0, len(resp.GetNodes())-MaxNetworkNodes))
	resp.Paths = resp.GetPaths()[:min(len(resp.GetPaths()), MaxNetworkPaths)]
	resp.Nodes = resp.GetNodes()[:min(len(resp.GetNodes()), MaxNetworkNodes)]
	slices.SortFunc(resp.GetPaths(), byName)
	return resp
}

func nodeMessage(n *v1alpha1.FabricNode, silent bool) *ententev1.NetworkNode {
	m := &ententev1.NetworkNode{
		Name: n.Name, Gateway: n.Spec.Gateway, Endpoints: n.Status.Endpoints, AnnouncedEndpoints: n.Spec.Endpoints, Backend: n.Status.Backend,
		Offloads: n.Status.Offloads, MissingOffloads: n.Status.MissingOffloads,
		KeyRotating: n.Status.NextPublicKey != "", KeyRotationMessage: n.Status.KeyRotationMessage,
		LastReportTime: writeTime(n.Status.ObservedAt), Problems: slices.Concat(n.Spec.EndpointProblems, n.Status.Problems),
	}
	if n.Status.PublicKeySince != nil {
		m.KeyFirstUseTime = writeTime(*n.Status.PublicKeySince)
	}
	if silent {
		m.Problems = append([]string{"the fabric on this node has not reported lately: check its pod of DaemonSet entente-fabric"}, m.GetProblems()...)
	} else {
		for _, c := range n.Status.Conditions { // older ones may not be true any more
			m.Conditions = append(m.Conditions, conditionMessage(c))
		}
	}
	if n.Status.Preflight != nil {
		for _, f := range n.Status.Preflight.Findings {
			m.Findings = append(m.Findings, &ententev1.NetworkFinding{Reason: f.Reason, Severity: f.Severity, Message: f.Message, Remedy: f.Remedy})
		}
	}
	return m
}

// pathRelayed is a path whose packets go through the agents.
const pathRelayed = "Relayed"

func pathMessage(n *v1alpha1.FabricNode, p v1alpha1.FabricPath, silent bool) *ententev1.NetworkPath {
	m := &ententev1.NetworkPath{
		Node: n.Name, Gateway: p.Node, Endpoint: p.Endpoint, State: p.State, Mtu: p.MTU, Standby: p.Standby, Message: p.Message, ConnectionType: p.ConnectionType,
	}
	if p.ConnectionType == pathRelayed {
		m.Endpoint = "" // an address on the node's own loopback is of no use to a reader
	}
	switch {
	case silent:
		m.State, m.Message = "Unknown", "the fabric on node "+n.Name+" has not reported lately; it was "+p.State
	case p.RoundTripMicroseconds > 0:
		m.RoundTrip = durationpb.New(time.Duration(p.RoundTripMicroseconds) * time.Microsecond)
	}
	return m
}

func (s *service) PlanNetwork(ctx context.Context, req *ententev1.PlanNetworkRequest) (*ententev1.PlanNetworkResponse, error) {
	var prefixes []string
	for _, text := range req.GetPrefixes() {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, unknown(peering.ReasonRequestInvalid, "prefix", text, "%q is not the prefix of a network", text)
		}
		if !slices.Contains(prefixes, p.String()) {
			prefixes = append(prefixes, p.String())
		}
	}
	peers := []v1alpha1.ForeignCluster{{}}
	if req.GetPeer() != "" {
		var err error
		if peers, err = s.peersOrOne(ctx, req.GetPeer()); err != nil {
			return nil, err
		}
		slices.SortFunc(peers, byName)
	}
	var nodes v1alpha1.FabricNodeList
	if err := readAll(ctx, s.cfg.Client, &nodes); err != nil {
		return nil, err
	}
	resp := &ententev1.PlanNetworkResponse{}
	for i := range peers[:min(len(peers), MaxNetworkPlans)] {
		plan, err := s.cfg.PlanNetwork(ctx, &peers[i], prefixes)
		if err != nil {
			return nil, fmt.Errorf("plan the network with peer %s: %w", peers[i].Name, err)
		}
		m := networkPlanMessage(plan)
		if peers[i].Name != "" {
			m.Peer = "peers/" + peers[i].Name
			m.Mtu = mtuTo(nodes.Items, peers[i].Spec.ClusterID)
		}
		resp.Plans = append(resp.Plans, m)
	}
	return resp, nil
}

// mtuTo is the size of the packets that pass to a peer from each gateway with a path to it.
func mtuTo(nodes []v1alpha1.FabricNode, id string) (least int32) {
	for i := range nodes {
		for _, p := range nodes[i].Status.Paths {
			if p.PeerID == id && p.State == pathUp && p.MTU > 0 && (least == 0 || p.MTU < least) {
				least = p.MTU
			}
		}
	}
	return least
}

func networkPlanMessage(p peering.NetworkPlan) *ententev1.NetworkPlan {
	gateways := func(list []peering.PlannedGateway) (out []*ententev1.PlannedGateway) {
		for _, g := range list {
			out = append(out, &ententev1.PlannedGateway{Name: g.Name, Endpoints: g.Endpoints})
		}
		return out
	}
	aliases := func(list []peering.PlannedAlias) (out []*ententev1.PlannedAlias) {
		for _, a := range list {
			out = append(out, &ententev1.PlannedAlias{Prefix: a.Prefix, Alias: a.Alias, InUse: a.Stands, ByAddress: a.ByAddress, Addresses: uint32(max(a.Addresses, 0))})
		}
		return out
	}
	m := &ententev1.NetworkPlan{
		OwnGateways: gateways(p.Own), Gateways: gateways(p.Theirs), Remote: aliases(p.Remote), Local: aliases(p.Local),
		AliasPool: p.Pool, Errors: p.Refused, Warnings: p.Warnings,
	}
	for _, t := range p.Transit {
		m.Transit = append(m.Transit, &ententev1.PlannedTransit{
			Cluster: t.Third, ThroughPeer: t.Through, Addresses: uint32(max(t.Addresses, 0)), Aliased: uint32(max(t.Named, 0)), Missing: t.Missing,
		})
	}
	return m
}
