package carry

import (
	"context"
	"errors"
	"net"
	"sync"

	"github.com/entente-dev/entente/peering"
)

// Listener takes the connections that third peers bring. It implements net.Listener.
type Listener struct {
	allowed func(third peering.ClusterID) bool
	address func(third peering.ClusterID) net.Addr
	out     chan *Conn
	done    chan struct{}
	once    sync.Once

	mu      sync.Mutex
	all     int
	ofThird map[peering.ClusterID]int
}

// errNotTaken is all that a third peer is told.
var errNotTaken = peering.Errorf(peering.ReasonPolicyRefused, "this cluster takes no connections that yours carries now")

// Listen returns a Listener. allowed says whether connections are taken from a peer now, and
// address what counts as the address that they come from.
func Listen(allowed func(third peering.ClusterID) bool, address func(third peering.ClusterID) net.Addr) (*Listener, error) {
	if allowed == nil || address == nil {
		return nil, errors.New("carry: allowed and address are required")
	}
	return &Listener{allowed: allowed, address: address, out: make(chan *Conn), done: make(chan struct{}), ofThird: map[peering.ClusterID]int{}}, nil
}

// Take has a connection that a third peer brings accepted, and passes its bytes until it ends.
// Its error is for the third peer.
func (l *Listener) Take(ctx context.Context, third peering.ClusterID, s Stream) error {
	if !l.allowed(third) || !l.enter(third) {
		return errNotTaken
	}
	defer l.leave(third)
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	conn, pass := Join(s, third, l.address(third))
	if err := s.Send(nil); err != nil {
		return err
	}
	select {
	case l.out <- conn:
	case <-l.done:
		return errNotTaken
	case <-ctx.Done():
		return errNotTaken
	}
	pass()
	return nil
}

func (l *Listener) enter(third peering.ClusterID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= maxAccepted || l.ofThird[third] >= maxAcceptedOfThird {
		return false
	}
	l.all++
	l.ofThird[third]++
	return true
}

func (l *Listener) leave(third peering.ClusterID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.ofThird[third]--; l.ofThird[third] == 0 {
		delete(l.ofThird, third)
	}
}

// Accept implements net.Listener. What it returns is a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.out:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return nowhere{} }

// nowhere is the address of what is not of a network.
type nowhere struct{}

func (nowhere) Network() string { return "carried" }
func (nowhere) String() string  { return "third peers" }
