package preflight

const (
	// maxText is the length of a message or a remedy, in bytes, and maxListed how many items
	// one lists.
	maxText   = 1024
	maxListed = 5
	// maxOverlaps is how many parts of the alias pool are named that a node reaches by other routes.
	maxOverlaps = 16
	// maxChains and maxRules are how many chains and rules of a node's firewall are read. Those beyond
	// count as rules that may let a packet pass or not. maxDepth is how deep its chains
	// are followed.
	maxChains = 256
	maxRules  = 4096
	maxDepth  = 16
	// maxElements is how many elements of a set are read; a larger set counts as
	// unknown.
	maxElements = 64
	// maxRoutes is how many relevant routes of a node are kept, and
	// maxPrograms how many programs of an interface.
	maxRoutes   = 4096
	maxPrograms = 16
	// leastUnderlay is the smallest MTU below a tunnel: 1280, which IPv6 needs, and 80 of
	// WireGuard over IPv6.
	leastUnderlay = 1360
	// conntrackPercent is how full the table of tracked flows may be.
	conntrackPercent = 90
)
