package podspec

// Limits on what a consumer can ask of this cluster.
const (
	// MaxGrace is the longest grace period of a pod here, whatever it asks for.
	MaxGrace int64 = 3600
	// MaxContainers is how many containers one pod may have, init containers
	// included.
	MaxContainers = 256
	// maxDemands is how many different resources one pod may ask for.
	maxDemands = 64
	// maxPodTerms is how many terms of affinity and anti-affinity to pods a pod may have, and how
	// many spread constraints: the scheduler compares each with every pod.
	maxPodTerms = 32
	// maxLabelName is how long a label's key may be without its prefix.
	maxLabelName = 63
	// maxKeyBytes is how much of a label's key a message has: it may have 253 bytes before the slash.
	maxKeyBytes = 317
	// maxNameservers, maxSearches and maxSearchBytes bound the resolvers and search domains of a
	// pod: the API server refuses more.
	maxNameservers = 3
	maxSearches    = 32
	maxSearchBytes = 2048
)
