package controller

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestElectGateway(t *testing.T) {
	t.Parallel()
	node := func(name string, gateway bool, age time.Duration) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{}
		n.Name, n.Spec.Gateway = name, gateway
		n.Status.PublicKey, n.Status.ObservedAt = "key", metav1.NewTime(now.Add(-age))
		return n
	}
	for name, tc := range map[string]struct {
		nodes []v1alpha1.FabricNode
		want  string
	}{
		"no node is no gateway":                    {},
		"the first by name is chosen":              {nodes: []v1alpha1.FabricNode{node("b", false, 0), node("a", false, 0)}, want: "a"},
		"the gateway stays":                        {nodes: []v1alpha1.FabricNode{node("a", false, 0), node("b", true, 0)}, want: "b"},
		"a silent gateway gives way":               {nodes: []v1alpha1.FabricNode{node("a", true, time.Hour), node("b", false, 0)}, want: "b"},
		"when all are silent the gateway stays":    {nodes: []v1alpha1.FabricNode{node("a", false, time.Hour), node("b", true, time.Hour)}, want: "b"},
		"of two gateways the one that lives stays": {nodes: []v1alpha1.FabricNode{node("a", true, time.Hour), node("b", true, 0)}, want: "b"},
		"a node without a key is not chosen": {nodes: func() []v1alpha1.FabricNode {
			n := node("a", false, 0)
			n.Status.PublicKey = ""
			return []v1alpha1.FabricNode{n}
		}()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ElectGateway(tc.nodes, now); got != tc.want {
				t.Errorf("gateway is %q, want %q", got, tc.want)
			}
		})
	}
}

func contractIn(role v1alpha1.ContractRole, phase peering.Phase) v1alpha1.Contract {
	c := v1alpha1.Contract{}
	c.Name, c.Spec.Role, c.Spec.Network, c.Status.Phase = "c-1", role, v1alpha1.NetworkTunnel, phase.String()
	return c
}

func TestRoleOf(t *testing.T) {
	t.Parallel()
	consumer := contractIn(v1alpha1.ContractConsumer, peering.PhaseActive)
	provider := contractIn(v1alpha1.ContractProvider, peering.PhaseDraining)
	closed := contractIn(v1alpha1.ContractConsumer, peering.PhaseClosed)
	for name, tc := range map[string]struct {
		contracts []v1alpha1.Contract
		want      v1alpha1.Role
	}{
		"a stranger is nothing":                    {want: v1alpha1.RoleNone},
		"from whom we consume is a provider":       {contracts: []v1alpha1.Contract{consumer}, want: v1alpha1.RoleProvider},
		"to whom we lend is a consumer":            {contracts: []v1alpha1.Contract{provider}, want: v1alpha1.RoleConsumer},
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
	view := func(edit func(*PeerView)) PeerView {
		fc := &v1alpha1.ForeignCluster{}
		fc.Spec.ClusterID, fc.Spec.TrustBundle = "abc", "PEM"
		c := contractIn(v1alpha1.ContractConsumer, peering.PhaseActive)
		c.Status.Conditions = []metav1.Condition{{Type: ConditionNodeReady, Status: metav1.ConditionTrue}}
		v := PeerView{
			Peer: fc, Connected: true, Contracts: []v1alpha1.Contract{c},
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
		view PeerView
		want map[string]metav1.ConditionStatus
		says string
	}{
		"all is well":          {view: view(nil), want: all},
		"no trust":             {view: view(func(v *PeerView) { v.Peer.Spec.TrustBundle = "" }), want: except("Trusted", "False"), says: "entente join"},
		"no session":           {view: view(func(v *PeerView) { v.Connected, v.NotConnected = false, "dial tcp 172.30.2.11:30743" }), want: except("Connected", "False"), says: "172.30.2.11:30743"},
		"probes lost":          {view: view(func(v *PeerView) { v.FabricNodes[0] = gateway("Down", 0) }), want: except("Network", "False"), says: "172.30.2.11:51820"},
		"never probed":         {view: view(func(v *PeerView) { v.FabricNodes[0] = gateway("", 0) }), want: except("Network", "False"), says: "not taken up"},
		"the fabric is silent": {view: view(func(v *PeerView) { v.FabricNodes[0] = gateway("Up", time.Hour) }), want: except("Network", "Unknown"), says: "last heard of"},
		"no gateway":           {view: view(func(v *PeerView) { v.FabricNodes = nil }), want: except("Network", "False"), says: "entente-fabric"},
		"still negotiating":    {view: view(func(v *PeerView) { v.TunnelWaits = "waiting for the peer" }), want: except("Network", "False"), says: "waiting for the peer"},
		"the node is not ready": {view: view(func(v *PeerView) {
			v.Contracts[0].Status.Conditions[0] = metav1.Condition{Type: ConditionNodeReady, Status: "False", Reason: "PeerLost", Message: "the provider is silent"}
		}), want: except("Offloading", "False"), says: "silent"},
		"draining": {view: view(func(v *PeerView) { v.Contracts[0].Status.Phase = "Draining" }), want: except("Offloading", "False"), says: "ending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, text := map[string]metav1.ConditionStatus{}, ""
			for _, c := range PeerConditions(tc.view) {
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
				t.Errorf("conditions say %q, want %q in it", text, tc.says)
			}
		})
	}
}

func TestFreeOf(t *testing.T) {
	t.Parallel()
	list := func(cpu, memory, pods string) corev1.ResourceList {
		return corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory), corev1.ResourcePods: resource.MustParse(pods),
		}
	}
	node := func(name string) corev1.Node {
		return corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: corev1.NodeStatus{
				Allocatable: list("4", "8Gi", "110"),
				Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
			},
		}
	}
	pod := func(on string, edit func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		}}}}}
		if edit != nil {
			edit(&p)
		}
		return p
	}
	virtual, cordoned, down := node("v"), node("c"), node("d")
	virtual.Labels = map[string]string{v1alpha1.LabelVirtualNode: "true"}
	cordoned.Spec.Unschedulable = true
	down.Status.Conditions[0].Status = corev1.ConditionUnknown
	for name, tc := range map[string]struct {
		nodes []corev1.Node
		pods  []corev1.Pod
		want  corev1.ResourceList
	}{
		"an empty node is all free":                   {nodes: []corev1.Node{node("a")}, want: list("4", "8Gi", "110")},
		"a pod takes what it requests":                {nodes: []corev1.Node{node("a")}, pods: []corev1.Pod{pod("a", nil)}, want: list("3", "7Gi", "109")},
		"a pod that ended takes nothing":              {nodes: []corev1.Node{node("a")}, pods: []corev1.Pod{pod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, want: list("4", "8Gi", "110")},
		"an offloaded pod uses what was lent":         {nodes: []corev1.Node{node("a")}, pods: []corev1.Pod{pod("a", func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.LabelContract: "c-1"} })}, want: list("4", "8Gi", "110")},
		"what is not ours or not usable is not lent":  {nodes: []corev1.Node{virtual, cordoned, down}, want: corev1.ResourceList{}},
		"a pod on a node that is not counted is none": {nodes: []corev1.Node{node("a"), virtual}, pods: []corev1.Pod{pod("v", nil)}, want: list("4", "8Gi", "110")},
		"an overcommitted node has nothing left": {
			nodes: []corev1.Node{node("a")},
			pods: []corev1.Pod{pod("a", func(p *corev1.Pod) {
				p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("9")
			})},
			want: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("7Gi"), corev1.ResourcePods: resource.MustParse("109")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, FreeOf(tc.nodes, tc.pods)); diff != "" {
				t.Errorf("free (-want +got):\n%s", diff)
			}
		})
	}
}

