package offload

import (
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/stock"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// applyService writes a reflected Service. Its endpoints follow from what is
// noted on it.
func (p *Provider) applyService(ctx context.Context, contract string, c Contract, o peering.Object) error {
	want, item, err := readService(o)
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
	p.services.space(ns.Name)
	return nil
}

// readService makes a Service without a selector, which notes what the consumer
// said of it, and says what it counts.
func readService(o peering.Object) (s *corev1.Service, item stock.Item, err error) {
	var in peering.ServiceObject
	if err := json.Unmarshal(o.JSON, &in); err != nil {
		return nil, item, refuse(peering.RefusedInvalid, false, "read %s: %v", o.Ref, err)
	}
	note, err := writeNote(in)
	if err != nil {
		return nil, item, fmt.Errorf("encode %s: %w", o.Ref, err)
	}
	switch {
	case len(in.Endpoints) > maxEndpoints:
		return nil, item, refuse(peering.RefusedInvalid, false, "%s has %d endpoints; the limit is %d", o.Ref, len(in.Endpoints), maxEndpoints)
	case len(in.Ports) > maxServicePorts:
		return nil, item, refuse(peering.RefusedInvalid, false, "%s has %d ports; the limit is %d", o.Ref, len(in.Ports), maxServicePorts)
	case len(note) > maxServiceNote:
		return nil, item, refuse(peering.RefusedInvalid, false, "%s with its endpoints has %d bytes, compressed; the limit is %d", o.Ref, len(note), maxServiceNote)
	}
	s = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Labels: make(map[string]string), Annotations: map[string]string{noteService: note}},
		Spec: corev1.ServiceSpec{
			Type:            corev1.ServiceTypeClusterIP,
			SessionAffinity: corev1.ServiceAffinityNone,
			IPFamilyPolicy:  new(corev1.IPFamilyPolicyPreferDualStack),
		},
	}
	for k, v := range in.Labels {
		if !foreignKey(k) {
			s.Labels[k] = v
		}
	}
	if in.Headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	if in.SessionAffinity == string(corev1.ServiceAffinityClientIP) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	for _, port := range in.Ports {
		sp := corev1.ServicePort{Name: port.Name, Protocol: protocol(port.Protocol), Port: port.Port}
		if port.AppProtocol != "" {
			sp.AppProtocol = new(port.AppProtocol)
		}
		s.Spec.Ports = append(s.Spec.Ports, sp)
	}
	return s, countService(in), nil
}

// countService returns what a Service counts besides its bytes. An EndpointSlice
// holds endpoints of one family with the same ports.
func countService(in peering.ServiceObject) stock.Item {
	i := stock.Item{Ports: len(in.Ports), Endpoints: len(in.Endpoints)}
	groups := make(map[string]int)
	for _, e := range in.Endpoints {
		i.EndpointPorts += len(e.Ports)
		family := discoveryv1.AddressTypeIPv4
		if strings.Contains(e.Address, ":") {
			family = discoveryv1.AddressTypeIPv6
		}
		groups[groupKey(family, e.Ports)]++
	}
	for _, n := range groups {
		i.Slices += (n + sliceSize - 1) / sliceSize
	}
	return i
}

// gzipped begins a note that is compressed, and in base64.
const gzipped = "gzip:"

// writeNote returns what is kept of a Service on it.
func writeNote(in peering.ServiceObject) (string, error) {
	plain, err := json.Marshal(in)
	if err != nil || len(plain) <= plainServiceNote {
		return string(plain), err //nolint:wrapcheck // the caller says of what
	}
	var out strings.Builder
	out.WriteString(gzipped)
	text := base64.NewEncoder(base64.StdEncoding, &out)
	small := gzip.NewWriter(text)
	if _, err := small.Write(plain); err != nil {
		return "", err //nolint:wrapcheck // the caller says of what
	}
	if err := errors.Join(small.Close(), text.Close()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// readNote reads what writeNote wrote.
func readNote(note string) (in peering.ServiceObject, err error) {
	plain := []byte(note)
	if packed, ok := strings.CutPrefix(note, gzipped); ok {
		small, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed)))
		if err != nil {
			return in, fmt.Errorf("decompress it: %w", err)
		}
		// What was taken had no more than that, whatever somebody made of it since.
		if plain, err = io.ReadAll(io.LimitReader(small, 2*wire.MaxObjectBytes)); err != nil {
			return in, fmt.Errorf("decompress it: %w", err)
		}
	}
	if err := json.Unmarshal(plain, &in); err != nil {
		return in, fmt.Errorf("decode it: %w", err)
	}
	return in, nil
}

