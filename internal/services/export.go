package services

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
)

// Exports announces Services to consumers. What it announces, and which ports are open for it, follows from the
// current policies, Services and EndpointSlices: it has no state.
type Exports struct {
	// Reader reads Services and EndpointSlices, and Informers reports their changes.
	Reader    client.Reader
	Informers cache.Informers
	// Offered returns the Services that a peer may import by its policy, and a channel that is closed when that may
	// have changed.
	Offered func(ctx context.Context, peer peering.ClusterID) ([]peering.OfferedService, <-chan struct{}, error)
	// May returns an error unless a peer may import by a contract.
	May func(peer peering.ClusterID, contract string) error
	// Own returns a function that reports whether an address is a pod's of this cluster.
	Own func(ctx context.Context) (func(netip.Addr) bool, error)
	// Peers returns the peers that have a contract by which they may import.
	Peers func(ctx context.Context) ([]peering.ClusterID, error)
	// Export returns how a Service is exported to cluster sets; nil if it is not, or not validly. An error means
	// that this is not known yet.
	Export func(ctx context.Context, name peering.ServiceName) (*peering.ServiceExport, error)
	// Open is called with a peer for which the open ports have to change.
	Open func(peer peering.ClusterID)

	mu      sync.Mutex
	changed chan struct{}
	pending bool
}

// Port is a port of an address that is open to a peer, because of a Service of a namespace.
type Port struct {
	Namespace string
	Addr      netip.Addr
	Protocol  corev1.Protocol
	Port      int32
}

// Exported implements server.Exports.
func (e *Exports) Exported(ctx context.Context, peer peering.ClusterID, contract string, names []peering.ServiceName) ([]peering.ExportedService, <-chan struct{}, error) {
	if err := e.May(peer, contract); err != nil {
		return nil, nil, err
	}
	changed := e.wait() // before reading: a later change closes the channel
	offered, _, err := e.Offered(ctx, peer)
	if err != nil {
		return nil, nil, err
	}
	own, err := e.Own(ctx)
	if err != nil {
		return nil, nil, err
	}
	out := make([]peering.ExportedService, 0, len(names))
	room := peering.MaxExportedEndpoints
	for _, name := range names {
		if !slices.ContainsFunc(offered, func(s peering.OfferedService) bool { return s.Namespace == name.Namespace && s.Name == name.Name }) {
			out = append(out, peering.ExportedService{ServiceName: name, Refusal: "the provider exports no Service " + name.String() + " to this cluster"})
			continue
		}
		s, err := e.service(ctx, name, own)
		if err != nil {
			return nil, nil, err
		}
		if room -= len(s.Service.Endpoints); room < 0 {
			s = peering.ExportedService{ServiceName: name, Refusal: fmt.Sprintf("the Services that are imported have more than %d endpoints: import fewer", peering.MaxExportedEndpoints)}
		}
		out = append(out, s)
	}
	return out, changed, nil
}

// InSet implements server.Exports.
func (e *Exports) InSet(ctx context.Context, peer peering.ClusterID, contract string) ([]peering.ExportedService, <-chan struct{}, error) {
	if e.Export == nil {
		return nil, nil, peering.Errorf(peering.ReasonPolicyRefused, "this cluster shares no namespaces: its agent has the Multi-Cluster Services API turned off")
	}
	if err := e.May(peer, contract); err != nil {
		return nil, nil, err
	}
	changed := e.wait() // before reading: a later change closes the channel
	offered, _, err := e.Offered(ctx, peer)
	if err != nil {
		return nil, nil, err
	}
	var out []peering.ExportedService
	room := peering.MaxExportedEndpoints
	for _, t := range offered {
		if !t.InSet {
			continue
		}
		s, err := e.Shared(ctx, peering.ServiceName{Namespace: t.Namespace, Name: t.Name})
		if err != nil {
			return nil, nil, err
		}
		if s.Export == nil || s.Refusal != "" {
			continue
		}
		if room -= len(s.Service.Endpoints); room < 0 {
			s = peering.ExportedService{ServiceName: s.ServiceName, Refusal: fmt.Sprintf("the Services of the cluster set have more than %d endpoints: export fewer", peering.MaxExportedEndpoints)}
		}
		out = append(out, s)
	}
	return out, changed, nil
}

// Shared returns a Service of this cluster as it is exported to cluster sets.
func (e *Exports) Shared(ctx context.Context, name peering.ServiceName) (peering.ExportedService, error) {
	export, err := e.Export(ctx, name)
	if err != nil || export == nil {
		return peering.ExportedService{ServiceName: name}, err
	}
	own, err := e.Own(ctx)
	if err != nil {
		return peering.ExportedService{}, err
	}
	s, err := e.service(ctx, name, own)
	s.Export = export
	return s, err
}

