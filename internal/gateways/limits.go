package gateways

import "time"

const (
	// reportMaxAge is how old the report of a fabric may be, which writes one each minute.
	reportMaxAge = 3 * time.Minute
	// replaceAfter is how long a gateway's Node has not to be Ready, or its fabric to be silent,
	// until another node is made a gateway in its place. Nothing waits for that: another gateway
	// carries its traffic meanwhile.
	replaceAfter = 5 * time.Minute
	// maxServices is how many gateways have a Service of their own: each can cost a load
	// balancer. As many can be asked for without labels.
	maxServices = 16
	// maxServiceCIDRs is how many prefixes of Services nodes are told, as in the custom resource.
	maxServiceCIDRs = 64
	// maxProblems is how many problems with endpoints a FabricNode lists, as in the custom
	// resource.
	maxProblems = 8
)
