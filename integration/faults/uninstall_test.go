package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// ends is within what a peering, or all of Entente, is gone, in whatever state it is.
const ends = time.Minute

// broken is a state of a cluster at home that has a peering.
type broken struct {
	name string
	// begin has a peering; nil has one at work, with pods abroad.
	begin func(ctx context.Context, w *e2e.World) error
	// make brings the state about.
	make func(ctx context.Context, w *e2e.World) error
	// mend, if set, is needed before the agent can end a peering.
	mend func(ctx context.Context, w *e2e.World) error
	// release is whether Helm still knows of an install.
	release bool
}

func states() []broken {
	nothing := func(context.Context, *e2e.World) error { return nil }
	home := func(w *e2e.World) *e2e.Side { return w.Home }
	abroad := func(w *e2e.World) *e2e.Side { return w.Abroad }
	install := func(ctx context.Context, w *e2e.World) error { return w.Install(ctx, w.Home) }
	return []broken{
		{"the peer is alive", nil, nothing, nil, true},
		{"the peer is gone", nil, func(ctx context.Context, w *e2e.World) error { return w.Cut(ctx) }, nil, true},
		{"the peer was gone before it answered", halfPeered, nothing, nil, true},
		{"the peer has forgotten it", nil, peerForgot, nil, true},
		{"the namespace was deleted first", nil, namespaceDeleted, install, false},
		{"the definitions were deleted first", nil, definitionsDeleted, install, true},
		{"the virtual node was deleted", nil, nodeDeleted, nil, true},
		{"there is no agent", nil, withoutAgent(home), scaled(home, "1"), true},
		{"the peer has no agent", nil, withoutAgent(abroad), scaled(abroad, "1"), true},
	}
}

// scaled scales the agent of a cluster.
func scaled(of func(*e2e.World) *e2e.Side, replicas string) func(context.Context, *e2e.World) error {
	return func(ctx context.Context, w *e2e.World) error {
		_, err := of(w).Kubectl(ctx, "scale", "-n", e2e.SystemNamespace, "deployment/entente-agent", "--replicas="+replicas)
		return err
	}
}

// withoutAgent stops the agent of a cluster.
func withoutAgent(of func(*e2e.World) *e2e.Side) func(context.Context, *e2e.World) error {
	return func(ctx context.Context, w *e2e.World) error {
		if err := scaled(of, "0")(ctx, w); err != nil {
			return err
		}
		return w.Until(ctx, e2e.Soon, "the agent to be gone", func(ctx context.Context) (string, error) {
			pods, err := of(w).AgentPods(ctx)
			if err != nil || len(pods) == 0 {
				return "", err
			}
			return e2e.PodText(&pods[0]), nil
		})
	}
}

// halfPeered asks for resources of a cluster that is known but does not answer.
func halfPeered(ctx context.Context, w *e2e.World) error {
	if err := errors.Join(w.Join(ctx), w.Cut(ctx)); err != nil {
		return err
	}
	if out, err := w.Home.Entente(ctx, "peer", w.Abroad.Name, "--timeout", "5s"); err == nil {
		return fmt.Errorf("a peer that is gone granted a request: %s", out)
	}
	return nil
}

// peerForgot makes the peer forget home while home cannot be notified.
func peerForgot(ctx context.Context, w *e2e.World) error {
	if err := w.Cut(ctx); err != nil {
		return err
	}
	_, err := w.Abroad.Entente(ctx, "unpeer", w.Home.Name, "--now", "--forget", "--yes")
	return errors.Join(err, w.Heal(ctx))
}

func namespaceDeleted(ctx context.Context, w *e2e.World) error {
	_, err := w.Home.Kubectl(ctx, "delete", "namespace", e2e.SystemNamespace, "--timeout=60s")
	return err
}

// definitionsDeleted deletes the definitions of all kinds, as `kubectl delete crd` does it, which waits for their objects,
// and so for the agent.
func definitionsDeleted(ctx context.Context, w *e2e.World) error {
	var list apiextensionsv1.CustomResourceDefinitionList
	client, err := definitions(w.Home)
	if err != nil {
		return err
	}
	left := func(ctx context.Context) (own []string, err error) {
		err = client.List(ctx, &list)
		for i := range list.Items {
			if strings.HasSuffix(list.Items[i].Name, "."+v1alpha1.GroupVersion.Group) {
				own = append(own, list.Items[i].Name)
			}
		}
		return own, err
	}
	all, err := left(ctx)
	for _, name := range all {
		d := &apiextensionsv1.CustomResourceDefinition{}
		d.Name = name
		err = errors.Join(err, client.Delete(ctx, d))
	}
	if err != nil {
		return err
	}
	return w.Until(ctx, ends, "no definition to be left", func(ctx context.Context) (string, error) {
		own, err := left(ctx)
		return strings.Join(own, ", "), err
	})
}

func definitions(s *e2e.Side) (ctrlclient.Client, error) {
	kinds, err := e2e.Scheme()
	if err == nil {
		err = apiextensionsv1.AddToScheme(kinds)
	}
	if err != nil {
		return nil, err
	}
	return ctrlclient.New(s.REST, ctrlclient.Options{Scheme: kinds})
}

func nodeDeleted(ctx context.Context, w *e2e.World) error {
	nodes, err := w.Home.VirtualNodes(ctx)
	for i := range nodes {
		err = errors.Join(err, w.Home.Client.Delete(ctx, &nodes[i]))
	}
	return err
}

