package gateways

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func TestAChangeOfAFabricNodeNamesThePeers(t *testing.T) {
	t.Parallel()
	now := time.Unix(2e9, 0)
	before := &v1alpha1.FabricNode{
		Spec: v1alpha1.FabricNodeSpec{ClusterID: "self", Gateway: true},
		Status: v1alpha1.FabricNodeStatus{
			PublicKey: "key", ObservedAt: metav1.NewTime(now),
			Paths: []v1alpha1.FabricPath{{PeerID: "a", State: "Up"}, {PeerID: "b", State: "Down", Message: "no answer"}},
		},
	}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.FabricNode)
		peers  []string
		all    bool
	}{
		"that it is there":   {change: func(n *v1alpha1.FabricNode) { n.Status.ObservedAt = metav1.NewTime(now.Add(time.Minute)) }},
		"round trips":        {change: func(n *v1alpha1.FabricNode) { n.Status.Paths[0].RoundTripMicroseconds = 7 }},
		"the order of paths": {change: func(n *v1alpha1.FabricNode) { slices.Reverse(n.Status.Paths) }},
		"one path":           {change: func(n *v1alpha1.FabricNode) { n.Status.Paths[0].State = "Down" }, peers: []string{"a"}},
		"that it stands by":  {change: func(n *v1alpha1.FabricNode) { n.Status.Paths[0].Standby = true }, peers: []string{"a"}},
		"why it is down":     {change: func(n *v1alpha1.FabricNode) { n.Status.Paths[1].Message = "no endpoint" }, peers: []string{"b"}},
		"another path": {change: func(n *v1alpha1.FabricNode) {
			n.Status.Paths = append(n.Status.Paths, v1alpha1.FabricPath{PeerID: "c"})
		}, peers: []string{"c"}},
		"where a gateway is seen": {change: func(n *v1alpha1.FabricNode) {
			n.Status.ObservedGateways = []v1alpha1.ObservedGateway{{PeerID: "c", PublicKey: "key", Endpoint: "192.0.2.1:1"}}
		}, peers: []string{"c"}},
		"what end-to-end probes find": {change: func(n *v1alpha1.FabricNode) {
			n.Status.EndToEnd = []v1alpha1.FabricEndToEnd{{PeerID: "b", State: "Up"}, {PeerID: "c", State: "Down", Node: "far"}}
		}, peers: []string{"b", "c"}},
		"no paths":    {change: func(n *v1alpha1.FabricNode) { n.Status.Paths = nil }, peers: []string{"a", "b"}},
		"its key":     {change: func(n *v1alpha1.FabricNode) { n.Status.PublicKey = "another" }, all: true},
		"its address": {change: func(n *v1alpha1.FabricNode) { n.Status.Endpoints = []string{"192.0.2.1:51820"} }, all: true},
		"the path to the gateway": {change: func(n *v1alpha1.FabricNode) {
			n.Status.Paths = append(n.Status.Paths, v1alpha1.FabricPath{PeerID: "self", State: "Down"})
		}, all: true},
		"the gateway": {change: func(n *v1alpha1.FabricNode) { n.Spec.Gateway = false }, all: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			after := before.DeepCopy()
			tc.change(after)
			peers, all := Changes(before, after)
			if diff := cmp.Diff(tc.peers, slices.Sorted(maps.Keys(peers))); diff != "" || all != tc.all {
				t.Errorf("all: %v; peers (-want +got):\n%s", all, diff)
			}
		})
	}
}
