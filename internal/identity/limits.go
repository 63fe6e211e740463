package identity

import "github.com/entente-dev/entente/peering"

// Limits of what comes from outside.
const (
	// maxRoots is the most roots in a bundle: one in use, one on its way out, and
	// room.
	maxRoots = 4
	// maxBundle is the most bytes of a bundle's roots, DER.
	maxBundle = 16 << 10
	// maxBundlePEM is the most bytes of a bundle as PEM, as in a ForeignCluster.
	maxBundlePEM = 32 << 10
	// maxIdentityPEM bounds what Parse reads.
	maxIdentityPEM = 64 << 10
	// maxChain is the most certificates that a peer presents: the leaf, one for each
	// succession, and the first root.
	maxChain = peering.MaxSuccession + 2
)
