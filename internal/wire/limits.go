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
	// MaxReasonLen is the longest reason of an error (AIP-193).
	MaxReasonLen = 63
	// MaxErrorMetadata is how many facts an error from outside may carry.
	MaxErrorMetadata = 16
	// MaxRetryAfter is the longest pause that an error from outside can ask for.
	MaxRetryAfter = time.Hour
)
