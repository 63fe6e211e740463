package preflight

const (
	// maxText is how long a message or a remedy is, in bytes, and maxListed how many things
	// one lists.
	maxText   = 1024
	maxListed = 5
	// maxOverlaps is how many parts of the alias pool are named that a node reaches otherwise.
	maxOverlaps = 16
	// maxChains and maxRules is how much of a node's firewall is read. What lies beyond is
	// taken for rules that may let a packet pass or not. maxDepth is how deep its chains
	// are followed.
	maxChains = 256
	maxRules  = 4096
	maxDepth  = 16
	// maxElements is how many elements of a set are looked at; with more it counts as one
	// of which nothing is known.
	maxElements = 64
	// maxRoutes is how many routes of a node are kept, of those that may matter, and
	// maxPrograms how many programs of an interface.
	maxRoutes   = 4096
	maxPrograms = 16
	// leastUnderlay is the smallest MTU around a tunnel: 1280, which IPv6 needs, and 80 of
	// WireGuard over IPv6.
	leastUnderlay = 1360
	// conntrackPercent is how full the table of tracked flows may be.
	conntrackPercent = 90
)
