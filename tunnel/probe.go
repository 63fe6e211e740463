package tunnel

import "encoding/binary"

// A probe is one UDP datagram inside the tunnel, from overlay address to
// overlay address, so WireGuard vouches for who sent it. The answer has the
// same number. All integers are big endian.
//
//	0  4  "entp"
//	4  1  version, 1
//	5  1  kind: 1 probe, 2 answer
//	6  1  flags: bit 0 the sender carries traffic to the receiver's cluster,
//	      bit 1 padded, to find out what size passes
//	7  1  zero
//	8  8  sequence number; of a padded one its size is what counts
//	16 …  zero bytes, so that a probe can be as large as the MTU allows
type probe struct {
	answer  bool
	carries bool
	large   bool
	seq     uint64
}

const (
	probeLen     = 16
	probeVersion = 1
	probeMagic   = "entp"
	flagCarries  = 1 << 0
	flagLarge    = 1 << 1
	// probeHeaders is what IPv6 and UDP add to a probe.
	probeHeaders = 48
)

// encode appends nothing and returns a datagram of the given size, at least
// that of the header.
func (p probe) encode(size int) []byte {
	b := make([]byte, max(size, probeLen))
	copy(b, probeMagic)
	b[4], b[5] = probeVersion, 1
	if p.answer {
		b[5] = 2
	}
	if p.carries {
		b[6] |= flagCarries
	}
	if p.large {
		b[6] |= flagLarge
	}
	binary.BigEndian.PutUint64(b[8:], p.seq)
	return b
}

// decodeProbe reads a datagram. False if it is no probe of this version.
func decodeProbe(b []byte) (probe, bool) {
	if len(b) < probeLen || string(b[:4]) != probeMagic || b[4] != probeVersion || b[5] < 1 || b[5] > 2 {
		return probe{}, false
	}
	return probe{
		answer: b[5] == 2, carries: b[6]&flagCarries != 0, large: b[6]&flagLarge != 0,
		seq: binary.BigEndian.Uint64(b[8:]),
	}, true
}
