package doctor

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/entente-dev/entente/api/v1alpha1"
)

var epoch = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// checkedNode is what a node reports that checked itself a minute ago.
func checkedNode(name string, found ...v1alpha1.FabricFinding) v1alpha1.FabricNode {
	return v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.FabricNodeStatus{
		ObservedAt: metav1.NewTime(epoch.Add(-time.Minute)), Preflight: &v1alpha1.FabricPreflight{Findings: found},
	}}
}

// A node of which nothing is known does not count as healthy.
func TestDoctorReportsNodesThatWereNotChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.FabricNode)
		want   string
	}{
		"checked":             {func(*v1alpha1.FabricNode) {}, ""},
		"checked long ago":    {func(n *v1alpha1.FabricNode) { n.Status.ObservedAt = metav1.NewTime(epoch.Add(-4 * time.Minute)) }, "since 2026-03-01T11:56:00Z"},
		"no report yet":       {func(n *v1alpha1.FabricNode) { n.Status = v1alpha1.FabricNodeStatus{} }, "has not reported yet"},
		"of an older version": {func(n *v1alpha1.FabricNode) { n.Status.Preflight = nil }, "older than this command"},
		"with a clock ahead":  {func(n *v1alpha1.FabricNode) { n.Status.ObservedAt = metav1.NewTime(epoch.Add(time.Hour)) }, ""},
	} {
		n := checkedNode("node-a")
		tc.change(&n)
		found := networkFindings(Report{Nodes: []v1alpha1.FabricNode{n}}, epoch)
		if tc.want == "" && len(found) > 0 || tc.want != "" && (len(found) != 1 || found[0].Reason != "NotChecked" || !strings.Contains(found[0].Message, tc.want)) {
			t.Errorf("%s: found %+v, want %q", name, found, tc.want)
		}
	}
}

// A hop that does not work is found by its condition where no path of the status shows it.
func TestDoctorReportsHopsThatNoPathShows(t *testing.T) {
	n := checkedNode("node-a")
	n.Status.Conditions = []metav1.Condition{
		{Type: "Carrier", Status: metav1.ConditionFalse, Reason: "PathDown", Message: "gw1 is down"},
		{Type: "PeerGateways", Status: metav1.ConditionUnknown, Reason: "NoAnswerYet"},
		{Type: "EndToEnd", Status: metav1.ConditionFalse, Reason: "PodsUnreachable", Message: "lost"},
	}
	n.Status.EndToEnd = []v1alpha1.FabricEndToEnd{{PeerID: "p", State: "Down", Node: "p1", Message: "lost"}}
	found := networkFindings(Report{Nodes: []v1alpha1.FabricNode{n}}, epoch)
	if len(found) != 2 || found[0].Reason != "PodsUnreachable" || found[1].Reason != "PathDown" || found[1].Message != "Carrier: gw1 is down" {
		t.Errorf("found %+v", found)
	}
}

