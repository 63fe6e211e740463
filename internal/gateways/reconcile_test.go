package gateways

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

var now = peertest.Now

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // else it logs, with a stack, that no logger was set
	os.Exit(m.Run())
}

func TestSilentGatewayEnqueuesPeers(t *testing.T) {
	t.Parallel()
	clock, enqueued := now, 0
	node := &v1alpha1.FabricNode{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1alpha1.FabricNodeSpec{ClusterID: "self", Gateway: true},
		Status: v1alpha1.FabricNodeStatus{PublicKey: "key", ObservedAt: metav1.NewTime(now)},
	}
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	own.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c := peertest.Client(t, node, own)
	r := &Reconciler{Client: c, Self: "self", Most: 1, Silent: func() { enqueued++ }, Now: func() time.Time { return clock }}
	look := func(after time.Duration, want int, what string) {
		t.Helper()
		clock = clock.Add(after)
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		if enqueued != want {
			t.Errorf("%s: peers were enqueued %d times, want %d", what, enqueued, want)
		}
	}
	look(0, 0, "it is there")
	look(reportMaxAge, 0, "it is a little late")
	look(time.Minute, 1, "it fell silent")
	look(time.Minute, 1, "it still is")
	var n v1alpha1.FabricNode
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(node), &n); err != nil {
		t.Fatal(err)
	}
	n.Status.ObservedAt = metav1.NewTime(clock)
	if err := c.Update(t.Context(), &n); err != nil {
		t.Fatal(err)
	}
	look(time.Second, 2, "it is heard of again")
}

// All FabricNodes have the prefixes of this cluster's pods, and where these were learnt.
func TestFabricNodesListPodPrefixes(t *testing.T) {
	t.Parallel()
	c := peertest.Client(t, &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	refused := error(nil)
	r := &Reconciler{Client: c, Self: "self", Most: 1, Silent: func() {}, Now: func() time.Time { return now }, PodNetwork: func(context.Context) (PodNetwork, error) {
		return PodNetwork{
			Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}, Sources: slices.Repeat([]string{"IPPools of Calico"}, 9),
			Advice: "set it", HostRouting: v1alpha1.HostRoutingLegacy, HostRoutingBy: "enable-ipsec=true",
		}, refused
	}}
	for _, refused = range []error{nil, errors.New("no API server")} {
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); !errors.Is(err, refused) {
			t.Fatal(err)
		}
		var n v1alpha1.FabricNode
		if err := c.Get(t.Context(), client.ObjectKey{Name: "n1"}, &n); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(n.Spec.ClusterPodCIDRs, []string{"10.1.0.0/16"}) || len(n.Spec.ClusterPodCIDRSources) != maxPodSources ||
			n.Spec.ClusterPodCIDRAdvice != "set it" || n.Spec.CiliumHostRouting != "Legacy" || n.Spec.CiliumSettings != "enable-ipsec=true" {
			t.Errorf("with error %v the spec is %+v", refused, n.Spec)
		}
	}
}

// All FabricNodes have the prefixes of Services, those of gateways and others.
func TestFabricNodesListServicePrefixes(t *testing.T) {
	t.Parallel()
	c := peertest.Client(t,
		&v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		&v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	prefixes, refused := []netip.Prefix{netip.MustParsePrefix("10.112.0.0/16"), netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("10.96.0.0/12")}, error(nil)
	r := &Reconciler{Client: c, Self: "self", Most: 1, Silent: func() {}, Now: func() time.Time { return now }, Reserved: func(context.Context) ([]netip.Prefix, error) {
		return prefixes, refused
	}}
	look := func(want []string) {
		t.Helper()
		_, err := r.Reconcile(t.Context(), reconcile.Request{})
		if !errors.Is(err, refused) {
			t.Fatal(err)
		}
		for _, name := range []string{"n1", "n2"} {
			var n v1alpha1.FabricNode
			if err := c.Get(t.Context(), client.ObjectKey{Name: name}, &n); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(n.Spec.ServiceCIDRs, want) {
				t.Errorf("%s has %q, want %q", name, n.Spec.ServiceCIDRs, want)
			}
		}
	}
	look([]string{"10.112.0.0/16", "10.96.0.0/12"})
	prefixes, refused = nil, errors.New("no API server")
	look([]string{"10.112.0.0/16", "10.96.0.0/12"})
	for i := range 2 * maxServiceCIDRs {
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), 16))
	}
	refused = nil
	if cidrs, omitted, err := r.serviceCIDRs(t.Context()); err != nil || len(cidrs) != maxServiceCIDRs || omitted != maxServiceCIDRs {
		t.Errorf("%d prefixes are written and %d are not (%v), want %d of each", len(cidrs), omitted, err, maxServiceCIDRs)
	}
	if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
		t.Fatal(err)
	}
	var list v1alpha1.FabricNodeList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	reporting := 0
	for _, n := range list.Items {
		if strings.Contains(strings.Join(n.Spec.EndpointProblems, "; "), "and 64 more exist: set cluster.serviceCIDRs") {
			reporting++
		}
	}
	if reporting != 1 {
		t.Errorf("%d nodes report that prefixes of Services are left out, want one", reporting)
	}
}

