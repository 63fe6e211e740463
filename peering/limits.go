package peering

import "time"

// Limits of what may come from outside. Every decoder of this package enforces them.
const (
	// MaxEndpoints is the most endpoints that a cluster names for itself.
	MaxEndpoints = 8
	// MaxEndpointLen is the most characters of an endpoint: a DNS name of 253, a
	// colon, a port, and brackets.
	MaxEndpointLen = 261

	// MaxPayload is the most bytes that a contract's payload has.
	MaxPayload = 64 << 10
	// MaxEnvelope is the most bytes of an envelope in its JSON form.
	MaxEnvelope = 128 << 10
	// MaxSignatures is the most signatures that an envelope has.
	MaxSignatures = 4
	// MaxSignatureLen is the most bytes of one signature.
	MaxSignatureLen = 256
	// MaxPayloadTypeLen is the most characters of a payload type.
	MaxPayloadTypeLen = 128

	// MaxContractIDLen and MaxRequestIDLen are in characters.
	MaxContractIDLen = 64
	MaxRequestIDLen  = 64
	// MaxPublicKeyLen is the most bytes of a SubjectPublicKeyInfo.
	MaxPublicKeyLen = 256
	// MaxSuccession is how often a cluster's key is rolled over at most.
	MaxSuccession = 8
	// MaxCertificateLen is the most bytes of a certificate in a succession.
	MaxCertificateLen = 2048
	// MaxResources is the most resources that a contract names.
	MaxResources = 64
	// MaxResourceNameLen is the most characters of a resource's name.
	MaxResourceNameLen = 128
	// MaxQuantityLen is the most characters of a quantity.
	MaxQuantityLen = 64
	// MaxUnitSecondsLen is the most characters of a UnitSeconds.
	MaxUnitSecondsLen = 40
	// MaxNodeLabels is the most labels of a virtual node.
	MaxNodeLabels = 64
	// MaxNodeSelector is the most labels by which nodes are chosen.
	MaxNodeSelector = 32
	// MaxClasses is the most runtime classes or storage classes that are asked for.
	MaxClasses = 16
	// MaxClassNameLen is the most characters of the name of a class.
	MaxClassNameLen = 253
	// MaxLabelKeyLen and MaxLabelValueLen are Kubernetes' own.
	MaxLabelKeyLen   = 317
	MaxLabelValueLen = 63
	// MaxContractLife is the longest a contract lasts.
	MaxContractLife = 10 * 366 * 24 * time.Hour
	// MaxRevision is the highest revision: the largest integer that every JSON
	// reader keeps exact (RFC 8259 section 6).
	MaxRevision = 1<<53 - 1

	// DefaultDrain is how long draining takes at most by default. After that, the contract no
	// longer covers what still runs.
	DefaultDrain = time.Hour
	// MaxDrain is the longest drain that can be asked for.
	MaxDrain = 24 * time.Hour
	// MaxNotice is the longest notice that a provider can give.
	MaxNotice = 31 * 24 * time.Hour
	// ExpiryGrace is how long a contract that reached its end drains.
	ExpiryGrace = 10 * time.Minute
	// retryPending is after how long to ask again for what an administrator has to approve, and
	// retryCapacity for capacity that another consumer has to free first.
	retryPending  = 15 * time.Second
	retryCapacity = time.Minute
	// ExpirySkew is by how much clocks may differ so that an end that the peer reported counts as
	// the contract's own; at most a quarter of its term.
	ExpirySkew = time.Minute

	// MinStatementPeriod and MaxStatementPeriod bound what a statement of use
	// covers.
	MinStatementPeriod = time.Minute
	MaxStatementPeriod = 31 * 24 * time.Hour
	// MaxStatement is the most bytes of a statement's payload: in an envelope in
	// JSON it is less than 32 KiB.
	MaxStatement = 23 << 10
	// MaxSample is for how long at most a Meter assumes that use did not change.
	MaxSample = 2 * time.Minute
	// MaxPeriods is how many periods a Meter ends at once.
	MaxPeriods = 32
	// MaxOvercommit is the highest percentage of what is free that counts as free.
	MaxOvercommit = 1000
)

