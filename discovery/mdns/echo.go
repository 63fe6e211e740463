package mdns

import (
	"encoding/binary"
	"hash/maphash"
	"slices"
	"time"
)

// echoes recognises packets that this process sent when they come back: from this host, as is
// needed if processes share the port, or through another interface on the same network. Addresses
// do not suffice, since other processes on this host have the same.
//
// It is a set of sent packets: another host's question with the same bytes is another packet, and
// is read.
type echoes struct {
	seed maphash.Seed
	sent map[uint64][]echo
	// order is the hashes by age.
	order []uint64
}

type echo struct {
	link string
	at   time.Time
	// left is how often it can still come back on its link.
	left int
	// mine means that no other host sends the same: it has records of ours.
	mine bool
}

// maxEchoes is how many packets are remembered.
const maxEchoes = 1024

func newEchoes() *echoes {
	return &echoes{seed: maphash.MakeSeed(), sent: map[uint64][]echo{}}
}

func (e *echoes) add(now time.Time, link string, b []byte, on family) {
	if len(e.order) >= maxEchoes {
		e.drop()
	}
	copies := 0
	for f := on; f != 0; f &= f - 1 {
		copies++
	}
	flags, proposed := binary.BigEndian.Uint16(b[2:]), binary.BigEndian.Uint16(b[8:])
	h := maphash.Bytes(e.seed, b)
	e.sent[h] = append(e.sent[h], echo{link, now, copies, flags&bitResponse != 0 || proposed > 0})
	e.order = append(e.order, h)
}

// drop forgets the oldest.
func (e *echoes) drop() {
	h := e.order[0]
	e.order = e.order[1:]
	if e.sent[h] = e.sent[h][1:]; len(e.sent[h]) == 0 {
		delete(e.sent, h)
	}
}

// own reports whether a received packet is one that this process sent.
func (e *echoes) own(now time.Time, link string, b []byte) bool {
	if len(e.order) == 0 {
		return false
	}
	for len(e.order) > 0 && now.Sub(e.sent[e.order[0]][0].at) > echoWindow {
		e.drop()
	}
	list := e.sent[maphash.Bytes(e.seed, b)]
	for i := range list {
		if list[i].link == link && list[i].left > 0 {
			list[i].left--
			return true
		}
	}
	return slices.ContainsFunc(list, func(e echo) bool { return e.mine })
}
