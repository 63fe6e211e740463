package accept

import (
	"maps"
	"net"
	"net/netip"
	"sync"
)

// Counts counts connections: all, and those of each who has some.
type Counts[K comparable] struct {
	most, each int

	mu  sync.Mutex
	all int
	of  map[K]int
}

// NewCounts returns Counts of at most so many in all, and of each.
func NewCounts[K comparable](most, each int) *Counts[K] {
	return &Counts[K]{most: most, each: each, of: map[K]int{}}
}

// Enter counts one, unless that would be too many. leave is to be called once, when it ends.
func (c *Counts[K]) Enter(who K) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= c.most || c.of[who] >= c.each {
		return nil, false
	}
	c.all++
	c.of[who]++
	return func() { c.leave(who) }, true
}

func (c *Counts[K]) leave(who K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.of[who]--; c.of[who] == 0 {
		delete(c.of, who)
	}
}

// Now returns how many each has who has some.
func (c *Counts[K]) Now() map[K]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.of)
}

// From is the address that a connection comes from; not valid if it is not of a network.
func From(c net.Conn) netip.Addr {
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return from.Addr().Unmap().WithZone("")
}
