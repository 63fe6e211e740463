package fabric

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/preflight"
	"github.com/entente-dev/entente/tunnel"
	"github.com/entente-dev/entente/tunnel/plan"
)

// reports is a fabric with a fixed status.
type reports struct{ status tunnel.Status }

func (*reports) Set(plan.Desired)         {}
func (r *reports) Status() tunnel.Status  { return r.status }
func (*reports) Changed() <-chan struct{} { return nil }
func reporting(port int) tunnel.Status {
	return tunnel.Status{PublicKey: plan.PublicKey{1}, Backend: tunnel.BackendKernel, ListenPort: port}
}
func prefixList(texts ...string) []netip.Prefix { return kube.Prefixes(texts) }

func TestANodeReportsItsFindings(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		earlier := fabricNode("a", "me", keyA, true)
		earlier.Status.Preflight = &v1alpha1.FabricPreflight{Findings: []v1alpha1.FabricFinding{{Reason: "PortTaken", Severity: "Error"}}}
		objects := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(own, &earlier).WithStatusSubresource(&v1alpha1.FabricNode{}).Build()
		var log bytes.Buffer
		observed, times := preflight.Observed{Forward4: 0, Tun: true}, 0
		fabric := &reports{}
		n := &node{
			cfg:    Config{Node: "a", Interface: "entente0", Port: 51820, Log: slog.New(slog.NewTextHandler(&log, nil))},
			fabric: fabric, inBand: idleRelays(t), client: objects,
			checks: checks{observe: func(preflight.Fabric) preflight.Observed { times++; return observed }},
		}
		var last v1alpha1.FabricNodeStatus
		report := func(what string, wantTimes int, want ...string) {
			t.Helper()
			if err := n.writeStatus(t.Context(), &last, true); err != nil {
				t.Fatal(err)
			}
			var now v1alpha1.FabricNode
			if err := objects.Get(t.Context(), client.ObjectKey{Name: "a"}, &now); err != nil {
				t.Fatal(err)
			}
			if now.Status.Preflight == nil {
				t.Fatalf("%s: the node was not checked", what)
			}
			var got []string
			for _, f := range now.Status.Preflight.Findings {
				got = append(got, f.Severity+" "+f.Reason)
			}
			if diff := cmp.Diff(want, got); diff != "" || times != wantTimes {
				t.Errorf("%s: checked %d times, want %d; findings (-want +got)\n%s", what, times, wantTimes, diff)
			}
		}
		report("before the fabric knows its device", 0, "Error PortTaken")
		fabric.status = reporting(0)
		report("with a device", 1, "Error ForwardingDisabled")
		report("at once", 1, "Error ForwardingDisabled")
		observed.Forward4, observed.PortInUse = 1, true
		fabric.status = reporting(51820)
		report("the device changed", 2, "Error PortTaken")
		observed.PortInUse = false
		time.Sleep(preflightEvery - time.Second)
		report("a little later", 2, "Error PortTaken")
		time.Sleep(time.Second)
		report("when it is time", 3)
		fabric.status.Unfiltered = "no rules"
		report("its firewall is gone", 4, "Error NFTablesUnavailable")
		fabric.status = tunnel.Status{Problems: []plan.Problem{{Text: "no device"}}}
		observed.Tun = false
		report("without a device", 5, "Error TunMissing")
		if found := strings.Count(log.String(), "finding on this node"); found != 4 {
			t.Errorf("the log has %d findings, want 4: each as it comes\n%s", found, &log)
		}
	})
}

