package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestPodsAbroadUseTheServicesThatAnotherNamespaceOpens has a database in a namespace that stays at home, and a pod abroad of
// another one, which reaches it by its name for as long as the database's owner says so.
func TestPodsAbroadUseTheServicesThatAnotherNamespaceOpens(t *testing.T) {
	const data, third = "data", "bank"
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, data, "--strategy", "Local")
	Offloaded(ctx, t, w, shop, "--strategy", "Remote")
	Offloaded(ctx, t, w, third, "--strategy", "Remote")
	db, dbService := Web(data, "db", 1, Anywhere)
	client, _ := Web(shop, "client", 1, Anywhere)
	client.Spec.Template.Spec.Containers[0].Env = append(client.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "DATABASE", Value: "http://db.data:8080/name"})
	other, _ := Web(third, "other", 1, Anywhere)
	OK(t, w.Home.Create(ctx, db, dbService, client, other))
	dbs, err := w.Home.PodsReady(ctx, Scheduled, data, db.Labels, 1)
	OK(t, err)
	clients, err := w.Home.PodsReady(ctx, Scheduled, shop, client.Labels, 1)
	OK(t, err)
	others, err := w.Home.PodsReady(ctx, Scheduled, third, other.Labels, 1)
	OK(t, err)
	if home, away := Split(append(append(dbs[:1:1], clients...), others...)); len(home) != 1 || len(away) != 2 || home[0].Name != dbs[0].Name {
		t.Fatalf("at home run %d pods and abroad %d, want the database alone at home", len(home), len(away))
	}
	reached := func(namespace, pod string) bool {
		_, err := w.Home.InPod(ctx, namespace, pod, "/tool", "curl", "-t", "2s", "http://db.data.svc.cluster.local:8080/name")
		return err == nil
	}
	closed := func() {
		t.Helper()
		OK(t, w.Until(ctx, Soon, "the database not to be reached from abroad", func(context.Context) (string, error) {
			if reached(shop, clients[0].Name) {
				return "it is", nil
			}
			return "", nil
		}))
	}
	closed()
	named := func() string {
		t.Helper()
		remedies, err := w.Home.Entente(ctx, "doctor", "services", "--get", "findings[*].remedy")
		OK(t, err)
		return remedies
	}
	if got := named(); !strings.HasSuffix(strings.TrimSpace(got), "entente offload namespace data --open-to shop") {
		t.Errorf("doctor does not say how to open the database: %q", got)
	}
	openTo := func(to string) {
		t.Helper()
		_, err := w.Home.Entente(ctx, "offload", "namespace", data, "--open-to", to)
		OK(t, err)
	}
	openTo(shop)
	if got := named(); strings.TrimSpace(got) != "[]" {
		t.Errorf("doctor finds the database closed that is open: %q", got)
	}
	OK(t, w.Home.ReachesAll(ctx, Soon, shop, clients[0].Name, "http://db.data:8080/name", dbs))
	if reached(third, others[0].Name) {
		t.Error("a pod of a namespace that is not named reaches the database")
	}
	openTo("*")
	OK(t, w.Home.ReachesAll(ctx, Soon, third, others[0].Name, "http://db.data:8080/name", dbs))
	openTo("")
	closed()
	openTo(shop)
	says, err := w.Home.Entente(ctx, "unoffload", "namespace", data)
	OK(t, err)
	if !strings.Contains(says, "no longer open to pods abroad of shop") {
		t.Errorf("it does not say whose pods lose the database: %s", says)
	}
	closed()
}
