// Package introduce has the commitment that two clusters exchange when they introduce themselves,
// and the code that they show to people.
package introduce

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/entente-dev/entente/peering"
)

// Prefixes that separate these hashes from every other SHA-256.
const (
	commitmentDomain = "entente introduction\x00"
	codeDomain       = "entente code\x00"
)

// Commitment is a hash of the nonce of a cluster that introduces itself, which it sends before it
// knows the other side's. It cannot reveal another nonce later.
func Commitment(id peering.ClusterID, nonce [32]byte) peering.Hash {
	b := append([]byte(commitmentDomain), id...)
	b = append(b, 0)
	return peering.Hash(sha256.Sum256(append(b, nonce[:]...)))
}

// Code is the short authentication string of an introduction, six digits, for people to compare.
// Both sides compute it from what they received: an attacker in the middle has one chance in a
// million that both get the same.
func Code(initiator peering.ClusterID, nonceI [32]byte, responder peering.ClusterID, nonceR [32]byte) string {
	b := append([]byte(codeDomain), initiator...)
	b = append(b, nonceI[:]...)
	b = append(b, responder...)
	sum := sha256.Sum256(append(b, nonceR[:]...))
	return fmt.Sprintf("%06d", binary.BigEndian.Uint64(sum[:8])%1_000_000)
}