// Other nodes drop packets in tunnels from addresses that are not those of a node's pods: a fabric
// that begins again keeps what the one before it learned until it has read the routes itself.
func TestPodCIDRsAreKeptUntilTheFabricHasReadTheRoutes(t *testing.T) {
	t.Parallel()
	assigned, learned := []string{"10.200.1.0/24"}, []string{"10.244.7.0/26", "10.244.9.3/32"}
	for name, c := range map[string]struct {
		before []string
		saw    []netip.Prefix
		want   []string
	}{
		"not read, none before":    {nil, nil, assigned},
		"not read, learned before": {learned, nil, learned},
		"read and found none":      {learned, []netip.Prefix{}, nil},
		"read and found others":    {learned, prefixList("10.244.8.0/26"), []string{"10.244.8.0/26"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{PodCIDRs: assigned}}
			fn := fabricNode("a", "me", keyA, true)
			fn.Status.PodCIDRs = c.before
			objects := fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(own, &fn).WithStatusSubresource(&v1alpha1.FabricNode{}).Build()
			status := reporting(51820)
			status.PodCIDRs = c.saw
			n := &node{
				cfg:    Config{Node: "a", Log: slog.New(slog.DiscardHandler)},
				fabric: &reports{status: status}, inBand: idleRelays(t), client: objects,
				checks: checks{observe: func(preflight.Fabric) preflight.Observed { return preflight.Observed{Tun: true} }},
			}
			var last v1alpha1.FabricNodeStatus
			if err := n.writeStatus(t.Context(), &last, true); err != nil {
				t.Fatal(err)
			}
			var now v1alpha1.FabricNode
			if err := objects.Get(t.Context(), client.ObjectKey{Name: "a"}, &now); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, now.Status.PodCIDRs); diff != "" {
				t.Errorf("pods' prefixes (-want +got)\n%s", diff)
			}
		})
	}
}

func TestANodeIsCheckedByWhatIsInUse(t *testing.T) {
	t.Parallel()
	own := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.200.1.0/24"}}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
		{Type: corev1.NodeExternalIP, Address: "192.0.2.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}, {Type: corev1.NodeHostName, Address: "a"},
	}}}
	nodes := []v1alpha1.FabricNode{fabricNode("a", "me", keyA, true), fabricNode("b", "me", keyB, false)}
	nodes[0].Status.PodCIDRs, nodes[1].Status.PodCIDRs = []string{"10.200.1.0/24"}, []string{"10.200.2.0/24", "no prefix"}
	tunnels := []v1alpha1.Tunnel{
		{Spec: v1alpha1.TunnelSpec{Local: []v1alpha1.PrefixAlias{{Prefix: "10.9.0.0/16", Alias: "100.70.0.0/16"}}, Remote: []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "198.18.0.0/16"}}}},
		{Spec: v1alpha1.TunnelSpec{Local: []v1alpha1.PrefixAlias{{Prefix: "10.9.0.0/16", Alias: "100.71.0.0/16"}}}},
	}
	nodes[0].Spec.ServiceCIDRs, nodes[1].Spec.ServiceCIDRs = []string{"10.112.0.0/12", "10.96.0.0/12"}, []string{"10.1.0.0/16"}
	cfg := Config{Node: "a", Interface: "wg7", Port: 4500, PodCIDRs: prefixList("10.8.0.0/16"), ServiceCIDRs: prefixList("10.96.0.0/12"), AliasPool: prefixList("198.18.0.0/15")}
	got := preflightOf(cfg, reporting(4500), own, nodes, tunnels)
	want := preflight.Fabric{
		Device: "wg7", Port: 4500, HasDevice: true, Listening: true, Pool: cfg.AliasPool, Services: prefixList("10.96.0.0/12", "10.112.0.0/12"),
		Pods: prefixList("10.8.0.0/16", "10.9.0.0/16", "10.200.1.0/24", "10.200.2.0/24"), OwnPods: prefixList("10.200.1.0/24"), Aliases: prefixList("198.18.0.0/16"),
		Announced: []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("192.0.2.1")},
	}
	same := []cmp.Option{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}
	if diff := cmp.Diff(want, got, same...); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if preflightOf(cfg, reporting(0), own, nil, nil).Listening || preflightOf(cfg, tunnel.Status{}, own, nil, nil).HasDevice {
		t.Error("a device that is not there, or has no port, counts as one")
	}
}
