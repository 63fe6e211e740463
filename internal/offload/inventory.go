package offload

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/offloadedpod"
	"github.com/entente-dev/entente/internal/pages"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/peering"
)

// inventory watches what is here for peers, with one watch of each kind for all namespaces:
// OffloadedPods, and the namespaces, pods, Services, EndpointSlices and NetworkPolicies that are
// labelled as made by the agent. It may read ConfigMaps and Secrets only in the namespaces that the
// agent created, and counts them there; in some of these namespaces it also watches their metadata,
// and events.
type inventory struct {
	p *Provider
	// ctx and queue are run's.
	ctx   context.Context //nolint:containedctx // informers do not pass it to handlers
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// synced is closed once all caches are synced.
	synced chan struct{}

	informers                                                  []cache.Controller
	offloads, spaces, pods, services, slices, claims, policies cache.Indexer
	// podsKnown reports whether the cache of pods is synced.
	podsKnown cache.InformerSynced
	// leadsTo indexes Services by the pods that are their endpoints.
	leadsTo endpoints.Index

	mu sync.Mutex
	// watches has the state of each namespace.
	watches map[string]*spaceWatch
	// early has the state of ConfigMaps and Secrets in namespaces that are not in the cache yet.
	early map[string]map[stock.Key]*configState
	// alive counts, by namespace, the OffloadedPods that have not ended.
	alive map[string]int
	// eventWatches counts the namespaces in which events are watched, by peer, and configWatches those in which
	// ConfigMaps and Secrets are.
	eventWatches, configWatches map[peering.ClusterID]int
	configs                     chan struct{}
	work                        sync.WaitGroup
}

// spaceWatch is the state of one namespace.
type spaceWatch struct {
	ctx    context.Context //nolint:containedctx // it ends with the namespace
	cancel context.CancelFunc
	peer   peering.ClusterID
	// events ends the watch of events, and endConfigs those of ConfigMaps and Secrets; nil without a watch.
	events, endConfigs func()
	// configs has the state of its ConfigMaps and Secrets.
	configs map[stock.Key]*configState
	// last has the last status of deleted pods, until it is recorded or their OffloadedPod is deleted.
	last map[types.UID]corev1.PodStatus
}

// Indexes of OffloadedPods: byContract by contract, byUID by contract and UID of the pod at home, byHome by
// that UID and namespace, byAddress those that have not ended by their pods' addresses. Indexes of pods: byIP
// by namespace and address, byHomeIPs those that read their home addresses, by peer. byService indexes
// EndpointSlices by Service.
const (
	byHomeIPs  = "home-ips"
	byHome     = "home"
	byIP       = "ip"
	byService  = "service"
	byContract = "contract"
	byUID      = "uid"
	byAddress  = "address"
)

