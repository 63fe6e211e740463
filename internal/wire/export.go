package wire

import (
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// ExportTo writes the changes of an exported Service since it was sent, or all of it if sent is
// nil. It returns nil if nothing changed.
func ExportTo(now peering.ExportedService, sent *peering.ExportedService) []*ententev1.WatchServicesResponse {
	message := func() *ententev1.WatchServicesResponse {
		return &ententev1.WatchServicesResponse{Service: serviceNameTo(now.ServiceName)}
	}
	if now.Refusal != "" {
		if sent != nil && sent.Refusal == now.Refusal {
			return nil
		}
		m := message()
		m.Refusal, m.Complete = peering.Text(now.Refusal, peering.MaxMessageLen), true
		return []*ententev1.WatchServicesResponse{m}
	}
	first := message()
	var before []peering.ServiceEndpoint
	if sent != nil && sent.Refusal == "" {
		before = sent.Service.Endpoints
	}
	if sent == nil || !sent.Same(now) {
		first.State = exportedTo(now)
	}
	set, removed := changedEndpoints(before, now.Service.Endpoints)
	if first.GetState() == nil && len(set)+len(removed) == 0 {
		return nil
	}
	out := []*ententev1.WatchServicesResponse{first}
	for {
		last, room := out[len(out)-1], endpointParts
		last.RemovedEndpoints, removed = cutEndpoints(removed, &room)
		last.UpdatedEndpoints, set = cutEndpoints(set, &room)
		if len(set)+len(removed) == 0 {
			last.Complete = true
			return out
		}
		out = append(out, message())
	}
}

// cutEndpoints returns as many endpoints as a message has room for, and the rest.
func cutEndpoints(list []*ententev1.ServiceEndpoint, room *int) (first, rest []*ententev1.ServiceEndpoint) {
	n := 0
	for n < min(len(list), maxEndpointsPerMessage) {
		parts := partsOfEndpoint + partsOfPort*len(list[n].GetPorts())
		if parts > *room {
			break
		}
		*room -= parts
		n++
	}
	return list[:n:n], list[n:]
}

// changedEndpoints returns the endpoints that are new or changed, and those that are gone.
func changedEndpoints(before, now []peering.ServiceEndpoint) (set, removed []*ententev1.ServiceEndpoint) {
	was := make(map[string]peering.ServiceEndpoint, len(before))
	for _, e := range before {
		was[e.Key()] = e
	}
	for _, e := range now {
		key := e.Key()
		if old, ok := was[key]; !ok || !old.Same(e) {
			if m := endpointTo(e); m != nil {
				set = append(set, m)
			}
		}
		delete(was, key)
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if m := endpointTo(was[key]); m != nil {
			removed = append(removed, &ententev1.ServiceEndpoint{Address: m.GetAddress(), Ports: m.GetPorts()})
		}
	}
	return set, removed
}

func serviceNameTo(n peering.ServiceName) *ententev1.ServiceName {
	return &ententev1.ServiceName{Namespace: n.Namespace, Name: n.Name}
}

func exportedTo(e peering.ExportedService) *ententev1.ExportedService {
	offered := peering.OfferedService{Namespace: e.Namespace, Name: e.Name, Type: peering.ServiceClusterSetIP, Ports: e.Service.Ports}
	if e.Service.Headless {
		offered.Type = peering.ServiceHeadless
	}
	m := &ententev1.ExportedService{Service: servicesTo([]peering.OfferedService{offered})[0], SessionAffinity: affinityNone}
	if e.Service.SessionAffinity == affinityClientIP {
		m.SessionAffinity, m.SessionAffinitySeconds = affinityClientIP, uint32(max(e.Service.SessionAffinitySeconds, 0))
	}
	if x := e.Export; x != nil {
		m.Export = &ententev1.ServiceExport{
			CreateTime: timestamppb.New(x.Created), Labels: x.Labels, Annotations: x.Annotations,
			InternalTrafficPolicy: x.InternalTrafficPolicy, TrafficDistribution: x.TrafficDistribution,
		}
	}
	return m
}

// Values of a Service's sessionAffinity.
const (
	affinityNone     = "None"
	affinityClientIP = "ClientIP"
)

// endpointTo writes an endpoint. It returns nil for one without an IP address.
func endpointTo(e peering.ServiceEndpoint) *ententev1.ServiceEndpoint {
	a, err := netip.ParseAddr(e.Address)
	if err != nil {
		return nil
	}
	m := &ententev1.ServiceEndpoint{
		Address: a.Unmap().AsSlice(), Hostname: e.Hostname, Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating,
		Ports: make(map[string]uint32, len(e.Ports)),
	}
	for name, port := range e.Ports {
		m.Ports[name] = uint32(port)
	}
	return m
}

// ServiceNamesTo writes names of Services.
func ServiceNamesTo(names []peering.ServiceName) []*ententev1.ServiceName {
	out := make([]*ententev1.ServiceName, 0, len(names))
	for _, n := range names {
		out = append(out, serviceNameTo(n))
	}
	return out
}

// ServiceNamesFrom reads names of Services, each once.
func ServiceNamesFrom(field string, list []*ententev1.ServiceName) ([]peering.ServiceName, error) {
	if len(list) == 0 || len(list) > peering.MaxServices {
		return nil, invalid(field, "want 1 to %d", peering.MaxServices)
	}
	out := make([]peering.ServiceName, 0, len(list))
	for i, m := range list {
		n, err := serviceNameFrom(index(field, i), m)
		if err != nil {
			return nil, err
		}
		if slices.Contains(out, n) {
			return nil, invalid(index(field, i), "is there twice")
		}
		out = append(out, n)
	}
	return out, nil
}

func serviceNameFrom(field string, m *ententev1.ServiceName) (peering.ServiceName, error) {
	n := peering.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()}
	if n.Namespace == "" || n.Name == "" {
		return n, invalid(field, "want a namespace and a name")
	}
	if err := checkLabel(field+".namespace", n.Namespace); err != nil {
		return n, err
	}
	return n, checkLabel(field+".name", n.Name)
}

