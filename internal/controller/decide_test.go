package controller

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

var now = peertest.Now

func contractIn(role v1alpha1.ContractRole, phase peering.Phase) v1alpha1.Contract {
	c := v1alpha1.Contract{}
	c.Name, c.Spec.Role, c.Spec.Network, c.Status.Phase = "c-1", role, v1alpha1.NetworkTunnel, phase.String()
	return c
}

func TestRoleFollowsFromContractsInForce(t *testing.T) {
	t.Parallel()
	consumer := contractIn(v1alpha1.ContractConsumer, peering.PhaseActive)
	provider := contractIn(v1alpha1.ContractProvider, peering.PhaseDraining)
	closed := contractIn(v1alpha1.ContractConsumer, peering.PhaseClosed)
	for name, tc := range map[string]struct {
		contracts []v1alpha1.Contract
		want      v1alpha1.Role
	}{
		"a stranger is nothing":                    {want: v1alpha1.RoleNone},
		"that grants us a contract is a provider":  {contracts: []v1alpha1.Contract{consumer}, want: v1alpha1.RoleProvider},
		"a peer that we provide for is a consumer": {contracts: []v1alpha1.Contract{provider}, want: v1alpha1.RoleConsumer},
		"both at once":                             {contracts: []v1alpha1.Contract{provider, consumer}, want: v1alpha1.RoleProviderAndConsumer},
		"a contract that is over counts no longer": {contracts: []v1alpha1.Contract{closed}, want: v1alpha1.RoleNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := RoleOf(tc.contracts); got != tc.want {
				t.Errorf("role is %s, want %s", got, tc.want)
			}
		})
	}
}

func TestConditionsAreTrueOnlyForWhatWasSeen(t *testing.T) {
	t.Parallel()
	gateway := func(state string, age time.Duration) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{}
		n.Name, n.Spec.Gateway, n.Status.ObservedAt = "n1", true, metav1.NewTime(now.Add(-age))
		if state != "" {
			n.Status.Paths = []v1alpha1.FabricPath{{PeerID: "abc", State: state, Message: "UDP 172.30.2.11:51820 does not answer"}}
		}
		return n
	}
	worker := func(name, state string) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{}
		n.Name, n.Spec.ClusterID, n.Status.ObservedAt = name, "self", metav1.NewTime(now)
		n.Status.Paths = []v1alpha1.FabricPath{{PeerID: "self", Node: "n1", State: state}}
		return n
	}
	view := func(edit func(*PeerSnapshot)) PeerSnapshot {
		fc := &v1alpha1.ForeignCluster{}
		fc.Spec.ClusterID, fc.Spec.TrustBundle = "abc", "PEM"
		c := contractIn(v1alpha1.ContractConsumer, peering.PhaseActive)
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionNodeReady, Status: metav1.ConditionTrue}}
		v := PeerSnapshot{
			Peer: fc, Session: trust.Session{Up: &trust.SessionInfo{Since: now}}, Contracts: []v1alpha1.Contract{c},
			FabricNodes: []v1alpha1.FabricNode{gateway("Up", 0)}, Now: now,
		}
		if edit != nil {
			edit(&v)
		}
		return v
	}
	all := map[string]metav1.ConditionStatus{"Trusted": "True", "Connected": "True", "Network": "True", "Offloading": "True"}
	except := func(kind string, status metav1.ConditionStatus) map[string]metav1.ConditionStatus {
		out := maps.Clone(all)
		out[kind] = status
		return out
	}
	for name, tc := range map[string]struct {
		view PeerSnapshot
		want map[string]metav1.ConditionStatus
		says string
	}{
		"all is well":          {view: view(nil), want: all},
		"no trust":             {view: view(func(v *PeerSnapshot) { v.Peer.Spec.TrustBundle = "" }), want: map[string]metav1.ConditionStatus{"Trusted": "False", "Connected": "False", "Network": "True", "Offloading": "True"}, says: "entente join"},
		"no session":           {view: view(func(v *PeerSnapshot) { v.Session = trust.Session{Why: "dial tcp 172.30.2.11:30743"} }), want: except("Connected", "False"), says: "172.30.2.11:30743"},
		"probes lost":          {view: view(func(v *PeerSnapshot) { v.FabricNodes[0] = gateway("Down", 0) }), want: except("Network", "False"), says: "172.30.2.11:51820"},
		"never probed":         {view: view(func(v *PeerSnapshot) { v.FabricNodes[0] = gateway("", 0) }), want: except("Network", "False"), says: "not applied"},
		"the fabric is silent": {view: view(func(v *PeerSnapshot) { v.FabricNodes[0] = gateway("Up", time.Hour) }), want: except("Network", "Unknown"), says: "last reported at"},
		"no gateway":           {view: view(func(v *PeerSnapshot) { v.FabricNodes = nil }), want: except("Network", "False"), says: "entente-fabric"},
		"the gateway died": {view: view(func(v *PeerSnapshot) {
			v.FabricNodes = append(v.FabricNodes, worker("n2", "Down"), worker("n3", "Down"))
		}), want: except("Network", "False"), says: "gateway node n1 are lost from n2, n3"},
		"the gateway's Node is not Ready": {view: view(func(v *PeerSnapshot) {
			v.Health = func(node string) gateways.Health { return gateways.Health{NotReady: node == "n1"} }
		}), want: except("Network", "False"), says: "gateway node n1 is not Ready"},
		"the gateway's fabric does not run": {view: view(func(v *PeerSnapshot) {
			v.Health = func(node string) gateways.Health { return gateways.Health{Absent: node == "n1"} }
		}), want: except("Network", "False"), says: "no pod of the fabric runs on gateway node n1"},
		"one node of three was cut off just now": {view: view(func(v *PeerSnapshot) {
			v.FabricNodes = append(v.FabricNodes, worker("n2", "Up"), worker("n3", "Down"), worker("n4", "Up"))
		}), want: all},
		"one node of three is cut off": {view: view(func(v *PeerSnapshot) {
			v.FabricNodes = append(v.FabricNodes, worker("n2", "Up"), worker("n3", "Down"), worker("n4", "Up"))
			v.CutOff = cutOff(*v)
		}), want: except("Network", "False"), says: "pods on n3 are cut off"},
		"still negotiating": {view: view(func(v *PeerSnapshot) { v.TunnelWaits = "waiting for the peer" }), want: except("Network", "False"), says: "waiting for the peer"},
		"the node is not ready": {view: view(func(v *PeerSnapshot) {
			v.Contracts[0].Status.Conditions[0] = metav1.Condition{Type: v1alpha1.ConditionNodeReady, Status: "False", Reason: "PeerLost", Message: "the provider is silent"}
		}), want: except("Offloading", "False"), says: "silent"},
		"draining": {view: view(func(v *PeerSnapshot) { v.Contracts[0].Status.Phase = "Draining" }), want: except("Offloading", "False"), says: "ending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, text := map[string]metav1.ConditionStatus{}, ""
			for _, c := range peerConditions(tc.view) {
				if c.Type == v1alpha1.ConditionCertificateValid {
					continue // it needs a real bundle
				}
				got[c.Type] = c.Status
				text += c.Message + "\n"
				if c.Reason == "" {
					t.Errorf("condition %s has no reason", c.Type)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("conditions (-want +got):\n%s", diff)
			}
			if !strings.Contains(text, tc.says) {
				t.Errorf("conditions are %q, want %q in it", text, tc.says)
			}
		})
	}
}
