package aliases

import "time"

// Limits of the alias pool, of each family by itself.
const (
	// wholePart is the part of the pool for the aliases of whole prefixes of all peers: one in
	// wholePart.
	wholePart = 2
	// keptPart is the part of the pool, one in keptPart, that is reserved for single addresses, in
	// equal shares for keptPeers peers, whatever other peers use.
	keptPart  = 4
	keptPeers = 256
	// maxAddresses is how many aliases for single addresses a peer can have, maxBlocks in
	// how many blocks, and blockBits the bits of an address in a block of 64. Where
	// the pool has no room for that, blocks are smaller.
	maxAddresses = 4096
	maxBlocks    = 128
	blockBits    = 6
	// maxReleased is how many prefixes of aliases that peers gave up are remembered, the newest ones.
	maxReleased = 1024
)

// Times.
const (
	// quarantine is for how long the alias of an address that is no longer used is not
	// allocated to another one, nor one of a whole prefix to another peer, so that clients that still
	// use it do not reach another pod. Where a peer has no room left it is shortQuarantine.
	quarantine      = 5 * time.Minute
	shortQuarantine = time.Minute
)
