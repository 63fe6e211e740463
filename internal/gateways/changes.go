package gateways

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Changes returns the peers to which a FabricNode's paths changed, and whether something changed that affects
// all peers: what they are sent of it, or its path to the gateway. The write of each fabric once a minute is not a
// change.
func Changes(before, after *v1alpha1.FabricNode) (peers map[string]bool, everybody bool) {
	a, b := before.Status.DeepCopy(), after.Status.DeepCopy()
	a.Paths, b.Paths, a.DirectPaths, b.DirectPaths, a.ObservedGateways, b.ObservedGateways, a.ObservedAt, b.ObservedAt = nil, nil, nil, nil, nil, nil, metav1.Time{}, metav1.Time{}
	a.KeyRotationMessage, b.KeyRotationMessage, a.EndToEnd, b.EndToEnd = "", "", nil, nil
	if !equality.Semantic.DeepEqual(before.Spec, after.Spec) || !equality.Semantic.DeepEqual(a, b) {
		return nil, true
	}
	type path struct {
		peer, node, state, message, way string
		key                             int64
		next                            bool
	}
	paths := func(n *v1alpha1.FabricNode) map[path]bool {
		out := make(map[path]bool, len(n.Status.Paths))
		for _, p := range n.Status.Paths {
			state := p.State
			if p.Standby {
				state += " on standby"
			}
			if p.LargePacketsLost {
				state += " for small packets"
			}
			out[path{p.PeerID, p.Node, state, p.Message, p.ConnectionType, p.PresharedKeyNumber, p.NextPresharedKeyStored}] = true
		}
		for _, o := range n.Status.ObservedGateways {
			out[path{peer: o.PeerID, node: o.PublicKey, state: "observed at", message: o.Endpoint}] = true
		}
		for _, e := range n.Status.EndToEnd {
			out[path{peer: e.PeerID, node: e.Node, state: "end to end " + e.State, message: e.Message}] = true
		}
		return out
	}
	was, is := paths(before), paths(after)
	peers = map[string]bool{}
	for _, side := range []map[path]bool{was, is} {
		for p := range side {
			if was[p] != is[p] {
				peers[p.peer] = true
			}
		}
	}
	if peers[after.Spec.ClusterID] {
		return nil, true
	}
	return peers, false
}
