package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/entente-dev/entente/api/v1alpha1"
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

	w.fabricNodes = []v1alpha1.FabricNode{checkedNode("node-a"), checkedNode("node-b")}
	golden(t, "doctor", w, []string{"doctor"}, []string{"doctor", "network", "-o", "json"})
	w.fabricNodes = []v1alpha1.FabricNode{checkedNode("node-a", maybe)}
	golden(t, "doctor-info", w, []string{"doctor", "network"}, []string{"doctor", "--get", "healthy"})
	w.fabricNodes = []v1alpha1.FabricNode{checkedNode("node-b", small, maybe), checkedNode("node-a", taken, maybe)}
	for i := range 6 {
		w.fabricNodes = append(w.fabricNodes, checkedNode(fmt.Sprintf("pool-%d", i), taken))
	}
	golden(t, "doctor-findings", w, []string{"doctor", "network"}, []string{"doctor", "network", "--get", "findings[*].reason"}, []string{"doctor", "--get", "findings[0]", "-o", "yaml"})
	w.fabricNodes = nil
	golden(t, "doctor-nothing", w, []string{"doctor", "network"}, []string{"doctor", "network", "-o", "yaml"}, []string{"doctor", "storage"}, []string{"doctor", "network", "storage"})
}

// A node of which nothing is known is not one on which nothing is wrong.
func TestDoctorTellsOfNodesThatWereNotChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.FabricNode)
		want   string
	}{
		"checked":             {func(*v1alpha1.FabricNode) {}, ""},
		"checked long ago":    {func(n *v1alpha1.FabricNode) { n.Status.ObservedAt = metav1.NewTime(epoch.Add(-4 * time.Minute)) }, "since 2026-03-01T11:56:00Z"},
		"never heard of":      {func(n *v1alpha1.FabricNode) { n.Status = v1alpha1.FabricNodeStatus{} }, "has not reported yet"},
		"of an older version": {func(n *v1alpha1.FabricNode) { n.Status.Preflight = nil }, "older than this command"},
		"with a clock ahead":  {func(n *v1alpha1.FabricNode) { n.Status.ObservedAt = metav1.NewTime(epoch.Add(time.Hour)) }, ""},
	} {
		n := checkedNode("node-a")
		tc.change(&n)
		found := networkFindings([]v1alpha1.FabricNode{n}, epoch)
		if tc.want == "" && len(found) > 0 || tc.want != "" && (len(found) != 1 || found[0].Reason != "NotChecked" || !strings.Contains(found[0].Message, tc.want)) {
			t.Errorf("%s: found %+v, want %q", name, found, tc.want)
		}
	}
}

// It asks the API server for FabricNodes and for nothing else.
func TestDoctorReadsFabricNodesAlone(t *testing.T) {
	pages := []v1alpha1.FabricNodeList{
		{ListMeta: metav1.ListMeta{Continue: "more"}, Items: []v1alpha1.FabricNode{checkedNode("node-a")}},
		{Items: []v1alpha1.FabricNode{checkedNode("node-b")}},
	}
	var refuse *metav1.Status
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		asked = append(asked, req.Method+" "+req.URL.Path)
		rw.Header().Set("Content-Type", "application/json")
		if refuse != nil {
			rw.WriteHeader(int(refuse.Code))
			_ = json.NewEncoder(rw).Encode(refuse)
			return
		}
		_ = json.NewEncoder(rw).Encode(pages[map[string]int{"more": 1}[req.URL.Query().Get("continue")]])
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "config")
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n", server.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &file
	local := target{label: "local", flags: flags}
	nodes, err := listFabricNodes(t.Context(), local)
	if err != nil || len(nodes) != 2 || nodes[1].Name != "node-b" || nodes[0].Status.Preflight == nil {
		t.Fatalf("%v, %+v", err, nodes)
	}
	for _, call := range asked {
		if call != "GET /apis/entente.dev/v1alpha1/fabricnodes" {
			t.Errorf("asked for %s", call)
		}
	}
	for reason, tc := range map[metav1.StatusReason]struct {
		code int32
		want string
	}{
		metav1.StatusReasonForbidden: {http.StatusForbidden, "next: have an administrator bind the ClusterRole entente-view"},
		metav1.StatusReasonNotFound:  {http.StatusNotFound, "next: install Entente in this cluster"},
	} {
		refuse = &metav1.Status{Status: metav1.StatusFailure, Reason: reason, Code: tc.code, Message: "no"}
		if _, err := listFabricNodes(t.Context(), local); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", reason, err, tc.want)
		}
	}
	w := newWorld()
	w.unreadable = errors.New("no API server")
	if _, errOut, code := w.run(t, "", "doctor"); code != exitError || !strings.Contains(errOut, "no API server") {
		t.Errorf("exit %d: %s", code, errOut)
	}
}