func newInventory(p *Provider) *inventory {
	v := &inventory{
		p: p, synced: make(chan struct{}), watches: make(map[string]*spaceWatch), early: make(map[string]map[stock.Key]*configState), alive: make(map[string]int),
		eventWatches: make(map[peering.ClusterID]int), configWatches: make(map[peering.ClusterID]int), configs: make(chan struct{}, configsAtOnce),
	}
	ours := []client.ListOption{client.MatchingLabels{api.LabelManaged: api.Manager}, client.HasLabels{api.LabelPeer}}
	v.spaces = v.add(func() client.ObjectList { return &corev1.NamespaceList{} }, &corev1.Namespace{}, handle(v.seeSpace, v.leaveSpace), nil, ours...)
	v.pods = v.add(func() client.ObjectList { return &corev1.PodList{} }, &corev1.Pod{}, v.podHandler(), cache.Indexers{
		byIP: func(o any) ([]string, error) {
			pod := o.(*corev1.Pod)
			if pod.Status.PodIP == "" {
				return nil, nil
			}
			return []string{pod.Namespace + "/" + pod.Status.PodIP}, nil
		},
		byHomeIPs: func(o any) ([]string, error) {
			pod := o.(*corev1.Pod)
			if _, reads := pod.Annotations[api.AnnotationHomeIPs]; !reads {
				return nil, nil
			}
			return []string{pod.Labels[api.LabelPeer]}, nil
		},
	}, ours...)
	v.podsKnown = v.informers[len(v.informers)-1].HasSynced
	v.services = v.add(func() client.ObjectList { return &corev1.ServiceList{} }, &corev1.Service{}, handle(v.seeService, v.leaveService), nil, ours...)
	v.claims = v.add(func() client.ObjectList { return &corev1.PersistentVolumeClaimList{} }, &corev1.PersistentVolumeClaim{}, handle(v.seeClaim, v.leaveClaim), nil, ours...)
	v.policies = v.add(func() client.ObjectList { return &networkingv1.NetworkPolicyList{} }, &networkingv1.NetworkPolicy{}, handle(v.seePolicy, v.leavePolicy), nil, ours...)
	v.slices = v.add(func() client.ObjectList { return &discoveryv1.EndpointSliceList{} }, &discoveryv1.EndpointSlice{}, v.sliceHandler(), cache.Indexers{
		byService: func(o any) ([]string, error) {
			return []string{serviceOf(o.(*discoveryv1.EndpointSlice)).String()}, nil
		},
	}, ours...)
	v.offloads = v.add(func() client.ObjectList { return &api.OffloadedPodList{} }, &api.OffloadedPod{}, v.offloadedHandler(), cache.Indexers{
		byHome: func(o any) ([]string, error) {
			p := o.(*api.OffloadedPod)
			return []string{p.Namespace + "/" + p.Spec.OriginUID}, nil
		},
		byContract: func(o any) ([]string, error) { return []string{o.(*api.OffloadedPod).Spec.Contract}, nil },
		byUID: func(o any) ([]string, error) {
			s := o.(*api.OffloadedPod).Spec
			return []string{graveOf(s.Contract, s.OriginUID)}, nil
		},
		byAddress: func(o any) ([]string, error) {
			p := o.(*api.OffloadedPod)
			if !live(p) {
				return nil, nil
			}
			var keys []string
			for _, ip := range p.Status.PodIPs {
				if a, err := netip.ParseAddr(ip); err == nil {
					keys = append(keys, a.Unmap().String()) // in its canonical form
				}
			}
			return keys, nil
		},
	})
	return v
}

// add adds an informer of one kind for all namespaces, and returns its cache.
func (v *inventory) add(list func() client.ObjectList, o client.Object, handler cache.ResourceEventHandler, more cache.Indexers, opts ...client.ListOption) cache.Indexer {
	indexers := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	maps.Copy(indexers, more)
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: pages.ListWatch(v.p.client, list, slim, opts...), ObjectType: o, Transform: slim, Indexers: indexers, Handler: handler,
	})
	v.informers = append(v.informers, informer)
	return store.(cache.Indexer)
}

// handle calls see with each object that was added or updated, and leave with each that was deleted.
func handle[T any](see, leave func(T)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { see(o.(T)) },
		UpdateFunc: func(_, o any) { see(o.(T)) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if gone, ok := o.(T); ok {
				leave(gone)
			}
		},
	}
}

// run watches until ctx ends.
func (v *inventory) run(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	v.ctx, v.queue = ctx, queue
	defer v.work.Wait()
	known := make([]cache.InformerSynced, 0, len(v.informers))
	for _, informer := range v.informers {
		v.work.Go(func() { informer.RunWithContext(ctx) })
		known = append(known, informer.HasSynced)
	}
	if cache.WaitForCacheSync(ctx.Done(), known...) {
		close(v.synced)
		// What was seen during the start is reconciled again, now that all caches are synced.
		for _, o := range typed[*api.OffloadedPod](v.offloads.List()) {
			v.touch(o.Namespace, o.Name, o.Spec.Contract)
			v.p.changed(o.Spec.Contract)
		}
		for _, pod := range typed[*corev1.Pod](v.pods.List()) {
			if pod.DeletionTimestamp != nil {
				v.touch(pod.Namespace, pod.Name, pod.Labels[api.LabelContract])
			}
		}
		v.p.services.All()
		v.p.policies.All()
	}
	recount := time.NewTicker(configsInterval)
	defer recount.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-recount.C:
			for _, ns := range v.namespaces() {
				if ns.Labels[api.LabelRetained] != "" {
					v.sweep(ns.Name)
				}
				v.countConfigs(ctx, ns.Name, peering.ClusterID(ns.Labels[api.LabelPeer]))
			}
		}
	}
}

