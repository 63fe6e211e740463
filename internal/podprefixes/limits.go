package podprefixes

import "time"

const (
	// maxObjects is how many objects of a network plugin are read of one kind.
	maxObjects = 5000
	// maxPrefixes is how many prefixes count of one source.
	maxPrefixes = 5000
	// maxText is how long a text that holds prefixes may be, in bytes.
	maxText = 64 << 10
	// maxShown is how many characters of a malformed prefix are shown, maxProblems how many problems of a source.
	maxShown, maxProblems = 64, 4
	// patience is how long prefixes are not known while the API server does not answer what a source has. Then
	// they are decided without it.
	patience = 30 * time.Second
	// routingEvery is how often Cilium's ConfigMap is read for how it routes, routingTimeout how long that may take.
	routingEvery, routingTimeout = 2 * time.Minute, 5 * time.Second
	// pageSize is how many objects are listed at a time.
	pageSize = 250
)
