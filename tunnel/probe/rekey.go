package probe

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// A node that replaces its WireGuard key says so to those that it has tunnels with, by
// datagrams of this form, and they say that they will follow. Like all probes they are inside
// the tunnel, so nobody can say so of another node.
//
//	0  4  "entp"
//	4  1  version, 1
//	5  1  kind: 9
//	6  1  what: see [rekeyWord]
//	7  1  zero
//	8  4  in how many milliseconds the key is replaced; 0 only asks whether it is known
//	12 8  which key, see [KeyTag]
//
// The time is from now on, so no clocks have to agree.
type rekey struct {
	word rekeyWord
	in   time.Duration
	key  KeyTag
}

// rekeyWord is what a node says of the replacement of a key.
type rekeyWord uint8

const (
	// rekeyAsk: the sender replaces its key.
	rekeyAsk rekeyWord = 1
	// rekeyFollow: the sender knows the receiver's next key, and will follow.
	rekeyFollow rekeyWord = 2
	// rekeyOff: the sender does not replace its key after all.
	rekeyOff rekeyWord = 3
)

const (
	kindRekey = 9
	rekeyLen  = 20
)

// KeyTag tells keys apart: the first bytes of the SHA-256 of the public key. Zero means none.
type KeyTag [8]byte

// KeyTagOf is the tag of a key; that of no key is zero.
func KeyTagOf(key plan.PublicKey) KeyTag {
	if key.IsZero() {
		return KeyTag{}
	}
	sum := sha256.Sum256(append([]byte("entente next key\x00"), key[:]...))
	return KeyTag(sum[:8])
}

func (r rekey) encode() []byte {
	b := make([]byte, rekeyLen)
	copy(b, probeMagic)
	b[4], b[5], b[6] = probeVersion, kindRekey, byte(r.word)
	binary.BigEndian.PutUint32(b[8:], uint32(max(0, r.in.Milliseconds())))
	copy(b[12:], r.key[:])
	return b
}

// decodeRekey reads a datagram. False if it is no such one.
func decodeRekey(b []byte) (rekey, bool) {
	if len(b) != rekeyLen || string(b[:4]) != probeMagic || b[4] != probeVersion || b[5] != kindRekey {
		return rekey{}, false
	}
	r := rekey{word: rekeyWord(b[6]), in: time.Duration(binary.BigEndian.Uint32(b[8:])) * time.Millisecond, key: KeyTag(b[12:])}
	if r.word < rekeyAsk || r.word > rekeyOff || r.in > rekeyMost || r.key == (KeyTag{}) {
		return rekey{}, false
	}
	return r, true
}

// Follow is when to take the next key of a node for its own.
type Follow struct {
	Key KeyTag
	At  time.Time
}

// asked returns when to follow a node after it asked once more; of several words the earliest
// counts: others were longer on their way. next is the tag of its next key as it is known here. False is that it is not
// followed: the key is not known.
func (f Follow) asked(r rekey, next KeyTag, now time.Time) (Follow, bool) {
	if r.key != next {
		return f, false
	}
	if r.in == 0 {
		return f, true // it only wants to know
	}
	at := now.Add(r.in + RekeyMargin)
	if f.Key != r.key || f.At.IsZero() || at.Before(f.At) {
		f = Follow{Key: r.key, At: at}
	}
	return f, true
}
