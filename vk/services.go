package vk

import (
	"cmp"
	"context"
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
	"github.com/entente-dev/entente/peering"
)

// NamespaceState is the state of an offloaded namespace at the provider.
type NamespaceState struct {
	Namespace
	// Accepted says that the provider has it.
	Accepted bool
	// Refusal is why the provider refused it, or nil.
	Refusal *peering.Refusal
	// Agreed is the fence that the provider agreed to; 0 is none.
	Agreed time.Duration
}

// Namespaces returns the states of the offloaded namespaces, sorted by name.
func (n *Node) Namespaces() []NamespaceState {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make([]NamespaceState, 0, len(n.exported))
	for _, space := range n.exported {
		s := NamespaceState{Namespace: space}
		s.Agreed = n.fences.Counts(space.Name)
		if st := n.objects[namespaceRef(space)]; st != nil {
			s.Accepted, s.Refusal = st.acked && st.refusal == nil, st.refusal
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
	// Below one lock: an answer to what was asked for before is none to another fence.
	n.fences.Ask(space.Name, space.Fence, space.Fenced)
	say := n.noteWanted(o)
	n.mu.Unlock()
	if had && was.UID != space.UID {
		n.unwantObject(namespaceRef(was))
	}
	if say {
		n.cfg.Remote.Want(o)
	}
	n.watchServices(space.Name)
	return n.syncServices(ctx, space.Name)
}

// unexport unwants a namespace that is no longer offloaded: its Services, and the namespace
// once the provider has none of its pods.
func (n *Node) unexport(name string) {
	n.unwantAll(name, peering.KindService)
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

// podsRemain says whether the provider has, or may have, pods of a namespace.
func (n *Node) podsRemain(namespace string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, st := range n.state {
		if st.ref.Namespace == namespace && (st.wanted || st.held) && !st.gone {
			return true
		}
	}
	for _, p := range n.localPods() {
		if p.Namespace == namespace && offloadedBefore(p) {
			return true
		}
	}
	return false
}

// orphanNamespace says whether a namespace at the provider is an orphan.
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

// syncServices synchronises the Services of an offloaded namespace.
func (n *Node) syncServices(ctx context.Context, namespace string) error {
	w := n.watchesOf(namespace)
	if !synced(w.services, w.slices) {
		return nil // reconciled again after the sync
	}
	slices := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range stored[*discoveryv1.EndpointSlice](w.slices) {
		if s.Labels[api.LabelManaged] != api.Manager {
			name := s.Labels[discoveryv1.LabelServiceName]
			slices[name] = append(slices[name], s)
		}
	}
	want, have := map[peering.ObjectRef]bool{}, map[string]bool{}
	for _, svc := range stored[*corev1.Service](w.services) {
		have[string(svc.UID)] = true
		if !exportable(svc) {
			continue
		}
		o, err := object(peering.ObjectRef{Kind: peering.KindService, Namespace: svc.Namespace, Name: svc.Name, UID: string(svc.UID)},
			serviceObject(svc, slices[svc.Name]))
		if err != nil {
			return err
		}
		want[o.Ref] = true
		n.unwantNamesakes(o.Ref)
		n.wantObject(o)
		n.warnCut(o.Ref, slices[svc.Name])
	}
	for _, s := range n.ofSet(w) {
		o, err := object(peering.ObjectRef{Kind: peering.KindService, Namespace: namespace, Name: s.Name, UID: s.UID}, s.ServiceObject)
		if err != nil {
			return err
		}
		want[o.Ref], have[s.UID] = true, true
		n.unwantNamesakes(o.Ref)
		n.wantObject(o)
	}
	for _, ref := range n.wantedObjects(namespace, peering.KindService) {
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
	n.mu.Lock()
	if p := n.watches[namespace]; p != nil {
		p.declared = true
	}
	n.mu.Unlock()
	return nil
}

// ofSet returns what crosses of the ServiceImports of a namespace.
func (n *Node) ofSet(w namespaceWatch) []endpoints.SetService {
	return endpoints.OfSet(stored[*corev1.Service](w.services), stored[*discoveryv1.EndpointSlice](w.slices), n.cfg.Peer)
}

// stored returns what an informer has.
func stored[T any](i cache.SharedIndexInformer) (out []T) {
	for _, o := range i.GetStore().List() {
		if t, ok := o.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// ServicesDeclared says whether the Services of all offloaded namespaces were synchronised
// since the node runs.
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

// PodAddresses returns the addresses of the pods on the node that did not end, by their
// statuses.
func (n *Node) PodAddresses() map[peering.ObjectRef][]netip.Addr {
	out := map[peering.ObjectRef][]netip.Addr{}
	for _, p := range n.localPods() {
		if terminal(p.Status.Phase) {
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

// orphanService says whether a Service at the provider is an orphan.
func (n *Node) orphanService(ctx context.Context, ref peering.ObjectRef) (bool, error) {
	switch n.offloads(ref.Namespace) {
	case unknown:
		return false, nil
	case no:
		return true, nil
	case yes:
	}
	if w := n.watchesOf(ref.Namespace); synced(w.services, w.slices) &&
		slices.ContainsFunc(n.ofSet(w), func(s endpoints.SetService) bool { return s.Name == ref.Name && s.UID == ref.UID }) {
		return false, nil
	}
	if svc, ok := n.cached(ref).(*corev1.Service); ok {
		return !exportable(svc), nil
	}
	is, err := n.live(ctx, ref)
	return err == nil && !is, err
}

// exportable says whether a Service crosses: not one that came from another cluster, and
// never the API server's.
func exportable(svc *corev1.Service) bool {
	return svc.Labels[api.LabelManaged] != api.Manager &&
		!(svc.Namespace == corev1.NamespaceDefault && svc.Name == "kubernetes")
}

// serviceObject is a Service as it crosses, with its endpoints in home terms, or the name
// that it stands for. Whether that may cross is the provider's to say, who tells why not.
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
	}
	endpoints.ReadAffinity(svc.Spec, &o)
	return o
}

// ownFirst says whether a Service prefers the endpoints of the cluster that it is used in: by its
// annotation, or because its traffic is to stay close, which another cluster is not.
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

// warnCut says of a Service that it has more endpoints than cross, once until it has not.
func (n *Node) warnCut(ref peering.ObjectRef, list []*discoveryv1.EndpointSlice) {
	total := 0
	for _, s := range list {
		total += len(s.Endpoints)
	}
	n.mu.Lock()
	st := n.objects[ref]
	may := false
	if st != nil {
		cut := total > peering.MaxServiceEndpoints
		may = cut && !st.cut && st.writes.event(time.Now(), n.share)
		st.cut = cut
	}
	n.mu.Unlock()
	if may {
		n.recorder.Event(serviceReference(ref), corev1.EventTypeWarning, "TooManyEndpoints",
			fmt.Sprintf("%d of its %d endpoints cross to the provider of %s, as many as may", peering.MaxServiceEndpoints, total, n.cfg.Name))
	}
}