func (v *inventory) seeOffloaded(o *api.OffloadedPod) {
	v.p.ledger.Show(o, live(o))
	v.p.stock.Set(podKey(o), stock.Item{
		Peer: peering.ClusterID(o.Spec.PeerID), Contract: o.Spec.Contract, Bytes: notedBytes(o.Annotations),
	})
	v.touch(o.Namespace, o.Name, o.Spec.Contract)
	v.p.changed(o.Spec.Contract)
	if live(o) {
		v.watchMore(o.Namespace)
	}
}

func (v *inventory) leaveOffloaded(o *api.OffloadedPod) {
	v.p.ledger.Hide(o)
	v.p.stock.Drop(podKey(o))
	v.p.graves.Add(peering.ClusterID(o.Spec.PeerID), graveOf(o.Spec.Contract, o.Spec.OriginUID))
	v.p.hub.Gone(o.Spec.Contract, v.lastStatus(o))
	v.touch(o.Namespace, o.Name, o.Spec.Contract)
	v.p.changed(o.Spec.Contract)
	if !v.hasLive(o.Namespace) {
		v.watchLess(o.Namespace)
	}
}

// seeService counts a Service and queues a comparison of its endpoints.
func (v *inventory) seeService(svc *corev1.Service) {
	var item stock.Item
	note, err := reflection.Note(svc)
	if err == nil {
		item = reflection.Count(note)
	}
	item.Peer, item.Contract, item.Bytes = peering.ClusterID(svc.Labels[api.LabelPeer]), firstHolder(svc), notedBytes(svc.Annotations)
	item.Ports = len(svc.Spec.Ports)
	v.p.stock.Set(stock.Key{Kind: peering.KindService, Namespace: svc.Namespace, Name: svc.Name}, item)
	v.leadsTo.Set(client.ObjectKeyFromObject(svc), note)
	v.p.services.One(client.ObjectKeyFromObject(svc))
}

func (v *inventory) leaveService(svc *corev1.Service) {
	v.leadsTo.Drop(client.ObjectKeyFromObject(svc))
	v.p.openings.Forget(svc.UID)
	v.p.servedChanged(svc.Namespace)
	v.p.stock.Drop(stock.Key{Kind: peering.KindService, Namespace: svc.Namespace, Name: svc.Name})
}

// serviceOf names the Service of an EndpointSlice.
func serviceOf(s *discoveryv1.EndpointSlice) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

// sliceHandler queues the Service of an EndpointSlice that was updated or deleted. The comparison itself
// creates them.
func (v *inventory) sliceHandler() cache.ResourceEventHandler {
	see := func(s *discoveryv1.EndpointSlice) { v.p.services.One(serviceOf(s)) }
	h := handle(see, see)
	h.AddFunc = nil
	h.UpdateFunc = func(before, s any) {
		see(before.(*discoveryv1.EndpointSlice))
		see(s.(*discoveryv1.EndpointSlice))
	}
	return h
}

// offloadedHandler handles OffloadedPods, and queues the Services that have one as an endpoint when its pod
// comes or goes.
func (v *inventory) offloadedHandler() cache.ResourceEventHandler {
	lead := func(o *api.OffloadedPod) { v.compareServicesOf(o.Namespace, o.Spec.OriginUID) }
	h := handle(func(o *api.OffloadedPod) {
		v.count(nil, o)
		v.seeOffloaded(o)
	}, func(o *api.OffloadedPod) {
		v.count(o, nil)
		v.leaveOffloaded(o)
		lead(o)
	})
	h.UpdateFunc = func(was, is any) {
		before, o := was.(*api.OffloadedPod), is.(*api.OffloadedPod)
		v.count(before, o)
		if before.Spec.OriginUID != o.Spec.OriginUID { // it was deleted and created again between two events
			v.leaveOffloaded(before)
		}
		v.seeOffloaded(o)
		if before.UID != o.UID || before.Status.PodUID != o.Status.PodUID || live(before) != live(o) {
			lead(before)
			lead(o)
		}
	}
	return h
}

