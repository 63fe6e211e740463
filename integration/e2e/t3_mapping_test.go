package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/only"
)

// TestNamesOfPodNamespaceResolveUnderEachMapping has pods of a StatefulSet build the names of each other of their POD_NAMESPACE,
// while the provider calls their namespace as home does, or by another name: each name leads to the pod that is meant.
func TestNamesOfPodNamespaceResolveUnderEachMapping(t *testing.T) {
	only.Matrix(t, "a minute; TestPodsAbroadResolveTheNamesOfHome has the default mapping")
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	const chosen = "rome-shop"
	acceptNames(ctx, t, w.Abroad, shop, chosen)
	for remote, args := range map[string][]string{
		shop:   {"--mapping", string(v1alpha1.MappingSame)},
		chosen: {"--mapping", string(v1alpha1.MappingChosen), "--remote-name", chosen},
	} {
		t.Run("as "+remote, func(t *testing.T) {
			Offloaded(ctx, t, w, shop, args...)
			resolvesByPodNamespace(ctx, t, w, remote)
		})
	}
}

// resolvesByPodNamespace checks the names of a StatefulSet of home whose namespace the provider calls remote.
func resolvesByPodNamespace(ctx context.Context, t *testing.T, w *World, remote string) {
	t.Helper()
	web, webService := Web(shop, "web", 1, AtHome)
	db, dbService := set(shop, "db", 2)
	c := &db.Spec.Template.Spec.Containers[0]
	c.Env = append(c.Env,
		corev1.EnvVar{Name: "POD_NAMESPACE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.namespace"}}},
		corev1.EnvVar{Name: "OWN_NAME", Value: "$(POD_NAME).db.$(POD_NAMESPACE).svc.cluster.local"},
		corev1.EnvVar{Name: "WEB", Value: "web.$(POD_NAMESPACE).svc"},
	)
	OK(t, w.Home.Create(ctx, web, webService, dbService, db))
	webs, err := w.Home.PodsReady(ctx, Scheduled, shop, web.Labels, 1)
	OK(t, err)
	dbs, err := w.Home.PodsReady(ctx, Scheduled, shop, db.Labels, 2)
	OK(t, err)
	for i := range dbs {
		twin, err := w.Abroad.Twin(ctx, &dbs[i])
		OK(t, err)
		if twin.Namespace != remote {
			t.Fatalf("pod %s runs in namespace %s, want %s", twin.Name, twin.Namespace, remote)
		}
		from := dbs[1-i].Name
		own := variable(ctx, t, w, &dbs[i], "OWN_NAME")
		if want := dbs[i].Name + ".db.shop.svc.cluster.local"; own != want {
			t.Errorf("pod %s says that it is %q, want %s", dbs[i].Name, own, want)
		}
		for _, name := range []string{own, dbs[i].Name + ".db", dbs[i].Name + ".db.shop", dbs[i].Name + ".db.shop.svc"} {
			OK(t, w.Home.ReachesAll(ctx, Soon, shop, from, "http://"+name+":8080/name", dbs[i:i+1]))
		}
		for _, name := range []string{"web", "web.shop", variable(ctx, t, w, &dbs[i], "WEB"), "web.shop.svc.cluster.local"} {
			OK(t, w.Home.ReachesAll(ctx, Soon, shop, from, "http://"+name+":8080/name", webs))
		}
		for _, name := range []string{"db", "db.shop.svc.cluster.local"} {
			OK(t, w.Home.ReachesAll(ctx, Soon, shop, from, "http://"+name+":8080/name", dbs))
		}
		if remote == shop {
			hosts, err := w.Home.InPod(ctx, shop, dbs[i].Name, "/tool", "cat", "/etc/hosts")
			OK(t, err)
			if !strings.Contains(hosts, own) {
				t.Errorf("the hosts file of pod %s has not its name %s:\n%s", dbs[i].Name, own, hosts)
			}
			continue
		}
		for _, name := range []string{"web." + remote, "web." + remote + ".svc.cluster.local"} {
			if out, err := w.Home.InPod(ctx, shop, from, "/tool", "dig", name); err == nil {
				t.Errorf("%s, a name of the provider, resolves to %s", name, out)
			}
		}
	}
}

// variable returns a variable of the environment of a pod.
func variable(ctx context.Context, t *testing.T, w *World, p *corev1.Pod, name string) string {
	t.Helper()
	text, err := w.Home.InPod(ctx, p.Namespace, p.Name, "/tool", "env")
	OK(t, err)
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, name+"="); is {
			return strings.TrimSpace(value)
		}
	}
	t.Fatalf("pod %s has no variable %s:\n%s", p.Name, name, text)
	return ""
}

// acceptNames has a provider's policy accept names of namespaces, until the test ends.
func acceptNames(ctx context.Context, t *testing.T, s *Side, names ...string) {
	t.Helper()
	change := func(ctx context.Context, names []string) (before []string, err error) {
		var policy v1alpha1.PeeringPolicy
		if err := s.Client.Get(ctx, ctrlclient.ObjectKey{Name: "entente-default"}, &policy); err != nil {
			return nil, err
		}
		before, policy.Spec.NamespaceNames = policy.Spec.NamespaceNames, names
		return before, s.Client.Update(ctx, &policy)
	}
	before, err := change(ctx, names)
	OK(t, err)
	t.Cleanup(func() {
		_, err := change(context.WithoutCancel(ctx), before)
		OK(t, err)
	})
}
