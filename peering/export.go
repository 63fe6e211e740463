package peering

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// ServiceName names a Service in the terms of the cluster that has it.
type ServiceName struct{ Namespace, Name string }

func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// ExportedService is what a provider says of a Service that a consumer imports.
type ExportedService struct {
	ServiceName
	// Refusal is why it cannot be imported, for people; empty if it can.
	Refusal string
	// Service is the Service without labels, its endpoints in the provider's terms and
	// sorted as by ServiceEndpoint.Key.
	Service ServiceObject
}

// Same says whether two say the same in everything but endpoints.
func (e ExportedService) Same(o ExportedService) bool {
	return e.Refusal == o.Refusal && e.Service.Headless == o.Service.Headless && e.Service.SessionAffinity == o.Service.SessionAffinity &&
		e.Service.SessionAffinitySeconds == o.Service.SessionAffinitySeconds && slices.Equal(e.Service.Ports, o.Service.Ports)
}

// Same says whether two endpoints are the same in everything.
func (e ServiceEndpoint) Same(o ServiceEndpoint) bool {
	return e.Address == o.Address && e.Ready == o.Ready && e.Serving == o.Serving && e.Terminating == o.Terminating &&
		e.Hostname == o.Hostname && e.PodUID == o.PodUID && maps.Equal(e.Ports, o.Ports)
}

// Key tells the endpoints of one Service apart: an address may answer on two sets of ports.
func (e ServiceEndpoint) Key() string {
	key := []string{e.Address}
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		key = append(key, name+"="+strconv.Itoa(int(e.Ports[name])))
	}
	return strings.Join(key, " ")
}