func protocol(s string) corev1.Protocol {
	if s == "" {
		return corev1.ProtocolTCP
	}
	return corev1.Protocol(s)
}

// resolver returns the address of an endpoint in this cluster's terms.
type resolver func(peering.ServiceEndpoint) (netip.Addr, bool)

// sliceGroup is endpoints that one EndpointSlice can hold: of one family, with
// the same ports.
type sliceGroup struct {
	family    discoveryv1.AddressType
	ports     map[string]int32
	endpoints []discoveryv1.Endpoint
}

// endpointSlices returns the EndpointSlices of a reflected Service, and the
// addresses of the endpoints that cannot be reached from here.
func endpointSlices(svc *corev1.Service, in peering.ServiceObject, resolve resolver) (out []*discoveryv1.EndpointSlice, dropped []string) {
	groups := make(map[string]*sliceGroup)
	seen := make(map[string]bool)
	for _, e := range in.Endpoints {
		a, ok := resolve(e)
		if !ok || !reachable(a) {
			dropped = append(dropped, e.Address)
			continue
		}
		family := discoveryv1.AddressTypeIPv4
		if a.Is6() {
			family = discoveryv1.AddressTypeIPv6
		}
		key := groupKey(family, e.Ports)
		if seen[key+a.String()] {
			continue
		}
		seen[key+a.String()] = true
		g, ok := groups[key]
		if !ok {
			g = &sliceGroup{family: family, ports: e.Ports}
			groups[key] = g
		}
		end := discoveryv1.Endpoint{
			Addresses: []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: new(e.Ready), Serving: new(e.Serving), Terminating: new(e.Terminating),
			},
		}
		if e.Hostname != "" {
			end.Hostname = new(e.Hostname)
		}
		g.endpoints = append(g.endpoints, end)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		g := groups[key]
		slices.SortFunc(g.endpoints, func(a, b discoveryv1.Endpoint) int { return cmp.Compare(a.Addresses[0], b.Addresses[0]) })
		for i, part := range slices.Collect(slices.Chunk(g.endpoints, sliceSize)) {
			out = append(out, newSlice(svc, in, g, key, i, part))
		}
	}
	return out, dropped
}

// reachable refuses addresses that mean something else on each node.
func reachable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.Is4In6() && a.Zone() == ""
}

func groupKey(family discoveryv1.AddressType, ports map[string]int32) string {
	var b strings.Builder
	b.WriteString(string(family))
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		fmt.Fprintf(&b, " %q=%d", name, ports[name])
	}
	return b.String()
}

func newSlice(svc *corev1.Service, in peering.ServiceObject, g *sliceGroup, key string, n int, ends []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	sum := sha256.Sum256([]byte(key))
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: fmt.Sprintf("%s-%s-%d", svc.Name, short(sum[:]), n),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: svc.Name,
				discoveryv1.LabelManagedBy:   api.Manager,
				api.LabelManaged:             api.Manager,
				api.LabelPeer:                svc.Labels[api.LabelPeer],
			},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: svc.Name, UID: svc.UID, Controller: new(true),
			}},
		},
		AddressType: g.family,
		Endpoints:   ends,
	}
	if in.Headless {
		s.Labels[corev1.IsHeadlessService] = ""
	}
	for _, p := range in.Ports {
		number, ok := g.ports[p.Name]
		if !ok {
			continue
		}
		port := discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(protocol(p.Protocol)), Port: new(number)}
		if p.AppProtocol != "" {
			port.AppProtocol = new(p.AppProtocol)
		}
		s.Ports = append(s.Ports, port)
	}
	return s
}
