package podspec

// Limits of what a consumer can ask of this cluster.
const (
	// MaxGrace is the longest grace period of a pod here, whatever it asks for.
	MaxGrace int64 = 3600
	// MaxContainers is how many containers one pod may have, init containers
	// included.
	MaxContainers = 256
	// maxDemands is how many different resources one pod may ask for.
	maxDemands = 64
	// maxPodTerms is how many terms a pod may have by which it seeks and shuns others, and
	// how many by which it spreads: the scheduler compares each with every pod.
	maxPodTerms = 32
	// maxLabelName is how long a label's key may be without its prefix.
	maxLabelName = 63
	// maxKeyBytes is how much of a label's key is told: it may have 253 before the slash.
	maxKeyBytes = 317
	// maxNameservers, maxSearches and maxSearchBytes are how many resolvers and search
	// domains a pod can have: more are not valid.
	maxNameservers = 3
	maxSearches    = 32
	maxSearchBytes = 2048
)
