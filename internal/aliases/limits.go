package aliases

import "time"

// Limits of the alias pool, of each family by itself.
const (
	// wholePart is how much of the pool all aliases of whole prefixes together can have:
	// one part in so many.
	wholePart = 2
	// keptPart is how much of it is kept, one part in so many, so that each of keptPeers
	// peers finds an equal share of that for single addresses, whatever others have.
	keptPart  = 4
	keptPeers = 256
	// maxAddresses is how many aliases for single addresses a peer can have, maxBlocks in
	// how many blocks, and blockBits the bits of an address in a block: it has 64. Where
	// the pool has no such room left, blocks are smaller.
	maxAddresses = 4096
	maxBlocks    = 128
	blockBits    = 6
)

// Times.
const (
	// quarantine is for how long the alias of an address that is not used any more is
	// given to no other, so that nobody who still has it is led astray. Where a peer has no
	// room left it is shortQuarantine.
	quarantine      = 5 * time.Minute
	shortQuarantine = time.Minute
)
