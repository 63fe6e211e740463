package offload

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
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
	"github.com/entente-dev/entente/peering"
)

// inventory watches what is here for peers, with one watch of each kind for all
// namespaces: OffloadedPods, and the namespaces, pods, Services and EndpointSlices
// that are labelled as made by the agent. ConfigMaps and Secrets it may read only
// in the namespaces that it made, and counts them there; events it watches there,
// in some.
type inventory struct {
	p     *Provider
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// synced is closed when all these are known.
	synced chan struct{}

	offloads, pods, services, slices cache.Indexer
	spaces                           cache.Store
	// podsKnown says whether the pods are.
	podsKnown func() bool

	mu sync.Mutex
	// watches has what is kept of each namespace.
	watches map[string]*spaceWatch
	// eventWatches counts the watches of events, by peer.
	eventWatches map[peering.ClusterID]int
	configs      chan struct{}
	work         sync.WaitGroup
}

// spaceWatch is what is kept of one namespace.
type spaceWatch struct {
	ctx    context.Context //nolint:containedctx // it ends with the namespace
	cancel context.CancelFunc
	peer   peering.ClusterID
	// events ends the watch of events, if there is one.
	events context.CancelFunc
	// last has the last status of pods that were deleted, until it is recorded.
	last map[types.UID]corev1.PodStatus
}

// byContract and byUID find OffloadedPods by their contract, and by that and the UID of
// the pod at home.
const (
	byContract = "contract"
	byUID      = "uid"
)

func newInventory(p *Provider) *inventory {
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	return &inventory{
		p: p, synced: make(chan struct{}), watches: make(map[string]*spaceWatch),
		eventWatches: make(map[peering.ClusterID]int), configs: make(chan struct{}, configsAtOnce),
		offloads: index(), pods: index(), services: index(), slices: index(), podsKnown: func() bool { return false },
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
			return listPages(ctx, c, list(), list, o, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return c.Watch(ctx, list(), with(o)...)
		},
	}}
}

// listPages lists into all page by page, and keeps of each what is read of it: whole
// objects of a peer may be larger than the agent.
func listPages(ctx context.Context, c client.Client, all client.ObjectList, page func() client.ObjectList, o metav1.ListOptions, opts []client.ListOption) (runtime.Object, error) {
	// Lists from the API server's cache come whole.
	o.ResourceVersion, o.ResourceVersionMatch, o.Limit = "", "", listPage
	var items []runtime.Object
	for {
		part := page()
		if err := c.List(ctx, part, append(slices.Clip(opts), &client.ListOptions{Raw: &o, Limit: o.Limit, Continue: o.Continue})...); err != nil {
			return nil, err //nolint:wrapcheck // the informer looks at what it is
		}
		err := meta.EachListItem(part, func(item runtime.Object) error {
			_, err := slim(item)
			items = append(items, item.DeepCopyObject())
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read a list: %w", err)
		}
		all.SetResourceVersion(part.GetResourceVersion())
		if o.Continue = part.GetContinue(); o.Continue == "" {
			return all, meta.SetList(all, items)
		}
	}
}

// informers are the watches of the inventory, and what they fill.
type informers struct {
	all []cache.Controller
}

// add makes an informer of one kind for all namespaces.
func (n *informers) add(v *inventory, list func() client.ObjectList, o client.Object, opts []client.ListOption,
	indexers cache.Indexers, handler cache.ResourceEventHandler,
) cache.Indexer {
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch(v.p.client, list, opts...), ObjectType: o, Transform: slim, Indexers: indexers, Handler: handler,
	})
	n.all = append(n.all, informer)
	return store.(cache.Indexer)
}

// run watches until ctx ends.
func (v *inventory) run(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	v.queue = queue
	defer v.work.Wait()
	in := v.informers(ctx)
	known := make([]cache.InformerSynced, 0, len(in.all))
	for _, informer := range in.all {
		v.work.Go(func() { informer.RunWithContext(ctx) })
		known = append(known, informer.HasSynced)
	}
	if cache.WaitForCacheSync(ctx.Done(), known...) {
		close(v.synced)
		// What was seen while this began is reconciled again, now that all is known.
		for _, o := range v.all() {
			v.touch(o.Namespace, o.Name, o.Spec.Contract)
			v.p.changed(o.Spec.Contract)
		}
		v.p.services.all()
	}
	recount := time.NewTicker(configsInterval)
	defer recount.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-recount.C:
			for _, ns := range v.namespaces() {
				v.countConfigs(ctx, ns.Name)
			}
		}
	}
}

