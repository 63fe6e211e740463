package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// reflector keeps the EndpointSlices of reflected Services as the notes on the
// Services, the pods here and the address plan say.
type reflector struct {
	p *Provider

	mu sync.Mutex
	// dirty are the namespaces to look at.
	dirty map[string]struct{}
	wake  chan struct{}
}

func newReflector(p *Provider) *reflector {
	return &reflector{p: p, dirty: make(map[string]struct{}), wake: make(chan struct{}, 1)}
}

// space has the Services of a namespace looked at.
func (r *reflector) space(name string) {
	r.mu.Lock()
	r.dirty[name] = struct{}{}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// all has all Services looked at.
func (r *reflector) all() {
	for _, ns := range r.p.inv.namespaces() {
		r.space(ns.Name)
	}
}

func (r *reflector) run(ctx context.Context) {
	again := time.NewTicker(reflectInterval)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
			r.all()
		case <-r.wake:
		}
		r.mu.Lock()
		dirty := r.dirty
		r.dirty = make(map[string]struct{})
		r.mu.Unlock()
		for name := range dirty {
			if err := r.p.reflectSpace(ctx, name); err != nil && ctx.Err() == nil {
				r.p.cfg.Log.Warn("reflect services", "namespace", name, "err", err)
				time.AfterFunc(time.Second, func() { r.space(name) })
			}
		}
	}
}

// reflectSpace compares the EndpointSlices of a namespace with what they should
// be. As long as the pods of the namespace are not known, it changes nothing.
func (p *Provider) reflectSpace(ctx context.Context, name string) error {
	if w := p.inv.space(name); w == nil || !w.synced() {
		return nil
	}
	var services corev1.ServiceList
	if err := p.client.List(ctx, &services, client.InNamespace(name), client.MatchingLabels{api.LabelManaged: api.Manager}); err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	if len(services.Items) == 0 {
		return nil
	}
	var have discoveryv1.EndpointSliceList
	if err := p.client.List(ctx, &have, client.InNamespace(name), client.MatchingLabels{discoveryv1.LabelManagedBy: api.Manager}); err != nil {
		return fmt.Errorf("list endpoint slices: %w", err)
	}
	byService := make(map[string][]*discoveryv1.EndpointSlice)
	for i := range have.Items {
		s := &have.Items[i]
		byService[s.Labels[discoveryv1.LabelServiceName]] = append(byService[s.Labels[discoveryv1.LabelServiceName]], s)
	}
	ips := p.podAddresses(name)
	for i := range services.Items {
		svc := &services.Items[i]
		if svc.DeletionTimestamp != nil {
			continue
		}
		if err := p.reflectService(ctx, svc, byService[svc.Name], ips); err != nil {
			return fmt.Errorf("service %s: %w", svc.Name, err)
		}
	}
	return nil
}

// podAddresses returns the addresses of a namespace's pods, by the UID of the
// pod at home. A pod that is here and has no address yet has an invalid one.
func (p *Provider) podAddresses(namespace string) map[string]netip.Addr {
	ips := make(map[string]netip.Addr)
	for _, o := range p.inv.all() {
		if o.Namespace != namespace || !live(o) {
			continue
		}
		ips[o.Spec.OriginUID] = netip.Addr{}
		pod, _ := p.inv.pod(o.Namespace, o.Name)
		if pod == nil || string(pod.UID) != o.Status.PodUID {
			continue
		}
		if a, err := netip.ParseAddr(pod.Status.PodIP); err == nil {
			ips[o.Spec.OriginUID] = a
		}
	}
	return ips
}

// placeEndpoints names the nodes of the endpoints that are pods of this
// namespace: kube-proxy lets a pod reach itself through its own Service, and
// keeps traffic close, only where it knows.
func (p *Provider) placeEndpoints(namespace string, parts []*discoveryv1.EndpointSlice) {
	nodes := make(map[string]string)
	for _, o := range p.inv.all() {
		if pod, _ := p.inv.pod(o.Namespace, o.Name); o.Namespace == namespace && pod != nil && pod.Spec.NodeName != "" {
			nodes[pod.Status.PodIP] = pod.Spec.NodeName
		}
	}
	for _, part := range parts {
		for i := range part.Endpoints {
			if node, ok := nodes[part.Endpoints[i].Addresses[0]]; ok {
				part.Endpoints[i].NodeName = &node
			}
		}
	}
}

func (p *Provider) reflectService(ctx context.Context, svc *corev1.Service, have []*discoveryv1.EndpointSlice, ips map[string]netip.Addr) error {
	var in peering.ServiceObject
	if err := json.Unmarshal([]byte(svc.Annotations[noteService]), &in); err != nil {
		return fmt.Errorf("read what the consumer said of it: %w", err)
	}
	peer := peering.ClusterID(svc.Labels[api.LabelPeer])
	want, dropped := endpointSlices(svc, in, func(e peering.ServiceEndpoint) (netip.Addr, bool) {
		if a, here := ips[e.PodUID]; here && e.PodUID != "" {
			return a, a.IsValid()
		}
		a, err := netip.ParseAddr(e.Address)
		if err != nil {
			return netip.Addr{}, false
		}
		return p.cfg.Translate(peer, a)
	})
	p.placeEndpoints(svc.Namespace, want)
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

func (p *Provider) writeSlice(ctx context.Context, have, want *discoveryv1.EndpointSlice, exists bool) error {
	if exists && have.AddressType == want.AddressType && sameOwner(have, want) {
		if equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
			equality.Semantic.DeepEqual(have.Labels, want.Labels) {
			return nil
		}
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
