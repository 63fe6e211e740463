package plan

import (
	"crypto/sha256"
	"encoding/binary"
)

// Rank orders the gateways of a cluster for its traffic with another: the highest
// is the best. All nodes compute the same. It is rendezvous hashing (Thaler and Ravishankar, 1998), so
// the order differs for each other cluster and the load is shared.
func Rank(cluster, other, node string) uint64 {
	sum := sha256.Sum256([]byte("entente gateway rank\x00" + cluster + "\x00" + other + "\x00" + node))
	return binary.BigEndian.Uint64(sum[:])
}
