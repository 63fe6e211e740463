package offload

import (
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// inventory watches what is here for peers: all OffloadedPods and, because the
// agent may read pods only in namespaces that it made, the pods and events of
// each of these.
type inventory struct {
	p     *Provider
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// synced is closed when the OffloadedPods and namespaces are known.
	synced chan struct{}

	pods   cache.Indexer
	spaces cache.Store

	mu sync.Mutex
	// watches has what is watched in each namespace.
	watches map[string]*spaceWatch
	work    sync.WaitGroup
}

// spaceWatch is what is watched in one namespace.
type spaceWatch struct {
	cancel context.CancelFunc
	pods   cache.Store
	synced func() bool
	// last has the last status of pods that were deleted, until it is recorded.
	mu   sync.Mutex
	last map[types.UID]corev1.PodStatus
}

const byContract = "contract"

func newInventory(p *Provider) *inventory {
	return &inventory{
		p: p, synced: make(chan struct{}), watches: make(map[string]*spaceWatch),
		pods:   cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, nil),
		spaces: cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc),
	}
}

// plainListWatch lists and then watches, with any client.
type plainListWatch struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported keeps the reflector from asking for streamed
// lists, which not every client has.
func (plainListWatch) IsWatchListSemanticsUnSupported() bool { return true }

func listWatch(c client.WithWatch, list func() client.ObjectList, opts ...client.ListOption) cache.ListerWatcher {
	with := func(o metav1.ListOptions) []client.ListOption {
		return append(slices.Clip(opts), &client.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue})
	}
	return plainListWatch{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := list()
			return l, c.List(ctx, l, with(o)...)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list(), with(o)...)
		},
	}}
}

// run watches until ctx ends.
func (v *inventory) run(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	v.queue = queue
	defer v.work.Wait()
	managed := labels.SelectorFromSet(labels.Set{api.LabelManaged: api.Manager})
	if peer, err := labels.NewRequirement(api.LabelPeer, selection.Exists, nil); err == nil {
		managed = managed.Add(*peer)
	}
	spaces, spaceInformer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch(v.p.client, func() client.ObjectList { return &corev1.NamespaceList{} }, client.MatchingLabelsSelector{Selector: managed}),
		ObjectType:    &corev1.Namespace{},
		Transform:     slim,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { v.watchSpace(ctx, o.(*corev1.Namespace).Name) },
			DeleteFunc: func(o any) { v.leaveSpace(o) },
		},
	})
	pods, podInformer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch(v.p.client, func() client.ObjectList { return &api.OffloadedPodList{} }),
		ObjectType:    &api.OffloadedPod{},
		Transform:     slim,
		Indexers: cache.Indexers{byContract: func(o any) ([]string, error) {
			return []string{o.(*api.OffloadedPod).Spec.Contract}, nil
		}},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    v.offloadedPod,
			UpdateFunc: func(_, o any) { v.offloadedPod(o) },
			DeleteFunc: func(o any) {
				if pod, ok := object[*api.OffloadedPod](o); ok {
					v.p.graves.add(graveOf(pod.Spec.Contract, pod.Spec.OriginUID))
					v.p.hub.gone(pod.Spec.Contract, podRef(pod))
				}
				v.offloadedPod(o)
			},
		},
	})
	v.mu.Lock()
	v.spaces, v.pods = spaces, pods.(cache.Indexer)
	v.mu.Unlock()
	v.work.Go(func() { spaceInformer.RunWithContext(ctx) })
	v.work.Go(func() { podInformer.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), spaceInformer.HasSynced, podInformer.HasSynced) {
		close(v.synced)
		// What was seen while this began is reconciled again, now that all is known.
		for _, o := range v.all() {
			v.touch(o.Namespace, o.Name, o.Spec.Contract)
		}
		v.p.services.all()
	}
	<-ctx.Done()
}

// slim takes away what is not read, to save memory.
func slim(in any) (any, error) {
	switch o := in.(type) {
	case *api.OffloadedPod:
		o.ManagedFields = nil
		o.Spec.Template = runtime.RawExtension{}
	case *corev1.Namespace:
		o.ManagedFields = nil
	case *corev1.Pod:
		o.ManagedFields, o.Annotations = nil, map[string]string{api.AnnotationHash: o.Annotations[api.AnnotationHash]}
		o.Spec = corev1.PodSpec{
			NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork,
			TerminationGracePeriodSeconds: o.Spec.TerminationGracePeriodSeconds,
		}
	case *corev1.Event:
		o.ManagedFields = nil
	}
	return in, nil
}

func object[T any](o any) (T, bool) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	t, ok := o.(T)
	return t, ok
}

func (v *inventory) offloadedPod(o any) {
	if pod, ok := object[*api.OffloadedPod](o); ok {
		v.touch(pod.Namespace, pod.Name, pod.Spec.Contract)
	}
}

// touch has a pod looked at again, by the reconciler and by who watches the
// contract.
func (v *inventory) touch(namespace, name, contract string) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	v.queue.Add(reconcile.Request{NamespacedName: key})
	v.p.hub.touch(contract, key)
	v.p.cfg.Changed(contract)
}

