package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// snapshot has the objects that describe peers, read once for a call.
type snapshot struct {
	contracts []v1alpha1.Contract
	tunnels   []v1alpha1.Tunnel
	nodes     []v1alpha1.FabricNode
	// lans are the results of discovery on the LANs of nodes.
	lans []v1alpha1.NodeDiscovery
	// cordoned are the names of the virtual nodes that are cordoned.
	cordoned map[string]bool
	now      time.Time
}

func (s *service) snapshot(ctx context.Context, from ctrlclient.Reader) (*snapshot, error) {
	var (
		contracts v1alpha1.ContractList
		tunnels   v1alpha1.TunnelList
		nodes     v1alpha1.FabricNodeList
		lans      v1alpha1.NodeDiscoveryList
	)
	if err := readAll(ctx, from, &contracts, &tunnels, &nodes, &lans); err != nil {
		return nil, err
	}
	cordoned, err := cordonedNodes(ctx, from, contracts.Items)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(contracts.Items, func(a, b v1alpha1.Contract) int { return cmp.Compare(a.Name, b.Name) })
	return &snapshot{contracts: contracts.Items, tunnels: tunnels.Items, nodes: nodes.Items, lans: lans.Items, cordoned: cordoned, now: s.cfg.Now()}, nil
}

// cordonedNodes returns which of the contracts' virtual nodes are cordoned.
func cordonedNodes(ctx context.Context, from ctrlclient.Reader, contracts []v1alpha1.Contract) (map[string]bool, error) {
	if !slices.ContainsFunc(contracts, func(c v1alpha1.Contract) bool { return c.Status.Node != "" }) {
		return nil, nil //nolint:nilnil // nil means no node
	}
	var nodes corev1.NodeList
	if err := from.List(ctx, &nodes, ctrlclient.MatchingLabels{v1alpha1.LabelVirtualNode: "true"}); err != nil {
		return nil, fmt.Errorf("list virtual nodes: %w", err)
	}
	cordoned := map[string]bool{}
	for i := range nodes.Items {
		if nodes.Items[i].Spec.Unschedulable {
			cordoned[nodes.Items[i].Name] = true
		}
	}
	return cordoned, nil
}

// peer returns a ForeignCluster, with its contracts and its tunnel, as one message.
func (v *snapshot) peer(fc *v1alpha1.ForeignCluster) *ententev1.Peer {
	p := &ententev1.Peer{
		Name:       "peers/" + fc.Name,
		ClusterId:  fc.Spec.ClusterID,
		Role:       string(fc.Status.Role),
		Endpoints:  fc.Spec.Endpoints,
		InBand:     fc.Spec.InBand != nil,
		Tunnel:     v.tunnel(fc),
		CreateTime: writeTime(fc.CreationTimestamp),
		Protocol:   uint32(max(fc.Status.Protocol, 0)),
		Source:     string(fc.Status.Source),
		Decision:   string(fc.Spec.Decision),
		Session:    sessionMessage(fc.Status.Session),
		Offer:      offerMessage(fc.Status.Offer),
		Labels:     fc.Labels,
	}
	if p.GetRole() == "" {
		p.Role = string(v1alpha1.RoleNone)
	}
	if fc.Status.Introduction != nil {
		p.Code = fc.Status.Introduction.Code
	}
	for _, c := range fc.Status.Conditions {
		p.Conditions = append(p.Conditions, conditionMessage(c))
	}
	for _, s := range fc.Status.Sightings {
		p.Sightings = append(p.Sightings, &ententev1.Sighting{
			Source: string(s.Source), Location: s.Location, Node: s.Node, DisplayName: s.Name,
			Endpoints: s.Endpoints, LastSeenTime: writeTime(s.LastSeenTime),
		})
	}
	for i := range v.contracts {
		if c := &v.contracts[i]; c.Spec.PeerID == fc.Spec.ClusterID && c.Spec.PeerID != "" {
			m := contractMessage(c)
			m.Cordoned = v.cordoned[c.Status.Node]
			p.Contracts = append(p.Contracts, m)
		}
	}
	return p
}

func conditionMessage(c metav1.Condition) *ententev1.Condition {
	return &ententev1.Condition{
		Type: c.Type, Status: string(c.Status), Reason: c.Reason, Message: c.Message,
		LastTransitionTime: writeTime(c.LastTransitionTime),
	}
}

func sessionMessage(s *v1alpha1.PeerSession) *ententev1.Session {
	if s == nil {
		return nil
	}
	m := &ententev1.Session{
		Dialled: s.Dialled, Endpoint: s.Endpoint, InBand: s.InBand, Through: s.Through, Since: writeTime(s.Since),
		ClockSkew: durationMessage(s.ClockSkew), RoundTrip: durationMessage(s.RoundTrip),
	}
	if s.CertificateNotAfter != nil {
		m.CertificateExpireTime = writeTime(*s.CertificateNotAfter)
	}
	return m
}

