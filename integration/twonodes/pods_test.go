package twonodes

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
)

// TestPodsOfAllNodesReachEachOther has several pods on each node of both clusters: more than one
// of a node's blocks has addresses for, where the network plugin has such. Each at home reaches
// each abroad by its address, and each abroad reaches all at home through their Service.
func TestPodsOfAllNodesReachEachOther(t *testing.T) {
	const each = 8
	ctx, s := onStage(t)
	w := s.World
	here, hereService := e2e.Web(shop, "here", each, e2e.AtHome)
	there, thereService := e2e.Web(shop, "there", each, e2e.Away)
	ok(t, w.Home.Create(ctx, here, hereService, there, thereService))
	t.Cleanup(func() {
		for _, object := range []ctrlclient.Object{here, hereService, there, thereService} {
			ok(t, w.Home.Client.Delete(context.WithoutCancel(ctx), object))
		}
	})
	atHome, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, here.Labels, each)
	ok(t, err)
	away, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, there.Labels, each)
	ok(t, err)

	nodes := map[string]int{}
	for i := range atHome {
		nodes[atHome[i].Spec.NodeName]++
		for j := range away {
			ok(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, atHome[i].Name, "http://"+away[j].Status.PodIP+":8080/name", away[j:j+1]))
		}
		ok(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, atHome[i].Name, "http://"+thereService.Name+":8080/name", away))
	}
	var reflected corev1.Service
	for j := range away {
		twin, err := w.Abroad.Twin(ctx, &away[j])
		ok(t, err)
		nodes[twin.Spec.NodeName]++
		t.Logf("%s at %s abroad, %s at home", twin.Name, twin.Status.PodIP, away[j].Status.PodIP)
		ok(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: twin.Namespace, Name: hereService.Name}, &reflected))
		ok(t, w.Abroad.ReachesAll(ctx, e2e.Soon, twin.Namespace, twin.Name, "http://"+reflected.Spec.ClusterIP+":8080/name", atHome))
	}
	if len(nodes) != 4 {
		t.Errorf("pods ran on %v, want all four nodes", nodes)
	}
	for _, side := range w.Sides() {
		var fabric v1alpha1.FabricNodeList
		ok(t, side.Client.List(ctx, &fabric))
		for i := range fabric.Items {
			t.Logf("node %s: %v", fabric.Items[i].Name, fabric.Items[i].Status.PodCIDRs)
			for _, p := range fabric.Items[i].Status.Problems {
				t.Errorf("node %s: %s", fabric.Items[i].Name, p)
			}
			ends := fabric.Items[i].Status.EndToEnd
			if len(ends) != 1 || ends[0].State != "Up" {
				t.Errorf("node %s probes end to end: %+v", fabric.Items[i].Name, ends)
			}
		}
	}
}
