package gateways

import "slices"

// Direct is which nodes other clusters are told of, with the prefixes of the pods on them.
type Direct string

// From the most to the least.
const (
	// DirectAll: all nodes, with where they can be dialled.
	DirectAll Direct = "All"
	// DirectGateways: gateways only, which they are told of in any case.
	DirectGateways Direct = "Gateways"
	// DirectNone: none. All pods are reached through gateways.
	DirectNone Direct = "None"
)

// Valid says whether it is one of these.
func (d Direct) Valid() bool {
	return slices.Contains([]Direct{DirectAll, DirectGateways, DirectNone}, d)
}
