package fabric

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// Each hop has a condition of its own, so a reader sees which one fails.
func TestEachHopHasItsCondition(t *testing.T) {
	t.Parallel()
	to := func(cluster, node string, state probe.PathState) tunnel.PeerStatus {
		return tunnel.PeerStatus{Cluster: cluster, Node: node, Remote: cluster != "me", Active: true, State: state}
	}
	standby := to("peer", "p2", probe.PathDown)
	standby.Active = false
	narrow := to("peer", "p1", probe.PathUp)
	narrow.LargeLost = true
	end := func(state probe.EndState) tunnel.EndStatus {
		return tunnel.EndStatus{Cluster: "peer", EndStatus: probe.EndStatus{State: state, Node: "p9"}}
	}
	const carrier, gateways, endToEnd = v1alpha1.ConditionCarrier, v1alpha1.ConditionPeerGateways, v1alpha1.ConditionEndToEnd
	for name, tt := range map[string]struct {
		status tunnel.Status
		want   string
		says   map[string]string
	}{
		"nothing": {tunnel.Status{}, "", nil},
		"a worker that is well": {
			tunnel.Status{Peers: []tunnel.PeerStatus{to("me", "gw1", probe.PathUp)}, Ends: []tunnel.EndStatus{end(probe.EndUp)}},
			"Carrier=True ProbesAnswered, EndToEnd=True ProbesAnswered",
			map[string]string{carrier: "are answered"},
		},
		"a worker whose gateway is down": {
			tunnel.Status{Peers: []tunnel.PeerStatus{to("me", "gw1", probe.PathDown)}, Ends: []tunnel.EndStatus{end(probe.EndDown)}},
			"Carrier=False PathDown, EndToEnd=False PodsUnreachable",
			map[string]string{carrier: "gw1", endToEnd: "p9"},
		},
		"a gateway with a peer that is down and one that is up": {
			tunnel.Status{
				Peers:    []tunnel.PeerStatus{to("other", "o1", probe.PathUp), to("peer", "p1", probe.PathDown)},
				Problems: []plan.Problem{{Peer: "peer", Text: "no WireGuard handshake with p1: check that UDP passes"}},
			},
			"PeerGateways=False PathDown",
			map[string]string{gateways: "no WireGuard handshake with p1: check that UDP passes"},
		},
		"a gateway that stands by and cannot": {tunnel.Status{Peers: []tunnel.PeerStatus{standby}}, "PeerGateways=False StandbyDown", map[string]string{gateways: "p2"}},
		"a gateway that loses large packets": {
			tunnel.Status{Peers: []tunnel.PeerStatus{narrow}, Ends: []tunnel.EndStatus{end(probe.EndLargeLost)}},
			"PeerGateways=False LargePacketsLost, EndToEnd=False LargePacketsLost",
			map[string]string{endToEnd: "MTU"},
		},
		"a gateway that has just begun": {
			tunnel.Status{Peers: []tunnel.PeerStatus{to("peer", "p1", probe.PathUnknown)}, Ends: []tunnel.EndStatus{end(probe.EndUnknown)}},
			"PeerGateways=Unknown NoAnswerYet, EndToEnd=Unknown NoAnswerYet",
			map[string]string{endToEnd: "cluster peer"},
		},
		"a peer that is not forwarded to": {tunnel.Status{Ends: []tunnel.EndStatus{end(probe.EndBlocked)}}, "EndToEnd=False PodsUnreachable", map[string]string{endToEnd: "ip_forward"}},
	} {
		got := NodeStatus(tt.status, &corev1.Node{}).Conditions
		var have []string
		for _, c := range got {
			have = append(have, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
		}
		if all := strings.Join(have, ", "); all != tt.want {
			t.Errorf("%s: %s, want %s", name, all, tt.want)
		}
		for kind, text := range tt.says {
			if c := meta.FindStatusCondition(got, kind); c == nil || !strings.Contains(c.Message, text) {
				t.Errorf("%s: %s is %+v, want %q", name, kind, c, text)
			}
		}
	}
}

func TestManyPeersThatAreDownFitInACondition(t *testing.T) {
	t.Parallel()
	var s tunnel.Status
	for i := range 300 {
		s.Peers = append(s.Peers, tunnel.PeerStatus{Cluster: fmt.Sprintf("c%d", i), Node: fmt.Sprintf("n%d", i), Remote: true, Active: true, State: probe.PathDown})
	}
	got := NodeStatus(s, &corev1.Node{}).Conditions
	if len(got) != 1 || !strings.HasSuffix(got[0].Message, "; and 297 more") {
		t.Errorf("got %+v", got)
	}
}

func TestConditionsOfHopsKeepTheTimeOfTheirLastChange(t *testing.T) {
	t.Parallel()
	long := metav1.NewTime(time.Now().Add(-time.Hour))
	before := []metav1.Condition{{Type: "Carrier", Status: metav1.ConditionTrue, LastTransitionTime: long}, {Type: "EndToEnd", Status: metav1.ConditionTrue, LastTransitionTime: long}, {Type: "PeerGateways", LastTransitionTime: long}}
	got := sinceWhen(before, []metav1.Condition{{Type: "Carrier", Status: metav1.ConditionTrue, Reason: "R"}, {Type: "EndToEnd", Status: metav1.ConditionFalse, Reason: "R"}})
	if len(got) != 2 || !got[0].LastTransitionTime.Equal(&long) || got[0].Reason != "R" || time.Since(got[1].LastTransitionTime.Time) > time.Minute {
		t.Errorf("got %+v", got)
	}
}
