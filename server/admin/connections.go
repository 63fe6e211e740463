package admin

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/entente-dev/entente/server/internal/middleware"
)

// atMost returns a listener that keeps at most loopback connections from loopback and others from
// other addresses, no more than perAddress of them from one. It closes those beyond the limits
// unread, but a new connection from an address with few takes the place of the oldest one of the
// address with the most.
func atMost(l net.Listener, loopback, others, perAddress int) net.Listener {
	return &countedListener{
		Listener: l, perAddress: perAddress,
		loopback: connections{limit: loopback, open: make(map[string][]*countedConn)},
		others:   connections{limit: others, open: make(map[string][]*countedConn)},
	}
}

type countedListener struct {
	net.Listener
	perAddress int

	mu               sync.Mutex
	loopback, others connections
}

// connections are those that share a limit, by address, the oldest first.
type connections struct {
	limit, total int
	open         map[string][]*countedConn
}

func (l *countedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http checks its type
		}
		kept, instead := l.keep(c)
		if instead != nil {
			_ = instead.Close()
		}
		if kept == nil {
			_ = c.Close()
			continue
		}
		return kept, nil
	}
}

// keep counts a connection if a place is free, and returns the connection whose place it took, if
// any.
func (l *countedListener) keep(c net.Conn) (kept, instead *countedConn) {
	remote := c.RemoteAddr().String()
	kept = &countedConn{Conn: c, l: l, address: middleware.AddressKey(remote), among: &l.others}
	perAddress := l.perAddress
	if at, err := netip.ParseAddrPort(remote); err == nil && at.Addr().Unmap().IsLoopback() {
		// The API server's port-forwarding: no other client can have these addresses.
		kept.among, kept.address, perAddress = &l.loopback, "loopback", l.loopback.limit
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	has := len(kept.among.open[kept.address])
	if has >= perAddress {
		return nil, nil
	}
	if kept.among.total >= kept.among.limit {
		most := has + 1
		for _, open := range kept.among.open {
			if len(open) > most {
				most, instead = len(open), open[0]
			}
		}
		if instead == nil {
			return nil, nil
		}
		instead.forget()
	}
	kept.among.total++
	kept.among.open[kept.address] = append(kept.among.open[kept.address], kept)
	return kept, instead
}

type countedConn struct {
	net.Conn
	l       *countedListener
	address string
	among   *connections
}

// forget frees the place of the connection, once. The caller holds the lock.
func (c *countedConn) forget() {
	open := c.among.open[c.address]
	i := slices.Index(open, c)
	if i < 0 {
		return
	}
	c.among.total--
	if open = slices.Delete(open, i, i+1); len(open) == 0 {
		delete(c.among.open, c.address)
		return
	}
	c.among.open[c.address] = open
}

func (c *countedConn) Close() error {
	c.l.mu.Lock()
	c.forget()
	c.l.mu.Unlock()
	return c.Conn.Close() //nolint:wrapcheck // as it was
}
