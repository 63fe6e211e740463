package e2e

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPodsAbroadReachPodsByNamesAndNotByAddressesOfHome has a pod abroad dial another one, and one at home: by name, by what names
// resolve to, and by the addresses that home's API shows, which are home's alone.
func TestPodsAbroadReachPodsByNamesAndNotByAddressesOfHome(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	away, awayService := set(shop, "away", 2)
	inn, innService := set(shop, "inn", 1)
	place(&inn.Spec.Template.Spec, AtHome, nil)
	inn.Spec.Template.Spec.NodeSelector = nil
	OK(t, w.Home.Create(ctx, awayService, innService, away, inn))
	aways, err := w.Home.PodsReady(ctx, Scheduled, shop, away.Labels, 2)
	OK(t, err)
	inns, err := w.Home.PodsReady(ctx, Scheduled, shop, inn.Labels, 1)
	OK(t, err)
	from := aways[0].Name
	resolved := func(name string) string {
		t.Helper()
		out, err := w.Home.InPod(ctx, shop, from, "/tool", "dig", name)
		OK(t, err)
		return strings.TrimSpace(out)
	}
	for _, to := range []struct {
		pod  corev1.Pod
		name string
	}{{aways[1], "away-1.away"}, {inns[0], "inn-0.inn"}} {
		there := resolved(to.name)
		if there == to.pod.Status.PodIP {
			t.Errorf("%s resolves abroad to %s, the address of home", to.name, there)
		}
		for _, host := range []string{to.name, there} {
			OK(t, w.Home.ReachesAll(ctx, Soon, shop, from, "http://"+host+":8080/name", []corev1.Pod{to.pod}))
		}
		out, err := w.Home.InPod(ctx, shop, from, "/tool", "curl", "-t", "3s", "http://"+to.pod.Status.PodIP+":8080/name")
		if err == nil && strings.HasPrefix(out, to.pod.Name+" ") {
			t.Errorf("pod %s reaches %s at %s, its address at home", from, to.pod.Name, to.pod.Status.PodIP)
		}
		t.Logf("%s is %s abroad, and %s at home, which answers a pod abroad %q (%v)", to.pod.Name, there, to.pod.Status.PodIP, out, err)
		OK(t, w.Home.ReachesAll(ctx, Soon, shop, inns[0].Name, "http://"+to.pod.Status.PodIP+":8080/name", []corev1.Pod{to.pod}))
	}
}
