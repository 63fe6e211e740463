package wire

import "time"

// Limits of what crosses, both ways, besides those of package peering. They equal
// the constraints of the proto where that has one.
const (
	// MaxCapabilities is how many capabilities a peer may name, of
	// MaxCapabilityLen bytes each.
	MaxCapabilities  = 64
	MaxCapabilityLen = 64
	// MaxGateways is how many gateways a peer may have.
	MaxGateways = 64
	// MaxPrefixes is how many pod prefixes, and as many aliases, a peer may have.
	MaxPrefixes = 16
	// MaxContracts is how many contracts a peer may report.
	MaxContracts = 256
	// MaxStorageClasses and MaxArchitectures is how many of each an offer may have.
	MaxStorageClasses = 64
	MaxArchitectures  = 16
	// MaxServices is how many services an offer may have, MaxServicePorts how many
	// ports each, and MaxServicesSize how large they may be in all, in bytes: each
	// service and each port counts serviceSize, and besides what is written in it.
	MaxServices     = 256
	MaxServicePorts = 64
	MaxServicesSize = 64 << 10
	serviceSize     = 64
	// MaxAppProtocolLen is the longest name of an application's protocol: a DNS name,
	// a slash and a label.
	MaxAppProtocolLen = 253 + 1 + 63
	// MaxMessageLen is the longest text for people, in bytes; more is cut.
	MaxMessageLen = 1024
	// MaxNameLen is the longest cluster name.
	MaxNameLen = 63
	// MaxNodeNameLen is the longest name of a node.
	MaxNodeNameLen = 253
	// MaxBundleLen is the longest trust bundle, DER.
	MaxBundleLen = 16 << 10
	// MaxDuration is the longest duration that anything may last: ten years. It
	// keeps arithmetic with times far from overflow.
	MaxDuration = 10 * 365 * 24 * time.Hour
	// MaxParts is how many fields a message may have, with those of the messages in it.
	// The largest honest one, an offer with as many services and ports as there may be,
	// has two thirds of that. maxNesting is how deep messages may be in each other; ours
	// are at most seven.
	MaxParts   = 8192
	maxNesting = 32
	// MaxReasonLen is the longest reason of an error (AIP-193).
	MaxReasonLen = 63
	// MaxErrorMetadata is how many facts an error from outside may carry.
	MaxErrorMetadata = 16
	// MaxRetryAfter is the longest pause that an error from outside can ask for.
	MaxRetryAfter = time.Hour
)

// Limits of what crosses in an OffloadService. They equal the constraints of the
// proto where that has one.
const (
	// MaxObjectBytes is the largest object, as JSON. It is what an API server
	// takes.
	MaxObjectBytes = 1536 << 10
	// MaxStatusBytes is the largest PodStatus, as JSON. One of a pod with a
	// hundred containers stays below.
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