// count counts an OffloadedPod that was added, updated or deleted.
func (v *inventory) count(before, after *api.OffloadedPod) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if before != nil && live(before) {
		if v.alive[before.Namespace]--; v.alive[before.Namespace] == 0 {
			delete(v.alive, before.Namespace)
		}
	}
	if after != nil && live(after) {
		v.alive[after.Namespace]++
	}
}

// hasLive reports whether a namespace has an OffloadedPod that has not ended.
func (v *inventory) hasLive(namespace string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.alive[namespace] > 0
}

// compareServicesOf queues the Services that have a pod as an endpoint.
func (v *inventory) compareServicesOf(namespace, originUID string) {
	for _, service := range v.leadsTo.Of(namespace, originUID) {
		v.p.services.One(service)
	}
}

func (v *inventory) podHandler() cache.ResourceEventHandler {
	h := handle(func(pod *corev1.Pod) { v.seePod(&corev1.Pod{}, pod) }, func(pod *corev1.Pod) {
		v.remember(pod)
		v.seePod(pod, &corev1.Pod{ObjectMeta: pod.ObjectMeta})
	})
	h.UpdateFunc = func(before, pod any) { v.seePod(before.(*corev1.Pod), pod.(*corev1.Pod)) }
	return h
}

// seePod handles a change from before to pod; a pod that does not exist has an empty status.
func (v *inventory) seePod(before, pod *corev1.Pod) {
	v.touch(pod.Namespace, pod.Name, pod.Labels[api.LabelContract])
	if before.Status.PodIP != pod.Status.PodIP || before.Spec.NodeName != pod.Spec.NodeName {
		v.compareServicesOf(pod.Namespace, pod.Labels[api.LabelOriginUID])
	}
	// A running pod exposes its addresses, and nothing else.
	if !slices.Equal(before.Status.PodIPs, pod.Status.PodIPs) || before.Status.PodIP != pod.Status.PodIP || ended(before.Status.Phase) != ended(pod.Status.Phase) {
		v.p.changed(pod.Labels[api.LabelContract])
	}
}

func podKey(o *api.OffloadedPod) stock.Key {
	return stock.Key{Kind: peering.KindPod, Namespace: o.Namespace, Name: o.Name}
}

// slim removes the fields that are not read, to save memory.
func slim(in any) (any, error) {
	if o, ok := in.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	switch o := in.(type) {
	case *api.OffloadedPod:
		if len(o.Spec.Template.Raw) > 0 { // otherwise it was in the cache before
			setAnnotation(o, noteBytes, strconv.Itoa(podBytes(len(o.Spec.Template.Raw))))
			setAnnotation(o, offloadedpod.NoteContainers, strings.Join(offloadedpod.Containers(o), ","))
			o.Spec.Template = runtime.RawExtension{}
		}
	case *corev1.Pod:
		maps.DeleteFunc(o.Annotations, func(k, _ string) bool { return k != api.AnnotationHash && k != api.AnnotationHomeIPs })
		o.Spec = corev1.PodSpec{
			NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork,
			TerminationGracePeriodSeconds: o.Spec.TerminationGracePeriodSeconds,
		}
	}
	return in, nil
}

// touch notifies the reconciler of a pod, and those that watch the
// contract.
func (v *inventory) touch(namespace, name, contract string) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	v.queue.Add(reconcile.Request{NamespacedName: key})
	v.p.hub.Touch(contract, key)
}

