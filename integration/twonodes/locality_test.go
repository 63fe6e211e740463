package twonodes

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/integration/e2e"
)

// TestServicesKeepToZonesAndClients has Services of two pods abroad, in two zones, and one at home. With a
// trafficDistribution a pod abroad is answered by the endpoint in its zone alone, and one at home by that at home, once
// the virtual node has a zone, too. With session affinity one endpoint answers a client.
func TestServicesKeepToZonesAndClients(t *testing.T) {
	ctx, s := onStage(t)
	w := s.World
	inZones(ctx, t, w.Abroad, "east", "west")
	inZones(ctx, t, w.Home, "south", "south")
	away := awayWith("zoned", 2, nil, seeks("zoned", corev1.LabelTopologyZone))
	home, _ := e2e.Web(shop, "zonedhome", 1, e2e.AtHome)
	for _, d := range []*appsv1.Deployment{away, home} {
		d.Spec.Template.Labels["zoned"] = "yes"
	}
	all, near, sticky := zonedService("all"), zonedService("near"), zonedService("sticky")
	near.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	sticky.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(600))}}
	deployed(ctx, t, w, away, home, all, near, sticky)
	aways, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, away.Labels, 2)
	ok(t, err)
	homes, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, home.Labels, 1)
	ok(t, err)
	everyone := append(slices.Clone(aways), homes...)

	ok(t, s.hinted(ctx, near.Name, aways))
	at := map[*corev1.Service]string{}
	for _, service := range []*corev1.Service{all, near, sticky} {
		var reflected corev1.Service
		ok(t, w.Abroad.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: s.twin.Namespace, Name: service.Name}, &reflected))
		at[service] = "http://" + reflected.Spec.ClusterIP + ":8080/name"
	}
	ok(t, w.Abroad.ReachesAll(ctx, e2e.Soon, s.twin.Namespace, s.twin.Name, at[all], everyone))
	ok(t, w.Until(ctx, e2e.Soon, "all pods to be endpoints of sticky abroad", func(ctx context.Context) (string, error) {
		if ready, err := w.Abroad.ReadyEndpoints(ctx, s.twin.Namespace, sticky.Name); err != nil || len(ready) != len(everyone) {
			return fmt.Sprintf("they are %v", ready), err
		}
		return "", nil
	}))
	for i := range aways {
		twin, err := w.Abroad.Twin(ctx, &aways[i])
		ok(t, err)
		ok(t, oneAnswers(ctx, w, w.Abroad, twin, at[near], aways[i].Name))
		if twin.Spec.NodeName == s.twin.Spec.NodeName {
			ok(t, oneAnswers(ctx, w, w.Abroad, &s.twin, at[near], aways[i].Name))
		}
		ok(t, oneAnswers(ctx, w, w.Abroad, twin, at[sticky], ""))
	}

	ok(t, w.Home.ReachesAll(ctx, e2e.Soon, shop, s.inn.Name, "http://near:8080/name", everyone))
	peer, err := w.Home.Peer(ctx)
	ok(t, err)
	inZone(ctx, t, w.Home, peer, "milan")
	ok(t, w.Until(ctx, e2e.Soon, "the virtual node to have a zone", func(ctx context.Context) (string, error) {
		nodes, err := w.Home.VirtualNodes(ctx)
		if err != nil || len(nodes) == 1 && nodes[0].Labels[corev1.LabelTopologyZone] == "milan" {
			return "", err
		}
		return "it has none", nil
	}))
	// Kubernetes does not reconcile a Service when a node gets a zone.
	ok(t, w.Home.Client.Patch(ctx, near, ctrlclient.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"again":"yes"}}}`))))
	ok(t, oneAnswers(ctx, w, w.Home, &s.inn, "http://near:8080/name", homes[0].Name))
}

// zonedService is a Service of all pods of the test, in either cluster.
func zonedService(name string) *corev1.Service {
	_, service := e2e.Web(shop, name, 0, e2e.Anywhere)
	service.Spec.Selector = map[string]string{"zoned": "yes"}
	return service
}

// oneAnswers waits until a Service answers a pod so often with one name that several endpoints would have been seen: with
// a name that is given, or any.
func oneAnswers(ctx context.Context, w *e2e.World, side *e2e.Side, from *corev1.Pod, url, name string) error {
	return w.Until(ctx, e2e.Soon, "one pod to answer "+from.Name+" at "+url, func(ctx context.Context) (string, error) {
		answers, err := side.Answers(ctx, from.Namespace, from.Name, 16, url)
		for answer := range answers {
			if len(answers) == 1 && strings.HasPrefix(answer, name) {
				return "", err
			}
		}
		return fmt.Sprintf("%v answer, want one, %q", answers, name), err
	})
}

// hinted waits until the EndpointSlices abroad of a Service have these pods alone, each with its zone, its node, and a
// hint of its zone.
func (s *stage) hinted(ctx context.Context, service string, pods []corev1.Pod) error {
	return s.World.Until(ctx, e2e.Soon, "the endpoints abroad of "+service+" to have hints", func(ctx context.Context) (string, error) {
		var list discoveryv1.EndpointSliceList
		if err := s.World.Abroad.Client.List(ctx, &list, ctrlclient.InNamespace(s.twin.Namespace), ctrlclient.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
			return "", err
		}
		var want, got []string
		for i := range pods {
			twin, err := s.World.Abroad.Twin(ctx, &pods[i])
			if err != nil {
				return "", err
			}
			zone := map[bool]string{true: "east", false: "west"}[twin.Spec.NodeName == s.World.Abroad.Node()]
			want = append(want, fmt.Sprintf("%s in %s on %s for [{%s}]", twin.Status.PodIP, zone, twin.Spec.NodeName, zone))
		}
		for _, slice := range list.Items {
			for _, e := range slice.Endpoints {
				text := strings.Join(e.Addresses, " ")
				if e.Zone != nil && e.NodeName != nil && e.Hints != nil {
					text += fmt.Sprintf(" in %s on %s for %v", *e.Zone, *e.NodeName, e.Hints.ForZones)
				}
				got = append(got, text)
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("they are %q, want %q", got, want), nil
		}
		return "", nil
	})
}
