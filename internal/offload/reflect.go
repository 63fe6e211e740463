package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/peering"
)

// reflector compares what is here with what it should be: the EndpointSlices of
// reflected Services, or NetworkPolicies. It takes the peers in turn, one
// thing of each at a time, so that one with many does not delay the others.
type reflector struct {
	p *Provider
	// what is compared, for people, and compare does it for one thing: a namespace
	// with all that is in it if that has no name.
	what    string
	compare func(ctx context.Context, key types.NamespacedName) error
	// peers are those that have something to compare.
	peers workqueue.TypedInterface[peering.ClusterID]

	mu sync.Mutex
	// gathering is what changed a moment ago, ready what to compare, by
	// peer, and waiting the same as a set. A peer of whom something is being compared is there, too.
	gathering map[types.NamespacedName]struct{}
	ready     map[peering.ClusterID][]types.NamespacedName
	waiting   map[types.NamespacedName]struct{}
}

func newReflector(p *Provider, what string, compare func(context.Context, types.NamespacedName) error) *reflector {
	return &reflector{
		p: p, what: what, compare: compare, peers: workqueue.NewTyped[peering.ClusterID](),
		gathering: make(map[types.NamespacedName]struct{}), ready: make(map[peering.ClusterID][]types.NamespacedName),
		waiting: make(map[types.NamespacedName]struct{}),
	}
}

// space has a namespace compared.
func (r *reflector) space(name string) { r.one(types.NamespacedName{Namespace: name}) }

// one has one thing compared.
func (r *reflector) one(key types.NamespacedName) { r.later(key, reflectGather) }

// later has one thing compared after a pause, with all that changes in between.
func (r *reflector) later(key types.NamespacedName, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.gathering[key]; ok {
		return
	}
	r.gathering[key] = struct{}{}
	time.AfterFunc(pause, func() { r.enqueue(key) })
}

// enqueue has something compared when it is its peer's turn.
func (r *reflector) enqueue(key types.NamespacedName) {
	peer := r.p.inv.peerOf(key.Namespace)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.gathering, key)
	if _, ok := r.waiting[key]; !ok {
		r.waiting[key] = struct{}{}
		r.ready[peer] = append(r.ready[peer], key)
		r.peers.Add(peer)
	}
}

// next waits for the turn of a peer, and returns what of it is compared; false after run.
func (r *reflector) next() (peer peering.ClusterID, key types.NamespacedName, ok bool) {
	peer, shut := r.peers.Get()
	if shut {
		return "", key, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	key, r.ready[peer] = r.ready[peer][0], r.ready[peer][1:]
	delete(r.waiting, key)
	return peer, key, true
}

// done lets the next of a peer be compared.
func (r *reflector) done(peer peering.ClusterID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ready[peer]) > 0 {
		r.peers.Add(peer)
	} else {
		delete(r.ready, peer)
	}
	r.peers.Done(peer)
}

// all has all namespaces compared.
func (r *reflector) all() {
	for _, ns := range r.p.inv.namespaces() {
		r.space(ns.Name)
	}
}

// of has all namespaces of a peer compared.
func (r *reflector) of(peer peering.ClusterID) {
	for _, ns := range r.p.inv.namespaces() {
		if r.p.inv.peerOf(ns.Name) == peer {
			r.space(ns.Name)
		}
	}
}

func (r *reflector) run(ctx context.Context) {
	var work sync.WaitGroup
	defer work.Wait()
	defer r.peers.ShutDown()
	for range reflectWorkers {
		work.Go(func() { r.work(ctx) })
	}
	again := time.NewTicker(reflectInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			r.all()
		}
	}
}

func (r *reflector) work(ctx context.Context) {
	for {
		peer, key, ok := r.next()
		if !ok {
			return
		}
		if err := r.compare(ctx, key); err != nil && ctx.Err() == nil {
			pause := time.Second
			var over *paced.OverBudget
			switch {
			case errors.As(err, &over):
				pause = over.Wait
			case apierrors.IsConflict(err):
				pause = reflectBehind
			default:
				r.p.cfg.Log.Warn("reflect a namespace", "what", r.what, "of", key, "err", err)
			}
			r.later(key, pause)
		}
		r.done(peer)
	}
}

