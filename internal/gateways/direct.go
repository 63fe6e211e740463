package gateways

import "slices"

// Direct is which nodes are announced to other clusters, with the prefixes of the pods on them.
type Direct string

// From the most to the least.
const (
	// DirectAll: all nodes, with the endpoints at which they can be dialled.
	DirectAll Direct = "All"
	// DirectGateways: gateways only, which are announced in any case.
	DirectGateways Direct = "Gateways"
	// DirectNone: none. All pods are reached through gateways.
	DirectNone Direct = "None"
)

// Valid reports whether d is one of these.
func (d Direct) Valid() bool {
	return slices.Contains([]Direct{DirectAll, DirectGateways, DirectNone}, d)
}
