package carry

import (
	"context"
	"errors"
	"net"

	"github.com/entente-dev/entente/internal/accept"
	"github.com/entente-dev/entente/peering"
)

// Listener accepts the connections that third peers carry. It implements net.Listener,
// and returns a *Conn for each.
type Listener struct {
	allowed func(third peering.ClusterID) bool
	address func(third peering.ClusterID) net.Addr
	*accept.Handoff
	counts *accept.Counts[peering.ClusterID]
}

// errNotTaken is the one error that a third peer gets.
var errNotTaken = peering.Errorf(peering.ReasonPolicyRefused, "this cluster accepts no connections that yours carries now")

// Listen returns a Listener. allowed reports whether connections that a peer carries are accepted now,
// and address returns the address from which they count as coming.
func Listen(allowed func(third peering.ClusterID) bool, address func(third peering.ClusterID) net.Addr) (*Listener, error) {
	if allowed == nil || address == nil {
		return nil, errors.New("carry: allowed and address are required")
	}
	return &Listener{allowed: allowed, address: address, Handoff: accept.NewHandoff(nowhere()), counts: accept.NewCounts[peering.ClusterID](maxAccepted, maxAcceptedOfThird)}, nil
}

// Take hands a connection that a third peer carries to Accept, and passes its bytes until it ends.
// The error is for the third peer.
func (l *Listener) Take(ctx context.Context, third peering.ClusterID, s Stream) error {
	if !l.allowed(third) {
		return errNotTaken
	}
	leave, ok := l.counts.Enter(third)
	if !ok {
		return errNotTaken
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	conn, pass := Join(s, third, l.address(third))
	if err := s.Send(nil); err != nil {
		return err
	}
	if !l.Give(ctx, conn) {
		return errNotTaken
	}
	pass()
	return nil
}

// nowhere is the address of the listener, which is not on a network.
func nowhere() net.Addr { return accept.Place{Kind: "carried", Name: "third peers"} }
