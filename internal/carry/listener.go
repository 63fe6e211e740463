package carry

import (
	"context"
	"errors"
	"net"

	"github.com/entente-dev/entente/internal/accept"
	"github.com/entente-dev/entente/peering"
)

// Listener takes the connections that third peers bring. It implements net.Listener,
// and what it accepts is a *Conn each.
type Listener struct {
	allowed func(third peering.ClusterID) bool
	address func(third peering.ClusterID) net.Addr
	*accept.Handoff
	counts *accept.Counts[peering.ClusterID]
}

// errNotTaken is all that a third peer is told.
var errNotTaken = peering.Errorf(peering.ReasonPolicyRefused, "this cluster takes no connections that yours carries now")

// Listen returns a Listener. allowed says whether connections are taken from a peer now, and
// address what counts as the address that they come from.
func Listen(allowed func(third peering.ClusterID) bool, address func(third peering.ClusterID) net.Addr) (*Listener, error) {
	if allowed == nil || address == nil {
		return nil, errors.New("carry: allowed and address are required")
	}
	return &Listener{allowed: allowed, address: address, Handoff: accept.NewHandoff(nowhere()), counts: accept.NewCounts[peering.ClusterID](maxAccepted, maxAcceptedOfThird)}, nil
}

// Take has a connection that a third peer brings accepted, and passes its bytes until it ends.
// Its error is for the third peer.
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

// nowhere is the address of what is not of a network.
func nowhere() net.Addr { return accept.Place{Kind: "carried", Name: "third peers"} }