// Exports reads the messages of one stream of WatchServices, or of WatchClusterSet.
type Exports struct {
	services map[peering.ServiceName]*exported
	// set means that it is the latter, in which the sender decides which Services there are.
	set bool
	// endpoints is how many endpoints all Services have together.
	endpoints int
}

// exported is what was received of one Service.
type exported struct {
	// whole means that its state was received.
	whole     bool
	state     peering.ExportedService
	endpoints map[string]peering.ServiceEndpoint
}

// NewExports returns a reader of a stream that was opened for these Services. Messages about
// others are refused.
func NewExports(names []peering.ServiceName) *Exports {
	x := &Exports{services: make(map[peering.ServiceName]*exported, len(names))}
	for _, n := range names {
		x.services[n] = &exported{}
	}
	return x
}

// NewClusterSet returns a reader of a stream of WatchClusterSet.
func NewClusterSet() *Exports {
	return &Exports{services: map[peering.ServiceName]*exported{}, set: true}
}

// Names returns the Services that were received and are not refused, sorted.
func (x *Exports) Names() []peering.ServiceName {
	return slices.SortedFunc(maps.Keys(x.services), peering.CompareServiceNames)
}

// Read reads the next message. It returns the Service once all of its messages came.
func (x *Exports) Read(m *ententev1.WatchServicesResponse) (out peering.ExportedService, whole bool, err error) {
	name, err := serviceNameFrom("service", m.GetService())
	if err != nil {
		return out, false, err
	}
	s := x.services[name]
	if s == nil && x.set {
		if len(x.services) == peering.MaxServices {
			return out, false, invalid("service", "want at most %d", peering.MaxServices)
		}
		s = &exported{}
		x.services[name] = s
	}
	if s == nil {
		return out, false, invalid("service", "was not asked for")
	}
	if m.GetRefusal() != "" {
		x.endpoints -= len(s.endpoints)
		*s = exported{}
		if x.set {
			delete(x.services, name)
		}
		return peering.ExportedService{ServiceName: name, Refusal: peering.Text(m.GetRefusal(), peering.MaxMessageLen)}, true, nil
	}
	if m.GetState() != nil {
		if s.state, err = exportedFrom("state", name, m.GetState()); err != nil {
			return out, false, err
		}
		s.whole = true
	}
	if !s.whole {
		return out, false, invalid("state", "is required in the first message about a service")
	}
	if err := x.change(s, m); err != nil {
		return out, false, err
	}
	if !m.GetComplete() {
		return out, false, nil
	}
	out = s.state
	for _, key := range slices.Sorted(maps.Keys(s.endpoints)) {
		out.Service.Endpoints = append(out.Service.Endpoints, s.endpoints[key])
	}
	return out, true, nil
}