// watchSpace begins to watch a namespace.
func (v *inventory) watchSpace(parent context.Context, name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.watches[name]; ok || parent.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(parent)
	w := &spaceWatch{cancel: cancel, last: make(map[types.UID]corev1.PodStatus)}
	pod := func(o any) {
		if pod, ok := object[*corev1.Pod](o); ok {
			v.touch(pod.Namespace, pod.Name, pod.Labels[api.LabelContract])
		}
	}
	pods, podInformer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch(v.p.client, func() client.ObjectList { return &corev1.PodList{} },
			client.InNamespace(name), client.MatchingLabels{api.LabelManaged: api.Manager}),
		ObjectType: &corev1.Pod{},
		Transform:  slim,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) {
				pod(o)
				v.p.services.space(name)
			},
			UpdateFunc: func(before, o any) {
				pod(o)
				if before.(*corev1.Pod).Status.PodIP != o.(*corev1.Pod).Status.PodIP {
					v.p.services.space(name)
				}
			},
			DeleteFunc: func(o any) {
				w.remember(o)
				pod(o)
				v.p.services.space(name)
			},
		},
	})
	_, eventInformer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch(v.p.client, func() client.ObjectList { return &corev1.EventList{} },
			client.InNamespace(name), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("involvedObject.kind", "Pod")}),
		ObjectType: &corev1.Event{},
		Transform:  slim,
		Handler: cache.ResourceEventHandlerDetailedFuncs{
			// What happened before this process began was said by the one before.
			AddFunc: func(o any, initial bool) {
				if !initial {
					v.event(o)
				}
			},
			UpdateFunc: func(_, o any) { v.event(o) },
		},
	})
	w.pods, w.synced = pods, podInformer.HasSynced
	v.watches[name] = w
	v.work.Go(func() {
		if v.p.awaitGrant(ctx, name) != nil {
			return
		}
		v.work.Go(func() { podInformer.RunWithContext(ctx) })
		v.work.Go(func() { eventInformer.RunWithContext(ctx) })
		// What was looked at before its pods were known is looked at again.
		if cache.WaitForCacheSync(ctx.Done(), podInformer.HasSynced) {
			for _, o := range v.all() {
				if o.Namespace == name {
					v.touch(o.Namespace, o.Name, o.Spec.Contract)
				}
			}
		}
	})
}

func (v *inventory) leaveSpace(o any) {
	ns, ok := object[*corev1.Namespace](o)
	if !ok {
		return
	}
	v.mu.Lock()
	w := v.watches[ns.Name]
	delete(v.watches, ns.Name)
	v.mu.Unlock()
	if w != nil {
		w.cancel()
	}
}

// remember keeps the last status of a pod that was deleted and had ended: the
// reconciler may come too late to see it.
func (w *spaceWatch) remember(o any) {
	pod, ok := object[*corev1.Pod](o)
	if !ok || !ended(pod.Status.Phase) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.last) >= maxLastWords {
		clear(w.last)
	}
	w.last[pod.UID] = pod.Status
}

func ended(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// lastWords returns, once, the last status of a pod that was deleted.
func (v *inventory) lastWords(namespace string, uid types.UID) (corev1.PodStatus, bool) {
	w := v.space(namespace)
	if w == nil {
		return corev1.PodStatus{}, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.last[uid]
	delete(w.last, uid)
	return s, ok
}

func (v *inventory) space(name string) *spaceWatch {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.watches[name]
}

// pod returns a pod as it was last seen. known is false as long as the pods of
// the namespace are not known: then no pod means nothing.
func (v *inventory) pod(namespace, name string) (pod *corev1.Pod, known bool) {
	w := v.space(namespace)
	if w == nil || !w.synced() {
		return nil, false
	}
	o, ok, err := w.pods.GetByKey(namespace + "/" + name)
	if err != nil || !ok {
		return nil, true
	}
	return o.(*corev1.Pod), true
}

// offloaded returns an OffloadedPod as it was last seen, without its template,
// or nil.
func (v *inventory) offloaded(key types.NamespacedName) *api.OffloadedPod {
	o, ok, err := v.index().GetByKey(key.String())
	if err != nil || !ok {
		return nil
	}
	return o.(*api.OffloadedPod)
}

func (v *inventory) index() cache.Indexer {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.pods
}

// all returns all OffloadedPods, without their templates.
func (v *inventory) all() []*api.OffloadedPod { return offloadedPods(v.index().List()) }

// of returns the OffloadedPods of a contract, without their templates.
func (v *inventory) of(contract string) []*api.OffloadedPod {
	list, err := v.index().ByIndex(byContract, contract)
	if err != nil {
		return nil
	}
	return offloadedPods(list)
}

func offloadedPods(list []any) []*api.OffloadedPod {
	out := make([]*api.OffloadedPod, 0, len(list))
	for _, o := range list {
		out = append(out, o.(*api.OffloadedPod))
	}
	return out
}

// namespaces returns the namespaces that are here for peers.
func (v *inventory) namespaces() []*corev1.Namespace {
	v.mu.Lock()
	store := v.spaces
	v.mu.Unlock()
	list := store.List()
	out := make([]*corev1.Namespace, 0, len(list))
	for _, o := range list {
		out = append(out, o.(*corev1.Namespace))
	}
	return out
}
