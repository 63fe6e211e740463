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

// ExportedService is what a provider says of a Service that a consumer imports.
type ExportedService struct {
	ServiceName
	// Refusal is why it cannot be imported, for people; empty if it can.
	Refusal string
	// Service is the Service without labels, its endpoints in the provider's terms and
	// sorted as by ServiceEndpoint.Key.
	Service ServiceObject
	// Export is how it is exported to a cluster set; nil is that it is not, or that nobody
	// asked.
	Export *ServiceExport
}

// ServiceExport is what a cluster says of a Service that it exports to a cluster set: a
// ServiceExport of the Multi-Cluster Services API, and of its Service what that is about.
type ServiceExport struct {
	// Created is since when, in whole seconds.
	Created time.Time
	// Labels and Annotations are those that the imported Service gets.
	Labels, Annotations map[string]string
	// InternalTrafficPolicy and TrafficDistribution are the Service's; empty means none.
	InternalTrafficPolicy, TrafficDistribution string
}

// Same says whether two say the same.
func (e *ServiceExport) Same(o *ServiceExport) bool {
	if e == nil || o == nil {
		return e == o
	}
	return e.Created.Equal(o.Created) && maps.Equal(e.Labels, o.Labels) && maps.Equal(e.Annotations, o.Annotations) &&
		e.InternalTrafficPolicy == o.InternalTrafficPolicy && e.TrafficDistribution == o.TrafficDistribution
}

// Same says whether two say the same in everything but endpoints.
func (e ExportedService) Same(o ExportedService) bool {
	return e.Refusal == o.Refusal && e.Export.Same(o.Export) && e.Service.Headless == o.Service.Headless && e.Service.SessionAffinity == o.Service.SessionAffinity &&
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

// CheckExport says whether what a ServiceExport says can cross.
func CheckExport(x *ServiceExport) error {
	for what, pairs := range map[string]map[string]string{"label": x.Labels, "annotation": x.Annotations} {
		if len(pairs) > MaxExportPairs {
			return fmt.Errorf("%d %ss, more than %d", len(pairs), what, MaxExportPairs)
		}
		size := 0
		for k, v := range pairs {
			if err := checkQualifiedName(k); err != nil || len(k) > MaxLabelKeyLen {
				return fmt.Errorf("%s %.64q: its name is not one of Kubernetes", what, k)
			}
			if what == "label" && (len(v) > MaxLabelValueLen || v != "" && !isName(v)) || !utf8.ValidString(v) {
				return fmt.Errorf("%s %s: its value is not one of Kubernetes", what, k)
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