// change applies the endpoints of a message.
func (x *Exports) change(s *exported, m *ententev1.WatchServicesResponse) error {
	if len(m.GetUpdatedEndpoints()) > maxEndpointsPerMessage || len(m.GetRemovedEndpoints()) > maxEndpointsPerMessage {
		return invalid("updated_endpoints", "want at most %d", maxEndpointsPerMessage)
	}
	for i, r := range m.GetRemovedEndpoints() {
		e, err := endpointFrom(index("removed_endpoints", i), r)
		if err != nil {
			return err
		}
		if key := e.Key(); s.has(key) {
			delete(s.endpoints, key)
			x.endpoints--
		}
	}
	for i, r := range m.GetUpdatedEndpoints() {
		e, err := endpointFrom(index("updated_endpoints", i), r)
		if err != nil {
			return err
		}
		key := e.Key()
		if !s.has(key) {
			x.endpoints++
		}
		if s.endpoints == nil {
			s.endpoints = make(map[string]peering.ServiceEndpoint)
		}
		s.endpoints[key] = e
	}
	if len(s.endpoints) > peering.MaxServiceEndpoints || x.endpoints > peering.MaxExportedEndpoints {
		return invalid("updated_endpoints", "want at most %d endpoints of a service, and %d of all", peering.MaxServiceEndpoints, peering.MaxExportedEndpoints)
	}
	return nil
}

func (s *exported) has(key string) bool {
	_, ok := s.endpoints[key]
	return ok
}

func exportedFrom(field string, name peering.ServiceName, m *ententev1.ExportedService) (out peering.ExportedService, err error) {
	list, err := servicesFrom(field+".service", []*ententev1.OfferedService{m.GetService()})
	if err != nil {
		return out, err
	}
	if len(list) == 0 {
		return out, invalid(field+".service", "is of a kind that only later versions know")
	}
	s := list[0]
	if (peering.ServiceName{Namespace: s.Namespace, Name: s.Name}) != name {
		return out, invalid(field+".service", "is not the service of the message")
	}
	if a := m.GetSessionAffinity(); a != affinityNone && a != affinityClientIP {
		return out, invalid(field+".session_affinity", "want %s or %s", affinityNone, affinityClientIP)
	}
	if m.GetSessionAffinitySeconds() > maxAffinitySeconds || m.GetSessionAffinity() == affinityNone && m.GetSessionAffinitySeconds() > 0 {
		return out, invalid(field+".session_affinity_seconds", "want at most %d, with %s", maxAffinitySeconds, affinityClientIP)
	}
	out.ServiceName, out.Service.SessionAffinitySeconds = name, int32(m.GetSessionAffinitySeconds())
	out.Service.Headless, out.Service.Ports, out.Service.SessionAffinity = s.Type == peering.ServiceHeadless, s.Ports, m.GetSessionAffinity()
	if m.GetExport() != nil {
		out.Export, err = exportFrom(field+".export", m.GetExport())
	}
	return out, err
}

func exportFrom(field string, m *ententev1.ServiceExport) (*peering.ServiceExport, error) {
	if m.GetCreateTime() == nil || !m.GetCreateTime().IsValid() {
		return nil, invalid(field+".create_time", "want a time")
	}
	out := &peering.ServiceExport{
		Created: m.GetCreateTime().AsTime().Truncate(time.Second), Labels: maps.Clone(m.GetLabels()), Annotations: maps.Clone(m.GetAnnotations()),
		InternalTrafficPolicy: m.GetInternalTrafficPolicy(), TrafficDistribution: m.GetTrafficDistribution(),
	}
	if err := peering.CheckExport(out); err != nil {
		return nil, invalid(field, "%s", peering.Text(err.Error(), peering.MaxMessageLen))
	}
	return out, nil
}

func endpointFrom(field string, m *ententev1.ServiceEndpoint) (peering.ServiceEndpoint, error) {
	out := peering.ServiceEndpoint{Hostname: m.GetHostname(), Ready: m.GetReady(), Serving: m.GetServing(), Terminating: m.GetTerminating()}
	a, ok := netip.AddrFromSlice(m.GetAddress())
	if !ok || a.Is4In6() {
		return out, invalid(field+".address", "want an IP address of 4 or 16 bytes")
	}
	out.Address = a.String()
	if len(m.GetPorts()) > peering.MaxServicePorts {
		return out, invalid(field+".ports", "want at most %d", peering.MaxServicePorts)
	}
	out.Ports = make(map[string]int32, len(m.GetPorts()))
	for name, port := range m.GetPorts() {
		if err := checkLabel(field+".ports", name); err != nil {
			return out, err
		}
		if port < 1 || port > math.MaxUint16 {
			return out, invalid(field+".ports", "want 1 to %d", math.MaxUint16)
		}
		out.Ports[strings.Clone(name)] = int32(port)
	}
	return out, checkLabel(field+".hostname", m.GetHostname())
}