// It reads FabricNodes and ForeignClusters from the API server, by name what places pods, the agent's pods, where none is ready
// those of all namespaces, what pods on virtual nodes and Services there are, and nothing else.
func TestDoctorReadsNodesPeersAndWhatPlacesPods(t *testing.T) {
	pages := map[string]any{
		"fabricnodes":     v1alpha1.FabricNodeList{ListMeta: metav1.ListMeta{Continue: "more"}, Items: []v1alpha1.FabricNode{checkedNode("node-a")}},
		"fabricnodesmore": v1alpha1.FabricNodeList{Items: []v1alpha1.FabricNode{checkedNode("node-b")}},
		"foreignclusters": v1alpha1.ForeignClusterList{Items: []v1alpha1.ForeignCluster{trustedPeer("office")}},
		"peeringrequests": v1alpha1.PeeringRequestList{Items: []v1alpha1.PeeringRequest{{Status: v1alpha1.PeeringRequestStatus{Node: "office.entente.dev"}}, {}}},
		"pods":            corev1.PodList{ListMeta: metav1.ListMeta{Continue: "more"}},
		"podsmore": corev1.PodList{Items: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: []string{"db.data"}}}},
		}}},
		"services": corev1.ServiceList{Items: []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: "data", Name: "db"}}}},
	}
	var refuse *metav1.Status
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		request := req.Method + " " + req.URL.Path
		if of := req.URL.Query().Get("fieldSelector"); of != "" {
			request += "?" + url.Values{"fieldSelector": {of}}.Encode()
		}
		asked = append(asked, request)
		rw.Header().Set("Content-Type", "application/json")
		if refuse != nil {
			rw.WriteHeader(int(refuse.Code))
			_ = json.NewEncoder(rw).Encode(refuse)
			return
		}
		_ = json.NewEncoder(rw).Encode(pages[path.Base(req.URL.Path)+req.URL.Query().Get("continue")])
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "config")
	config := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\ncurrent-context: c\n", server.URL)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig = &file
	is, err := Read(t.Context(), "local", flags, "entente-system", "")
	if err != nil || len(is.Nodes) != 2 || is.Nodes[1].Name != "node-b" || is.Nodes[0].Status.Preflight == nil || len(is.Peers) != 1 || is.Peers[0].Name != "office" {
		t.Fatalf("%v, %+v", err, is)
	}
	const api = "GET /apis/entente.dev/v1alpha1/"
	const admission = "GET /apis/admissionregistration.k8s.io/v1/"
	want := []string{
		api + "fabricnodes", api + "fabricnodes", api + "foreignclusters", "GET /api/v1/namespaces/entente-system/pods", "GET /api/v1/pods",
		admission + "validatingadmissionpolicies/entente-placement",
		admission + "mutatingadmissionpolicies/entente-placement", admission + "mutatingadmissionpolicybindings/entente-placement",
		admission + "mutatingadmissionpolicies/entente-daemonsets", admission + "mutatingadmissionpolicybindings/entente-daemonsets",
		api + "peeringrequests", api + "namespaceoffloadings", "GET /api/v1/pods?fieldSelector=spec.nodeName%3Doffice.entente.dev", "GET /api/v1/pods?fieldSelector=spec.nodeName%3Doffice.entente.dev",
		"GET /api/v1/services",
	}
	if a := is.Abroad; !a.Read || !slices.Equal(a.Names, []Named{{"shop", "data", "db"}}) {
		t.Errorf("pods at peers name %+v", a)
	}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	asked = nil
	if _, err := Read(t.Context(), "local", flags, "entente-system", AreaPeers); err != nil || !slices.Equal(asked, want[:5]) {
		t.Errorf("%v, asked for %q, want %q", err, asked, want[:5])
	}
	for reason, tc := range map[metav1.StatusReason]struct {
		code int32
		want string
	}{
		metav1.StatusReasonForbidden: {http.StatusForbidden, "next: ask an administrator to bind the ClusterRole entente-view"},
		metav1.StatusReasonNotFound:  {http.StatusNotFound, "next: install Entente in this cluster"},
	} {
		refuse = &metav1.Status{Status: metav1.StatusFailure, Reason: reason, Code: tc.code, Message: "no"}
		if _, err := Read(t.Context(), "local", flags, "entente-system", ""); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", reason, err, tc.want)
		}
	}
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

func TestPeerFindings(t *testing.T) {
	no := func(kind, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason}
	}
	yes := func(kind, reason string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason}
	}
	for name, tc := range map[string]struct {
		peer v1alpha1.ForeignCluster
		want string
	}{
		"all is well":             {trustedPeer("p"), ""},
		"nothing is agreed":       {trustedPeer("p", no("Network", "TunnelNotRequired"), no("Offloading", "NoContract")), ""},
		"not trusted by it":       {trustedPeer("p", no("Trusted", "NotTrustedByPeer"), no("Connected", "NoSession")), "Error NotTrustedByPeer"},
		"clocks differ":           {trustedPeer("p", yes("Connected", "ClocksDiffer")), "Warning ClocksDiffer"},
		"root ends soon":          {trustedPeer("p", yes("CertificateValid", "RootExpiresSoon")), "Warning RootExpiresSoon"},
		"root ended, and no node": {trustedPeer("p", no("CertificateValid", "RootExpired"), no("Offloading", "PeerLost")), "Error RootExpired, Error PeerLost"},
		"fabric is silent":        {trustedPeer("p", metav1.Condition{Type: "Network", Status: metav1.ConditionUnknown, Reason: "FabricSilent"}), "Warning FabricSilent"},
		"pods are outside":        {trustedPeer("p", yes("Network", "PodsOutsidePrefixes")), "Warning PodsOutsidePrefixes"},
		"a node is cut off":       {trustedPeer("p", no("Network", "NodesCutOff")), "Error NodesCutOff"},
		"the agent never checked": {v1alpha1.ForeignCluster{Spec: v1alpha1.ForeignClusterSpec{TrustBundle: "roots"}}, "Warning NotChecked, Warning NotChecked, Warning NotChecked, Warning NotChecked"},
		"found by discovery":      {v1alpha1.ForeignCluster{}, ""},
		"claims to be another":    {v1alpha1.ForeignCluster{Status: v1alpha1.ForeignClusterStatus{Conditions: []metav1.Condition{yes("Impostor", "IDDiffers")}}}, "Warning IDDiffers"},
	} {
		var got []string
		for _, f := range peerFindings(&tc.peer) {
			got = append(got, f.Severity+" "+f.Reason)
		}
		if text := strings.Join(got, ", "); text != tc.want {
			t.Errorf("%s: %q, want %q", name, text, tc.want)
		}
	}
}
