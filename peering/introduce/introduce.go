// Package introduce is what two clusters show each other, and people, when they introduce
// themselves.
package introduce

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/entente-dev/entente/peering"
)

// What keeps these hashes apart from every other SHA-256.
const (
	commitmentDomain = "entente introduction\x00"
	codeDomain       = "entente code\x00"
)

// Commitment is what a cluster that introduces itself shows of its nonce before
// it knows the other side's. It cannot open it to another nonce later.
func Commitment(id peering.ClusterID, nonce [32]byte) peering.Hash {
	b := append([]byte(commitmentDomain), id...)
	b = append(b, 0)
	return peering.Hash(sha256.Sum256(append(b, nonce[:]...)))
}

// Code is the short authentication string of an introduction, six digits, for
// people to compare. Both sides compute it from what they saw: somebody between
// them has one guess in a million to make both see the same.
func Code(initiator peering.ClusterID, nonceI [32]byte, responder peering.ClusterID, nonceR [32]byte) string {
	b := append([]byte(codeDomain), initiator...)
	b = append(b, nonceI[:]...)
	b = append(b, responder...)
	sum := sha256.Sum256(append(b, nonceR[:]...))
	return fmt.Sprintf("%06d", binary.BigEndian.Uint64(sum[:8])%1_000_000)
}
