package datagrams

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Tag identifies a gateway in frames: the first bytes of its WireGuard public key.
type Tag [8]byte

// tagOf returns a gateway's tag.
func tagOf(publicKey [32]byte) Tag { return Tag(publicKey[:8]) }

// A batch is frames, one after the other. Numbers are big endian.
//
//	0  8  tag of the gateway that sent the datagram
//	8  8  tag of the gateway that it is for
//	16 2  length of the datagram
//	18 …  the datagram
const frameHead = 18

// appendFrame adds a frame to a batch.
func appendFrame(batch []byte, from, to Tag, datagram []byte) []byte {
	batch = append(append(batch, from[:]...), to[:]...)
	return append(binary.BigEndian.AppendUint16(batch, uint16(len(datagram))), datagram...)
}

var errTruncated = errors.New("datagrams: a batch ends within a frame")

// Frames calls do for each frame of a batch. The datagram is part of the batch. It stops at the
// first frame that is malformed.
func Frames(batch []byte, do func(from, to Tag, datagram []byte)) error {
	for len(batch) > 0 {
		if len(batch) < frameHead {
			return errTruncated
		}
		n := int(binary.BigEndian.Uint16(batch[16:]))
		switch {
		case n > MaxDatagram:
			return fmt.Errorf("datagrams: a datagram of %d bytes, the limit is %d", n, MaxDatagram)
		case len(batch)-frameHead < n:
			return errTruncated
		}
		do(Tag(batch), Tag(batch[8:]), batch[frameHead:frameHead+n])
		batch = batch[frameHead+n:]
	}
	return nil
}

// kind is the type of a WireGuard message.
type kind byte

// The kinds of WireGuard messages (protocol paper, section 5.4), and their lengths.
const (
	kindNone kind = iota
	kindInitiation
	kindResponse
	kindCookie
	kindData

	initiationLen = 148
	responseLen   = 92
	cookieLen     = 64
	dataLen       = 32 // at least
)

// kindOf returns the type of a datagram; kindNone if it cannot be a message of WireGuard.
func kindOf(b []byte) kind {
	if len(b) < dataLen || len(b) > MaxDatagram || b[1]|b[2]|b[3] != 0 {
		return kindNone
	}
	switch k := kind(b[0]); {
	case k == kindInitiation && len(b) == initiationLen, k == kindResponse && len(b) == responseLen,
		k == kindCookie && len(b) == cookieLen, k == kindData:
		return k
	}
	return kindNone
}