func offerMessage(o *v1alpha1.Offer) *ententev1.Offer {
	if o == nil {
		return nil
	}
	m := &ententev1.Offer{
		Available: o.Available, Message: o.Message,
		Resources: resourceMessage(o.Resources), Price: priceMessage(o.Price),
		NodeLabels: o.NodeLabels, Architectures: o.Architectures, StorageClasses: o.StorageClasses,
		Duration: durationMessage(o.Duration),
	}
	for _, p := range o.Pools {
		m.Pools = append(m.Pools, &ententev1.OfferedPool{
			Name: p.Name, Resources: resourceMessage(p.Resources), Price: priceMessage(p.Price), NodeLabels: p.NodeLabels,
		})
	}
	for _, s := range o.Services {
		service := &ententev1.OfferedService{Namespace: s.Namespace, Name: s.Name, Type: string(s.Type)}
		for _, p := range s.Ports {
			service.Ports = append(service.Ports, &ententev1.OfferedServicePort{
				Name: p.Name, Protocol: string(p.Protocol), AppProtocol: p.AppProtocol, Port: uint32(max(p.Port, 0)),
			})
		}
		m.Services = append(m.Services, service)
	}
	return m
}

// contractMessage is a contract as a message, without its envelope.
func contractMessage(c *v1alpha1.Contract) *ententev1.Contract {
	m := &ententev1.Contract{
		ContractId: c.Name,
		Revision:   uint64(max(c.Spec.Revision, 0)),
		Phase:      c.Status.Phase,
		Role:       string(c.Spec.Role),
		Resources:  resourceMessage(c.Spec.Resources),
		Used:       resourceMessage(c.Status.Used),
		NotBefore:  writeTime(c.Spec.NotBefore),
		NotAfter:   writeTime(c.Spec.NotAfter),
		Node:       c.Status.Node,
		Pods:       c.Status.Pods,
		Name:       "contracts/" + c.Name,
		Peer:       "peers/" + c.Spec.ForeignCluster,
		Price:      priceMessage(c.Spec.Price),
		Message:    c.Status.Message,
		Reason:     c.Status.Reason,
		Pool:       c.Spec.Pool,
	}
	if c.Status.ClosedAt != nil && closed(c) {
		m.CloseTime = writeTime(*c.Status.ClosedAt)
	}
	if c.Status.DrainUntil != nil && c.Status.Phase == peering.PhaseDraining.String() {
		m.DrainUntil = writeTime(*c.Status.DrainUntil)
	}
	return m
}

func moneyMessage(m *v1alpha1.Money) *ententev1.Money {
	if m == nil {
		return nil
	}
	return &ententev1.Money{Currency: m.Currency, Amount: m.Amount}
}

func priceMessage(p *v1alpha1.PriceList) *ententev1.PriceList {
	if p == nil {
		return nil
	}
	m := &ententev1.PriceList{Currency: p.Currency, PerHour: make(map[string]string, len(p.PerHour))}
	for name, price := range p.PerHour {
		m.PerHour[name] = string(price)
	}
	return m
}

func durationMessage(d *metav1.Duration) *durationpb.Duration {
	if d == nil {
		return nil
	}
	return durationpb.New(d.Duration)
}

func resourceMessage(list corev1.ResourceList) *ententev1.ResourceList {
	if len(list) == 0 {
		return nil
	}
	amounts := make(map[string]string, len(list))
	for name, q := range list {
		amounts[string(name)] = q.String()
	}
	return &ententev1.ResourceList{Amounts: amounts}
}

// States of a FabricPath.
const pathUp = "Up"

// tunnel returns what the fabrics report of the tunnel to a peer, or nil if there is no tunnel.
// It is up if a gateway that reported lately has a path that is up; a node that is no longer a
// gateway may report its paths for a while.
func (v *snapshot) tunnel(fc *v1alpha1.ForeignCluster) *ententev1.Tunnel {
	peerID := fc.Spec.ClusterID
	i := slices.IndexFunc(v.tunnels, func(t v1alpha1.Tunnel) bool { return t.Spec.PeerID == peerID })
	if i < 0 {
		return nil
	}
	spec := v.tunnels[i].Spec
	t := &ententev1.Tunnel{LocalPrefixes: aliasMessage(spec.Local), RemotePrefixes: aliasMessage(spec.Remote), PresharedKey: presharedKeyMessage(fc.Status.PresharedKey)}
	for n := range v.nodes {
		node := &v.nodes[n]
		if !node.Spec.Gateway || v.now.Sub(node.Status.ObservedAt.Time) > FabricFresh {
			continue
		}
		for _, path := range node.Status.Paths {
			if path.PeerID != peerID || t.GetUp() && path.State != pathUp {
				continue
			}
			rtt := time.Duration(path.RoundTripMicroseconds) * time.Microsecond
			if t.GetUp() && t.GetRoundTrip().AsDuration() <= rtt {
				continue
			}
			t.Up = path.State == pathUp
			t.Backend, t.Endpoint, t.RoundTrip = node.Status.Backend, path.Endpoint, nil
			if t.GetUp() && rtt > 0 {
				t.RoundTrip = durationpb.New(rtt)
			}
		}
	}
	return t
}

func presharedKeyMessage(k *v1alpha1.PresharedKeyStatus) *ententev1.PresharedKey {
	if k == nil {
		return nil
	}
	m := &ententev1.PresharedKey{Number: k.Number, FirstUseTime: writeTime(k.Since), Message: k.Message}
	if k.RotationStartTime != nil {
		m.RotationStartTime = writeTime(*k.RotationStartTime)
	}
	return m
}

func aliasMessage(list []v1alpha1.PrefixAlias) map[string]string {
	if len(list) == 0 {
		return nil
	}
	m := make(map[string]string, len(list))
	for _, a := range list {
		m[a.Prefix] = a.Alias
	}
	return m
}

func writeTime(t metav1.Time) *timestamppb.Timestamp { return timeMessage(t.Time) }
