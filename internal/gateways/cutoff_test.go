package gateways

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/preflight"
)

// fabricOf is a node that reported now, with paths to gateways of its own cluster and to peers.
func fabricOf(name string, paths ...v1alpha1.FabricPath) v1alpha1.FabricNode {
	n := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FabricNodeSpec{ClusterID: "self"}}
	n.Status.ObservedAt, n.Status.Backend, n.Status.Paths = metav1.NewTime(now), "userspace", paths
	for _, p := range paths {
		n.Spec.Gateway = n.Spec.Gateway || p.PeerID != "self"
	}
	return n
}

func to(gateway, state string) v1alpha1.FabricPath {
	return v1alpha1.FabricPath{PeerID: "self", Node: gateway, State: state}
}

func carries(state string) v1alpha1.FabricPath {
	return v1alpha1.FabricPath{PeerID: "peer", Node: "theirs", State: state}
}

func TestCutsNameNodesWhosePodsDoNotReachAPeer(t *testing.T) {
	t.Parallel()
	blocked := func(n v1alpha1.FabricNode, reason, severity string) v1alpha1.FabricNode {
		n.Status.Preflight = &v1alpha1.FabricPreflight{Findings: []v1alpha1.FabricFinding{{Reason: reason, Severity: severity, Message: "it does not forward", Remedy: "turn it on"}}}
		return n
	}
	standby := carries("Up")
	standby.Standby = true
	small := to("gw", "Up")
	small.LargePacketsLost = true
	well := map[string]Health{}
	for name, tc := range map[string]struct {
		others []v1alpha1.FabricNode
		health map[string]Health
		edit   func(*v1alpha1.FabricNode)
		want   string
	}{
		"all reach the gateway":                {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Up")), fabricOf("gw2", standby, to("gw", "Up"))}},
		"probes of one are lost":               {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Down")), fabricOf("x", to("gw", "Up"))}, want: "pods on w are cut off: probes from there to gateway node gw are lost"},
		"probes of the only other are lost":    {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Down"))}, want: "pods on w are cut off: probes from there"},
		"the way to another peer is lost":      {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Up"), to("other", "Down"))}},
		"one does not forward":                 {others: []v1alpha1.FabricNode{blocked(fabricOf("w", to("gw", "Up")), "ForwardingDisabled", "Error")}, want: "pods on w are cut off: it does not forward (ForwardingDisabled): turn it on"},
		"a finding stops nothing":              {others: []v1alpha1.FabricNode{blocked(fabricOf("w", to("gw", "Up")), "PortTaken", "Error")}},
		"a finding may stop something":         {others: []v1alpha1.FabricNode{blocked(fabricOf("w", to("gw", "Up")), "AliasesDiverted", "Warning")}},
		"one loses large packets":              {others: []v1alpha1.FabricNode{fabricOf("w", small)}, want: "large packets are lost from there to gateway node gw"},
		"one sends to another gateway":         {others: []v1alpha1.FabricNode{fabricOf("w", to("gw2", "Up"))}, want: "does not send to gateway node gw"},
		"a gateway that is idle is blocked":    {others: []v1alpha1.FabricNode{blocked(fabricOf("gw2", standby, to("gw", "Up")), "ForwardDropped", "Error")}, want: "pods on gw2 are cut off"},
		"the fabric of one is gone":            {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Up"))}, health: map[string]Health{"w": {Absent: true}}, want: "no pod of the fabric runs there"},
		"it is, and the kernel has the tunnel": {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Up"))}, health: map[string]Health{"w": {Absent: true}}, edit: func(n *v1alpha1.FabricNode) { n.Status.Backend = "kernel" }},
		"the fabric of one is silent":          {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Up"))}, edit: func(n *v1alpha1.FabricNode) { n.Status.ObservedAt = metav1.NewTime(now.Add(-time.Hour)) }, want: "last heard of"},
		"a Node that is not Ready":             {others: []v1alpha1.FabricNode{fabricOf("w", to("gw", "Down"))}, health: map[string]Health{"w": {NotReady: true, Absent: true}}},
		"two carry it":                         {others: []v1alpha1.FabricNode{fabricOf("gw2", carries("Up"))}, want: "pods on one of gw and gw2 are cut off"},
		"two of one kind, and one of another":  {others: []v1alpha1.FabricNode{fabricOf("w2", to("gw", "Down")), fabricOf("w1", to("gw", "Down")), fabricOf("x", to("gw", "Up")), fabricOf("y", small)}, want: "pods on y are cut off: large packets are lost from there to gateway node gw: raise the MTU of the network between, or let fragments of UDP pass; pods on w1, w2 are cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.edit != nil {
				tc.edit(&tc.others[0])
			}
			health := well
			if tc.health != nil {
				health = tc.health
			}
			nodes := Nodes{Fabric: append(tc.others, fabricOf("gw", carries("Up"))), Health: func(n string) Health { return health[n] }, Now: now}
			carrier, _, unreachable := nodes.Carrier("peer")
			if carrier == nil || unreachable != nil {
				t.Fatalf("the carrier is %v, and not reached from %v", carrier, unreachable)
			}
			got := CutsMessage(nodes.Cuts("peer", carrier))
			if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
				t.Errorf("it says %q, want %q", got, tc.want)
			}
		})
	}
}

func TestCarrierIsTheGatewayThatOthersReach(t *testing.T) {
	t.Parallel()
	dead := fabricOf("a", carries("Up"))
	dead.Status.ObservedAt = metav1.NewTime(now.Add(-30 * time.Second))
	for name, tc := range map[string]struct {
		nodes       []v1alpha1.FabricNode
		health      map[string]Health
		want        string
		unreachable []string
	}{
		"none carries it":                    {nodes: []v1alpha1.FabricNode{fabricOf("a", carries("Down"))}},
		"one that died says so still":        {nodes: []v1alpha1.FabricNode{dead, fabricOf("b", carries("Up")), fabricOf("w", to("b", "Up"))}, want: "b"},
		"it did, and there is no other node": {nodes: []v1alpha1.FabricNode{dead, fabricOf("b", carries("Up"))}, want: "b"},
		"its Node is not Ready":              {nodes: []v1alpha1.FabricNode{fabricOf("a", carries("Up"))}, health: map[string]Health{"a": {NotReady: true}}},
		"its fabric reports all the same":    {nodes: []v1alpha1.FabricNode{fabricOf("a", carries("Up"))}, health: map[string]Health{"a": {NotReady: true, Reports: true}}, want: "a"},
		"a Node that is Ready comes first": {
			nodes:  []v1alpha1.FabricNode{fabricOf("a", carries("Up")), fabricOf("b", carries("Up")), fabricOf("w", to("a", "Up"))},
			health: map[string]Health{"a": {NotReady: true, Reports: true}}, want: "b",
		},
		"of equals the first by name":           {nodes: []v1alpha1.FabricNode{fabricOf("a", carries("Up")), fabricOf("b", carries("Up"))}, want: "a"},
		"of equals the same in another order":   {nodes: []v1alpha1.FabricNode{fabricOf("b", carries("Up")), fabricOf("a", carries("Up"))}, want: "a"},
		"its fabric is gone":                    {nodes: []v1alpha1.FabricNode{fabricOf("a", carries("Up"))}, health: map[string]Health{"a": {Absent: true}}},
		"most others do not reach it":           {nodes: []v1alpha1.FabricNode{fabricOf("a", carries("Up")), fabricOf("v", to("a", "Down")), fabricOf("w", to("a", "Down"))}, want: "a", unreachable: []string{"v", "w"}},
		"the only other node does not reach it": {nodes: []v1alpha1.FabricNode{fabricOf("a", carries("Up")), fabricOf("w", to("a", "Down"))}, want: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			nodes := Nodes{Fabric: tc.nodes, Health: func(n string) Health { return tc.health[n] }, Now: now}
			carrier, _, unreachable := nodes.Carrier("peer")
			if carrier != nil {
				got = carrier.Name
			}
			if got != tc.want || !slices.Equal(unreachable, tc.unreachable) {
				t.Errorf("it is %q, unreachable from %v", got, unreachable)
			}
		})
	}
}

func TestCutsAreReportedOnceTheyLast(t *testing.T) {
	t.Parallel()
	cut, slow := Cut{Nodes: []string{"w"}, grace: cutLasts}, Cut{Nodes: []string{"x"}, grace: cutCordoned}
	both := Cut{Nodes: []string{"a", "b"}, grace: cutLasts, split: true, reported: now}
	later := both
	later.reported = now.Add(time.Minute)
	at := func(d time.Duration) time.Time { return now.Add(d) }
	for name, tc := range map[string]struct {
		cuts     []Cut
		was      CutsSince
		reported time.Time
		now      time.Time
		want     []string
		again    time.Duration
	}{
		"it began":                             {cuts: []Cut{cut, slow}, was: CutsSince{}, now: now, again: cutLasts},
		"it lasts":                             {cuts: []Cut{cut, slow}, was: CutsSince{"w": now, "x": now}, now: at(cutLasts), want: []string{"w"}, again: cutCordoned - cutLasts},
		"it lasts on a node that is cordoned":  {cuts: []Cut{slow}, was: CutsSince{"x": now}, now: at(cutCordoned), want: []string{"x"}},
		"the agent was restarted meanwhile":    {cuts: []Cut{cut}, reported: at(-time.Hour), now: now, want: []string{"w"}},
		"it begins after the agent's restart":  {cuts: []Cut{cut}, now: now, again: cutLasts},
		"two carry it, and one may be dead":    {cuts: []Cut{both}, was: CutsSince{"a b": now}, now: at(30 * time.Second), again: splitRecheck},
		"two carry it, and both have reported": {cuts: []Cut{later}, was: CutsSince{"a b": now}, now: at(time.Minute), want: []string{"a b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lasting, since, again := Lasting(tc.cuts, tc.was, tc.reported, tc.now)
			var got []string
			for _, c := range lasting {
				got = append(got, c.key())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || again != tc.again || len(since) != len(tc.cuts) {
				t.Errorf("again after %s, want %s; since %v; (-want +got):\n%s", again, tc.again, since, diff)
			}
		})
	}
}

// That the pod of a fabric is gone is known within seconds, without an object being written for it.
func TestHealthShowsNodesWithoutAFabric(t *testing.T) {
	t.Parallel()
	clock, reported := now, 0
	node := fabricOf("n1")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "entente-system", Name: "entente-fabric-1",
		OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: fabricDaemonSet, Controller: new(true)}},
	}, Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	own.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	c := peertest.Client(t, &node, own, pod)
	r := &Reconciler{Client: c, Self: "self", Most: 1, Namespace: "entente-system", Silent: func() { reported++ }, Now: func() time.Time { return clock }}
	look := func(want Health, wakes int) time.Duration {
		t.Helper()
		result, err := r.Reconcile(t.Context(), reconcile.Request{})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Health("n1"); got != want || reported != wakes {
			t.Errorf("it is %+v after %d wakes, want %+v after %d", got, reported, want, wakes)
		}
		return result.RequeueAfter
	}
	look(Health{}, 0)
	if err := c.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if after := look(Health{}, 0); after != absentAfter {
		t.Errorf("it is checked again after %s, want %s", after, absentAfter)
	}
	clock = clock.Add(absentAfter)
	look(Health{Absent: true}, 1)
	pod.ResourceVersion = ""
	if err := c.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	look(Health{}, 2)
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(own), own); err != nil {
		t.Fatal(err)
	}
	own.Spec.Unschedulable = true
	if err := c.Update(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	look(Health{Cordoned: true}, 3)
	own.Status.Conditions = nil
	if err := c.Status().Update(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	look(Health{NotReady: true, Cordoned: true, Reports: true}, 4)
	clock = now.Add(reportsWithin - time.Second)
	if after := look(Health{NotReady: true, Cordoned: true, Reports: true}, 4); after != time.Second {
		t.Errorf("it is checked again after %s, want 1s", after)
	}
	clock = now.Add(reportsWithin)
	look(Health{NotReady: true, Cordoned: true}, 5)
}

// Each new reason of preflight has to be listed here as one that stops pods or not.
func TestEachPreflightReasonIsBlockingOrNot(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "../preflight/preflight.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.ValueSpec); ok {
			if kind, ok := s.Type.(*ast.Ident); ok && kind.Name == "Reason" {
				all = append(all, s.Names[0].Name)
			}
		}
		return true
	})
	if len(all) == 0 {
		t.Fatal("preflight has no reasons")
	}
	want := blocking()
	for _, reason := range []preflight.Reason{
		preflight.TunMissing, preflight.IPv6Disabled, preflight.PortTaken, // by which there is no tunnel, so that probes are lost, too
		preflight.ServiceOverlap, preflight.RouteOverlap, preflight.PodsOutsidePrefixes, preflight.StrictReversePath, // by which some packets pass
		preflight.UnderlayMTUTooSmall, preflight.ConntrackNearlyFull, preflight.CheckIncomplete,
	} {
		want = append(want, string(reason))
	}
	if slices.Sort(all); !slices.Equal(all, slices.Sorted(slices.Values(want))) {
		t.Errorf("preflight has the reasons %q, of which this package and this test know %q", all, want)
	}
}
