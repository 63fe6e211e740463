package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// Offers returns what peers are offered.
type Offers interface {
	// Offer returns what this cluster offers a peer now, and a channel that is closed when that
	// may have changed, or nil if it cannot change. The offer to a peer that gets nothing says
	// why.
	Offer(ctx context.Context, peer peering.ClusterID) (peering.Offer, <-chan struct{}, error)
}

func (s *peeringServer) WatchOffer(_ *ententev1.WatchOfferRequest, stream grpc.ServerStreamingServer[ententev1.WatchOfferResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	ctx, leave := s.watches.enter(stream.Context(), peer)
	defer leave()
	err = sendOffers(ctx, func(ctx context.Context) (peering.Offer, <-chan struct{}, error) {
		return s.cfg.Offers.Offer(ctx, peer)
	}, stream.Send)
	return watchEnded(ctx, err, "offer to", peer)
}

// sendOffers sends the current offer, and sends it again when it changes, until ctx ends.
// Each message is the offer at that moment, however long a change was held back.
func sendOffers(
	ctx context.Context, current func(context.Context) (peering.Offer, <-chan struct{}, error),
	send func(*ententev1.WatchOfferResponse) error,
) error {
	var (
		sent *peering.Offer // nil before the first message
		at   time.Time      // of the last message
	)
	for {
		var changed <-chan struct{}
		var due <-chan time.Time
		if err := middleware.OnFreshStack("an offer", func() (err error) {
			var offer peering.Offer
			if offer, changed, err = current(ctx); err != nil {
				return err
			}
			before := sent
			if before != nil {
				pause, differs := offerPause(*before, offer)
				if !differs {
					return nil
				}
				if pause -= time.Since(at); pause > 0 {
					due = time.After(pause)
					return nil
				}
			}
			sent, at = &offer, time.Now()
			return send(wire.OfferTo(offer, before))
		}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-due:
		}
	}
}

// offerPause returns the least time between the last message and one with a changed offer, 0
// where Available changes and a long one for small changes, and whether the offers differ. An
// equal offer is not sent.
func offerPause(sent, now peering.Offer) (pause time.Duration, differs bool) {
	switch change := sent.Compare(now, OfferSmallPercent); {
	case sent.Available != now.Available:
		return 0, true
	case change == peering.ChangedLittle:
		return OfferSmallPause, true
	default:
		return OfferPause, change != peering.Unchanged
	}
}
