package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/presharedkeys"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// InBand is the configuration of tunnels that carry the peer API.
type InBand struct {
	// Agent is where this agent accepts connections that come through tunnels, as address:port.
	Agent string
	// Overlay is the address of a cluster's node inside tunnels.
	Overlay func(clusterID, node string) netip.Addr
}

// isInBand reports whether a peer's agent is reached through the tunnel, which then exists whether or not a
// contract wants it. An administrator who wrote inBand and denied the peer does not want it, once the peer was
// notified of that through the tunnel.
func isInBand(fc *v1alpha1.ForeignCluster) bool {
	return fc.Spec.InBand != nil && (fc.Spec.Decision != v1alpha1.DecisionDenied || fc.Spec.TrustBundle != "")
}

// carry adds to a Tunnel's spec what carries the peer API. A nil spec means that the tunnel exists for nothing
// else.
func (i InBand) carry(spec *v1alpha1.TunnelSpec, fc *v1alpha1.ForeignCluster) *v1alpha1.TunnelSpec {
	spec = cmp.Or(spec, &v1alpha1.TunnelSpec{})
	spec.ForeignCluster, spec.PeerID = fc.Name, fc.Spec.ClusterID
	spec.Gateways = i.gateways(fc)
	spec.InBand = &v1alpha1.TunnelInBand{Agent: i.Agent}
	return spec
}

// gateways returns the gateways of an in-band peer: those that the peer named when it was connected, with the
// endpoints of both, or, if an administrator wrote others since, those first.
func (i InBand) gateways(fc *v1alpha1.ForeignCluster) []v1alpha1.Gateway {
	var written, announced []v1alpha1.Gateway
	for _, g := range fc.Spec.InBand.Gateways {
		written = append(written, v1alpha1.Gateway{
			Name: g.Name, PublicKey: g.PublicKey, Endpoints: slices.Clone(g.Endpoints), OverlayAddress: i.Overlay(fc.Spec.ClusterID, g.Name).String(),
		})
	}
	if fc.Status.Network != nil {
		for _, g := range fc.Status.Network.Gateways {
			g.Endpoints = slices.Clone(g.Endpoints)
			announced = append(announced, g)
		}
	}
	if len(announced) > 0 && fc.Status.Network.InBandHash == inBandHash(fc.Spec.InBand) {
		return mergeGateways(announced, written, false)
	}
	return mergeGateways(written, announced, true)
}

// mergeGateways adds to gateways the endpoints that others list for them, and those others whose names and keys are
// free.
func mergeGateways(first, others []v1alpha1.Gateway, add bool) []v1alpha1.Gateway {
	for _, o := range others {
		j := slices.IndexFunc(first, func(g v1alpha1.Gateway) bool { return g.Name == o.Name || g.PublicKey == o.PublicKey })
		switch {
		case j < 0 && add && len(first) < peering.MaxGateways:
			first = append(first, o)
		case j >= 0 && first[j].Name == o.Name && first[j].PublicKey == o.PublicKey:
			for _, e := range o.Endpoints {
				if !slices.Contains(first[j].Endpoints, e) && len(first[j].Endpoints) < peering.MaxEndpoints {
					first[j].Endpoints = append(first[j].Endpoints, e)
				}
			}
		}
	}
	return first
}