func TestASignedContractHasToBeWhatWasAdvertised(t *testing.T) {
	t.Parallel()
	resources := func(cpu string) peering.Resources {
		r, err := peering.ParseResources(map[string]string{"cpu": cpu, "memory": "4Gi"})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	offer := wire.Advertisement{ContractID: "c-1", RequestID: "r", Grant: peering.Grant{
		Resources: resources("2"), Duration: time.Hour, Network: true, PodSecurity: peering.PodSecurityBaseline,
		NodeLabels: map[string]string{"kubernetes.io/arch": "amd64"},
	}}
	terms := func(edit func(*peering.Terms)) peering.Terms {
		out := peering.Terms{
			ContractID: "c-1", RequestID: "r", Revision: 1, Resources: resources("2"),
			NotBefore: now.Add(-time.Minute), NotAfter: now.Add(59 * time.Minute), Network: true,
			PodSecurity: peering.PodSecurityBaseline, NodeLabels: map[string]string{"kubernetes.io/arch": "amd64"},
		}
		if edit != nil {
			edit(&out)
		}
		return out
	}
	if why := mismatch(offer, terms(nil), now); why != "" {
		t.Errorf("what was advertised is refused: %s", why)
	}
	for name, edit := range map[string]func(*peering.Terms){
		"more of a resource":       func(x *peering.Terms) { x.Resources = resources("3") },
		"another resource":         func(x *peering.Terms) { x.Resources["nvidia.com/gpu"] = peering.Whole(1) },
		"a resource less":          func(x *peering.Terms) { delete(x.Resources, "cpu") },
		"a second revision":        func(x *peering.Terms) { x.Revision = 2 },
		"longer":                   func(x *peering.Terms) { x.NotAfter = x.NotAfter.Add(time.Hour) },
		"beginning in a week":      func(x *peering.Terms) { x.NotBefore, x.NotAfter = now.Add(168*time.Hour), now.Add(169*time.Hour) },
		"no tunnel":                func(x *peering.Terms) { x.Network = false },
		"a weaker Pod Security":    func(x *peering.Terms) { x.PodSecurity = peering.PodSecurityPrivileged },
		"another node label value": func(x *peering.Terms) { x.NodeLabels = map[string]string{"kubernetes.io/arch": "arm64"} },
		"another node label":       func(x *peering.Terms) { x.NodeLabels["a"] = "b" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if mismatch(offer, terms(edit), now) == "" {
				t.Error("it is taken for what was advertised")
			}
		})
	}
}

func TestReasonsReadAsKubernetesReasons(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"POLICY_REFUSED": "PolicyRefused", "INTERNAL": "Internal", "": ""} {
		if got := camel(in); got != want {
			t.Errorf("camel(%q) = %q, want %q", in, got, want)
		}
	}
}