// reflectServices compares the EndpointSlices of a Service, or of all Services of a namespace one after the other,
// with what the notes on them, the pods here and the address plan say. As long as the cluster is not known, it
// changes nothing.
func (p *Provider) reflectServices(ctx context.Context, key types.NamespacedName) error {
	if !p.inv.known() {
		return nil
	}
	if key.Name == "" {
		for _, svc := range indexed[*corev1.Service](p.inv.services, cache.NamespaceIndex, key.Namespace) {
			p.services.enqueue(client.ObjectKeyFromObject(svc))
		}
		return nil
	}
	svc := byKey[corev1.Service](p.inv.services, key)
	if svc == nil || svc.DeletionTimestamp != nil {
		return nil
	}
	note, ok := p.checkNote(svc)
	if !ok {
		return nil
	}
	var in peering.ServiceObject
	if err := json.Unmarshal(note, &in); err != nil {
		return fmt.Errorf("service %s: read what the consumer said of it: %w", svc.Name, err)
	}
	if err := p.reflectService(ctx, svc.DeepCopy(), in, indexed[*discoveryv1.EndpointSlice](p.inv.slices, byService, key.String())); err != nil {
		return fmt.Errorf("service %s: %w", svc.Name, err)
	}
	return nil
}

// podAddresses returns the addresses of a namespace's pods that endpoints lead to, by the UID of the
// pod at home. A pod that is here and has no address yet has an invalid one.
func (p *Provider) podAddresses(namespace string, to []peering.ServiceEndpoint) map[string]netip.Addr {
	ips := make(map[string]netip.Addr)
	for _, e := range to {
		if _, known := ips[e.PodUID]; known || e.PodUID == "" {
			continue
		}
		for _, o := range indexed[*api.OffloadedPod](p.inv.offloads, byHome, namespace+"/"+e.PodUID) {
			if !live(o) {
				continue
			}
			ips[e.PodUID] = netip.Addr{}
			pod, _ := p.inv.pod(o.Namespace, o.Name)
			if pod == nil || string(pod.UID) != o.Status.PodUID {
				continue
			}
			if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
				ips[e.PodUID] = a
			}
		}
	}
	return ips
}

// nodeOf returns the node of the pod of a namespace that has an address.
func (p *Provider) nodeOf(namespace, address string) (string, bool) {
	for _, pod := range indexed[*corev1.Pod](p.inv.pods, byIP, namespace+"/"+address) {
		if pod.Spec.NodeName != "" && !ended(pod.Status.Phase) {
			return pod.Spec.NodeName, true
		}
	}
	return "", false
}

// placeEndpoints names the nodes of the endpoints that are pods of this
// namespace: kube-proxy lets a pod reach itself through its own Service, and
// keeps traffic close, only where it knows.
func (p *Provider) placeEndpoints(parts []*discoveryv1.EndpointSlice) {
	for _, part := range parts {
		for i := range part.Endpoints {
			if node, ok := p.nodeOf(part.Namespace, part.Endpoints[i].Addresses[0]); ok {
				part.Endpoints[i].NodeName = &node
			}
		}
	}
}

func (p *Provider) reflectService(ctx context.Context, svc *corev1.Service, in peering.ServiceObject, have []*discoveryv1.EndpointSlice) error {
	peer := peering.ClusterID(svc.Labels[api.LabelPeer])
	ips := p.podAddresses(svc.Namespace, in.Endpoints)
	in.Endpoints = preferred(in, ips)
	want, dropped := endpoints.Slices(svc, in, func(e peering.ServiceEndpoint) (netip.Addr, bool) {
		if a, here := ips[e.PodUID]; here && e.PodUID != "" {
			return a, a.IsValid()
		}
		a, err := netip.ParseAddr(e.Address)
		if err != nil {
			return netip.Addr{}, false
		}
		if in.SetName != "" && e.Cluster == p.cfg.Self {
			return p.cfg.Own(peer, a)
		}
		return p.cfg.Translate(peer, a)
	})
	p.placeEndpoints(want)
	existing := make(map[string]*discoveryv1.EndpointSlice, len(have))
	for _, s := range have {
		existing[s.Name] = s
	}
	for _, w := range want {
		h, ok := existing[w.Name]
		delete(existing, w.Name)
		if err := p.writeSlice(ctx, h, w, ok); err != nil {
			return err
		}
	}
	for _, s := range existing {
		if err := p.client.Delete(ctx, s, client.Preconditions{UID: new(s.UID)}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete endpoint slice %s: %w", s.Name, err)
		}
	}
	return p.noteDropped(ctx, svc, dropped)
}

