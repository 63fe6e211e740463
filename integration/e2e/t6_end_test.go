package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// TestUnpeerWithoutTheProvider ends a peering whose other side cannot be reached.
func TestUnpeerWithoutTheProvider(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	OK(t, w.DeleteNamespace(ctx, shop))
	OK(t, w.Offload(ctx, shop))
	out, _ := Web(shop, "out", 2, Away)
	OK(t, w.Home.Create(ctx, out))
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, out.Labels, 2)
	OK(t, err)
	remote, err := w.RemoteNamespace(ctx, shop)
	OK(t, err)

	OK(t, w.Cut(ctx))
	begin := time.Now()
	text, err := w.Home.Entente(ctx, "unpeer", w.Abroad.Name, "--now", "--yes", "--timeout", "1m")
	OK(t, err)
	t.Logf("unpeered without the provider in %s:\n%s", time.Since(begin).Round(100*time.Millisecond), text)
	nodes, err := w.Home.VirtualNodes(ctx)
	OK(t, err)
	if len(nodes) != 0 {
		t.Errorf("virtual node %s is still there", nodes[0].Name)
	}
	// The provider does not know, and does no harm.
	twins, err := w.Abroad.Pods(ctx, remote, out.Labels)
	OK(t, err)
	if len(twins) != 2 {
		t.Errorf("%d pods abroad while it knows nothing, want 2", len(twins))
	}
	OK(t, w.Home.Client.Delete(ctx, out))

	OK(t, w.Heal(ctx))
	begin = time.Now()
	OK(t, w.Until(ctx, Scheduled, "the provider to learn of the end", func(ctx context.Context) (string, error) {
		contracts, err := w.Abroad.Contracts(ctx, v1alpha1.ContractProvider)
		if err != nil {
			return "", err
		}
		for _, c := range contracts {
			if c.Status.Phase != "Closed" {
				return "contract " + c.Name + " is " + c.Status.Phase, nil
			}
		}
		pods, err := w.Abroad.Pods(ctx, remote, out.Labels)
		if err == nil && len(pods) > 0 {
			return PodText(&pods[0]), nil
		}
		return "", err
	}))
	t.Logf("the provider cleaned up %s after the cut was healed", time.Since(begin).Round(100*time.Millisecond))
	OK(t, w.DeleteNamespace(ctx, shop))
	// They can begin anew.
	peered(ctx, t, w)
}

// TestNothingIsLeft ends it all: it is the last test.
func TestNothingIsLeft(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	OK(t, w.DeleteNamespace(ctx, shop))
	OK(t, w.Offload(ctx, shop))
	both, service := Web(shop, "web", 4, Everywhere)
	OK(t, w.Home.Create(ctx, both, service))
	_, err := w.Home.PodsReady(ctx, Scheduled, shop, both.Labels, 4)
	OK(t, err)

	t.Run("forgetting ends it at once: what ran abroad comes home", func(t *testing.T) {
		begin := time.Now()
		text, err := w.Home.Entente(ctx, "unpeer", "--remote-kubeconfig", w.Abroad.Kubeconfig, "--forget", "--yes")
		OK(t, err)
		t.Logf("unpeered in %s:\n%s", time.Since(begin).Round(100*time.Millisecond), text)
		OK(t, w.Each(ctx, func(ctx context.Context, s *Side) error { return s.Unpeered(ctx, Scheduled) }))
		_, err = w.Home.PodsReady(ctx, Scheduled, shop, both.Labels, 4)
		OK(t, err)
	})
	if theStage.Before == nil {
		t.Skip("the chart was there already when the tests began: nothing to compare with")
	}
	t.Run("uninstalling takes the rest, also with a namespace offloaded and a peering up", func(t *testing.T) {
		peered(ctx, t, w)
		OK(t, w.Each(ctx, w.Uninstall))
		_, err := w.Home.PodsReady(ctx, Scheduled, shop, both.Labels, 4)
		OK(t, err)
		// The application is the user's and stays, without a mark of ours.
		var marked []string
		now, err := w.Home.Snapshot(ctx)
		OK(t, err)
		for name, marks := range now.Objects {
			if len(marks) > 0 {
				marked = append(marked, name)
			}
		}
		if len(marked) > 0 {
			t.Errorf("still refers to Entente: %q", marked)
		}
		OK(t, w.DeleteNamespace(ctx, shop))
		OK(t, w.NothingLeft(ctx, theStage.Before))
	})
}