// Limits of what two clusters send each other. They equal the constraints of the proto where that
// has one.
const (
	// MaxCapabilities is how many capabilities a peer may name, of
	// MaxCapabilityLen bytes each.
	MaxCapabilities  = 64
	MaxCapabilityLen = 64
	// MaxGateways is how many gateways a peer may have.
	MaxGateways = 64
	// MaxNodes is how many nodes beside its gateways a peer may announce, and MaxNodePods how many
	// prefixes of pods each node may have.
	MaxNodes    = 64
	MaxNodePods = 16
	// MaxSources is how many addresses of its own among its pods' a node may have.
	MaxSources = 2
	// MaxObserved is how many endpoints at which a gateway was observed are reported,
	// MaxObservedLen how long each is, in bytes. A peer reports each of this cluster's gateways
	// once.
	MaxObserved     = 4
	MaxObservations = MaxGateways
	MaxObservedLen  = 64
	// MaxInBandGateways is how many gateways in-band parameters may have.
	MaxInBandGateways = 16
	// MaxPrefixes is how many pod prefixes, and as many aliases, a peer may have.
	MaxPrefixes = 16
	// MaxAddresses is how many addresses that need an alias each a peer may name, and for how many
	// it may announce an alias, MaxBlocks in how many blocks of at most MaxBlockAddresses.
	MaxAddresses      = 4096
	MaxBlocks         = 128
	MaxBlockAddresses = 64
	// MaxTransit is from how many third clusters a peer may be reached through another one.
	MaxTransit = 16
	// MaxDirect is how many addresses of pods in third clusters a peer may name to be reached
	// directly, how many of its own it may open to pods of third clusters, and of how many it may say
	// that it runs them for third clusters. MaxDirectNamespaces is of how many namespaces in each of
	// these clusters.
	MaxDirect           = 1024
	MaxDirectNamespaces = 64
	// MaxContracts is how many contracts a peer may report.
	MaxContracts = 256
	// MaxStorageClasses and MaxArchitectures is how many of each an offer may have.
	MaxStorageClasses = 64
	MaxArchitectures  = 16
	// MaxPools is how many pools of a provider's nodes an offer may have, MaxPoolNameLen how long
	// each name is, and MaxPoolsSize how large they may be in all, in characters of names and values.
	MaxPools       = 16
	MaxPoolNameLen = 32
	MaxPoolsSize   = 32 << 10
	// MaxServices is how many services an offer may have, MaxServicePorts how many
	// ports each, and MaxServicesSize how large they may be in all, in bytes: each service and
	// each port counts serviceSize, plus its texts.
	MaxServices     = 256
	MaxServicePorts = 64
	MaxServicesSize = 64 << 10
	serviceSize     = 64
	// MaxExternalNameLen is the longest external name of a Service.
	MaxExternalNameLen = 253
	// MaxServiceEndpoints is how many endpoints of one Service are sent, MaxExportedEndpoints how
	// many of all Services that one peer imports.
	MaxServiceEndpoints  = 5000
	MaxExportedEndpoints = 20_000
	// MaxExportPairs is how many labels, and how many annotations, a Service that is exported to a
	// cluster set may have, and MaxExportPairsSize how many bytes of each.
	MaxExportPairs     = 32
	MaxExportPairsSize = 4096
	// MaxAppProtocolLen is the longest name of an application's protocol: a DNS name,
	// a slash and a label.
	MaxAppProtocolLen = 253 + 1 + 63
	// MaxMessageLen is the longest text for people, in bytes; more is cut.
	MaxMessageLen = 1024
	// MaxNameLen is the longest cluster name.
	MaxNameLen = 63
	// MaxNodeNameLen is the longest name of a node.
	MaxNodeNameLen = 253
	// MaxDuration is the longest duration of anything: ten years. It keeps arithmetic with times
	// far from overflow.
	MaxDuration = 10 * 365 * 24 * time.Hour
	// MaxReasonLen is the longest reason of an error (AIP-193).
	MaxReasonLen = 63
	// MaxErrorMetadata is how many facts an error from outside may carry.
	MaxErrorMetadata = 16
	// MaxRetryAfter is the longest pause that an error from outside can ask for.
	MaxRetryAfter = time.Hour
)
