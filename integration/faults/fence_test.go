package faults

import (
	"context"
	"fmt"
	"testing"
	"time"

	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

const (
	// fence is the shortest that there is.
	fence = 3 * time.Minute
	// fenceEarly is how long before its end a provider may start to stop pods: a minute, and what
	// was already over of the fence when the line was cut.
	fenceEarly = time.Minute + 15*time.Second
	fenceLook  = 200 * time.Millisecond
)

// TestNothingRunsTwiceUnderAFence cuts the internet under a Deployment abroad, and wants the provider
// to stop its pods by itself before home begins others, with no moment in which both are there.
func TestNothingRunsTwiceUnderAFence(t *testing.T) {
	only.Matrix(t, "a fence lasts three minutes")
	ctx, w := theStage.On(t)
	name := peered(ctx, t, w)
	e2e.Offloaded(ctx, t, w, shop, "--peer-lost", "fence="+fence.String())
	out, pods := runAway(ctx, t, w, shop, name)
	before := e2e.LivesOf(pods)
	agreed(ctx, t, w)
	remote, err := w.RemoteNamespace(ctx, shop)
	e2e.OK(t, err)

	begin := time.Now()
	since := func(at time.Time) time.Duration { return at.Sub(begin).Round(100 * time.Millisecond) }
	e2e.OK(t, w.Cut(ctx))
	// Of those abroad the last moment at which one can have been there is before the first look
	// that shows none. Of those at home the first is when the API server made one.
	var stopping, gone, begun time.Time
	for begun.IsZero() && time.Since(begin) < fence+time.Minute {
		twins, err := w.Abroad.Pods(ctx, remote, out.Labels)
		e2e.OK(t, err)
		looked := time.Now()
		for i := range twins {
			if stopping.IsZero() && twins[i].DeletionTimestamp != nil {
				stopping = looked
				t.Logf("%s after the cut the provider stops its pods", since(stopping))
			}
		}
		if len(twins) == 0 && gone.IsZero() {
			gone = looked
			t.Logf("%s after the cut none is there", since(gone))
		}
		now, err := w.Home.Pods(ctx, shop, out.Labels)
		e2e.OK(t, err)
		for i := range now {
			p := &now[i]
			if _, old := before[p.Namespace+"/"+p.Name]; !old && (begun.IsZero() || p.CreationTimestamp.Time.Before(begun)) {
				begun = p.CreationTimestamp.Time
				t.Logf("%s after the cut home makes pod %s", since(begun), p.Name)
			}
		}
		time.Sleep(fenceLook)
	}
	switch {
	case gone.IsZero() || begun.IsZero():
		t.Fatalf("stopped abroad: %v, begun at home: %v", !gone.IsZero(), !begun.IsZero())
	case !gone.Before(begun):
		t.Errorf("home began another pod %s before those abroad were gone", gone.Sub(begun))
	case !stopping.IsZero() && since(stopping) < fence-fenceEarly:
		t.Errorf("the provider stopped its pods %s after the cut, with a fence of %s", since(stopping), fence)
	}
	t.Logf("for %s no pod was anywhere", begun.Sub(gone).Round(100*time.Millisecond))
	pods, err = w.Home.PodsReady(ctx, e2e.Scheduled, shop, out.Labels, 2)
	e2e.OK(t, err)
	t.Logf("%s after the cut all run at home", since(time.Now()))
	stay := e2e.LivesOf(pods)

	e2e.OK(t, w.Heal(ctx))
	_, err = w.Home.VirtualNodeReady(ctx, e2e.Restarted)
	e2e.OK(t, err)
	agreed(ctx, t, w)
	time.Sleep(5 * time.Second) // in which what was stopped would come back
	twins, err := w.Abroad.Pods(ctx, remote, out.Labels)
	e2e.OK(t, err)
	pods, err = w.Home.Pods(ctx, shop, out.Labels)
	e2e.OK(t, err)
	if err := stay.Same(e2e.LivesOf(pods)); err != nil || len(twins) > 0 {
		t.Errorf("when the provider was back it ran %d pods, and at home: %v", len(twins), err)
	}
}

// agreed waits until the status says that the provider agreed to the fence.
func agreed(ctx context.Context, t *testing.T, w *e2e.World) {
	t.Helper()
	e2e.OK(t, w.Until(ctx, e2e.Soon, "the fence to be agreed on", func(ctx context.Context) (string, error) {
		var o v1alpha1.NamespaceOffloading
		err := w.Home.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: shop, Name: v1alpha1.NamespaceOffloadingName}, &o)
		for _, c := range o.Status.Clusters {
			if c.Fence != nil && c.Fence.Duration == fence {
				return "", err
			}
		}
		return fmt.Sprintf("the status is %+v", o.Status.Clusters), err
	}))
}
