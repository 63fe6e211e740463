package wire

import "time"

// Limits of messages, besides those of package peering.
const (
	// MaxBundleLen is the longest trust bundle, DER.
	MaxBundleLen = 16 << 10
	// MaxParts is how many fields a message may have, with those of the messages in it. The
	// largest honest message, an offer with as many services and ports as allowed, has two thirds
	// of that. maxNesting is how deep messages may be nested; ours are at most seven deep.
	MaxParts   = 8192
	maxNesting = 32
)

// Limits of the endpoints in one message of an ExportService.
const (
	// maxEndpointsPerMessage is how many endpoints are set, and how many removed.
	maxEndpointsPerMessage = 500
	// endpointParts is how many of MaxParts they may have together: an endpoint has
	// partsOfEndpoint, and partsOfPort for each port.
	endpointParts   = MaxParts / 2
	partsOfEndpoint = 8
	partsOfPort     = 4
	// maxAffinitySeconds is the longest that a client stays at one endpoint: a day, as in
	// Kubernetes.
	maxAffinitySeconds = 86_400
)

// Limits of what is sent in an OffloadService. They equal the constraints of the proto where that
// has one.
const (
	// MaxObjectBytes is the largest object, as JSON. An API server has the same limit.
	MaxObjectBytes = 1536 << 10
	// minPatched is the size from which on changes of a Service are sent as patches.
	minPatched = 4 << 10
	// maxSplices is how many places of an object one patch changes; spliceBytes is about the size of one without
	// what it inserts.
	maxSplices  = 256
	spliceBytes = 12
	// MaxStatusBytes is the largest PodStatus, as JSON. A provider sends only the parts that home
	// uses, which have less for any pod that it accepts.
	MaxStatusBytes = 512 << 10
	// MaxObjectNameLen is the longest name of an object.
	MaxObjectNameLen = 253
	// MaxUIDLen is the longest UID.
	MaxUIDLen = 64
	// MaxGraceSeconds is the longest grace period that a delete may ask for: a
	// day.
	MaxGraceSeconds = 24 * 60 * 60
	// MaxOffloadMessage is the largest message of an OffloadService: an object
	// with its reference and room for framing.
	MaxOffloadMessage = MaxObjectBytes + 64<<10
	// maxEventReasonLen and maxEventMessageLen bound a PodEvent's texts; more is
	// cut. Kubernetes allows as much.
	maxEventReasonLen  = 128
	maxEventMessageLen = 1024
	// maxQuantityExponent is the largest exponent of ten in an amount: exa.
	maxQuantityExponent = 18
	// maxAmountLen is the longest amount, in characters.
	maxAmountLen = 64
	// maxJSONElements is how many elements the lists in a pod or its status have
	// together.
	maxJSONElements = 16384
	// maxJSONDepth is how deep the JSON of an object may nest.
	maxJSONDepth = 1000
)

// Limits of the metrics of pods.
const (
	// MaxMetricsPods is how many pods one response has.
	MaxMetricsPods = 10_000
	// MaxMetricsContainers is how many containers of a pod are reported.
	MaxMetricsContainers = 64
	// MaxMetricsMessages is how many messages one response has.
	MaxMetricsMessages = 64
	// metricsParts is how many of MaxParts they may have in one message. A pod has
	// partsOfMetrics, and partsOfContainer for each container.
	metricsParts     = MaxParts / 2
	partsOfMetrics   = 8
	partsOfContainer = 4
	// MinMetricsWindow and MaxMetricsWindow bound the time over which CPU is averaged.
	MinMetricsWindow = time.Second
	MaxMetricsWindow = 10 * time.Minute
	// MaxNanocores is the most CPU of a container, 4096 cores, and MaxMetricsBytes the most
	// memory, 64 TiB.
	MaxNanocores    = 4096 * 1_000_000_000
	MaxMetricsBytes = 64 << 40
)
