package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// podWatch follows the pods of a namespace.
type podWatch struct {
	namespace string
	stop      func()

	mu      sync.Mutex
	ready   map[string]bool
	failed  map[string]bool
	changed chan struct{}
	// onUpdate, if set, is called for each pod that changed.
	onUpdate func(*corev1.Pod, time.Time)
}

// watchPods follows the pods of a namespace until stop.
func watchPods(ctx context.Context, kube kubernetes.Interface, namespace string) (*podWatch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &podWatch{namespace: namespace, stop: cancel, ready: map[string]bool{}, failed: map[string]bool{}, changed: make(chan struct{})}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.see(o, false) },
		UpdateFunc: func(_, o any) { w.see(o, false) },
		DeleteFunc: func(o any) { w.see(o, true) },
	})
	if err != nil {
		cancel()
		return nil, err
	}
	go informer.Run(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		cancel()
		return nil, fmt.Errorf("watch the pods of %s: %w", namespace, context.Cause(ctx))
	}
	return w, nil
}

func (w *podWatch) see(o any, gone bool) {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	p, ok := o.(*corev1.Pod)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if gone {
		delete(w.ready, p.Name)
		delete(w.failed, p.Name)
	} else {
		w.ready[p.Name] = running(p)
		if delete(w.failed, p.Name); p.Status.Phase == corev1.PodFailed {
			w.failed[p.Name] = true
		}
		if w.onUpdate != nil {
			w.onUpdate(p, time.Now())
		}
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

func running(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodRunning {
		return false
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// hear calls f for each pod that changes from now on.
func (w *podWatch) hear(f func(*corev1.Pod, time.Time)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.onUpdate = f
}

// are waits until there are n pods and all run.
func (w *podWatch) are(ctx context.Context, n int) error {
	for {
		w.mu.Lock()
		all, changed, run, failed := len(w.ready), w.changed, 0, len(w.failed)
		for _, r := range w.ready {
			if r {
				run++
			}
		}
		w.mu.Unlock()
		switch {
		case all == n && run == n:
			return nil
		case n > 0 && failed > 0: // no controller replaces a bare pod
			return fmt.Errorf("%d of %d pods failed", failed, n)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods run, %d are there: %w", run, n, all, context.Cause(ctx))
		case <-changed:
		}
	}
}

// waiting is the names of the pods that failed or, if none did, of those that do not run, in order; of all if all do.
func (w *podWatch) waiting() (out []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.failed) > 0 {
		return slices.Sorted(maps.Keys(w.failed))
	}
	for name, runs := range w.ready {
		if !runs {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		out = slices.Collect(maps.Keys(w.ready))
	}
	slices.Sort(out)
	return out
}

// names is the names of the pods of a namespace.
func names(ctx context.Context, kube kubernetes.Interface, namespace string) ([]string, error) {
	list, err := kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := make([]string, len(list.Items))
	for i := range list.Items {
		out[i] = list.Items[i].Name
	}
	return out, nil
}
