package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/reflection"
	"github.com/entente-dev/entente/peering"
)

// applyService writes a reflected Service. Its endpoints are computed from the note on it.
func (p *Provider) applyService(ctx context.Context, contract string, c Contract, o peering.Object) error {
	want, item, err := reflection.ReadService(o)
	if err != nil {
		return err
	}
	ns, err := p.home(ctx, contract, c, o.Ref)
	if err != nil {
		return err
	}
	if err := p.writeShared(ctx, contract, c, ns, o, want, item); err != nil {
		return err
	}
	p.services.One(types.NamespacedName{Namespace: ns.Name, Name: o.Ref.Name})
	return nil
}

// reflectServices compares the EndpointSlices of a Service, or of all Services of a namespace one after the
// other, with those computed from the notes on them, the pods here and the address plan. Until the caches are
// synced, it changes nothing.
func (p *Provider) reflectServices(ctx context.Context, key types.NamespacedName) error {
	if !p.inv.known() {
		return nil
	}
	if key.Name == "" {
		for _, svc := range indexed[*corev1.Service](p.inv.services, cache.NamespaceIndex, key.Namespace) {
			p.services.Now(client.ObjectKeyFromObject(svc))
		}
		return nil
	}
	svc := byKey[corev1.Service](p.inv.services, key)
	p.servedChanged(key.Namespace)
	if svc == nil || svc.DeletionTimestamp != nil {
		return nil
	}
	note, ok := p.checkNote(svc)
	if !ok {
		return nil
	}
	var in peering.ServiceObject
	if err := json.Unmarshal(note, &in); err != nil {
		return fmt.Errorf("service %s: decode the consumer's form: %w", svc.Name, err)
	}
	if err := p.reflectService(ctx, svc.DeepCopy(), in, indexed[*discoveryv1.EndpointSlice](p.inv.slices, byService, key.String())); err != nil {
		return fmt.Errorf("service %s: %w", svc.Name, err)
	}
	return nil
}

// podAddresses returns the addresses of those pods of a namespace that are endpoints, by the UID of
// the pod at home. A pod that has no address yet has an invalid one.
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

// nodeOf returns the node of the pod with an address in a namespace.
func (p *Provider) nodeOf(namespace, address string) (string, bool) {
	for _, pod := range indexed[*corev1.Pod](p.inv.pods, byIP, namespace+"/"+address) {
		if pod.Spec.NodeName != "" && !ended(pod.Status.Phase) {
			return pod.Spec.NodeName, true
		}
	}
	return "", false
}

// placeEndpoints sets the nodes and zones of the endpoints that are pods of this namespace: without
// them kube-proxy neither lets a pod reach itself through its own Service nor keeps traffic close.
func (p *Provider) placeEndpoints(parts []*discoveryv1.EndpointSlice, trafficDistribution string) {
	zones := map[string]string{}
	for _, part := range parts {
		for i := range part.Endpoints {
			e := &part.Endpoints[i]
			node, ok := p.nodeOf(part.Namespace, e.Addresses[0])
			if !ok {
				continue
			}
			e.NodeName = &node
			zone, asked := zones[node]
			if !asked {
				zone = p.cfg.Zone(node)
				zones[node] = zone
			}
			if zone != "" {
				e.Zone = &zone
			}
		}
		endpoints.Hint(part, trafficDistribution)
	}
}

func (p *Provider) reflectService(ctx context.Context, svc *corev1.Service, in peering.ServiceObject, have []*discoveryv1.EndpointSlice) error {
	peer := peering.ClusterID(svc.Labels[api.LabelPeer])
	ips := p.podAddresses(svc.Namespace, in.Endpoints)
	in.Endpoints = reflection.Preferred(in, ips)
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
	p.placeEndpoints(want, in.TrafficDistribution)
	if err := p.slices.Write(ctx, want, have); err != nil {
		return err
	}
	return p.noteDropped(ctx, svc, dropped)
}

// noteDropped writes into the Service's annotation which endpoints cannot be reached from here.
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
