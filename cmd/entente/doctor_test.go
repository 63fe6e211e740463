package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/cmd/entente/internal/doctor"
	"github.com/entente-dev/entente/cmd/entente/internal/exit"
)

// checkedNode is what a node reports that checked itself a minute ago.
func checkedNode(name string, found ...v1alpha1.FabricFinding) v1alpha1.FabricNode {
	return v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.FabricNodeStatus{
		ObservedAt: metav1.NewTime(epoch.Add(-time.Minute)), Preflight: &v1alpha1.FabricPreflight{Findings: found},
	}}
}

func TestDoctorListsWhatNodesFound(t *testing.T) {
	w := newWorld()
	taken := v1alpha1.FabricFinding{
		Reason: "PortTaken", Severity: "Error", Message: "UDP port 51820, on which WireGuard is to listen, is taken; other tunnels on this node: Calico (wireguard.cali)",
		Remedy: "set fabric.wireguardPort in the chart's values to a free port",
	}
	small := v1alpha1.FabricFinding{Reason: "UnderlayMTUTooSmall", Severity: "Warning", Message: "the way to other clusters passes packets of 1300 bytes", Remedy: "raise the MTU"}
	maybe := v1alpha1.FabricFinding{Reason: "HostRoutingByEBPF", Severity: "Info", Message: "Cilium runs here", Remedy: "if it does, set bpf.hostLegacyRouting=true"}

	w.is.Nodes = []v1alpha1.FabricNode{checkedNode("node-a"), checkedNode("node-b")}
	golden(t, "doctor", w, []string{"doctor"}, []string{"doctor", "network", "-o", "json"})
	w.is.Nodes = []v1alpha1.FabricNode{checkedNode("node-a", maybe)}
	golden(t, "doctor-info", w, []string{"doctor", "network"}, []string{"doctor", "--get", "healthy"})
	w.is.Nodes = []v1alpha1.FabricNode{checkedNode("node-b", small, maybe), checkedNode("node-a", taken, maybe)}
	for i := range 6 {
		w.is.Nodes = append(w.is.Nodes, checkedNode(fmt.Sprintf("pool-%d", i), taken))
	}
	golden(t, "doctor-findings", w, []string{"doctor", "network"}, []string{"doctor", "network", "--get", "findings[*].reason"}, []string{"doctor", "--get", "findings[0]", "-o", "yaml"})
	w.is.Nodes = nil
	golden(t, "doctor-nothing", w, []string{"doctor", "network"}, []string{"doctor", "network", "-o", "yaml"}, []string{"doctor", "storage"}, []string{"doctor", "network", "storage"})
}

// trustedPeer is a peer without problems, except those that the conditions name.
func trustedPeer(name string, conditions ...metav1.Condition) v1alpha1.ForeignCluster {
	fc := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: "id-of-" + name, TrustBundle: "roots"}}
	for _, kind := range []string{"Trusted", "Connected", "Network", "Offloading", "CertificateValid"} {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Fine"}
		if i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == kind }); i >= 0 {
			c = conditions[i]
		}
		fc.Status.Conditions = append(fc.Status.Conditions, c)
	}
	return fc
}

func TestDoctorListsServicesThatPodsAbroadName(t *testing.T) {
	w := newWorld()
	w.is = doctor.Report{Nodes: []v1alpha1.FabricNode{checkedNode("node-a")}, Abroad: doctor.Abroad{Read: true}}
	golden(t, "doctor-services-open", w, []string{"doctor"}, []string{"doctor", "services"})
	w.is.Abroad.Names = []doctor.Named{{From: "shop", Namespace: "data", Service: "db"}, {From: "shop", Namespace: "data", Service: "mq"}}
	golden(t, "doctor-services", w, []string{"doctor"}, []string{"doctor", "services", "-o", "json"}, []string{"doctor", "peers"})
}

func TestDoctorListsPathsAndPeersThatDoNotWork(t *testing.T) {
	w := newWorld()
	node := checkedNode("node-a")
	node.Status.Paths = []v1alpha1.FabricPath{
		{PeerID: "id-of-office", Node: "edge-1", State: "Up"},
		{PeerID: "id-of-office", Node: "edge-2", State: "Unknown", Message: "no probe was answered yet"},
		{PeerID: "id-of-office", Node: "edge-3", State: "Down", Standby: true, Message: "probes to gateway edge-3 at 192.0.2.3:51820 were lost since 2026-03-01T11:00:00Z"},
		{PeerID: "id-of-lab", Node: "lab-1", State: "Down", Message: "probes to gateway lab-1 at 192.0.2.9:51820 were lost since 2026-03-01T11:00:00Z"},
		{PeerID: "id-of-lab", Node: "lab-2", State: "Up", LargePacketsLost: true, Message: "packets of 1280 bytes do not pass the tunnel to lab-2 though small ones do"},
		{PeerID: "home", Node: "node-b", State: "Down", Message: "probes to gateway node-b were lost"},
	}
	node.Status.Problems = []string{"translate tables: no such device"}
	lost := metav1.Condition{Type: "Connected", Status: metav1.ConditionFalse, Reason: "NoSession", Message: "dial 192.0.2.9:7443: connection refused"}
	down := metav1.Condition{Type: "Network", Status: metav1.ConditionFalse, Reason: "ProbesLost", Message: "probes were lost"}
	w.is = doctor.Report{Nodes: []v1alpha1.FabricNode{node}, Peers: []v1alpha1.ForeignCluster{trustedPeer("lab", lost, down), trustedPeer("office")}}
	golden(t, "doctor-peers", w, []string{"doctor"}, []string{"doctor", "network"}, []string{"doctor", "peers"}, []string{"doctor", "peers", "-o", "json"})
}

func TestDoctorSaysWhatPlacesPods(t *testing.T) {
	w := newWorld()
	w.is = doctor.Report{Nodes: []v1alpha1.FabricNode{checkedNode("node-a")}, Placed: doctor.Placed{By: "policy/v1beta1"}}
	golden(t, "doctor-placed", w, []string{"doctor"}, []string{"doctor", "placement"}, []string{"doctor", "--get", "placement"})
	w.is.Placed = doctor.Placed{By: "webhook", Hooks: []doctor.Hook{
		{Name: "placement.entente.dev", Expires: epoch.Add(time.Hour), Fault: errors.New("pod entente-system/entente-agent-1: connection refused")},
		{Name: "daemonsets.entente.dev", Expires: epoch.Add(-time.Hour)},
	}}
	golden(t, "doctor-not-placed", w, []string{"doctor"}, []string{"doctor", "placement", "-o", "json"})
	w.is.Placed = doctor.Placed{By: "webhook", Hooks: []doctor.Hook{{Name: "placement.entente.dev", Expires: epoch.Add(time.Hour), Unprobed: errors.New("forward a port: forbidden")}}}
	golden(t, "doctor-placement-info", w, []string{"doctor"}, []string{"doctor", "peers"})
}

func TestDoctorFailsWithoutTheAPIServer(t *testing.T) {
	w := newWorld()
	w.unreadable = errors.New("no API server")
	if _, errOut, code := w.run(t, "", "doctor"); code != exit.Failed || !strings.Contains(errOut, "no API server") {
		t.Errorf("exit %d: %s", code, errOut)
	}
}
