package offload

import (
	"context"
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
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/peering"
)

// reflector compares what is in namespaces with what it should be: the EndpointSlices of
// reflected Services, or NetworkPolicies. It takes the peers in turn, one
// namespace of each at a time, so that one with many does not delay the others.
type reflector struct {
	p *Provider
	// what is compared, for people, and compare does it for a namespace.
	what    string
	compare func(ctx context.Context, namespace string) error
	// peers are those that have namespaces to compare.
	peers workqueue.TypedInterface[peering.ClusterID]

	mu sync.Mutex
	// gathering are the namespaces that changed a moment ago, ready those to compare, by
	// peer. A peer of whom one is being compared is there, too.
	gathering map[string]struct{}
	ready     map[peering.ClusterID][]string
}

func newReflector(p *Provider, what string, compare func(context.Context, string) error) *reflector {
	return &reflector{
		p: p, what: what, compare: compare, peers: workqueue.NewTyped[peering.ClusterID](),
		gathering: make(map[string]struct{}), ready: make(map[peering.ClusterID][]string),
	}
}

// space has a namespace compared.
func (r *reflector) space(name string) { r.later(name, reflectGather) }

// later has a namespace compared after a pause, with all that changes in between.
func (r *reflector) later(name string, pause time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.gathering[name]; ok {
		return
	}
	r.gathering[name] = struct{}{}
	time.AfterFunc(pause, func() { r.enqueue(name) })
}

// enqueue has a namespace compared when it is its peer's turn.
func (r *reflector) enqueue(name string) {
	peer := r.p.inv.peerOf(name)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.gathering, name)
	if !slices.Contains(r.ready[peer], name) {
		r.ready[peer] = append(r.ready[peer], name)
		r.peers.Add(peer)
	}
}

// next waits for the turn of a peer, and returns one of its namespaces; false after run.
func (r *reflector) next() (peer peering.ClusterID, name string, ok bool) {
	peer, shut := r.peers.Get()
	if shut {
		return "", "", false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name, r.ready[peer] = r.ready[peer][0], r.ready[peer][1:]
	return peer, name, true
}

// done lets the next namespace of a peer be compared.
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
		peer, name, ok := r.next()
		if !ok {
			return
		}
		if err := r.compare(ctx, name); err != nil && ctx.Err() == nil {
			pause := time.Second
			var over *overBudget
			switch {
			case errors.As(err, &over):
				pause = over.wait
			case apierrors.IsConflict(err):
				// The cache is behind what was written; it will show it soon.
			default:
				r.p.cfg.Log.Warn("reflect a namespace", "what", r.what, "namespace", name, "err", err)
			}
			r.later(name, pause)
		}
		r.done(peer)
	}
}

// reflectServices compares the EndpointSlices of a namespace with what the notes on its Services, the
// pods here and the address plan say. As long as the cluster is not known, it changes nothing.
func (p *Provider) reflectServices(ctx context.Context, name string) error {
	if !p.inv.known() {
		return nil
	}
	services := indexed[*corev1.Service](p.inv.services, cache.NamespaceIndex, name)
	if len(services) == 0 {
		return nil
	}
	byService := make(map[string][]*discoveryv1.EndpointSlice)
	for _, s := range indexed[*discoveryv1.EndpointSlice](p.inv.slices, cache.NamespaceIndex, name) {
		byService[s.Labels[discoveryv1.LabelServiceName]] = append(byService[s.Labels[discoveryv1.LabelServiceName]], s)
	}
	ips, nodes := p.podAddresses(name)
	var problems []error
	for _, svc := range services {
		if svc.DeletionTimestamp != nil {
			continue
		}
		if err := p.reflectService(ctx, svc.DeepCopy(), byService[svc.Name], ips, nodes); err != nil {
			problems = append(problems, fmt.Errorf("service %s: %w", svc.Name, err))
		}
	}
	return errors.Join(problems...)
}

// podAddresses returns the addresses of a namespace's pods, by the UID of the
// pod at home, and their nodes by address. A pod that is here and has no address
// yet has an invalid one.
func (p *Provider) podAddresses(namespace string) (ips map[string]netip.Addr, nodes map[string]string) {
	ips, nodes = make(map[string]netip.Addr), make(map[string]string)
	for _, o := range p.inv.in(namespace) {
		pod, _ := p.inv.pod(o.Namespace, o.Name)
		if pod != nil && pod.Spec.NodeName != "" {
			nodes[pod.Status.PodIP] = pod.Spec.NodeName
		}
		if !live(o) {
			continue
		}
		ips[o.Spec.OriginUID] = netip.Addr{}
		if pod == nil || string(pod.UID) != o.Status.PodUID {
			continue
		}
		if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
			ips[o.Spec.OriginUID] = a
		}
	}
	return ips, nodes
}

// placeEndpoints names the nodes of the endpoints that are pods of this
// namespace: kube-proxy lets a pod reach itself through its own Service, and
// keeps traffic close, only where it knows.
func placeEndpoints(nodes map[string]string, parts []*discoveryv1.EndpointSlice) {
	for _, part := range parts {
		for i := range part.Endpoints {
			if node, ok := nodes[part.Endpoints[i].Addresses[0]]; ok {
				part.Endpoints[i].NodeName = &node
			}
		}
	}
}

func (p *Provider) reflectService(ctx context.Context, svc *corev1.Service, have []*discoveryv1.EndpointSlice,
	ips map[string]netip.Addr, nodes map[string]string,
) error {
	in, err := readNote(svc.Annotations[noteService])
	if err != nil {
		return fmt.Errorf("read what the consumer said of it: %w", err)
	}
	peer := peering.ClusterID(svc.Labels[api.LabelPeer])
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
	placeEndpoints(nodes, want)
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
	if err := p.client.Create(ctx, want, client.FieldOwner(api.Manager)); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create endpoint slice %s: %w", want.Name, err)
	}
	return nil
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
