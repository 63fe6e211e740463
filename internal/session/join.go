package session

import (
	"encoding/binary"
	"net"
	"sync"
)

// joiningConn writes the header of a yamux frame and its body at once. yamux writes
// them one after the other, which would cost two records of TLS, two packets and
// two system calls; most frames are short.
type joiningConn struct {
	net.Conn
	// spare has *[joinMost]byte, for all sessions: one that rests keeps none.
	spare *sync.Pool
	// held is a header whose body comes with the next write.
	held    [yamuxHeader]byte
	holding bool
	// got is how much of a header was written that came in pieces, body how much of a
	// body is still to come.
	head [yamuxHeader]byte
	got  int
	body uint32
}

// Write implements net.Conn. yamux calls it from one goroutine.
func (c *joiningConn) Write(b []byte) (int, error) {
	whole := c.got == 0 && c.body == 0 && len(b) == yamuxHeader
	c.follow(b)
	if whole && c.body > 0 {
		c.holding = true
		return copy(c.held[:], b), nil
	}
	if !c.holding || len(b) == 0 {
		return c.Conn.Write(b)
	}
	c.holding = false
	if yamuxHeader+len(b) > joinMost {
		if _, err := c.Conn.Write(c.held[:]); err != nil {
			return 0, err
		}
		return c.Conn.Write(b)
	}
	spare, ok := c.spare.Get().(*[joinMost]byte)
	if !ok {
		spare = new([joinMost]byte)
	}
	defer c.spare.Put(spare)
	n := copy(spare[:], c.held[:])
	n += copy(spare[n:], b)
	n, err := c.Conn.Write(spare[:n])
	return max(n-yamuxHeader, 0), err
}

// follow keeps track of where frames begin.
func (c *joiningConn) follow(b []byte) {
	for len(b) > 0 {
		if c.body > 0 {
			n := min(len(b), int(c.body))
			c.body -= uint32(n)
			b = b[n:]
			continue
		}
		n := copy(c.head[c.got:], b)
		c.got += n
		b = b[n:]
		if c.got == yamuxHeader {
			c.got = 0
			if c.head[1] == yamuxData {
				c.body = binary.BigEndian.Uint32(c.head[8:])
			}
		}
	}
}