// preferred returns the endpoints that a Service leads to here, where the pods with these
// addresses are. kube-proxy goes by what is in EndpointSlices, on nodes without a zone, too.
func preferred(in peering.ServiceObject, ips map[string]netip.Addr) []peering.ServiceEndpoint {
	if !in.OwnFirst || in.Headless {
		return in.Endpoints
	}
	here := func(e peering.ServiceEndpoint) bool { return e.PodUID != "" && ips[e.PodUID].IsValid() }
	if !slices.ContainsFunc(in.Endpoints, func(e peering.ServiceEndpoint) bool { return e.Ready && here(e) }) {
		return in.Endpoints
	}
	var out []peering.ServiceEndpoint
	for _, e := range in.Endpoints {
		if here(e) {
			out = append(out, e)
		}
	}
	return out
}

func (p *Provider) writeSlice(ctx context.Context, have, want *discoveryv1.EndpointSlice, exists bool) error {
	if exists && have.AddressType == want.AddressType && sameOwner(have, want) {
		if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
			equality.Semantic.DeepEqual(have.Labels, want.Labels) {
			return nil
		}
		have = have.DeepCopy()
		have.Endpoints, have.Ports, have.Labels = want.Endpoints, want.Ports, want.Labels
		if err := p.client.Update(ctx, have, client.FieldOwner(api.Manager)); err != nil {
			return fmt.Errorf("update endpoint slice %s: %w", want.Name, err)
		}
		return nil
	}
	if exists {
		if err := p.client.Delete(ctx, have, client.Preconditions{UID: new(have.UID)}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("replace endpoint slice %s: %w", want.Name, err)
		}
	}
	err := p.client.Create(ctx, want.DeepCopy(), client.FieldOwner(api.Manager))
	if apierrors.IsAlreadyExists(err) {
		return p.writeUnseen(ctx, want)
	}
	if err != nil {
		return fmt.Errorf("create endpoint slice %s: %w", want.Name, err)
	}
	return nil
}

// writeUnseen writes an EndpointSlice that is there, though the cache does not show it yet. One that is another's stays.
func (p *Provider) writeUnseen(ctx context.Context, want *discoveryv1.EndpointSlice) error {
	have := &discoveryv1.EndpointSlice{}
	if err := p.client.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return fmt.Errorf("read endpoint slice %s: %w", want.Name, err)
	}
	if have.Labels[api.LabelManaged] != api.Manager || !sameOwner(have, want) || have.AddressType != want.AddressType {
		return nil
	}
	return p.writeSlice(ctx, have, want, true)
}

func sameOwner(a, b metav1.Object) bool {
	x, y := metav1.GetControllerOf(a), metav1.GetControllerOf(b)
	return x != nil && y != nil && x.UID == y.UID
}

// noteDropped says on the Service which endpoints cannot be reached from here.
func (p *Provider) noteDropped(ctx context.Context, svc *corev1.Service, dropped []string) error {
	note := ""
	if n := len(dropped); n > 0 {
		note = fmt.Sprintf("%d cannot be reached from this cluster: %s", n, strings.Join(dropped[:min(n, maxDropped)], " "))
		if n > maxDropped {
			note += " …"
		}
	}
	if svc.Annotations[noteDropped] == note {
		return nil
	}
	before := svc.DeepCopy()
	if note == "" {
		delete(svc.Annotations, noteDropped)
	} else {
		setAnnotation(svc, noteDropped, note)
		p.cfg.Log.Info("endpoints of a reflected service were left out", "namespace", svc.Namespace, "service", svc.Name, "endpoints", note)
	}
	if err := p.patch(ctx, svc, before); client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("note endpoints that were left out: %w", err)
	}
	return nil
}

// deleteSlices takes the EndpointSlices of a Service away.
func (p *Provider) deleteSlices(ctx context.Context, svc *corev1.Service) error {
	var list discoveryv1.EndpointSliceList
	if err := p.client.List(ctx, &list, client.InNamespace(svc.Namespace), client.MatchingLabels{
		discoveryv1.LabelManagedBy: api.Manager, discoveryv1.LabelServiceName: svc.Name,
	}); err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	for i := range list.Items {
		if err := p.client.Delete(ctx, &list.Items[i]); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete endpoint slice: %w", err)
		}
	}
	return nil
}
