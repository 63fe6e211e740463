package wire

import (
	"slices"
	"strings"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// CheckService returns an error, which names the field, unless a service can be offered.
func CheckService(field string, s peering.OfferedService) error {
	for _, label := range []struct{ field, value string }{{field + ".namespace", s.Namespace}, {field + ".name", s.Name}} {
		if label.value == "" {
			return invalid(label.field, "is required")
		}
		if err := checkLabel(label.field, label.value); err != nil {
			return err
		}
	}
	if !isServiceType(s.Type) {
		return invalid(field+".type", "want %s or %s", peering.ServiceClusterSetIP, peering.ServiceHeadless)
	}
	if len(s.Ports) > peering.MaxServicePorts {
		return invalid(field+".ports", "want at most %d", peering.MaxServicePorts)
	}
	seen := make(map[string]bool, len(s.Ports))
	for i, p := range s.Ports {
		field := index(field+".ports", i)
		if err := checkLabel(field+".name", p.Name); err != nil {
			return err
		}
		switch {
		case seen[p.Name]:
			return invalid(field+".name", "is that of two ports")
		case !isProtocol(p.Protocol):
			return invalid(field+".protocol", "want TCP, UDP or SCTP")
		case len(p.AppProtocol) > peering.MaxAppProtocolLen || strings.ContainsFunc(p.AppProtocol, notOfProtocol):
			return invalid(field+".app_protocol", "want at most %d letters, digits, dots, dashes, underscores and slashes", peering.MaxAppProtocolLen)
		case p.Port < 1 || p.Port > 65535:
			return invalid(field+".port", "want 1 to 65535")
		}
		seen[p.Name] = true
	}
	return nil
}

func isServiceType(s string) bool {
	return s == peering.ServiceClusterSetIP || s == peering.ServiceHeadless
}

func isProtocol(s string) bool { return s == "TCP" || s == "UDP" || s == "SCTP" }

func notOfProtocol(c rune) bool {
	return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("._/-", c)
}

func servicesTo(list []peering.OfferedService) []*ententev1.OfferedService {
	var out []*ententev1.OfferedService
	for _, s := range list {
		m := &ententev1.OfferedService{Namespace: s.Namespace, Name: s.Name, Type: s.Type}
		for _, p := range s.Ports {
			m.Ports = append(m.Ports, &ententev1.OfferedServicePort{
				Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: uint32(p.Port),
			})
		}
		out = append(out, m)
	}
	return out
}

// servicesFrom accepts services in any order, each once, and returns them sorted. Those of
// a type or with a protocol that only later versions know are left out.
func servicesFrom(field string, list []*ententev1.OfferedService) ([]peering.OfferedService, error) {
	if len(list) > peering.MaxServices {
		return nil, invalid(field, "want at most %d", peering.MaxServices)
	}
	var out []peering.OfferedService
	seen, size := make(map[string]bool, len(list)), 0
	for i, m := range list {
		s := peering.OfferedService{Namespace: m.GetNamespace(), Name: m.GetName(), Type: m.GetType()}
		if n := len(m.GetPorts()); n > 0 && n <= peering.MaxServicePorts+1 { // one more than the limit is refused
			s.Ports = make([]peering.ServicePort, 0, n)
		}
		for _, p := range m.GetPorts()[:min(len(m.GetPorts()), peering.MaxServicePorts+1)] {
			s.Ports = append(s.Ports, peering.ServicePort{
				Name: p.GetName(), Protocol: p.GetProtocol(), AppProtocol: p.GetAppProtocol(),
				Port: int32(min(p.GetPort(), 1<<16)), // larger values are refused as well
			})
		}
		if seen[s.Key()] {
			return nil, invalid(index(field, i), "is there twice")
		}
		seen[s.Key()] = true
		if ofLaterVersion(s) {
			continue
		}
		if err := CheckService(index(field, i), s); err != nil {
			return nil, err
		}
		if size += s.Size(); size > peering.MaxServicesSize {
			return nil, invalid(field, "limit of %d bytes exceeded", peering.MaxServicesSize)
		}
		out = append(out, s)
	}
	slices.SortFunc(out, peering.CompareServices)
	return out, nil
}

func ofLaterVersion(s peering.OfferedService) bool {
	return s.Type != "" && !isServiceType(s.Type) || slices.ContainsFunc(s.Ports, func(p peering.ServicePort) bool {
		return p.Protocol != "" && !isProtocol(p.Protocol)
	})
}
