package vk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// NamespaceState is the state of an offloaded namespace at the provider.
type NamespaceState struct {
	Namespace
	// Accepted means that the provider has it.
	Accepted bool
	// Refusal is why the provider refused it, or nil.
	Refusal *peering.Refusal
	// Counts is the longest fence that the provider may follow; 0 means none. Answered means that it agreed
	// to that one, and was asked for no other since.
	Counts   time.Duration
	Answered bool
}

// Namespaces returns the states of the offloaded namespaces, sorted by name.
func (n *Node) Namespaces() []NamespaceState {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]NamespaceState, 0, len(n.exported))
	for _, space := range n.exported {
		s := NamespaceState{Namespace: space}
		s.Counts, s.Answered = n.fences.Counts(space.Name), n.fences.Answered(space.Name)
		if st := n.objects[namespaceRef(space)]; st != nil {
			s.Accepted, s.Refusal = st.acked && st.refusal == nil, st.refused.Why()
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b NamespaceState) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

func namespaceRef(s Namespace) peering.ObjectRef {
	return peering.ObjectRef{Kind: peering.KindNamespace, Name: s.Name, UID: s.UID}
}

// syncNamespace synchronises everything of a namespace but its pods.
func (n *Node) syncNamespace(ctx context.Context, name string) error {
	spaces, err := n.cfg.Namespaces()
	if err != nil {
		return fmt.Errorf("list offloaded namespaces: %w", err)
	}
	if i := slices.IndexFunc(spaces, func(s Namespace) bool { return s.Name == name }); i >= 0 {
		err = n.export(ctx, spaces[i])
	} else {
		n.unexport(name)
	}
	if refErr := n.syncReferences(ctx, name); err == nil {
		err = refErr
	}
	n.wake(name)
	return err
}

// wake reconciles the pods of a namespace that wait for references.
func (n *Node) wake(namespace string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid := range n.waiting[namespace] {
		n.podQueue.Add(uid)
	}
	delete(n.waiting, namespace)
}

func (n *Node) export(ctx context.Context, space Namespace) error {
	o, err := object(namespaceRef(space), peering.NamespaceObject{Mapping: space.Mapping, Name: space.RemoteName, ClusterDomain: n.cfg.ClusterDomain, FenceSeconds: int64(space.Fence / time.Second)})
	if err != nil {
		return err
	}
	n.mu.Lock()
	was, had := n.exported[space.Name]
	n.exported[space.Name] = space
	// Under one lock: an acknowledgement of an earlier fence must not count for this one.
	n.fences.Ask(space.Name, space.Fence, space.Fenced)
	say := n.noteWanted(o)
	n.mu.Unlock()
	if had && was.UID != space.UID {
		n.unwantObject(namespaceRef(was))
	}
	if say {
		n.cfg.Mirror.Want(o)
	}
	n.watchServices(space.Name)
	return n.compareServices(ctx, space.Name)
}

// unexport unwants a namespace that is no longer offloaded: its Services, and the namespace itself
// once the provider has none of its pods.
func (n *Node) unexport(name string) {
	n.servicesMu.Lock()
	n.unwantAll(name, peering.KindService)
	n.mu.Lock()
	if w := n.watches[name]; w != nil {
		w.compared = false
	}
	n.mu.Unlock()
	n.servicesMu.Unlock()
	if n.podsRemain(name) {
		return
	}
	n.unwantAll(name, peering.KindConfigMap, peering.KindSecret)
	n.unwantAll(name, peering.KindNamespace)
	n.mu.Lock()
	delete(n.exported, name)
	n.mu.Unlock()
	n.closeWatches(name)
}

// podsRemain reports whether the provider has, or may have, pods of a namespace.
func (n *Node) podsRemain(namespace string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, st := range n.state {
		if st.ref.Namespace == namespace && (st.wanted || st.taken) && !st.gone && !n.unknown.has(uid) {
			return true
		}
	}
	return slices.ContainsFunc(n.localPods(), func(p *corev1.Pod) bool { return p.Namespace == namespace && podstatus.Offloaded(p) })
}

// orphanNamespace reports whether a namespace at the provider is an orphan.
func (n *Node) orphanNamespace(ctx context.Context, ref peering.ObjectRef) (bool, error) {
	spaces, err := n.cfg.Namespaces()
	if err != nil {
		return false, err
	}
	if slices.ContainsFunc(spaces, func(s Namespace) bool { return s.Name == ref.Name && s.UID == ref.UID }) {
		return false, nil
	}
	is, err := n.live(ctx, ref)
	if err != nil {
		return false, err
	}
	return !is || !n.podsRemain(ref.Name), nil
}

// serviceKey names everything that is sent as the Service of one name.
type serviceKey struct{ namespace, name string }

// byCrossing indexes Services and EndpointSlices by the name of the Service as which they are sent.
const byCrossing = "crossing"

// crossesAs returns the name under which a Service, or an EndpointSlice, is sent; "" if it is not.
func crossesAs(obj any) string {
	switch o := obj.(type) {
	case *corev1.Service:
		if set := endpoints.SetOf(o); set != "" {
			return endpoints.SetName(set)
		}
		return o.Name
	case *discoveryv1.EndpointSlice:
		if o.Labels[api.LabelManaged] != api.Manager {
			return o.Labels[discoveryv1.LabelServiceName]
		}
		if set := endpoints.SetOf(o); set != "" {
			return endpoints.SetName(set)
		}
	}
	return ""
}

func crossingIndex() cache.Indexers {
	return cache.Indexers{byCrossing: func(obj any) ([]string, error) {
		if name := crossesAs(obj); name != "" {
			return []string{name}, nil
		}
		return nil, nil
	}}
}

// changedService queues a Service that changed, or whose EndpointSlice did. One that was sent before is
// sent at once, and then at most once each debounce; a new one waits for its endpoints.
func (n *Node) changedService(namespace string, obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	name := crossesAs(obj)
	if name == "" {
		return
	}
	wait := debounce
	n.mu.Lock()
	ref := peering.ObjectRef{Kind: peering.KindService, Namespace: namespace, Name: name}
	for _, uid := range n.named[ref] {
		ref.UID = uid
		wait = min(wait, max(0, debounce-time.Since(n.objects[ref].wantedAt)))
	}
	n.mu.Unlock()
	n.serviceQueue.AddAfter(serviceKey{namespace, name}, wait)
}

// compareServices synchronises all Services of a namespace, if they were not since its watches began or
// everything was to be reconciled. Later each is synchronised when it changes.
func (n *Node) compareServices(ctx context.Context, namespace string) error {
	w := n.watchesOf(namespace)
	if w.compared || !synced(w.services, w.slices) {
		return nil // reconciled again after the sync
	}
	n.mu.Lock()
	if p := n.watches[namespace]; p != nil {
		p.compared = true // compareAgain resets it
	}
	n.mu.Unlock()
	names := map[string]bool{}
	for _, i := range []cache.SharedIndexInformer{w.services, w.slices} {
		for _, name := range i.GetIndexer().ListIndexFuncValues(byCrossing) {
			names[name] = true
		}
	}
	for _, ref := range n.wantedObjects(namespace, peering.KindService) {
		names[ref.Name] = true
	}
	var problems []error
	for name := range names {
		problems = append(problems, n.syncService(ctx, serviceKey{namespace, name}))
	}
	err := errors.Join(problems...)
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.watches[namespace]; p != nil {
		p.declared = p.declared || err == nil
		p.compared = p.compared && err == nil
	}
	return err
}

// syncService synchronises everything that is sent as the Service of one name, in an offloaded namespace.
func (n *Node) syncService(ctx context.Context, key serviceKey) error {
	// No Service is wanted while its namespace ceases to be offloaded.
	n.servicesMu.Lock()
	defer n.servicesMu.Unlock()
	w := n.watchesOf(key.namespace)
	if !synced(w.services, w.slices) {
		return nil // all are compared after the sync
	}
	if !n.exports(key.namespace) {
		n.compareAgain(key.namespace) // should it be offloaded again, this one was not synchronised
		return nil
	}
	services, parts := w.crossing(key.name)
	want, have := map[peering.ObjectRef]bool{}, map[string]bool{}
	for _, svc := range services {
		have[string(svc.UID)] = true
		if !exportable(svc) {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(parts), func(s *discoveryv1.EndpointSlice) bool { return s.Labels[api.LabelManaged] == api.Manager })
		o := serviceObject(svc, own)
		cut := fit(&o)
		ref, err := n.wantService(key.namespace, svc.Name, string(svc.UID), o)
		if err != nil {
			return err
		}
		want[ref] = true
		n.warnCut(ref, own, len(o.Endpoints), cut)
		n.warnUnknown(ref, svc.Annotations[api.AnnotationEndpoints])
	}
	for _, s := range n.ofSet(w, key.name) {
		have[s.UID] = true
		fit(&s.ServiceObject)
		ref, err := n.wantService(key.namespace, s.Name, s.UID, s.ServiceObject)
		if err != nil {
			return err
		}
		want[ref] = true
	}
	return n.unwantServices(ctx, key, want, have)
}

// wantService wants a Service in the form in which it is sent.
func (n *Node) wantService(namespace, name, uid string, s peering.ServiceObject) (peering.ObjectRef, error) {
	o, err := object(peering.ObjectRef{Kind: peering.KindService, Namespace: namespace, Name: name, UID: uid}, s)
	if err != nil {
		return o.Ref, err
	}
	n.unwantNamesakes(o.Ref)
	n.wantObject(o)
	return o.Ref, nil
}

// unwantServices unwants objects that were sent as the Service of one name, and are not in want. For
// UIDs that the cache does not have, it asks the API server.
func (n *Node) unwantServices(ctx context.Context, key serviceKey, want map[peering.ObjectRef]bool, have map[string]bool) error {
	for _, ref := range n.wantedNamed(peering.ObjectRef{Kind: peering.KindService, Namespace: key.namespace, Name: key.name}) {
		if want[ref] {
			continue
		}
		if !have[ref.UID] {
			is, err := n.live(ctx, ref)
			if err != nil {
				return err
			}
			if is {
				continue // the cache is behind
			}
		}
		n.unwantObject(ref)
	}
	return nil
}

// compareAgain queues a comparison of all Services of a namespace, if it is offloaded.
func (n *Node) compareAgain(namespace string) {
	n.mu.Lock()
	if w := n.watches[namespace]; w != nil {
		w.compared = false
	}
	n.mu.Unlock()
	n.nsQueue.AddAfter(namespace, debounce)
}

// exports reports whether a namespace is offloaded, and was wanted.
func (n *Node) exports(namespace string) bool {
	if n.offloads(namespace) != yes {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, ok := n.exported[namespace]
	return ok
}

// crossing returns the Services and EndpointSlices that are sent under a name.
func (w *namespaceWatch) crossing(name string) ([]*corev1.Service, []*discoveryv1.EndpointSlice) {
	return crossing[*corev1.Service](w.services, name), crossing[*discoveryv1.EndpointSlice](w.slices, name)
}

func crossing[T any](i cache.SharedIndexInformer, name string) (out []T) {
	list, _ := i.GetIndexer().ByIndex(byCrossing, name) // it fails only for an unknown index
	for _, o := range list {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// ofSet returns those ServiceImports of a namespace that are sent under a name.
func (n *Node) ofSet(w namespaceWatch, name string) []endpoints.SetService {
	services, parts := w.crossing(name)
	return slices.DeleteFunc(endpoints.OfSet(services, parts, n.cfg.Peer), func(s endpoints.SetService) bool { return s.Name != name })
}

// ServicesDeclared reports whether the Services of all offloaded namespaces were synchronised since
// Run began.
func (n *Node) ServicesDeclared() bool {
	spaces, err := n.cfg.Namespaces()
	if err != nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range spaces {
		if w := n.watches[s.Name]; w == nil || !w.declared {
			return false
		}
	}
	return true
}

// PodAddresses returns the addresses, from their statuses, of the pods on the node that have not
// ended.
func (n *Node) PodAddresses() map[peering.ObjectRef][]netip.Addr {
	out := map[peering.ObjectRef][]netip.Addr{}
	for _, p := range n.localPods() {
		if podstatus.Terminal(p.Status.Phase) {
			continue
		}
		for _, ip := range p.Status.PodIPs {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				out[podRef(p)] = append(out[podRef(p)], a)
			}
		}
	}
	return out
}

// orphanService reports whether a Service at the provider is an orphan.
func (n *Node) orphanService(ctx context.Context, ref peering.ObjectRef) (bool, error) {
	switch n.offloads(ref.Namespace) {
	case unknown:
		return false, nil
	case no:
		return true, nil
	case yes:
	}
	if w := n.watchesOf(ref.Namespace); synced(w.services, w.slices) &&
		slices.ContainsFunc(n.ofSet(w, ref.Name), func(s endpoints.SetService) bool { return s.UID == ref.UID }) {
		return false, nil
	}
	if svc, ok := n.cached(ref).(*corev1.Service); ok {
		return !exportable(svc), nil
	}
	is, err := n.live(ctx, ref)
	return err == nil && !is, err
}

// exportable reports whether a Service is sent: not one that came from another cluster, and never
// the API server's.
func exportable(svc *corev1.Service) bool {
	return svc.Labels[api.LabelManaged] != api.Manager &&
		!(svc.Namespace == corev1.NamespaceDefault && svc.Name == "kubernetes")
}

// serviceObject is a Service in the form in which it is sent, with its endpoints at home's
// addresses, or its external name. The provider decides whether to accept that name, and reports
// why not.
func serviceObject(svc *corev1.Service, slices []*discoveryv1.EndpointSlice) peering.ServiceObject {
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return peering.ServiceObject{
			Labels: svc.Labels, Headless: true, Ports: []peering.ServicePort{},
			ExternalName: strings.TrimSuffix(svc.Spec.ExternalName, "."),
		}
	}
	o := peering.ServiceObject{
		Labels:    svc.Labels,
		Headless:  svc.Spec.ClusterIP == corev1.ClusterIPNone,
		Ports:     endpoints.ReadPorts(svc.Spec.Ports),
		Endpoints: endpoints.Read(slices),
		OwnFirst:  ownFirst(svc),

		TrafficDistribution: ptr.Deref(svc.Spec.TrafficDistribution, ""),
	}
	endpoints.ReadAffinity(svc.Spec, &o)
	return o
}

// ownFirst reports whether a Service prefers the endpoints of the cluster in which it is used:
// because of its annotation, or because its traffic distribution asks for near ones, and another
// cluster is far.
func ownFirst(svc *corev1.Service) bool {
	switch api.EndpointPreference(svc.Annotations[api.AnnotationEndpoints]) {
	case api.EndpointsOwnFirst, api.EndpointsNearest:
		return true
	case api.EndpointsAll:
		return false
	}
	return ptr.Deref(svc.Spec.TrafficDistribution, "") != ""
}

// serviceReference names a Service in an event.
func serviceReference(ref peering.ObjectRef) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: ref.Namespace, Name: ref.Name, UID: types.UID(ref.UID)}
}

