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
	// spare has *[joinMost]byte, for all sessions: an idle one keeps none.
	spare *sync.Pool
	// held is a header whose body comes with the next write.
	held    [yamuxHeader]byte
	holding bool
	framing
}

// Write implements net.Conn. yamux calls it from one goroutine.
func (c *joiningConn) Write(b []byte) (int, error) {
	whole := c.got == 0 && c.body == 0 && len(b) == yamuxHeader
	_ = c.follow(b, func() error { return nil }) // yamux sends valid frames
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