// A gateway that is dead for long gives its place to another node, and one that is dead for a
// moment does not: others carry its traffic.
func TestGatewayThatStaysDeadIsReplaced(t *testing.T) {
	t.Parallel()
	clock := now
	fabric := func(name string, gateway bool) *v1alpha1.FabricNode {
		n := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FabricNodeSpec{ClusterID: "self", Gateway: gateway}}
		n.Status = v1alpha1.FabricNodeStatus{PublicKey: "key-" + name, ObservedAt: metav1.NewTime(now.Add(time.Hour))}
		return n
	}
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
	}
	c := peertest.Client(t, fabric("n1", true), fabric("n2", true), fabric("n3", false),
		node("n1", corev1.ConditionFalse), node("n2", corev1.ConditionTrue), node("n3", corev1.ConditionTrue))
	r := &Reconciler{Client: c, Self: "self", Most: 2, Silent: func() {}, Now: func() time.Time { return clock }}
	gateways := func() string {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		if err != nil {
			t.Fatal(err)
		}
		if result.RequeueAfter == 0 || result.RequeueAfter > replaceAfter {
			t.Errorf("requeued after %s", result.RequeueAfter)
		}
		var list v1alpha1.FabricNodeList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, n := range list.Items {
			if n.Spec.Gateway {
				names = append(names, n.Name)
			}
		}
		return strings.Join(names, " ")
	}
	for after, want := range map[time.Duration]string{0: "n1 n2", replaceAfter - time.Second: "n1 n2"} {
		clock = now.Add(after)
		if got := gateways(); got != want {
			t.Errorf("after %s the gateways are %s, want %s", after, got, want)
		}
	}
	clock = now.Add(2 * replaceAfter)
	if got := gateways(); got != "n2 n3" {
		t.Errorf("in the end the gateways are %s, want n2 n3", got)
	}
}

// The nodes that the administrator chose are announced to other clusters, with their pods.
func TestFabricNodesHaveWhatIsAnnouncedToPeers(t *testing.T) {
	t.Parallel()
	for direct, want := range map[Direct]map[string][]string{
		DirectAll:      {"gw": {"10.0.1.0/24"}, "w1": {"10.0.2.0/24"}},
		DirectGateways: {"gw": {"10.0.1.0/24"}},
		DirectNone:     {},
	} {
		var objects []client.Object
		for name, cidr := range map[string]string{"gw": "10.0.1.0/24", "w1": "10.0.2.0/24", "w2": "192.168.0.0/24", "starting": "10.0.3.0/24"} {
			n := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.FabricNodeStatus{
				PublicKey: "key", PodCIDRs: []string{cidr}, Endpoints: []string{"10.9.9.9:51820"}, ObservedAt: metav1.NewTime(now),
			}}
			if name == "starting" {
				n.Status.PublicKey = ""
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.9.9.9"}}}}
			if name == "gw" {
				node.Labels = map[string]string{v1alpha1.LabelGateway: "true"}
			}
			objects = append(objects, n, node)
		}
		c := peertest.Client(t, objects...)
		r := &Reconciler{
			Client: c, Self: "self", Most: 1, Silent: func() {}, Now: func() time.Time { return now }, Direct: direct,
			// One outside of the prefixes that peers know is not announced.
			Pods: func(_ context.Context, has map[string][]netip.Prefix) (map[string][]netip.Prefix, error) {
				delete(has, "w2")
				return has, nil
			},
		}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil {
			t.Fatal(err)
		}
		var nodes v1alpha1.FabricNodeList
		if err := c.List(t.Context(), &nodes); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes.Items {
			if !slices.Equal(n.Spec.AnnouncedPodCIDRs, want[n.Name]) {
				t.Errorf("%s: of node %s the pods %v are announced, want %v", direct, n.Name, n.Spec.AnnouncedPodCIDRs, want[n.Name])
			}
			if announced := len(want[n.Name]) > 0 || n.Name == "gw"; (len(n.Spec.Endpoints) > 0) != announced {
				t.Errorf("%s: of node %s the endpoints %v are announced", direct, n.Name, n.Spec.Endpoints)
			}
		}
	}
}