// informers returns the informers that fill the caches.
func (v *inventory) informers(ctx context.Context) (in informers) {
	managed := labels.SelectorFromSet(labels.Set{api.LabelManaged: api.Manager})
	if peer, err := labels.NewRequirement(api.LabelPeer, selection.Exists, nil); err == nil {
		managed = managed.Add(*peer)
	}
	ours := []client.ListOption{client.MatchingLabelsSelector{Selector: managed}}
	spaced := func() cache.Indexers { return cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc} }
	contracted := spaced()
	contracted[byContract] = func(o any) ([]string, error) { return []string{o.(*api.OffloadedPod).Spec.Contract}, nil }
	contracted[byUID] = func(o any) ([]string, error) {
		s := o.(*api.OffloadedPod).Spec
		return []string{graveOf(s.Contract, s.OriginUID)}, nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.spaces = in.add(v, func() client.ObjectList { return &corev1.NamespaceList{} }, &corev1.Namespace{}, ours, cache.Indexers{},
		cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { v.seeSpace(ctx, o.(*corev1.Namespace)) },
			UpdateFunc: func(_, o any) { v.seeSpace(ctx, o.(*corev1.Namespace)) },
			DeleteFunc: v.leaveSpace,
		})
	v.pods = in.add(v, func() client.ObjectList { return &corev1.PodList{} }, &corev1.Pod{}, ours, spaced(), v.podHandler())
	v.podsKnown = in.all[len(in.all)-1].HasSynced
	v.services = in.add(v, func() client.ObjectList { return &corev1.ServiceList{} }, &corev1.Service{}, ours, spaced(),
		cache.ResourceEventHandlerFuncs{
			AddFunc:    v.seeService,
			UpdateFunc: func(_, o any) { v.seeService(o) },
			DeleteFunc: func(o any) {
				if svc, ok := object[*corev1.Service](o); ok {
					v.p.stock.drop(stockKey{peering.KindService, svc.Namespace, svc.Name})
				}
			},
		})
	v.slices = in.add(v, func() client.ObjectList { return &discoveryv1.EndpointSliceList{} }, &discoveryv1.EndpointSlice{}, ours, spaced(),
		cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(_, o any) { v.seeSlice(o) },
			DeleteFunc: v.seeSlice,
		})
	v.offloads = in.add(v, func() client.ObjectList { return &api.OffloadedPodList{} }, &api.OffloadedPod{}, nil, contracted,
		cache.ResourceEventHandlerFuncs{
			AddFunc:    v.seeOffloaded,
			UpdateFunc: func(_, o any) { v.seeOffloaded(o) }, //nolint:contextcheck // a watch of events ends with its namespace
			DeleteFunc: v.leaveOffloaded,
		})
	return in
}

func (v *inventory) seeOffloaded(in any) {
	o, ok := object[*api.OffloadedPod](in)
	if !ok {
		return
	}
	v.p.stock.set(podKey(o), stockItem{
		peer: peering.ClusterID(o.Spec.PeerID), contract: o.Spec.Contract, bytes: notedBytes(o.Annotations),
	})
	v.touch(o.Namespace, o.Name, o.Spec.Contract)
	v.p.changed(o.Spec.Contract)
	if live(o) {
		v.watchEvents(o.Namespace)
	}
}

func (v *inventory) leaveOffloaded(in any) {
	o, ok := object[*api.OffloadedPod](in)
	if !ok {
		return
	}
	v.p.stock.drop(podKey(o))
	v.p.graves.add(peering.ClusterID(o.Spec.PeerID), graveOf(o.Spec.Contract, o.Spec.OriginUID))
	v.p.hub.gone(o.Spec.Contract, podRef(o))
	v.touch(o.Namespace, o.Name, o.Spec.Contract)
	v.p.changed(o.Spec.Contract)
	if !slices.ContainsFunc(v.in(o.Namespace), live) {
		v.leaveEvents(o.Namespace)
	}
}

// seeService notes a Service and has its endpoints looked at.
func (v *inventory) seeService(in any) {
	svc, ok := object[*corev1.Service](in)
	if !ok {
		return
	}
	var item stockItem
	if note, err := readNote(svc.Annotations[noteService]); err == nil {
		item = countService(note)
	}
	item.peer, item.contract, item.bytes = peering.ClusterID(svc.Labels[api.LabelPeer]), firstHolder(svc), notedBytes(svc.Annotations)
	item.ports = len(svc.Spec.Ports)
	v.p.stock.set(stockKey{peering.KindService, svc.Namespace, svc.Name}, item)
	v.p.services.space(svc.Namespace)
}

// seeSlice has the Services of a namespace looked at whose EndpointSlices changed.
func (v *inventory) seeSlice(in any) {
	if s, ok := object[*discoveryv1.EndpointSlice](in); ok {
		v.p.services.space(s.Namespace)
	}
}

