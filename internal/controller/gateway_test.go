package controller

import (
	"encoding/base64"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/gateways"
	"github.com/entente-dev/entente/internal/peertest"
)

// A Node's annotation decides what is announced of it to peers, and the other nodes of its
// cluster go on dialling it by its own address.
func TestStateHasTheEndpointsOfANodesAnnotation(t *testing.T) {
	t.Parallel()
	fabric := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.FabricNodeStatus{
		PublicKey: base64.StdEncoding.EncodeToString(make([]byte, 32)), OverlayAddress: "fd00::1", Endpoints: []string{"10.0.0.1:51820"}, ObservedAt: metav1.NewTime(now),
	}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{v1alpha1.AnnotationEndpoint: "gw.example.com"}}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}
	c := peertest.Client(t, fabric, node)
	chosen := &gateways.Reconciler{Client: c, Self: "self", Most: 1, Silent: func() {}, Now: func() time.Time { return now }}
	states := &States{Client: c, Now: func() time.Time { return now }, Aggregate: func(p []netip.Prefix, _ int, _ []netip.Prefix) ([]netip.Prefix, int) { return p, 0 }}
	told := func() []string {
		t.Helper()
		if _, err := chosen.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		nodes, err := states.fabricNodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		network, err := states.network(t.Context(), &v1alpha1.ForeignCluster{}, nodes)
		if err != nil || len(network.Gateways) != 1 {
			t.Fatalf("peers are sent %+v, %v", network, err)
		}
		return network.Gateways[0].Endpoints
	}
	if diff := cmp.Diff([]string{"gw.example.com:51820"}, told()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
		t.Fatal(err)
	}
	delete(node.Annotations, v1alpha1.AnnotationEndpoint)
	if err := c.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.1:51820"}, told()); diff != "" {
		t.Errorf("without the annotation (-want +got):\n%s", diff)
	}
	var after v1alpha1.FabricNode
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(fabric), &after); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fabric.Status.Endpoints, after.Status.Endpoints); diff != "" {
		t.Errorf("where its own cluster dials it (-want +got):\n%s", diff)
	}
}