// fit leaves out the last endpoints of a Service that is larger than an object may be, as with many ports or long
// names, and reports whether it did.
func fit(o *peering.ServiceObject) (cut bool) {
	const endpoint, port = 320, 32 // bytes at most
	if len(o.Endpoints)*(endpoint+port*len(o.Ports)) < maxObjectBytes/2 {
		return false // nearly all Services
	}
	for len(o.Endpoints) > 0 {
		data, err := json.Marshal(o)
		if err != nil || len(data) <= maxObjectBytes {
			return cut // the caller reports the error
		}
		// All endpoints of a Service have about the same size.
		keep := min(len(o.Endpoints)*maxObjectBytes/len(data), len(o.Endpoints)-1)
		o.Endpoints, cut = o.Endpoints[:keep], true
	}
	return cut
}

// warnCut records an event on a Service that has more endpoints than are sent, once until that changes.
func (n *Node) warnCut(ref peering.ObjectRef, list []*discoveryv1.EndpointSlice, sent int, large bool) {
	total := 0
	for _, s := range list {
		total += len(s.Endpoints)
	}
	n.mu.Lock()
	st := n.objects[ref]
	may := false
	if st != nil {
		cut := large || total > peering.MaxServiceEndpoints
		may = cut && !st.cut && st.writes.event(time.Now(), n.share)
		st.cut = cut
	}
	n.mu.Unlock()
	if may {
		n.recorder.Event(serviceReference(ref), corev1.EventTypeWarning, "TooManyEndpoints",
			fmt.Sprintf("%d of its %d endpoints cross to the provider of %s, as many as may", sent, total, n.cfg.Name))
	}
}

// warnUnknown records an event on a Service whose annotation about endpoints is invalid, once per
// value.
func (n *Node) warnUnknown(ref peering.ObjectRef, value string) {
	switch api.EndpointPreference(value) {
	case api.EndpointsAll, api.EndpointsOwnFirst, api.EndpointsNearest:
		value = ""
	}
	n.mu.Lock()
	st := n.objects[ref]
	may := false
	if st != nil {
		may = value != "" && value != st.unknown && st.writes.event(time.Now(), n.share)
		st.unknown = value
	}
	n.mu.Unlock()
	if may {
		n.recorder.Event(serviceReference(ref), corev1.EventTypeWarning, "UnknownPreference", fmt.Sprintf(
			"the annotation %s is %q, which has no effect: set it to %s, %s or %s", api.AnnotationEndpoints, peering.Text(value, peering.MaxNameLen), api.EndpointsAll, api.EndpointsOwnFirst, api.EndpointsNearest))
	}
}