// inBandHash identifies what an administrator wrote.
func inBandHash(b *v1alpha1.InBand) string {
	if b == nil {
		return ""
	}
	text, err := json.Marshal(b)
	if err != nil {
		return "" // strings can be marshalled
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// InBandKey returns the first preshared key of the tunnel to an in-band peer. The next ones are agreed over sessions.
func (s *States) InBandKey(fc *v1alpha1.ForeignCluster) (out [32]byte, err error) {
	theirs, err := base64.StdEncoding.DecodeString(fc.Spec.InBand.ExchangeKey)
	if err != nil || len(theirs) != len(out) {
		return out, errors.New("spec.inBand.exchangeKey is not a public key: have the peer's administrator print it with `entente network parameters`")
	}
	return s.Exchange.PresharedKey(peering.ClusterID(fc.Spec.ClusterID), [32]byte(theirs))
}

// offersFirst reports whether the first key of the tunnel to an in-band peer is offered along with a later one, and if
// not, after which time; 0 means that the tunnel is up. It is once the tunnel has been down for firstKeyAfter, or is down
// after an administrator wrote other parameters. What the status says of keys does not count: it may be lost, too.
func offersFirst(fc *v1alpha1.ForeignCluster, now time.Time) (offer bool, left time.Duration) {
	c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionInBand)
	if c == nil || c.Status == metav1.ConditionTrue {
		return false, 0
	}
	if n := fc.Status.Network; n != nil && n.InBandHash != inBandHash(fc.Spec.InBand) {
		return true, 0
	}
	left = c.LastTransitionTime.Add(firstKeyAfter).Sub(now)
	return left <= 0, max(left, 0)
}

// UseFirstKey makes the tunnel to an in-band peer begin with its first key again, as when an administrator connects
// the peer again and there is no session that would end. The key that was in use stays known.
func (s *States) UseFirstKey(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	key, err := s.InBandKey(fc)
	if err != nil {
		return nil //nolint:nilerr // condition InBand says so
	}
	return s.storeKeys(ctx, peering.ClusterID(fc.Spec.ClusterID), presharedkeys.First{Key: key[:], Again: true})
}

// ways returns, by peer, the gateways whose path to it is up; nil if no peer is in-band.
func (r *Peers) ways(ctx context.Context, peers []v1alpha1.ForeignCluster) (map[peering.ClusterID][]string, error) {
	if !slices.ContainsFunc(peers, func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.InBand != nil }) {
		return nil, nil //nolint:nilnil // there is no in-band peer
	}
	var nodes v1alpha1.FabricNodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	out := map[peering.ClusterID][]string{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		for _, p := range n.Status.Paths {
			if id := peering.ClusterID(p.PeerID); n.Spec.Gateway && len(n.Status.Relays) > 0 && p.State == "Up" {
				out[id] = append(out[id], n.Name)
			}
		}
	}
	for _, names := range out {
		slices.Sort(names)
	}
	return out, nil
}

// inBand returns the condition that the tunnel that carries the peer API is up.
func inBand(v PeerSnapshot) metav1.Condition {
	no := func(reason, message string) metav1.Condition {
		return store.Condition(v1alpha1.ConditionInBand, metav1.ConditionFalse, reason, message)
	}
	if !isInBand(v.Peer) {
		return no("Denied", "an administrator of this cluster denied it, so there is no tunnel to it")
	}
	if v.KeyProblem != "" {
		return no("KeyInvalid", v.KeyProblem)
	}
	count, relays, stale, down := 0, 0, "", ""
	for i := range v.FabricNodes {
		n := &v.FabricNodes[i]
		if !n.Spec.Gateway {
			continue
		}
		count++
		if gateways.Silent(n, v.Now) {
			stale = fmt.Sprintf("the fabric on gateway node %s last reported at %s: check its pod", n.Name, n.Status.ObservedAt.UTC().Format(time.RFC3339))
			continue
		}
		relays += len(n.Status.Relays)
		for _, p := range n.Status.Paths {
			if p.PeerID != v.Peer.Spec.ClusterID {
				continue
			}
			if p.State == "Up" && len(n.Status.Relays) > 0 {
				return store.Condition(v1alpha1.ConditionInBand, metav1.ConditionTrue, "TunnelUp",
					fmt.Sprintf("gateway %s of the peer answers probes of node %s: the peer API runs through the tunnel", p.Node, n.Name))
			}
			if p.State != "Up" && (down == "" || p.State == "Down") {
				down = fmt.Sprintf("node %s: %s", n.Name, p.Message)
			}
		}
	}
	switch {
	case down != "":
		return no("AwaitingPeer", joinTexts([]string{down, "the peer's administrator has to enter this cluster's parameters there (`entente network parameters` prints them), and UDP has to pass between the gateways, from one side at least"}))
	case count == 0:
		return no("NoGateway", "no node is a gateway: the fabric runs on none; check DaemonSet entente-fabric")
	case relays == 0 && stale == "":
		return no("NoRelay", "no gateway has a relay for this cluster's agent yet: see the problems of the FabricNodes")
	case stale != "":
		return no("FabricSilent", stale)
	}
	return no("Applying", "the fabric has not applied the tunnel yet")
}
