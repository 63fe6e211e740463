package admin

import (
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/entente-dev/entente/server/internal/middleware"
)

// atMost is a listener that keeps so many connections from loopback, and so many from
// other addresses, no more than perAddress of them from one. It closes those beyond
// unread, but a newcomer from an address that has few takes the place of the oldest one
// of the address that has the most.
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

// connections is those that share a limit, by address, the oldest first.
type connections struct {
	limit, total int
	open         map[string][]*countedConn
}

func (l *countedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // net/http looks at what it is
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

// keep counts a connection, unless there is no place for it, and returns the one whose
// place it took.
func (l *countedListener) keep(c net.Conn) (kept, instead *countedConn) {
	remote := c.RemoteAddr().String()
	kept = &countedConn{Conn: c, l: l, address: middleware.AddressKey(remote), among: &l.others}
	perAddress := l.perAddress
	if at, err := netip.ParseAddrPort(remote); err == nil && at.Addr().Unmap().IsLoopback() {
		// The API server's port-forwarding: nobody else can have these addresses.
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

// forget gives its place back, once. It is called with the lock.
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