// TestAnEndLeavesNothing ends a peering, and then Entente itself, in the states in which a cluster
// may be at that time, and expects that to take a minute at most and to leave the cluster as it was
// before.
func TestAnEndLeavesNothing(t *testing.T) {
	only.Matrix(t, "it takes twenty minutes")
	ctx, w := theStage.On(t)
	if theStage.Before == nil {
		t.Skip("the chart was there already when the tests began: nothing to compare with")
	}
	// What a peering is compared with, once both have an agent.
	t.Run("unpeer", func(t *testing.T) {
		for _, state := range states() {
			t.Run(state.name, func(t *testing.T) { unpeers(ctx, t, w, state) })
		}
	})
	t.Run("uninstall", func(t *testing.T) {
		for _, state := range states() {
			t.Run(state.name, func(t *testing.T) { uninstalls(ctx, t, w, state) })
		}
	})
}

// installed makes sure that both clusters have the chart and no peering, and takes snapshots.
func installed(ctx context.Context, t *testing.T, w *e2e.World) map[*e2e.Side]e2e.Snapshot {
	t.Helper()
	e2e.OK(t, w.Heal(ctx))
	e2e.OK(t, w.Each(ctx, func(ctx context.Context, s *e2e.Side) error {
		if _, err := s.AgentPod(ctx); err == nil {
			return nil
		}
		return errors.Join(w.Install(ctx, s), s.AgentReady(ctx, e2e.Restarted))
	}))
	e2e.OK(t, w.Unpeer(ctx))
	e2e.OK(t, w.DeleteNamespace(ctx, shop))
	before, err := w.Snapshots(ctx)
	e2e.OK(t, err)
	return before
}

// begins has the peering of the state: without another one, three pods run abroad, one of which may complete.
func (b broken) begins(ctx context.Context, t *testing.T, w *e2e.World) {
	t.Helper()
	if b.begin != nil {
		e2e.OK(t, b.begin(ctx, w))
		return
	}
	peered(ctx, t, w)
	e2e.OK(t, w.Offload(ctx, shop))
	out, service := e2e.Web(shop, "out", 2, e2e.Away)
	e2e.OK(t, w.Home.Create(ctx, out, service))
	once := &corev1.Pod{Spec: out.Spec.Template.Spec}
	once.Namespace, once.Name, once.Labels, once.Spec.RestartPolicy = shop, "once", map[string]string{"app": "once"}, corev1.RestartPolicyNever
	e2e.OK(t, w.Home.Create(ctx, once))
	for app, n := range map[string]int{"out": 2, "once": 1} {
		_, err := w.Home.PodsReady(ctx, e2e.Scheduled, shop, map[string]string{"app": app}, n)
		e2e.OK(t, err)
	}
}

func unpeers(ctx context.Context, t *testing.T, w *e2e.World, state broken) {
	before := installed(ctx, t, w)
	state.begins(ctx, t, w)
	e2e.OK(t, state.make(ctx, w))
	began := time.Now()
	if state.mend != nil {
		// People delete things while no agent is there to act.
		e2e.OK(t, deleteAsks(ctx, w.Home))
		e2e.OK(t, state.mend(ctx, w))
		t.Logf("an agent was there again after %s", time.Since(began).Round(100*time.Millisecond))
	} else {
		_, err := w.Home.Entente(ctx, "unpeer", w.Abroad.Name, "--now", "--forget", "--yes", "--timeout", "1m")
		e2e.OK(t, err)
	}
	e2e.OK(t, w.Home.Unpeered(ctx, e2e.Scheduled))
	took := time.Since(began)
	t.Logf("home has no objects of the peering after %s", took.Round(100*time.Millisecond))
	if took > ends {
		t.Errorf("it took %s, want %s at most", took, ends)
	}
	e2e.OK(t, w.Heal(ctx))
	// The other side ends it by itself, or is notified.
	e2e.OK(t, w.Unpeer(ctx))
	e2e.OK(t, w.DeleteNamespace(ctx, shop))
	e2e.OK(t, w.NothingLeft(ctx, before, e2e.SystemNamespace))
}

// deleteAsks deletes what people ask for, as they do it with kubectl, and waits for nothing.
func deleteAsks(ctx context.Context, s *e2e.Side) error {
	for _, list := range []ctrlclient.Object{&v1alpha1.NamespaceOffloading{}, &v1alpha1.PeeringRequest{}, &v1alpha1.ForeignCluster{}} {
		opts := []ctrlclient.DeleteAllOfOption{}
		if _, namespaced := list.(*v1alpha1.NamespaceOffloading); namespaced {
			opts = append(opts, ctrlclient.InNamespace(shop))
		}
		if err := s.Client.DeleteAllOf(ctx, list, opts...); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %T: %w", list, err)
		}
	}
	return nil
}

func uninstalls(ctx context.Context, t *testing.T, w *e2e.World, state broken) {
	installed(ctx, t, w)
	state.begins(ctx, t, w)
	e2e.OK(t, state.make(ctx, w))
	if !state.release {
		// Helm lost its record of the install with the namespace: install again.
		e2e.OK(t, w.Install(ctx, w.Home))
	}
	began := time.Now()
	e2e.OK(t, w.Uninstall(ctx, w.Home))
	took := time.Since(began)
	t.Logf("uninstalled after %s", took.Round(100*time.Millisecond))
	if took > ends {
		t.Errorf("it took %s, want %s at most", took, ends)
	}
	e2e.OK(t, w.Heal(ctx))
	e2e.OK(t, w.Uninstall(ctx, w.Abroad))
	e2e.OK(t, w.Home.Client.DeleteAllOf(ctx, &corev1.Pod{}, ctrlclient.InNamespace(shop)))
	e2e.OK(t, w.DeleteNamespace(ctx, shop))
	e2e.OK(t, w.NothingLeft(ctx, theStage.Before))
}
