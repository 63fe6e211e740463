package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
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

// tellOffers sends the offer, and then what changes of it, until ctx ends. What
// is sent is what holds at that moment, however much a change waited or the
// reader was slow.
func tellOffers(
	ctx context.Context, current func(context.Context) (peering.Offer, <-chan struct{}, error),
	send func(*ententev1.WatchOfferResponse) error,
) error {
	var (
		told peering.Offer
		at   time.Time // of the last message; zero before the first
	)
	for {
		var changed <-chan struct{}
		var due <-chan time.Time
		if err := apart("an offer", func() (err error) {
			var offer peering.Offer
			if offer, changed, err = current(ctx); err != nil {
				return err
			}
			message := wire.OfferChange(told, offer)
			if at.IsZero() {
				message = wire.OfferSnapshot(offer)
			}
			if message == nil {
				return nil
			}
			if pause := offerPause(told, offer) - time.Since(at); !at.IsZero() && pause > 0 {
				due = time.After(pause)
				return nil
			}
			told, at = offer, time.Now()
			return send(message)
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

// offerPause is how long after the last message a changed offer may be told:
// whether there is anything at all, at once; small changes late; the rest in
// between.
func offerPause(told, now peering.Offer) time.Duration {
	switch {
	case told.Available != now.Available:
		return 0
	case smallChange(told, now):
		return OfferSmallPause
	}
	return OfferPause
}

// smallChange says whether two offers differ in nothing but amounts, and in each
// by less than OfferSmallPercent of the larger one.
func smallChange(a, b peering.Offer) bool {
	if a.Message != b.Message || a.Duration != b.Duration || !a.Price.Equal(b.Price) || !maps.Equal(a.NodeLabels, b.NodeLabels) ||
		!slices.Equal(a.Architectures, b.Architectures) || !slices.Equal(a.StorageClasses, b.StorageClasses) ||
		!slices.EqualFunc(a.Services, b.Services, peering.OfferedService.Equal) || len(a.Resources) != len(b.Resources) {
		return false
	}
	for name, was := range a.Resources {
		is, ok := b.Resources[name]
		if !ok {
			return false
		}
		less, more := was, is
		if more.Cmp(less) < 0 {
			less, more = more, less
		}
		if more.Sub(less).Cmp(more.Percent(OfferSmallPercent)) >= 0 && more.Cmp(less) != 0 {
			return false
		}
	}
	return true
}
