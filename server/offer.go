package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// Offers is what telling peers of offers needs.
type Offers interface {
	// Offer returns what this cluster would lend a peer now, and a channel that is
	// closed once it may be something else; nil never is. A peer that gets nothing
	// has an offer too, which says why.
	Offer(ctx context.Context, peer peering.ClusterID) (peering.Offer, <-chan struct{}, error)
}

// WatchOffer implements PeeringService.
func (s *peeringServer) WatchOffer(_ *ententev1.WatchOfferRequest, stream grpc.ServerStreamingServer[ententev1.WatchOfferResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	ctx, leave := s.watches.enter(stream.Context(), peer)
	defer leave()
	err = tellOffers(ctx, func(ctx context.Context) (peering.Offer, <-chan struct{}, error) {
		return s.cfg.Offers.Offer(ctx, peer)
	}, stream.Send)
	if cause := context.Cause(ctx); errors.Is(cause, errSuperseded) {
		return errSuperseded
	}
	if err != nil {
		return fmt.Errorf("offer to %s: %w", peer, err)
	}
	return nil
}

// tellOffers sends the offer, and sends it again as it changes, until ctx ends. What is
// sent is what holds at that moment, however long a change waited or the reader was slow.
func tellOffers(
	ctx context.Context, current func(context.Context) (peering.Offer, <-chan struct{}, error),
	send func(*ententev1.WatchOfferResponse) error,
) error {
	var (
		told *peering.Offer // nil before the first message
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
			before := told
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
			told, at = &offer, time.Now()
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

// offerPause is how long after the last message a changed offer may be told: whether
// there is anything at all, at once; small changes late; the rest in between. An offer
// that is the same is not told.
func offerPause(told, now peering.Offer) (pause time.Duration, differs bool) {
	switch change := told.Compare(now, OfferSmallPercent); {
	case told.Available != now.Available:
		return 0, true
	case change == peering.ChangedLittle:
		return OfferSmallPause, true
	default:
		return OfferPause, change != peering.Unchanged
	}
}