func (v *inventory) podHandler() cache.ResourceEventHandler {
	touch := func(in any) *corev1.Pod {
		pod, ok := object[*corev1.Pod](in)
		if !ok {
			return nil
		}
		v.touch(pod.Namespace, pod.Name, pod.Labels[api.LabelContract])
		return pod
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if pod := touch(o); pod != nil && pod.Status.PodIP != "" {
				v.p.services.space(pod.Namespace)
				v.p.changed(pod.Labels[api.LabelContract])
			}
		},
		UpdateFunc: func(before, o any) {
			pod := touch(o)
			old, ok := before.(*corev1.Pod)
			if !ok || pod == nil {
				return
			}
			if old.Status.PodIP != pod.Status.PodIP || old.Spec.NodeName != pod.Spec.NodeName {
				v.p.services.space(pod.Namespace)
			}
			// Of a pod that runs, its addresses are exposed, and nothing else is.
			if !slices.Equal(old.Status.PodIPs, pod.Status.PodIPs) || old.Status.PodIP != pod.Status.PodIP || ended(old.Status.Phase) != ended(pod.Status.Phase) {
				v.p.changed(pod.Labels[api.LabelContract])
			}
		},
		DeleteFunc: func(o any) {
			if pod, ok := object[*corev1.Pod](o); ok {
				v.remember(pod)
				v.p.services.space(pod.Namespace)
				v.p.changed(pod.Labels[api.LabelContract])
			}
			touch(o)
		},
	}
}

func podKey(o *api.OffloadedPod) stockKey { return stockKey{peering.KindPod, o.Namespace, o.Name} }

// slim takes away what is not read, to save memory.
func slim(in any) (any, error) {
	switch o := in.(type) {
	case *api.OffloadedPod:
		o.ManagedFields = nil
		if len(o.Spec.Template.Raw) == 0 {
			break // it was here before
		}
		setAnnotation(o, noteBytes, strconv.Itoa(podBytes(len(o.Spec.Template.Raw))))
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
	case *corev1.Service:
		o.ManagedFields = nil
	case *discoveryv1.EndpointSlice:
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

// touch notifies the reconciler of a pod, and those that watch the
// contract.
func (v *inventory) touch(namespace, name, contract string) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	v.queue.Add(reconcile.Request{NamespacedName: key})
	v.p.hub.touch(contract, key)
}

func (v *inventory) seeSpace(parent context.Context, ns *corev1.Namespace) {
	peer := peering.ClusterID(ns.Labels[api.LabelPeer])
	v.p.stock.set(stockKey{kind: peering.KindNamespace, name: ns.Name}, stockItem{peer: peer})
	v.mu.Lock()
	_, known := v.watches[ns.Name]
	if known || parent.Err() != nil {
		v.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(parent)
	v.watches[ns.Name] = &spaceWatch{ctx: ctx, cancel: cancel, peer: peer, last: make(map[types.UID]corev1.PodStatus)}
	v.work.Go(func() { v.countConfigs(ctx, ns.Name) })
	v.mu.Unlock()
	// Its pods may have been seen first.
	if slices.ContainsFunc(v.in(ns.Name), live) {
		v.watchEvents(ns.Name) //nolint:contextcheck // it ends with the namespace
	}
}

// countConfigs counts the ConfigMaps and Secrets of a namespace, without reading
// what is in them.
func (v *inventory) countConfigs(ctx context.Context, namespace string) {
	select {
	case v.configs <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-v.configs }()
	if v.p.awaitGrant(ctx, namespace) != nil {
		return
	}
	since := v.p.stock.mark()
	listed := make(map[stockKey]stockItem)
	for kind, name := range map[peering.Kind]string{peering.KindConfigMap: "ConfigMapList", peering.KindSecret: "SecretList"} {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(name))
		if err := v.p.client.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{api.LabelManaged: api.Manager}); err != nil {
			if ctx.Err() == nil {
				v.p.cfg.Log.Warn("count what is in a namespace", "namespace", namespace, "err", err)
			}
			return
		}
		for i := range list.Items {
			o := &list.Items[i]
			if o.Name != recordName {
				listed[stockKey{kind, namespace, o.Name}] = stockItem{
					peer: peering.ClusterID(o.Labels[api.LabelPeer]), contract: firstHolder(o), bytes: notedBytes(o.Annotations),
				}
			}
		}
	}
	v.p.stock.replaceConfigs(namespace, since, listed)
}

// watchEvents watches the events of a namespace, if there is room.
func (v *inventory) watchEvents(namespace string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[namespace]
	if w == nil || w.events != nil || w.ctx.Err() != nil || !mayWatchEvents(v.eventWatches, w.peer) {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.events = cancel
	v.eventWatches[w.peer]++
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listWatch(v.p.client, func() client.ObjectList { return &corev1.EventList{} },
			client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("involvedObject.kind", "Pod")}),
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
	v.work.Go(func() {
		if v.p.awaitGrant(ctx, namespace) == nil {
			informer.RunWithContext(ctx)
		}
	})
}

