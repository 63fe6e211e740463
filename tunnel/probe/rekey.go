package probe

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// A node that replaces its WireGuard key announces it to the nodes that it has tunnels with, by
// datagrams of this form, and they confirm that they will follow. Like all probes they are sent inside
// the tunnel, so a node can announce only its own key.
//
//	0  4  "entp"
//	4  1  version, 1
//	5  1  kind: 9
//	6  1  which message: see [rekeyKind]
//	7  1  zero
//	8  4  in how many milliseconds the key is replaced; 0 only asks whether the next key is known
//	12 8  which key, see [KeyTag]
//
// The time is relative, so the clocks need not agree.
type rekey struct {
	kind rekeyKind
	in   time.Duration
	key  KeyTag
}

// rekeyKind is the kind of a message about the replacement of a key.
type rekeyKind uint8

const (
	// rekeyAsk: the sender replaces its key.
	rekeyAsk rekeyKind = 1
	// rekeyFollow: the sender knows the receiver's next key, and will follow.
	rekeyFollow rekeyKind = 2
	// rekeyOff: the sender does not replace its key after all.
	rekeyOff rekeyKind = 3
)

const (
	kindRekey = 9
	rekeyLen  = 20
)

// KeyTag identifies a key: the first bytes of the SHA-256 of the public key. Zero means no key.
type KeyTag [8]byte

// KeyTagOf returns the tag of a key; the zero key has the zero tag.
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
	b[4], b[5], b[6] = probeVersion, kindRekey, byte(r.kind)
	binary.BigEndian.PutUint32(b[8:], uint32(max(0, r.in.Milliseconds())))
	copy(b[12:], r.key[:])
	return b
}

// decodeRekey reads a datagram. It returns false if that is not a message about a key, or malformed.
func decodeRekey(b []byte) (rekey, bool) {
	if len(b) != rekeyLen || string(b[:4]) != probeMagic || b[4] != probeVersion || b[5] != kindRekey {
		return rekey{}, false
	}
	r := rekey{kind: rekeyKind(b[6]), in: time.Duration(binary.BigEndian.Uint32(b[8:])) * time.Millisecond, key: KeyTag(b[12:])}
	if r.kind < rekeyAsk || r.kind > rekeyOff || r.in > rekeyMost || r.key == (KeyTag{}) {
		return rekey{}, false
	}
	return r, true
}

// Follow is when to use the next key of a node as its current one.
type Follow struct {
	Key KeyTag
	At  time.Time
}

// asked returns when to follow a node after another of its requests. Of several requests the one with
// the earliest time counts: the others were longer on their way. next is the tag of its next key as it
// is known here. asked returns false if the node asks for another key, which this node cannot follow.
func (f Follow) asked(r rekey, next KeyTag, now time.Time) (Follow, bool) {
	if r.key != next {
		return f, false
	}
	if r.in == 0 {
		return f, true // it only asks whether the key is known
	}
	at := now.Add(r.in + RekeyMargin)
	if f.Key != r.key || f.At.IsZero() || at.Before(f.At) {
		f = Follow{Key: r.key, At: at}
	}
	return f, true
}
