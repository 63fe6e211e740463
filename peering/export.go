package peering

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// ServiceName names a Service in the terms of the cluster that has it.
type ServiceName struct{ Namespace, Name string }

func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// CompareServiceNames orders names by namespace and name.
func CompareServiceNames(a, b ServiceName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// ExportedService is a provider's Service that a consumer imports.
type ExportedService struct {
	ServiceName
	// Refusal is why it cannot be imported, for people. It is empty if it can.
	Refusal string
	// Service is the Service without labels, its endpoints in the provider's terms and
	// sorted as by ServiceEndpoint.Key.
	Service ServiceObject
	// Export is how it is exported to a cluster set. It is nil if it is not, or if the set was not
	// asked for.
	Export *ServiceExport
}

// ServiceExport is how a cluster exports a Service to a cluster set: a ServiceExport of the
// Multi-Cluster Services API, and the fields of its Service that are merged in the set.
type ServiceExport struct {
	// Created is since when it is exported, in whole seconds.
	Created time.Time
	// Labels and Annotations are those that the imported Service gets.
	Labels, Annotations map[string]string
	// InternalTrafficPolicy and TrafficDistribution are the Service's, empty if not set.
	InternalTrafficPolicy, TrafficDistribution string
}

// Same reports whether two are the same.
func (e *ServiceExport) Same(o *ServiceExport) bool {
	if e == nil || o == nil {
		return e == o
	}
	return e.Created.Equal(o.Created) && maps.Equal(e.Labels, o.Labels) && maps.Equal(e.Annotations, o.Annotations) &&
		e.InternalTrafficPolicy == o.InternalTrafficPolicy && e.TrafficDistribution == o.TrafficDistribution
}

// Same reports whether two are the same except for endpoints.
func (e ExportedService) Same(o ExportedService) bool {
	return e.Refusal == o.Refusal && e.Export.Same(o.Export) && e.Service.Headless == o.Service.Headless && e.Service.SessionAffinity == o.Service.SessionAffinity &&
		e.Service.SessionAffinitySeconds == o.Service.SessionAffinitySeconds && slices.Equal(e.Service.Ports, o.Service.Ports)
}

// Same reports whether two endpoints are the same in everything.
func (e ServiceEndpoint) Same(o ServiceEndpoint) bool {
	return e.Address == o.Address && e.Ready == o.Ready && e.Serving == o.Serving && e.Terminating == o.Terminating &&
		e.Hostname == o.Hostname && e.PodUID == o.PodUID && maps.Equal(e.Ports, o.Ports)
}

// Key identifies an endpoint within its Service: an address may serve two sets of ports.
func (e ServiceEndpoint) Key() string {
	key := []string{e.Address}
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		key = append(key, name+"="+strconv.Itoa(int(e.Ports[name])))
	}
	return strings.Join(key, " ")
}

// CheckExport returns an error unless a ServiceExport can be sent.
func CheckExport(x *ServiceExport) error {
	for what, pairs := range map[string]map[string]string{"label": x.Labels, "annotation": x.Annotations} {
		if len(pairs) > MaxExportPairs {
			return fmt.Errorf("%d %ss, more than %d", len(pairs), what, MaxExportPairs)
		}
		size := 0
		for k, v := range pairs {
			if err := checkQualifiedName(k); err != nil || len(k) > MaxLabelKeyLen {
				return fmt.Errorf("%s %.64q: its name is not valid in Kubernetes", what, k)
			}
			if what == "label" && (len(v) > MaxLabelValueLen || v != "" && !isName(v)) || !utf8.ValidString(v) {
				return fmt.Errorf("%s %s: its value is not valid in Kubernetes", what, k)
			}
			if size += len(k) + len(v); size > MaxExportPairsSize {
				return fmt.Errorf("%ss of more than %d bytes", what, MaxExportPairsSize)
			}
		}
	}
	if p := x.InternalTrafficPolicy; p != "" && p != "Cluster" && p != "Local" {
		return fmt.Errorf("internal traffic policy %.16q is neither Cluster nor Local", p)
	}
	if d := x.TrafficDistribution; len(d) > MaxNameLen || d != "" && !isName(strings.ReplaceAll(d, "/", ".")) {
		return fmt.Errorf("traffic distribution %.64q is not a name", d)
	}
	return nil
}
