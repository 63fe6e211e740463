package gateways

import "time"

const (
	// reportMaxAge is how old the report of a fabric may be, which writes one each minute.
	reportMaxAge = 3 * time.Minute
	// reportsWithin is how old the report of a fabric is whose node is not Ready and runs on, as where
	// its kubelet alone has stopped: with the time that a report takes to be written and read.
	reportsWithin = 75 * time.Second
	// replaceAfter is how long a gateway's Node has not to be Ready, or its fabric to be silent,
	// until another node is made a gateway in its place. Nothing waits for that: another gateway
	// carries its traffic meanwhile.
	replaceAfter = 5 * time.Minute
	// absentAfter is for how long no pod of the fabric may run on a node until that is told: one
	// that is replaced runs within seconds.
	absentAfter = 8 * time.Second
	// cutLasts is for how long pods of a node do not reach a peer until that is told: gateways
	// change, and nodes start, in that time. cutCordoned is that of a node that is cordoned.
	cutLasts, cutCordoned = 5 * time.Second, time.Minute
	// splitLook is how often it is checked whether nodes that both carry a peer's traffic report.
	splitLook = 10 * time.Second
	// maxCuts is of how many kinds of such nodes is told, maxNamed how many nodes of each are named.
	maxCuts, maxNamed = 3, 3
	// maxServices is how many gateways have a Service of their own: each can cost a load
	// balancer. As many can be asked for without labels.
	maxServices = 16
	// maxServiceCIDRs is how many prefixes of Services nodes are told, as in the custom resource.
	maxServiceCIDRs = 64
	// maxProblems is how many problems with endpoints a FabricNode lists, as in the custom
	// resource.
	maxProblems = 8
)
