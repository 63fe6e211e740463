package gateways

import "time"

const (
	// reportMaxAge is how old the report of a fabric may be, which writes one each minute.
	reportMaxAge = 3 * time.Minute
	// reportsWithin is how old the report of a fabric may be that runs on a node that is not Ready, as
	// when only its kubelet has stopped. It includes the time to write and read a report.
	reportsWithin = 75 * time.Second
	// replaceAfter is how long a gateway's Node must be not Ready, or its fabric silent,
	// until another node is made a gateway in its place. Meanwhile another gateway
	// carries its traffic.
	replaceAfter = 5 * time.Minute
	// absentAfter is for how long no pod of the fabric may run on a node until that is reported: a
	// replaced pod runs within seconds.
	absentAfter = 8 * time.Second
	// cutLasts is for how long pods of a node may not reach a peer until that is reported: gateways
	// change, and nodes start, in that time. cutCordoned is the same for a cordoned node.
	cutLasts, cutCordoned = 5 * time.Second, time.Minute
	// splitRecheck is how often it is checked whether nodes that both carry a peer's traffic report.
	splitRecheck = 10 * time.Second
	// maxCuts is how many reasons why nodes are cut off a message has, maxNamed how many nodes it names
	// for each.
	maxCuts, maxNamed = 3, 3
	// maxServices is how many gateways have a Service of their own: each can cost a load
	// balancer. It is also the limit for gateways that are not labelled.
	maxServices = 16
	// maxPodSources is how many sources of the prefixes of pods a FabricNode has, as in the custom resource.
	maxPodSources = 8
	// maxServiceCIDRs is how many prefixes of Services a FabricNode has, as in the custom resource.
	maxServiceCIDRs = 64
	// maxProblems is how many problems with endpoints a FabricNode lists, as in the custom
	// resource.
	maxProblems = 8
)
