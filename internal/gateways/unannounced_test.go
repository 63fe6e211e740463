package gateways

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/peering"
)

// Gateways, other nodes and prefixes of pods for which a message to peers has no room are reported
// where they are left out. The others are announced.
func TestOmittedGatewaysNodesAndPrefixesAreReported(t *testing.T) {
	t.Parallel()
	var objects []client.Object
	add := func(name string, gateway bool, pods ...string) {
		n := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.FabricNodeStatus{
			PublicKey: "key", PodCIDRs: pods, Endpoints: []string{"10.9.9.9:51820"}, ObservedAt: metav1.NewTime(now),
		}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.9.9.9"}}}}
		if gateway {
			node.Labels = map[string]string{v1alpha1.LabelGateway: "true"}
		}
		objects = append(objects, n, node)
	}
	for i := range peering.MaxGateways + 1 {
		add(fmt.Sprintf("gateway-%03d", i), true, fmt.Sprintf("10.1.%d.0/24", i))
	}
	for i := range peering.MaxNodes + 2 {
		add(fmt.Sprintf("worker-%03d", i), false, fmt.Sprintf("10.2.%d.0/24", i))
	}
	var crowd []string
	for i := range peering.MaxNodePods + 3 {
		crowd = append(crowd, fmt.Sprintf("10.3.0.%d/32", i))
	}
	add("crowded", false, append(crowd, "10.4.0.0/24")...)
	c := peertest.Client(t, objects...)
	r := &Reconciler{
		Client: c, Self: "self", Most: 1, Silent: func() {}, Now: func() time.Time { return now }, Direct: DirectAll,
		Pods: func(_ context.Context, has map[string][]netip.Prefix) (map[string][]netip.Prefix, error) {
			return has, nil
		},
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"gateway-064": "64 of 65 gateways are announced to peers, the first by name",
		"worker-063":  "64 of 67 nodes that are not gateways are announced to peers, the first by name", // crowded is the first
		"worker-064":  "64 of 67", "worker-065": "64 of 67",
		"crowded": "16 of 20 pod prefixes of this node are announced to peers, the largest: pods in the other 4",
	}
	var nodes v1alpha1.FabricNodeList
	if err := c.List(t.Context(), &nodes); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes.Items {
		reported := strings.Join(n.Spec.EndpointProblems, "; ")
		if text := want[n.Name]; (text == "") != (reported == "") || !strings.Contains(reported, text) {
			t.Errorf("%s reports %q, want %q", n.Name, reported, text)
		}
		unannounced := strings.HasPrefix(n.Name, "worker") && want[n.Name] != ""
		if (len(n.Spec.AnnouncedPodCIDRs) == 0) != unannounced {
			t.Errorf("of %s the pods %v are announced", n.Name, n.Spec.AnnouncedPodCIDRs)
		}
		if n.Name == "crowded" && (len(n.Spec.AnnouncedPodCIDRs) != peering.MaxNodePods || !slices.Contains(n.Spec.AnnouncedPodCIDRs, "10.4.0.0/24")) {
			t.Errorf("of %s %v are announced, want the largest", n.Name, n.Spec.AnnouncedPodCIDRs)
		}
	}
}

// A FabricNode has as many problems as fit, and the number of the others.
func TestProblemsThatAreNotListedAreCounted(t *testing.T) {
	t.Parallel()
	for n, more := range map[int]string{maxProblems: "", maxProblems + 1: "and 2 more problems", 3 * maxProblems: "and 17 more problems"} {
		var bad []string
		for i := range n {
			bad = append(bad, fmt.Sprintf("127.0.0.%d", i+1))
		}
		fabric := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.FabricNodeStatus{
			PublicKey: "key", Endpoints: []string{"10.9.9.9:51820"}, ObservedAt: metav1.NewTime(now),
		}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{v1alpha1.AnnotationEndpoint: strings.Join(bad, ",")}}}
		c := peertest.Client(t, fabric, node)
		r := &Reconciler{
			Client: c, Self: "self", Most: 1, Silent: func() {}, Now: func() time.Time { return now }, Direct: DirectAll,
			Pods: func(_ context.Context, has map[string][]netip.Prefix) (map[string][]netip.Prefix, error) {
				return has, nil
			},
		}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(fabric), fabric); err != nil {
			t.Fatal(err)
		}
		got := fabric.Spec.EndpointProblems
		if len(got) != maxProblems || strings.Contains(strings.Join(got, "; "), "more problems") != (more != "") || !strings.HasPrefix(got[len(got)-1], more) || !strings.Contains(got[0], "127.0.0.1") {
			t.Errorf("of %d problems it lists %q", n, got)
		}
	}
}