// service returns a Service in the form that is sent, with the endpoints that are pods of this cluster.
func (e *Exports) service(ctx context.Context, name peering.ServiceName, own func(netip.Addr) bool) (peering.ExportedService, error) {
	out := peering.ExportedService{ServiceName: name}
	var s corev1.Service
	err := e.Reader.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, &s)
	if apierrors.IsNotFound(err) {
		out.Refusal = "Service " + name.String() + " is gone"
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("read service %s: %w", name, err)
	}
	var list discoveryv1.EndpointSliceList
	if err := e.Reader.List(ctx, &list, client.InNamespace(name.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: name.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return out, fmt.Errorf("list endpoint slices of service %s: %w", name, err)
	}
	out.Service = exportedService(&s, list.Items, own)
	return out, nil
}

// exportedService builds what service returns from the objects. Endpoints that came from another cluster are left
// out: that cluster's owner did not export them.
func exportedService(s *corev1.Service, list []discoveryv1.EndpointSlice, own func(netip.Addr) bool) peering.ServiceObject {
	var from []*discoveryv1.EndpointSlice
	for i := range list {
		if list[i].Labels[api.LabelManaged] != api.Manager {
			from = append(from, &list[i])
		}
	}
	out := peering.ServiceObject{
		Headless: s.Spec.ClusterIP == corev1.ClusterIPNone, Ports: endpoints.ReadPorts(s.Spec.Ports),
	}
	endpoints.ReadAffinity(s.Spec, &out)
	for _, end := range endpoints.Read(from) {
		if a, err := netip.ParseAddr(end.Address); err != nil || !own(a) {
			continue
		}
		end.PodUID = "" // other clusters need not know which pods there are
		out.Endpoints = append(out.Endpoints, end)
	}
	return out
}

// OpenTo returns the ports that are open to a peer because of what is exported to it, whether it imports that or
// not: so what is open does not depend on which peers are connected.
func (e *Exports) OpenTo(ctx context.Context, peer peering.ClusterID) ([]Port, error) {
	offered, _, err := e.Offered(ctx, peer)
	if err != nil || len(offered) == 0 {
		return nil, err
	}
	own, err := e.Own(ctx)
	if err != nil {
		return nil, err
	}
	var out []Port
	for _, t := range offered {
		s, err := e.service(ctx, peering.ServiceName{Namespace: t.Namespace, Name: t.Name}, own)
		if err != nil {
			return nil, err
		}
		out = append(out, portsOf(t.Namespace, s.Service)...)
	}
	return out, nil
}

// portsOf returns the ports of a Service's endpoints.
func portsOf(namespace string, s peering.ServiceObject) (out []Port) {
	for _, end := range s.Endpoints {
		a, err := netip.ParseAddr(end.Address)
		if err != nil {
			continue
		}
		for _, p := range s.Ports {
			if number := end.Ports[p.Name]; number > 0 && number <= math.MaxUint16 {
				out = append(out, Port{Namespace: namespace, Addr: a.Unmap(), Protocol: endpoints.Protocol(p.Protocol), Port: number})
			}
		}
	}
	return out
}

// wait returns a channel that is closed when a Service or an EndpointSlice changed.
func (e *Exports) wait() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	return e.changed
}

// Changed is called when a ServiceExport changed: what is announced is read again.
func (e *Exports) Changed() { e.change() }

// change closes the channel, once for all changes within a moment.
func (e *Exports) change() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pending {
		return
	}
	e.pending = true
	time.AfterFunc(exportGather, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.pending = false
		if e.changed != nil {
			close(e.changed)
			e.changed = nil
		}
	})
}

// Run opens and closes the ports that follow from what is exported, until ctx ends. EndpointSlices are watched once
// a peer may import.
func (e *Exports) Run(ctx context.Context) error {
	open := map[peering.ClusterID][]Port{}
	wake := notify.New()
	watching := false
	for {
		peers, err := e.Peers(ctx)
		if err == nil && len(peers) > 0 && !watching {
			stop, err := e.watch(ctx, wake)
			if err != nil {
				return err
			}
			defer stop()
			watching = true
		}
		var policies <-chan struct{}
		for _, peer := range peers {
			if _, policies, err = e.Offered(ctx, peer); err != nil {
				continue
			}
			// What cannot be read stays as it is until it can.
			now, err := e.OpenTo(ctx, peer)
			if was, ok := open[peer]; err == nil && (!ok || !slices.Equal(was, now)) {
				open[peer] = now
				e.Open(peer)
			}
		}
		pause := time.After(exposePause)
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-policies:
		case <-time.After(exposeInterval):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-pause:
		}
	}
}

func (e *Exports) watch(ctx context.Context, wake notify.Channel) (stop func(), err error) {
	changed := func() {
		e.change()
		wake.Notify()
	}
	slices, err := kube.OnChange(ctx, e.Informers, &discoveryv1.EndpointSlice{}, kube.NewVersion, changed)
	if err != nil {
		return nil, err
	}
	services, err := kube.OnChange(ctx, e.Informers, &corev1.Service{}, kube.NewVersion, changed)
	if err != nil {
		slices()
		return nil, err
	}
	return func() { slices(); services() }, nil
}
