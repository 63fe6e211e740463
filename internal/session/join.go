package session

import (
	"net"
	"sync"
)

// joiningConn writes the header of a yamux frame and its body at once. yamux writes them
// separately, which would cost two TLS records, two packets and two system calls; most
// frames are short.
type joiningConn struct {
	net.Conn
	// spare has *[joinMost]byte for all sessions, so that an idle session keeps no buffer.
	spare *sync.Pool
	// header is, if buffered, a header whose body comes with the next write.
	header   [yamuxHeader]byte
	buffered bool
	framing
}

// Write implements net.Conn. yamux calls it from one goroutine.
func (c *joiningConn) Write(b []byte) (int, error) {
	whole := c.got == 0 && c.body == 0 && len(b) == yamuxHeader
	_ = c.follow(b, func() error { return nil }) // yamux sends valid frames
	if whole && c.body > 0 {
		c.buffered = true
		return copy(c.header[:], b), nil
	}
	if !c.buffered || len(b) == 0 {
		return c.Conn.Write(b)
	}
	c.buffered = false
	if yamuxHeader+len(b) > joinMost {
		if _, err := c.Conn.Write(c.header[:]); err != nil {
			return 0, err
		}
		return c.Conn.Write(b)
	}
	spare, ok := c.spare.Get().(*[joinMost]byte)
	if !ok {
		spare = new([joinMost]byte)
	}
	defer c.spare.Put(spare)
	n := copy(spare[:], c.header[:])
	n += copy(spare[n:], b)
	n, err := c.Conn.Write(spare[:n])
	return max(n-yamuxHeader, 0), err
}
