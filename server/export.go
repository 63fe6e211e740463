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

// Exports is what watching exported Services needs.
type Exports interface {
	// Exported returns how Services are now, as the consumer of a contract may import
	// them, in the order of their names, and a channel that is closed when that may
	// have changed. An error is the contract's.
	Exported(ctx context.Context, peer peering.ClusterID, contract string, names []peering.ServiceName) ([]peering.ExportedService, <-chan struct{}, error)
}

// exportServer is the ExportService.
type exportServer struct {
	ententev1.UnimplementedExportServiceServer
	exports Exports
	watches *streamCount
}

func (s *exportServer) WatchServices(req *ententev1.WatchServicesRequest, stream grpc.ServerStreamingServer[ententev1.WatchServicesResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	contract, err := wire.ContractIDFrom(req.GetContractId())
	if err != nil {
		return err
	}
	names, err := wire.ServiceNamesFrom("services", req.GetServices())
	if err != nil {
		return err
	}
	ctx, leave := s.watches.enter(stream.Context(), peer)
	defer leave()
	err = sendExports(ctx, func(ctx context.Context) ([]peering.ExportedService, <-chan struct{}, error) {
		return s.exports.Exported(ctx, peer, contract, names)
	}, stream.Send)
	if cause := context.Cause(ctx); errors.Is(cause, errSuperseded) {
		return errSuperseded
	}
	if err != nil {
		return fmt.Errorf("services exported to %s: %w", peer, err)
	}
	return nil
}

// sendExports sends what changed of Services, until ctx ends or the contract does: that and
// the policy are looked at each ExportCheck, too.
func sendExports(
	ctx context.Context, current func(context.Context) ([]peering.ExportedService, <-chan struct{}, error),
	send func(*ententev1.WatchServicesResponse) error,
) error {
	told := map[peering.ServiceName]*peering.ExportedService{}
	for {
		var changed <-chan struct{}
		if err := middleware.OnFreshStack("exported services", func() (err error) {
			var now []peering.ExportedService
			if now, changed, err = current(ctx); err != nil {
				return err
			}
			for i := range now {
				for _, m := range wire.ExportTo(now[i], told[now[i].ServiceName]) {
					if err := send(m); err != nil {
						return err
					}
				}
				told[now[i].ServiceName] = &now[i]
			}
			return nil
		}); err != nil {
			return err
		}
		pause := time.After(ExportPause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(ExportCheck):
		}
		select { // what changes meanwhile goes with it
		case <-ctx.Done():
			return ctx.Err()
		case <-pause:
		}
	}
}
