package probe

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// A probe is one UDP datagram inside the tunnel, from overlay address to
// overlay address, so WireGuard authenticates the sender. The answer has the
// same number. All integers are big endian.
//
//	0  4  "entp"
//	4  1  version, 1
//	5  1  kind: 1 probe, 2 answer, 3 claims
//	6  1  flags: bit 0 the sender carries traffic to the receiver's cluster,
//	      bit 1 padded, to find out what size passes, bit 2 the sender, a node of
//	      the same cluster, suspects that a gateway of a cluster died, bit 3 the sender tries
//	      other ways to the receiver at this moment, bit 4 the next field but one is there
//	7  1  zero
//	8  8  sequence number; of a padded one its size is what counts
//	16 8  what the sender, a node of another cluster, accepts directly: see
//	      [plan.WireGuardPeer]; 0 means nothing; with bit 2 of the flags, which cluster is
//	      meant, see [PeerKey]
//	24 8  with bit 4 of the flags: what the sender, a gateway of another cluster, accepts for all of
//	      its cluster, see [plan.WireGuardPeer]
//	…  …  zero bytes, so that a probe can be as large as the MTU allows; of claims one
//	      entry after the other
//
// Claims are what a gateway announces to the other nodes of its cluster about the peers. They are not
// requested and not answered. An entry is
//
//	0  8  which peer, see [PeerKey]
//	8  1  how well the gateway reaches it: 0 to 3, see [Reach]
//	9  1  flags: bit 0 the gateway carries its traffic
type probe struct {
	answer  bool
	carries bool
	large   bool
	tries   bool
	seq     uint64
	// agreement is what the sender accepts directly.
	agreement uint64
	// entry is what the sender accepts for all of its cluster.
	entry uint64
	// suspects is the cluster of which a gateway seems to have died; zero means none.
	suspects PeerKey
	// claims, unless it is nil, is all that the datagram contains.
	claims map[PeerKey]Claim
}

// Reach is how well a gateway reaches a peer.
type Reach uint8

// From the worst to the best.
const (
	// ReachNone: no probe to a gateway of the peer is answered.
	ReachNone Reach = iota
	// ReachRelayed: to some gateway, through the agents only.
	ReachRelayed
	// ReachSome: to some gateway, none that carries this cluster's traffic there.
	ReachSome
	// ReachCarrier: to the one that carries this cluster's traffic there. Of two clusters the
	// one with the lower ID leads: for it, any gateway that answers will do, and the other
	// cluster chooses one that fits.
	ReachCarrier
)

// Claim is what a gateway announces to the other nodes of its cluster about a peer.
type Claim struct {
	Reach   Reach
	Carries bool
}

// PeerKey identifies a cluster: the first bytes of SHA-256 of the cluster ID.
type PeerKey [8]byte

// PeerKeyOf is the key of a cluster.
func PeerKeyOf(cluster string) PeerKey {
	sum := sha256.Sum256([]byte("entente claim\x00" + cluster))
	return PeerKey(sum[:8])
}

const (
	probeLen     = 24
	entryLen     = 32 // with the field for what the sender accepts for all of its cluster
	probeVersion = 1
	probeMagic   = "entp"
	flagCarries  = 1 << 0
	flagLarge    = 1 << 1
	flagSuspect  = 1 << 2
	flagTries    = 1 << 3
	flagEntry    = 1 << 4
	// probeHeaders is what IPv6 and UDP add to a probe.
	probeHeaders = 48

	kindProbe, kindAnswer, kindClaims = 1, 2, 3

	claimLen = 10
	// maxClaims is how many claims a datagram has that passes every tunnel.
	maxClaims = (MinMTU - probeHeaders - probeLen) / claimLen
)

// encode returns a datagram of the given size, or of that of the claims, at least
// that of the header.
func (p probe) encode(size int) []byte {
	b := make([]byte, max(size, probeLen))
	if p.entry != 0 && p.claims == nil {
		b = make([]byte, max(size, entryLen))
		b[6] |= flagEntry
		binary.BigEndian.PutUint64(b[24:], p.entry)
	}
	if p.claims != nil {
		b = make([]byte, probeLen, probeLen+len(p.claims)*claimLen)
	}
	copy(b, probeMagic)
	b[4], b[5] = probeVersion, kindProbe
	switch {
	case p.claims != nil:
		b[5] = kindClaims
	case p.answer:
		b[5] = kindAnswer
	}
	if p.carries {
		b[6] |= flagCarries
	}
	if p.large {
		b[6] |= flagLarge
	}
	if p.tries {
		b[6] |= flagTries
	}
	binary.BigEndian.PutUint64(b[8:], p.seq)
	binary.BigEndian.PutUint64(b[16:], p.agreement)
	if p.suspects != (PeerKey{}) {
		b[6] |= flagSuspect
		copy(b[16:], p.suspects[:])
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.claims), comparePeerKeys) {
		c, flags := p.claims[key], byte(0)
		if c.Carries {
			flags |= flagCarries
		}
		b = append(append(b, key[:]...), byte(c.Reach), flags)
	}
	return b
}

func comparePeerKeys(a, b PeerKey) int { return bytes.Compare(a[:], b[:]) }

// encodeClaims returns the datagrams for some claims.
func encodeClaims(claims map[PeerKey]Claim) [][]byte {
	var out [][]byte
	for keys := range slices.Chunk(slices.SortedFunc(maps.Keys(claims), comparePeerKeys), maxClaims) {
		part := make(map[PeerKey]Claim, len(keys))
		for _, key := range keys {
			part[key] = claims[key]
		}
		out = append(out, probe{claims: part}.encode(probeLen))
	}
	return out
}

// decodeProbe reads a datagram. It returns false if that is not a probe of this version.
func decodeProbe(b []byte) (probe, bool) {
	if len(b) < probeLen || string(b[:4]) != probeMagic || b[4] != probeVersion || b[5] < kindProbe || b[5] > kindClaims {
		return probe{}, false
	}
	p := probe{
		answer: b[5] == kindAnswer, carries: b[6]&flagCarries != 0, large: b[6]&flagLarge != 0, tries: b[6]&flagTries != 0,
		seq: binary.BigEndian.Uint64(b[8:]),
	}
	if b[6]&flagSuspect != 0 {
		p.suspects = PeerKey(b[16:])
	} else {
		p.agreement = binary.BigEndian.Uint64(b[16:])
	}
	if b[5] != kindClaims {
		if b[6]&flagEntry != 0 && len(b) >= entryLen {
			p.entry = binary.BigEndian.Uint64(b[24:])
		}
		return p, true
	}
	entries := b[probeLen:]
	if len(entries)%claimLen != 0 || len(entries)/claimLen > maxClaims {
		return probe{}, false
	}
	p.claims = make(map[PeerKey]Claim, len(entries)/claimLen)
	for e := range slices.Chunk(entries, claimLen) {
		if Reach(e[8]) > ReachCarrier {
			return probe{}, false
		}
		p.claims[PeerKey(e)] = Claim{Reach: Reach(e[8]), Carries: e[9]&flagCarries != 0}
	}
	return p, true
}
