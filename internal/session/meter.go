package session

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// meter inspects the frames of a yamux session and ends it when the peer sends what no honest
// peer does. yamux answers each ping in a goroutine and keeps each stream until both sides closed
// it, so a flood of either would take memory without bound.
type meter struct {
	// odd means that the peer's streams have odd numbers, since it dialled.
	odd bool
	framing
	opens  *rate.Limiter
	pings  *rate.Limiter
	failed error
}

func newMeter(odd bool) meter {
	return meter{odd: odd, opens: rate.NewLimiter(streamRate, streamBurst), pings: rate.NewLimiter(pingRate, pingBurst)}
}

// The header of a yamux frame: version, type, flags (2), stream (4), length (4).
const (
	yamuxHeader = 12

	yamuxData   = 0
	yamuxWindow = 1
	yamuxPing   = 2
	yamuxGoAway = 3

	yamuxSYN = 1
)

// abuseError is the error that a peer broke the rules of a session, which was therefore closed.
type abuseError struct{ What string }

func (e *abuseError) Error() string { return "the peer broke the rules of the session: " + e.What }

// framing keeps track of where the frames of yamux begin.
type framing struct {
	// head is a header, of which got bytes are known; body is how much of a body is still
	// to come.
	head [yamuxHeader]byte
	got  int
	body uint32
}

// follow takes the next bytes of a direction, in pieces of any size, and calls judge for each
// header once it is complete. It stops at an error of judge.
func (f *framing) follow(b []byte, judge func() error) error {
	for len(b) > 0 {
		if f.body > 0 {
			n := min(len(b), int(f.body))
			f.body -= uint32(n)
			b = b[n:]
			continue
		}
		n := copy(f.head[f.got:], b)
		f.got += n
		b = b[n:]
		if f.got < yamuxHeader {
			break
		}
		f.got = 0
		if err := judge(); err != nil {
			return err
		}
		if f.head[1] == yamuxData {
			f.body = binary.BigEndian.Uint32(f.head[8:])
		}
	}
	return nil
}

// feed takes the next bytes of the stream. After an error it returns the same error again.
func (m *meter) feed(b []byte, now time.Time) error {
	if m.failed == nil {
		m.failed = m.follow(b, func() error { return m.frame(now) })
	}
	return m.failed
}

// frame checks a complete header.
func (m *meter) frame(now time.Time) error {
	kind, flags := m.head[1], binary.BigEndian.Uint16(m.head[2:4])
	stream, length := binary.BigEndian.Uint32(m.head[4:8]), binary.BigEndian.Uint32(m.head[8:12])
	if m.head[0] != 0 || kind > yamuxGoAway {
		return &abuseError{What: "not a yamux frame"}
	}
	if kind == yamuxPing {
		if flags&yamuxSYN != 0 && !m.pings.AllowN(now, 1) {
			return &abuseError{What: "too many pings"}
		}
		return nil
	}
	if kind == yamuxGoAway {
		return nil
	}
	if flags&yamuxSYN != 0 {
		if stream == 0 || (stream%2 == 1) != m.odd {
			return &abuseError{What: fmt.Sprintf("it opened stream %d, a number of this side", stream)}
		}
		if !m.opens.AllowN(now, 1) {
			return &abuseError{What: "it opens streams too fast"}
		}
	}
	if kind == yamuxData && length > streamWindow {
		return &abuseError{What: fmt.Sprintf("a frame of %d bytes, the limit is %d", length, streamWindow)}
	}
	return nil
}

// meteredConn feeds what it reads to a meter.
type meteredConn struct {
	net.Conn
	meter meter
	// readAt is when the last bytes were read, in nanoseconds since 1970.
	readAt *atomic.Int64
	// abuse is called once, before the read that fails.
	abuse func(error)
}

// Read implements net.Conn. yamux calls it from one goroutine.
func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		first, now := c.meter.failed == nil, time.Now()
		c.readAt.Store(now.UnixNano())
		if bad := c.meter.feed(b[:n], now); bad != nil {
			if first {
				c.abuse(bad)
			}
			return 0, bad
		}
	}
	return n, err
}