func (v *inventory) seeSpace(ns *corev1.Namespace) {
	peer := peering.ClusterID(ns.Labels[api.LabelPeer])
	if ns.DeletionTimestamp != nil {
		v.endings(ns.Name)
	}
	v.p.stock.Set(stock.Key{Kind: peering.KindNamespace, Name: ns.Name}, stock.Item{Peer: peer})
	v.mu.Lock()
	_, known := v.watches[ns.Name]
	if known || v.ctx.Err() != nil {
		v.mu.Unlock()
		return
	}
	ctx, cancel := context.WithCancel(v.ctx)
	v.watches[ns.Name] = &spaceWatch{ctx: ctx, cancel: cancel, peer: peer, last: make(map[types.UID]corev1.PodStatus), configs: v.early[ns.Name]}
	if delete(v.early, ns.Name); v.watches[ns.Name].configs == nil {
		v.watches[ns.Name].configs = make(map[stock.Key]*configState)
	}
	v.work.Go(func() { v.countConfigs(ctx, ns.Name, peer) })
	v.mu.Unlock()
	// Its pods may have reached the cache first.
	if v.hasLive(ns.Name) {
		v.watchMore(ns.Name)
	}
}

// countConfigs counts the ConfigMaps and Secrets of a namespace by their metadata, and queues a
// comparison of those that changed.
func (v *inventory) countConfigs(ctx context.Context, namespace string, peer peering.ClusterID) {
	select {
	case v.configs <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-v.configs }()
	if v.p.awaitGrant(ctx, namespace) != nil {
		return
	}
	since, known := v.p.stock.Sequence(), v.knownConfigs(namespace, configKinds...)
	listed := make(map[stock.Key]stock.Item)
	err := v.p.eachShared(ctx, namespace, peer, func(kind peering.Kind, o *metav1.PartialObjectMetadata) error {
		key := configKey(kind, o)
		listed[key] = stock.Item{Peer: peer, Contract: firstHolder(o), Bytes: notedBytes(o.Annotations)}
		v.seeConfig(key, o.ResourceVersion)
		return nil
	}, peering.KindConfigMap, peering.KindSecret)
	switch {
	case err == nil:
		v.p.stock.ReplaceConfigs(namespace, since, listed)
		for _, key := range known {
			if _, ok := listed[key]; !ok {
				v.leaveConfig(key)
			}
		}
	case ctx.Err() == nil:
		v.p.cfg.Log.Warn("count what is in a namespace", "namespace", namespace, "err", err)
	}
}

// watchMore watches the events of a namespace, and its ConfigMaps and Secrets, within the limits.
func (v *inventory) watchMore(namespace string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[namespace]; w != nil && w.ctx.Err() == nil {
		v.watchEvents(namespace, w)
		v.watchConfigs(namespace, w)
	}
}

// watchEvents watches the events of a namespace, within the limits. The lock is held.
func (v *inventory) watchEvents(namespace string, w *spaceWatch) {
	if w.events != nil || !mayWatch(v.eventWatches, w.peer, maxEventWatches, maxPeerEventWatches) {
		return
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.events = cancel
	v.eventWatches[w.peer]++
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: pages.ListWatch(v.p.client, func() client.ObjectList { return &corev1.EventList{} }, slim,
			client.InNamespace(namespace), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("involvedObject.kind", "Pod")}),
		ObjectType: &corev1.Event{},
		Transform:  slim,
		Handler: cache.ResourceEventHandlerDetailedFuncs{
			// The previous process has reported earlier events.
			AddFunc: func(o any, initial bool) {
				if !initial {
					v.event(o.(*corev1.Event))
				}
			},
			UpdateFunc: func(_, o any) { v.event(o.(*corev1.Event)) },
		},
	})
	v.work.Go(func() {
		if v.p.awaitGrant(ctx, namespace) == nil {
			informer.RunWithContext(ctx)
		}
	})
}

// mayWatch reports whether one more namespace of a peer may be watched. A peer may have fewer
// watches than are free, so that later peers find some.
func mayWatch(watches map[peering.ClusterID]int, peer peering.ClusterID, most, ofPeer int) bool {
	free := most
	for _, n := range watches {
		free -= n
	}
	return watches[peer] < min(ofPeer, free)
}

// watchLess ends the watches that watchMore began.
func (v *inventory) watchLess(namespace string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[namespace]; w != nil {
		v.endWatches(w)
	}
}