// mayWatchEvents says whether there is room for one more watch of a peer. It has fewer
// than are free, so that those who come later find room.
func mayWatchEvents(watches map[peering.ClusterID]int, peer peering.ClusterID) bool {
	free := maxEventWatches
	for _, n := range watches {
		free -= n
	}
	return watches[peer] < min(maxPeerEventWatches, free)
}

// leaveEvents ends the watch of a namespace's events.
func (v *inventory) leaveEvents(namespace string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[namespace]; w != nil {
		v.endEvents(w)
	}
}

// endEvents ends a watch of events. The lock is held.
func (v *inventory) endEvents(w *spaceWatch) {
	if w.events == nil {
		return
	}
	w.events()
	w.events = nil
	if v.eventWatches[w.peer]--; v.eventWatches[w.peer] == 0 {
		delete(v.eventWatches, w.peer)
	}
}

func (v *inventory) leaveSpace(o any) {
	ns, ok := object[*corev1.Namespace](o)
	if !ok {
		return
	}
	v.mu.Lock()
	if w := v.watches[ns.Name]; w != nil {
		v.endEvents(w)
		w.cancel()
		delete(v.watches, ns.Name)
	}
	v.mu.Unlock()
	v.p.stock.dropSpace(ns.Name)
}

// remember keeps the last status of a pod that was deleted and had ended: the
// reconciler may come too late to see it.
func (v *inventory) remember(pod *corev1.Pod) {
	if !ended(pod.Status.Phase) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[pod.Namespace]
	if w == nil {
		return
	}
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
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[namespace]
	if w == nil {
		return corev1.PodStatus{}, false
	}
	s, ok := w.last[uid]
	delete(w.last, uid)
	return s, ok
}

// pod returns a pod as it was last seen. known is false as long as the pods are
// not known: then no pod means nothing.
func (v *inventory) pod(namespace, name string) (pod *corev1.Pod, known bool) {
	v.mu.Lock()
	pods, synced := v.pods, v.podsKnown
	v.mu.Unlock()
	// Without the lock: this waits for the informer, whose handlers take it.
	if !synced() {
		return nil, false
	}
	o, ok, err := pods.GetByKey(namespace + "/" + name)
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
	return v.offloads
}

// all returns all OffloadedPods, without their templates.
func (v *inventory) all() []*api.OffloadedPod { return typed[*api.OffloadedPod](v.index().List()) }

// of returns the OffloadedPods of a contract, without their templates.
func (v *inventory) of(contract string) []*api.OffloadedPod {
	return indexed[*api.OffloadedPod](v.index(), byContract, contract)
}

// withUID returns the OffloadedPods of a contract for the pod with this UID at home,
// without their templates.
func (v *inventory) withUID(contract, uid string) []*api.OffloadedPod {
	return indexed[*api.OffloadedPod](v.index(), byUID, graveOf(contract, uid))
}

// peerOf returns whose namespace it is.
func (v *inventory) peerOf(namespace string) peering.ClusterID {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[namespace]; w != nil {
		return w.peer
	}
	return ""
}

// in returns the OffloadedPods of a namespace, without their templates.
func (v *inventory) in(namespace string) []*api.OffloadedPod {
	return indexed[*api.OffloadedPod](v.index(), cache.NamespaceIndex, namespace)
}

// servicesIn returns the Services that are reflected into a namespace.
func (v *inventory) servicesIn(namespace string) []*corev1.Service {
	v.mu.Lock()
	index := v.services
	v.mu.Unlock()
	return indexed[*corev1.Service](index, cache.NamespaceIndex, namespace)
}

func (v *inventory) slicesIn(namespace string) []*discoveryv1.EndpointSlice {
	v.mu.Lock()
	index := v.slices
	v.mu.Unlock()
	return indexed[*discoveryv1.EndpointSlice](index, cache.NamespaceIndex, namespace)
}

func indexed[T any](objects cache.Indexer, index, value string) []T {
	list, err := objects.ByIndex(index, value)
	if err != nil {
		return nil // there is no such index
	}
	return typed[T](list)
}

func typed[T any](list []any) []T {
	out := make([]T, 0, len(list))
	for _, o := range list {
		out = append(out, o.(T))
	}
	return out
}

// namespaces returns the namespaces that are here for peers.
func (v *inventory) namespaces() []*corev1.Namespace {
	v.mu.Lock()
	store := v.spaces
	v.mu.Unlock()
	return typed[*corev1.Namespace](store.List())
}
