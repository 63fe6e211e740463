package accept

import (
	"context"
	"net"
	"sync"
)

// Handoff is a net.Listener of connections that are handed to it one by one.
type Handoff struct {
	addr net.Addr
	out  chan net.Conn
	done chan struct{}
	once sync.Once
}

// NewHandoff returns a Handoff that has that address.
func NewHandoff(addr net.Addr) *Handoff {
	return &Handoff{addr: addr, out: make(chan net.Conn), done: make(chan struct{})}
}

// Give has a connection accepted; false if none is any more, or ctx ends before.
func (h *Handoff) Give(ctx context.Context, c net.Conn) bool {
	select {
	case h.out <- c:
		return true
	case <-h.done:
	case <-ctx.Done():
	}
	return false
}

// Accept implements net.Listener.
func (h *Handoff) Accept() (net.Conn, error) {
	select {
	case c := <-h.out:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *Handoff) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

// Addr implements net.Listener.
func (h *Handoff) Addr() net.Addr { return h.addr }

// Place is the address of what is not of a network.
type Place struct{ Kind, Name string }

// Network implements net.Addr.
func (p Place) Network() string { return p.Kind }

func (p Place) String() string { return p.Name }
