package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const (
	// serviceCount is how many Services are created in all; the last serviceTimed, at serviceRate a
	// second, are timed.
	serviceCount   = 1000
	serviceTimed   = 200
	serviceRate    = 10
	maxEndpointP99 = 1000 // ms
	// endpointsLate is how long the last of many endpoints may take.
	endpointsLate = 5 * time.Minute
)

// sliceWatch remembers when each Service of a namespace first had an endpoint that is ready.
type sliceWatch struct {
	mu      sync.Mutex
	first   map[string]time.Time
	changed chan struct{}
}

// watchSlices follows the EndpointSlices of a namespace until ctx ends.
func watchSlices(ctx context.Context, kube kubernetes.Interface, namespace string) (*sliceWatch, error) {
	w := &sliceWatch{first: map[string]time.Time{}, changed: make(chan struct{}, 1)}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    w.see,
		UpdateFunc: func(_, o any) { w.see(o) },
	})
	if err != nil {
		return nil, err
	}
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("watch the EndpointSlices of %s: %w", namespace, context.Cause(ctx))
	}
	return w, nil
}

func (w *sliceWatch) see(o any) {
	s, ok := o.(*discoveryv1.EndpointSlice)
	if !ok || !slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Conditions.Ready != nil && *e.Conditions.Ready }) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	name := s.Labels[discoveryv1.LabelServiceName]
	if _, there := w.first[name]; !there {
		w.first[name] = time.Now()
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// when returns when a Service first had one.
func (w *sliceWatch) when(service string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first[service]
}

// have waits until n Services have had an endpoint.
func (w *sliceWatch) have(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endpointsLate, fmt.Errorf("it takes longer than %s", endpointsLate))
	defer cancel()
	for {
		w.mu.Lock()
		now := len(w.first)
		w.mu.Unlock()
		if now >= n {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d Services have an endpoint: %w", now, n, context.Cause(ctx))
		case <-w.changed:
		}
	}
}

// serveBy makes a Service whose one endpoint is a pod. It has no selector: without a tunnel pods have no address at
// home, so that Kubernetes would give it no endpoint. The provider knows the pod by its UID.
func (p *podBench) serveBy(ctx context.Context, name string, pod *corev1.Pod) error {
	meta := metav1.ObjectMeta{Namespace: offloadedTo, Name: name}
	_, err := p.kube.CoreV1().Services(offloadedTo).Create(ctx, &corev1.Service{
		ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	meta.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	_, err = p.kube.DiscoveryV1().EndpointSlices(offloadedTo).Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: new(int32(80)), Name: new("")}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"192.0.2.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		}},
	}, metav1.CreateOptions{})
	return err
}

// services measures how long after home's own EndpointSlice the provider has one of a Service, while there are
// many. Pods run at the provider.
func (p *podBench) services(ctx context.Context, r *podsResult) error {
	p.say("%d Services are created; the last %d, %d a second, are timed", serviceCount, serviceTimed, serviceRate)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pods, err := p.kube.CoreV1().Pods(offloadedTo).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) < serviceCount {
		return fmt.Errorf("%d pods run, want %d", len(pods.Items), serviceCount)
	}
	home, err := watchSlices(ctx, p.kube, offloadedTo)
	if err != nil {
		return err
	}
	abroad, err := watchSlices(ctx, p.kubeAbroad, p.remote)
	if err != nil {
		return err
	}
	create := func(ctx context.Context, i int) error { return p.serveBy(ctx, fmt.Sprint("s", i), &pods.Items[i]) }
	all, gctx := errgroup.WithContext(ctx)
	all.SetLimit(writers)
	before := serviceCount - serviceTimed
	for i := range before {
		all.Go(func() error { return create(gctx, i) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if err := errors.Join(abroad.have(ctx, before), sleep(ctx, late)); err != nil {
		return err
	}
	profiled := p.profiled(ctx, "services")
	every := time.NewTicker(time.Second / serviceRate)
	defer every.Stop()
	for i := before; i < serviceCount; i++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-every.C:
		}
		if err := create(ctx, i); err != nil {
			return err
		}
	}
	if err := errors.Join(home.have(ctx, serviceCount), abroad.have(ctx, serviceCount), profiled()); err != nil {
		return err
	}
	took := make([]float64, 0, serviceTimed)
	for i := before; i < serviceCount; i++ {
		name := fmt.Sprint("s", i)
		took = append(took, float64(abroad.when(name).Sub(home.when(name)).Microseconds())/1000)
	}
	slices.Sort(took)
	r.Endpoints = &spread{P50: percentile(took, 50), P99: percentile(took, 99), Max: took[len(took)-1]}
	list, err := p.kube.CoreV1().Services(offloadedTo).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	gone, gctx := errgroup.WithContext(ctx)
	gone.SetLimit(writers)
	for _, s := range list.Items {
		gone.Go(func() error {
			return p.kube.CoreV1().Services(offloadedTo).Delete(gctx, s.Name, metav1.DeleteOptions{})
		})
	}
	return gone.Wait()
}
