package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// leaves gives a pod a grace period in which it serves for a while, so that clients can be sent elsewhere.
func leaves(s *corev1.PodSpec) {
	s.TerminationGracePeriodSeconds = new(int64(20))
	s.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 8}}}
}

// endpointOf returns the endpoint of a pod among those of a Service.
func endpointOf(ctx context.Context, s *Side, service string, pod *corev1.Pod) (*discoveryv1.Endpoint, error) {
	var list discoveryv1.EndpointSliceList
	if err := s.Client.List(ctx, &list, ctrlclient.InNamespace(pod.Namespace), ctrlclient.MatchingLabels{discoveryv1.LabelServiceName: service}); err != nil {
		return nil, fmt.Errorf("list endpoint slices: %w", err)
	}
	for i := range list.Items {
		for j := range list.Items[i].Endpoints {
			if e := &list.Items[i].Endpoints[j]; e.TargetRef != nil && e.TargetRef.UID == pod.UID {
				return e, nil
			}
		}
	}
	return nil, fmt.Errorf("pod %s is no endpoint", pod.Name)
}

// deleteTwin has the provider's cluster delete a pod.
func deleteTwin(ctx context.Context, t *testing.T, w *World, pod *corev1.Pod) {
	t.Helper()
	twin, err := w.Abroad.Twin(ctx, pod)
	OK(t, err)
	OK(t, w.Abroad.Client.Delete(ctx, twin))
}

// TestPodsThatTheProviderDeletesEndAsAtHome deletes pods in the provider's cluster, as kubectl drain does there. Home takes
// one of a Deployment as deleted at once, so that its clients notice nothing; one that nobody replaces fails.
func TestPodsThatTheProviderDeletesEndAsAtHome(t *testing.T) {
	ctx, w := theStage.On(t)
	peered(ctx, t, w)
	Offloaded(ctx, t, w, shop)
	d, svc := Web(shop, "leaves", 2, Away)
	leaves(&d.Spec.Template.Spec)
	client := WebPod(shop, "client", map[string]string{"app": "client"})
	place(&client.Spec, AtHome, nil)
	alone := WebPod(shop, "alone", map[string]string{"app": "alone"})
	place(&alone.Spec, Away, nil)
	leaves(&alone.Spec)
	_, of := Web(shop, "alone", 1, Away)
	OK(t, w.Home.Create(ctx, d, svc, client, alone, of))
	for _, p := range []*corev1.Pod{client, alone} {
		_, err := w.Home.PodsReady(ctx, Scheduled, shop, p.Labels, 1)
		OK(t, err)
	}
	pods, err := w.Home.PodsReady(ctx, Scheduled, shop, d.Labels, 2)
	OK(t, err)
	url := fmt.Sprintf("http://%s.%s:%d/name", svc.Name, shop, WebPort)
	OK(t, w.Home.ReachesAll(ctx, Soon, shop, client.Name, url, pods))

	begin := time.Now()
	deleteTwin(ctx, t, w, &pods[0])
	old := &pods[0]
	OK(t, w.Until(ctx, 5*time.Second, "the pod to be deleted at home, and replaced", func(ctx context.Context) (string, error) {
		now, err := w.Home.Kube.CoreV1().Pods(shop).Get(ctx, old.Name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("it has to stay until it is gone abroad: %w", err)
		}
		all, err := w.Home.Pods(ctx, shop, d.Labels)
		if err != nil || now.DeletionTimestamp.IsZero() || len(all) != 3 {
			return fmt.Sprintf("%s; there are %d pods", PodText(now), len(all)), err
		}
		e, err := endpointOf(ctx, w.Home, svc.Name, old)
		if err != nil {
			return "", err
		}
		if c := e.Conditions; *c.Ready || !*c.Serving || !*c.Terminating {
			return fmt.Sprintf("its endpoint is ready %t, serving %t, terminating %t", *c.Ready, *c.Serving, *c.Terminating), nil
		}
		return "", nil
	}))
	t.Logf("home has it deleted and replaced after %.1f s", time.Since(begin).Seconds())
	requests := 0
	OK(t, w.Until(ctx, time.Minute, "the pod to be gone, and others to be ready", func(ctx context.Context) (string, error) {
		_, err := w.Home.Answers(ctx, shop, client.Name, 50, url)
		OK(t, err)
		requests += 50
		all, err := w.Home.Pods(ctx, shop, d.Labels)
		missing := ""
		for i := range all {
			if all[i].UID == old.UID || !PodReady(&all[i]) {
				missing += PodText(&all[i]) + "; "
			}
		}
		return missing, err
	}))
	t.Logf("it is gone after %.1f s, and %d requests meanwhile did not fail", time.Since(begin).Seconds(), requests)

	OK(t, w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(alone), alone))
	deleteTwin(ctx, t, w, alone)
	OK(t, w.Until(ctx, 5*time.Second, "a pod without a controller to be no ready endpoint while it shuts down", func(ctx context.Context) (string, error) {
		e, err := endpointOf(ctx, w.Home, of.Name, alone)
		if err != nil {
			return "", err
		}
		if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(alone), alone); err != nil {
			return "", err //nolint:wrapcheck // it names the pod
		}
		if alone.Status.Phase != corev1.PodRunning || *e.Conditions.Ready {
			return fmt.Sprintf("%s; its endpoint is ready %t", PodText(alone), *e.Conditions.Ready), nil
		}
		return "", nil
	}))
	OK(t, w.Until(ctx, Soon, "a pod without a controller to fail", func(ctx context.Context) (string, error) {
		if err := w.Home.Client.Get(ctx, ctrlclient.ObjectKeyFromObject(alone), alone); err != nil {
			return "", err //nolint:wrapcheck // it names the pod
		}
		switch s := &alone.Status; {
		case s.Phase == corev1.PodSucceeded:
			t.Fatalf("it succeeded: %+v", s)
		case s.Phase == corev1.PodFailed && s.Reason == "PodDeleted":
			t.Logf("its container ended with %+v", s.ContainerStatuses[0].State.Terminated)
			return "", nil
		}
		return PodText(alone), nil
	}))
}
