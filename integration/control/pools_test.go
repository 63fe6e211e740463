package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
)

// labelNodes gives the real nodes of a cluster the values of a label, in order, until the test ends.
func labelNodes(t *testing.T, c *cluster, key string, values ...string) (nodes []string) {
	t.Helper()
	all, err := list[corev1.NodeList](t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, name, value string) {
		patch := ctrlclient.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, value))
		n := corev1.Node{}
		n.Name = name
		if err := c.client.Patch(ctx, &n, patch); err != nil {
			t.Error(err)
		}
	}
	for i := range all.Items {
		if n := &all.Items[i]; n.Labels[v1alpha1.LabelVirtualNode] == "" && len(nodes) < len(values) {
			set(t.Context(), n.Name, fmt.Sprintf("%q", values[len(nodes)]))
			t.Cleanup(func() { set(context.WithoutCancel(t.Context()), n.Name, "null") })
			nodes = append(nodes, n.Name)
		}
	}
	if len(nodes) != len(values) {
		t.Fatalf("there are only %q", nodes)
	}
	return nodes
}

// taint taints a node until the test ends.
func taint(t *testing.T, c *cluster, node, key, value string) {
	t.Helper()
	set := func(ctx context.Context, taints string) {
		n := corev1.Node{}
		n.Name = node
		if err := c.client.Patch(ctx, &n, ctrlclient.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"taints":%s}}`, taints))); err != nil {
			t.Error(err)
		}
	}
	set(t.Context(), fmt.Sprintf(`[{"key":%q,"value":%q,"effect":"NoSchedule"}]`, key, value))
	t.Cleanup(func() { set(context.WithoutCancel(t.Context()), "null") })
}

// use asks for a pool, and waits for a virtual node that is like that.
func use(t *testing.T, home *cluster, pool string, like func(*corev1.Node) error) {
	t.Helper()
	ctx := t.Context()
	_, err := call(ctx, home, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.CreatePeeringResponse, error) {
		return a.CreatePeering(ctx, &ententev1.CreatePeeringRequest{
			Peer: "peers/" + abroadName, Pool: pool, NoNetwork: true,
			Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1", "memory": "1Gi", "pods": "5"}},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, later, "the node of pool "+pool, func(ctx context.Context) error {
		var s v1alpha1.PeeringRequest
		if err := home.get(ctx, abroadName+"-"+pool, &s); err != nil {
			return eventually.Permanent(err)
		}
		if err := nodeReady(ctx, home, s.Status.Node); err != nil {
			return fmt.Errorf("%w; %+v", err, s.Status.Conditions)
		}
		var n corev1.Node
		if err := home.get(ctx, abroadName+"-"+pool+v1alpha1.VirtualNodeSuffix, &n); err != nil {
			return err
		}
		return like(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPoolsHaveTheirOwnVirtualNodes: two contracts with one provider are two virtual nodes, whose pods
// run on the nodes of their pools and on no others. Those of one have a taint, which is that pool's to tolerate.
func TestPoolsHaveTheirOwnVirtualNodes(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	real := labelNodes(t, abroad, "kind.example", "gpu", "cpu", "closed")
	taint(t, abroad, real[0], "kind.example/only", "gpu")
	taint(t, abroad, real[2], "kind.example/only", "others")
	tolerations := []v1alpha1.PoolToleration{{Key: "kind.example/only", Value: "gpu", Effect: "NoSchedule"}}
	offerBy(t, abroad, func(s *v1alpha1.PeeringPolicySpec) {
		s.Pools = []v1alpha1.NodePool{
			{
				Name: "gpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind.example": "gpu"}, Price: costs("2"),
				NodeLabels: map[string]string{"gpu.example/model": "h100"}, Tolerations: tolerations,
			},
			{Name: "cpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind.example": "cpu"}},
			{Name: "closed", NodeSelector: map[string]v1alpha1.LabelValue{"kind.example": "closed"}, Tolerations: tolerations},
		}
	})
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	where := map[string]string{"gpu": real[0], "cpu": real[1]}
	for _, pool := range sorted(where) {
		use(t, home, pool, func(n *corev1.Node) error {
			if n.Labels[v1alpha1.LabelPool] != pool || n.Labels["kind.example"] != pool || (n.Labels["gpu.example/model"] == "h100") != (pool == "gpu") {
				return fmt.Errorf("it has the labels %v", n.Labels)
			}
			if price := n.Labels[v1alpha1.LabelPrice]; price != map[string]string{"gpu": "2000", "cpu": "0"}[pool] {
				return fmt.Errorf("it costs %s", price)
			}
			return nil
		})
	}
	namespace, remote := offloaded(t, home, abroad)
	pods := map[string]string{}
	for _, pool := range sorted(where) {
		for i := range 2 {
			p := pod(namespace, fmt.Sprint(pool, "-", i), func(p *corev1.Pod) {
				p.Spec.NodeSelector = map[string]string{v1alpha1.LabelPool: pool}
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("400m")}
			})
			if err := home.client.Create(ctx, p); err != nil {
				t.Fatal(err)
			}
			pods[p.Name] = pool
			if err := runs(ctx, home, p); err != nil {
				t.Fatal(err)
			}
			if want := abroadName + "-" + pool + v1alpha1.VirtualNodeSuffix; p.Spec.NodeName != want {
				t.Errorf("%s is on %s at home, want %s", p.Name, p.Spec.NodeName, want)
			}
		}
	}
	there, err := list[corev1.PodList](ctx, abroad, inNamespace(remote))
	if err != nil || len(there.Items) != len(pods) {
		t.Fatalf("abroad are %d pods, %v; want %d", len(there.Items), err, len(pods))
	}
	for i := range there.Items {
		p := &there.Items[i]
		if want := where[pods[p.Name]]; p.Spec.NodeName != want {
			t.Errorf("%s runs on %s, want %s of pool %s", p.Name, p.Spec.NodeName, want, pods[p.Name])
		}
		own := corev1.Toleration{Key: "kind.example/only", Operator: corev1.TolerationOpEqual, Value: "gpu", Effect: corev1.TaintEffectNoSchedule}
		if slices.Contains(p.Spec.Tolerations, own) != (pods[p.Name] == "gpu") {
			t.Errorf("%s of pool %s tolerates %+v", p.Name, pods[p.Name], p.Spec.Tolerations)
		}
	}
	// One that the contract has no room for waits, and is on no node of another pool.
	over := pod(namespace, "over", func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{v1alpha1.LabelPool: "gpu"}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("400m")}
	})
	if err := home.client.Create(ctx, over); err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, soon, "the scheduler at home to say why it waits", func(ctx context.Context) error {
		if err := home.get(ctx, over.Name, over); err != nil {
			return eventually.Permanent(err)
		}
		if over.Spec.NodeName != "" {
			return eventually.Permanent(fmt.Errorf("it is on %s", over.Spec.NodeName))
		}
		for _, c := range over.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", over.Status.Conditions)
	})
	if err != nil {
		t.Error(err)
	}
	// An offer that changed is written after a while.
	err = eventually.Is(ctx, soon, "the offer to have what is free in each pool", func(ctx context.Context) error {
		var fc v1alpha1.ForeignCluster
		if err := home.get(ctx, abroadName, &fc); err != nil {
			return eventually.Permanent(err)
		}
		if o := fc.Status.Offer; o == nil || len(o.Pools) != 3 || !slices.Equal(o.OfferedPools(), []string{"cpu", "gpu"}) {
			return fmt.Errorf("the offer is %+v", o)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAnotherPoolRunsPodsForWhichOneHasNoNode: a pod that may run abroad only, and waits for a node of one pool, is
// handed back and runs in another pool of the same provider.
func TestAnotherPoolRunsPodsForWhichOneHasNoNode(t *testing.T) {
	home, abroad := agents(t)
	ctx := t.Context()
	real := labelNodes(t, abroad, "kind.example", "gpu", "cpu")
	offerBy(t, abroad, func(s *v1alpha1.PeeringPolicySpec) {
		s.Pools = []v1alpha1.NodePool{
			{Name: "gpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind.example": "gpu"}},
			{Name: "cpu", NodeSelector: map[string]v1alpha1.LabelValue{"kind.example": "cpu"}},
		}
	})
	if err := join(ctx, home, abroad); err != nil {
		t.Fatal(err)
	}
	for _, pool := range []string{"gpu", "cpu"} {
		use(t, home, pool, func(*corev1.Node) error { return nil })
	}
	namespace, _ := offloadedBy(t, home, abroad, v1alpha1.StrategyRemote)
	soonBack := []byte(`{"spec":{"unschedulable":{"after":"10s"}}}`)
	if err := home.client.Patch(ctx, offloadingOf(namespace, nil), ctrlclient.RawPatch("application/merge-patch+json", soonBack)); err != nil {
		t.Fatal(err)
	}
	taint(t, abroad, real[0], "kind.example/closed", "now") // the contract is in force already
	labels, one := map[string]string{"app": "web"}, int32(1)
	template := pod(namespace, "", nil).Spec
	template.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
		{Weight: 100, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: v1alpha1.LabelPool, Operator: corev1.NodeSelectorOpIn, Values: []string{"gpu"}},
		}}},
	}}}
	err := home.client.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	gpu, cpu, first := abroadName+"-gpu"+v1alpha1.VirtualNodeSuffix, abroadName+"-cpu"+v1alpha1.VirtualNodeSuffix, ""
	err = eventually.Is(ctx, later, "the other pool to run it", func(ctx context.Context) error {
		pods, err := list[corev1.PodList](ctx, home, inNamespace(namespace))
		if err != nil {
			return err
		}
		if len(pods.Items) == 0 {
			return errors.New("there is no pod")
		}
		for i := range pods.Items {
			if on := pods.Items[i].Spec.NodeName; first == "" {
				first = on
			}
			if p := &pods.Items[i]; p.Spec.NodeName == cpu && p.Status.Phase == corev1.PodRunning && len(pods.Items) == 1 {
				return nil
			}
		}
		return fmt.Errorf("there are %d, one on %q: %+v", len(pods.Items), pods.Items[0].Spec.NodeName, pods.Items[0].Status.Conditions)
	})
	if err != nil {
		t.Fatal(err)
	}
	var o v1alpha1.NamespaceOffloading
	if err := home.client.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}, &o); err != nil {
		t.Fatal(err)
	}
	if first != gpu || len(o.Status.PlacementBackoffs) != 1 || o.Status.PlacementBackoffs[0].Node != gpu {
		t.Errorf("it was on %s first, and kept away are %+v", first, o.Status.PlacementBackoffs)
	}
}
