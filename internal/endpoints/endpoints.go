// Package endpoints converts EndpointSlices to the form in which a Service crosses, and back.
package endpoints

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Served is a port on which a pod is an endpoint of a Service of its own namespace.
type Served struct {
	Addr     netip.Addr
	Protocol corev1.Protocol
	Port     int32
}

// SliceSize is how many endpoints one EndpointSlice has at most.
const SliceSize = 100

// Read returns the endpoints in slices: one per address and set of ports, sorted, at most
// peering.MaxServiceEndpoints. If one is in two slices, as while it moves between them, the ready one counts.
func Read(list []*discoveryv1.EndpointSlice) []peering.ServiceEndpoint {
	type key struct {
		address netip.Addr
		ports   string
	}
	found := map[key]peering.ServiceEndpoint{}
	for _, s := range list {
		if s.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		ports := map[string]int32{}
		for _, p := range s.Ports {
			if p.Port != nil {
				ports[ptr.Deref(p.Name, "")] = *p.Port
			}
		}
		for _, e := range s.Endpoints {
			for _, address := range e.Addresses {
				a, err := netip.ParseAddr(address)
				if err != nil {
					continue
				}
				k, ep := key{a, fmt.Sprint(ports)}, read(a, e, ports)
				if old, seen := found[k]; !seen || ep.Ready && !old.Ready {
					found[k] = ep
				}
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(found), func(a, b key) int {
		return cmp.Or(a.address.Compare(b.address), cmp.Compare(a.ports, b.ports))
	})
	var out []peering.ServiceEndpoint
	for _, k := range keys[:min(len(keys), peering.MaxServiceEndpoints)] {
		out = append(out, found[k])
	}
	return out
}

func read(a netip.Addr, e discoveryv1.Endpoint, ports map[string]int32) peering.ServiceEndpoint {
	ready := ptr.Deref(e.Conditions.Ready, true)
	ep := peering.ServiceEndpoint{
		Address: a.String(), Ports: ports, Hostname: ptr.Deref(e.Hostname, ""),
		Ready: ready, Serving: ptr.Deref(e.Conditions.Serving, ready), Terminating: ptr.Deref(e.Conditions.Terminating, false),
	}
	if t := e.TargetRef; t != nil && t.Kind == "Pod" {
		ep.PodUID = string(t.UID)
	}
	return ep
}

// Protocol returns a port's protocol; empty means TCP.
func Protocol(s string) corev1.Protocol {
	return corev1.Protocol(cmp.Or(s, string(corev1.ProtocolTCP)))
}

// maxAffinitySeconds is Kubernetes' limit: a day.
const maxAffinitySeconds = 86_400

// Affinity sets the session affinity of a Service, as far as Kubernetes supports it.
func Affinity(s *corev1.ServiceSpec, in peering.ServiceObject) {
	s.SessionAffinity, s.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	if in.SessionAffinity != string(corev1.ServiceAffinityClientIP) {
		return
	}
	s.SessionAffinity = corev1.ServiceAffinityClientIP
	seconds := in.SessionAffinitySeconds
	if seconds < 1 || seconds > maxAffinitySeconds {
		seconds = corev1.DefaultClientIPServiceAffinitySeconds
	}
	s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
}

// ReadAffinity is the reverse of Affinity.
func ReadAffinity(s corev1.ServiceSpec, out *peering.ServiceObject) {
	out.SessionAffinity = cmp.Or(string(s.SessionAffinity), string(corev1.ServiceAffinityNone))
	if c := s.SessionAffinityConfig; s.SessionAffinity == corev1.ServiceAffinityClientIP && c != nil && c.ClientIP != nil {
		out.SessionAffinitySeconds = ptr.Deref(c.ClientIP.TimeoutSeconds, 0)
	}
}

// Ports returns a Service's ports.
func Ports(in []peering.ServicePort) []corev1.ServicePort {
	var out []corev1.ServicePort
	for _, port := range in {
		p := corev1.ServicePort{Name: port.Name, Protocol: Protocol(port.Protocol), Port: port.Port}
		if port.AppProtocol != "" {
			p.AppProtocol = new(port.AppProtocol)
		}
		out = append(out, p)
	}
	return out
}

// ReadPorts is the reverse of Ports.
func ReadPorts(in []corev1.ServicePort) []peering.ServicePort {
	out := []peering.ServicePort{}
	for _, p := range in {
		out = append(out, peering.ServicePort{
			Name: p.Name, Protocol: string(Protocol(string(p.Protocol))), Port: p.Port, AppProtocol: ptr.Deref(p.AppProtocol, ""),
		})
	}
	return out
}

// Resolver returns the address of an endpoint in this cluster's terms.
type Resolver func(peering.ServiceEndpoint) (netip.Addr, bool)

// group is endpoints that one EndpointSlice can have: of one family and cluster, with the same ports.
type group struct {
	family    discoveryv1.AddressType
	cluster   string
	ports     map[string]int32
	endpoints []discoveryv1.Endpoint
}

// Slices returns the EndpointSlices of a Service that came from another cluster, and the
// addresses of the endpoints that cannot be reached from here.
func Slices(svc *corev1.Service, in peering.ServiceObject, resolve Resolver) (out []*discoveryv1.EndpointSlice, dropped []string) {
	groups := make(map[string]*group)
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
		key := GroupKey(family, e)
		if seen[key+a.String()] {
			continue
		}
		seen[key+a.String()] = true
		g, ok := groups[key]
		if !ok {
			g = &group{family: family, cluster: e.Cluster, ports: e.Ports}
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
		for i, part := range slices.Collect(slices.Chunk(g.endpoints, SliceSize)) {
			out = append(out, newSlice(svc, in, g, key, i, part))
		}
	}
	return out, dropped
}

// reachable refuses addresses that mean something else on each node.
func reachable(a netip.Addr) bool {
	return a.IsValid() && !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && !a.IsLinkLocalUnicast() && !a.Is4In6() && a.Zone() == ""
}

// GroupKey names the EndpointSlices with endpoints of a family that have the ports of this one, and are in the same
// cluster.
func GroupKey(family discoveryv1.AddressType, e peering.ServiceEndpoint) string {
	var b strings.Builder
	b.WriteString(string(family))
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		fmt.Fprintf(&b, " %q=%d", name, e.Ports[name])
	}
	if e.Cluster != "" {
		b.WriteString(" " + e.Cluster)
	}
	return b.String()
}

func newSlice(svc *corev1.Service, in peering.ServiceObject, g *group, key string, n int, ends []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	sum := sha256.Sum256([]byte(key))
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: svc.Namespace, Name: fmt.Sprintf("%s-%s-%d", svc.Name, Short(sum[:]), n),
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
	if g.cluster != "" {
		s.Labels[api.LabelSourceCluster] = g.cluster
	}
	for _, p := range in.Ports {
		number, ok := g.ports[p.Name]
		if !ok {
			continue
		}
		port := discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(Protocol(p.Protocol)), Port: new(number)}
		if p.AppProtocol != "" {
			port.AppProtocol = new(p.AppProtocol)
		}
		s.Ports = append(s.Ports, port)
	}
	return s
}

// SameSlice reports whether an EndpointSlice is as wanted.
func SameSlice(have, want *discoveryv1.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(have.Endpoints, want.Endpoints) && equality.Semantic.DeepEqual(have.Ports, want.Ports) &&
		equality.Semantic.DeepEqual(have.Labels, want.Labels) && equality.Semantic.DeepEqual(have.OwnerReferences, want.OwnerReferences)
}

// Short returns eight characters that represent a hash in a name.
func Short(sum []byte) string {
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum))[:8]
}
