package twonodes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
)

// inZone puts a node, or what gives one its labels, into a zone until the test ends.
func inZone(ctx context.Context, t *testing.T, side *e2e.Side, o ctrlclient.Object, zone string) {
	t.Helper()
	patch := func(value string) ctrlclient.Patch {
		return ctrlclient.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, corev1.LabelTopologyZone, value))
	}
	t.Cleanup(func() { ok(t, side.Client.Patch(context.WithoutCancel(ctx), o, patch("null"))) })
	ok(t, side.Client.Patch(ctx, o, patch(strconv.Quote(zone))))
}

// inZones puts the nodes of a cluster into zones until the test ends.
func inZones(ctx context.Context, t *testing.T, side *e2e.Side, zones ...string) {
	t.Helper()
	for i, node := range side.Plan.Nodes {
		inZone(ctx, t, side, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}, zones[i])
	}
}

// seeks is a term of affinity to the pods called app.
func seeks(app, topology string) []corev1.PodAffinityTerm {
	return []corev1.PodAffinityTerm{{TopologyKey: topology, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
}

// awayWith is a Deployment abroad whose pods seek some and shun others.
func awayWith(name string, replicas int32, seek, shun []corev1.PodAffinityTerm) *appsv1.Deployment {
	d, _ := e2e.Web(shop, name, replicas, e2e.Away)
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{
		PodAffinity:     &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: seek},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: shun},
	}
	return d
}

// deployed creates objects at home, until the test ends.
func deployed(ctx context.Context, t *testing.T, w *e2e.World, objects ...ctrlclient.Object) {
	t.Helper()
	t.Cleanup(func() {
		for _, o := range objects {
			ok(t, ctrlclient.IgnoreNotFound(w.Home.Client.Delete(context.WithoutCancel(ctx), o)))
		}
	})
	ok(t, w.Home.Create(ctx, objects...))
}

// nodesAbroad returns where the provider runs pods of home, and how many on each node.
func nodesAbroad(ctx context.Context, w *e2e.World, pods []corev1.Pod) (map[string]int, error) {
	on := map[string]int{}
	for i := range pods {
		twin, err := w.Abroad.Twin(ctx, &pods[i])
		if err != nil {
			return nil, err
		}
		on[twin.Spec.NodeName]++
	}
	return on, nil
}

// TestPodsAbroadSeekAndShunEachOther has pods that require others, or none of others, on their node or in their
// zone, in a provider with a zone on each of its two nodes. To the home scheduler both nodes are one.
func TestPodsAbroadSeekAndShunEachOther(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	inZones(ctx, t, w.Abroad, "east", "west")
	beside := awayWith("beside", 3, seeks("out", corev1.LabelHostname), nil)
	elsewhere := awayWith("elsewhere", 2, nil, seeks("out", corev1.LabelTopologyZone))
	apart := awayWith("apart", 3, nil, seeks("apart", corev1.LabelTopologyZone))
	alone := awayWith("alone", 2, nil, seeks("alone", corev1.LabelHostname))
	spread, _ := e2e.Web(shop, "spread", 2, e2e.Away)
	spread.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: spread.Spec.Selector,
	}}
	deployed(ctx, t, w, beside, elsewhere, apart, alone, spread)

	first, other := w.Abroad.Node(), second(w.Abroad)
	for d, want := range map[*appsv1.Deployment]map[string]int{beside: {first: 3}, elsewhere: {other: 2}, spread: {first: 1, other: 1}} {
		pods, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, d.Labels, int(*d.Spec.Replicas))
		ok(t, err)
		on, err := nodesAbroad(ctx, w, pods)
		ok(t, err)
		t.Logf("%s: %v", d.Name, on)
		if !maps.Equal(on, want) {
			t.Errorf("the pods %s run on %v, want %v", d.Name, on, want)
		}
	}
	twins, err := w.Abroad.Pods(ctx, s.twin.Namespace, spread.Labels)
	ok(t, err)
	for _, twin := range twins {
		if c := twin.Spec.TopologySpreadConstraints; len(c) != 1 || c[0].WhenUnsatisfiable != corev1.ScheduleAnyway {
			t.Errorf("pod %s has the constraints %+v, want one of hosts with ScheduleAnyway", twin.Name, c)
		}
	}
	// One waits abroad for a third zone, and one at home for another node than the virtual one.
	ok(t, leftOver(ctx, w, apart, v1alpha1.PodOffloaded, map[string]int{first: 1, other: 1}))
	ok(t, leftOver(ctx, w, alone, corev1.PodScheduled, nil))
}

// leftOver waits until all pods of a Deployment but one are ready, and that one waits for a node, as the reason of its
// condition of a type says. It checks on which nodes abroad the others run, if want is not nil.
func leftOver(ctx context.Context, w *e2e.World, d *appsv1.Deployment, condition corev1.PodConditionType, want map[string]int) error {
	return w.Until(ctx, e2e.Soon, "one pod of "+d.Name+" to wait for a node", func(ctx context.Context) (string, error) {
		pods, err := w.Home.Pods(ctx, shop, d.Labels)
		if err != nil {
			return "", err
		}
		ready := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return !e2e.PodReady(&p) })
		waits := slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
			return !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == condition && c.Reason == corev1.PodReasonUnschedulable
			})
		})
		if len(waits) != 1 || len(ready) != int(*d.Spec.Replicas)-1 {
			return fmt.Sprintf("%d are ready and %d wait, of %d", len(ready), len(waits), len(pods)), nil
		}
		on, err := nodesAbroad(ctx, w, ready)
		if err == nil && want != nil && !maps.Equal(on, want) {
			err = fmt.Errorf("the others run on %v, want %v", on, want)
		}
		return "", err
	})
}