// endWatches ends the watches of a namespace that has no live pods. The lock is held.
func (v *inventory) endWatches(w *spaceWatch) {
	if w.endConfigs != nil {
		w.endConfigs()
	}
	if w.events == nil {
		return
	}
	w.events()
	w.events = nil
	if v.eventWatches[w.peer]--; v.eventWatches[w.peer] == 0 {
		delete(v.eventWatches, w.peer)
	}
}

func (v *inventory) leaveSpace(ns *corev1.Namespace) {
	v.mu.Lock()
	if w := v.watches[ns.Name]; w != nil {
		v.endWatches(w)
		w.cancel()
		delete(v.watches, ns.Name)
	}
	delete(v.early, ns.Name)
	v.mu.Unlock()
	v.endings(ns.Name)
	v.p.stock.DropSpace(ns.Name)
}

// remember keeps the last status of a pod that had ended and was deleted: the reconciler may be too
// late to see it.
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
	if len(w.last) >= maxLastStatuses {
		clear(w.last)
	}
	w.last[pod.UID] = pod.Status
}

func ended(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// endedLast returns the last status of a pod that had ended and was deleted, if this process saw it.
func (v *inventory) endedLast(namespace string, uid types.UID) (corev1.PodStatus, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w := v.watches[namespace]
	if w == nil {
		return corev1.PodStatus{}, false
	}
	s, ok := w.last[uid]
	return s, ok
}

// takeLast returns, once, the last status of a deleted pod.
func (v *inventory) takeLast(namespace string, uid types.UID) (corev1.PodStatus, bool) {
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

// pod returns a pod of the cache. known is false until the cache is synced: then a nil pod means
// nothing.
func (v *inventory) pod(namespace, name string) (pod *corev1.Pod, known bool) {
	if !v.podsKnown() {
		return nil, false
	}
	return byKey[corev1.Pod](v.pods, types.NamespacedName{Namespace: namespace, Name: name}), true
}

// offloaded returns an OffloadedPod of the cache, without its template, or nil.
func (v *inventory) offloaded(key types.NamespacedName) *api.OffloadedPod {
	return byKey[api.OffloadedPod](v.offloads, key)
}

// of returns the OffloadedPods of a contract, without their templates.
func (v *inventory) of(contract string) []*api.OffloadedPod {
	return indexed[*api.OffloadedPod](v.offloads, byContract, contract)
}

// in returns the OffloadedPods of a namespace, without their templates.
func (v *inventory) in(namespace string) []*api.OffloadedPod {
	return indexed[*api.OffloadedPod](v.offloads, cache.NamespaceIndex, namespace)
}

// known reports whether all caches are synced.
func (v *inventory) known() bool {
	select {
	case <-v.synced:
		return true
	default:
		return false
	}
}

// peerOf returns the peer of a namespace.
func (v *inventory) peerOf(namespace string) peering.ClusterID {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.watches[namespace]; w != nil {
		return w.peer
	}
	return ""
}

// namespaces returns the namespaces of peers.
func (v *inventory) namespaces() []*corev1.Namespace {
	return typed[*corev1.Namespace](v.spaces.List())
}

// space returns a namespace of a peer, or nil.
func (v *inventory) space(name string) *corev1.Namespace {
	o, _, _ := v.spaces.GetByKey(name) // an indexer in memory has no errors
	ns, _ := o.(*corev1.Namespace)
	return ns
}

// byKey returns an object, or nil.
func byKey[T any](objects cache.Indexer, key types.NamespacedName) *T {
	o, _, _ := objects.GetByKey(key.String()) // an indexer in memory has no errors
	found, _ := o.(*T)
	return found
}

// indexed returns the objects of an index under a value, in no order.
func indexed[T any](objects cache.Indexer, index, value string) []T {
	list, _ := objects.ByIndex(index, value) // it fails only for an unknown index
	return typed[T](list)
}

func typed[T any](list []any) []T {
	out := make([]T, 0, len(list))
	for _, o := range list {
		out = append(out, o.(T))
	}
	return out
}
