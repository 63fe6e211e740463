package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// WatchServices calls changed with each of the peer's Services, at first and whenever it changes,
// until ctx ends (then it returns nil) or the stream fails. Flow control slows down a peer that
// sends more than exportRate.
func (p Peering) WatchServices(ctx context.Context, contract string, names []peering.ServiceName, changed func(peering.ExportedService)) error {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel() // the stream ends with this function
	stream, err := ententev1.NewExportServiceClient(p.Conn).WatchServices(streamCtx, &ententev1.WatchServicesRequest{
		ContractId: contract, Services: wire.ServiceNamesTo(names),
	}, grpc.WaitForReady(true))
	limit := rate.NewLimiter(exportRate, exportBurst)
	exports := wire.NewExports(names)
	for err == nil {
		if limit.Wait(ctx) != nil {
			return nil // only ctx ends it
		}
		var m *ententev1.WatchServicesResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		service, whole, wrong := exports.Read(m)
		if wrong != nil {
			err = wire.Response(wrong)
			break
		}
		if whole {
			changed(service)
		}
	}
	return ended(ctx, "watch services", err)
}

// WatchClusterSet is WatchServices for the Services that the peer exports to a cluster set.
// synced is called with their names once changed was called for all.
func (p Peering) WatchClusterSet(ctx context.Context, contract string, changed func(peering.ExportedService), synced func([]peering.ServiceName)) error {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel() // the stream ends with this function
	stream, err := ententev1.NewExportServiceClient(p.Conn).WatchClusterSet(streamCtx, &ententev1.WatchClusterSetRequest{
		ContractId: contract,
	}, grpc.WaitForReady(true))
	limit := rate.NewLimiter(exportRate, exportBurst)
	exports := wire.NewClusterSet()
	for err == nil {
		if limit.Wait(ctx) != nil {
			return nil // only ctx ends it
		}
		var m *ententev1.WatchClusterSetResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if m.GetChange() != nil {
			service, whole, wrong := exports.Read(m.GetChange())
			if wrong != nil {
				err = wire.Response(wrong)
				break
			}
			if whole {
				changed(service)
			}
		}
		if m.GetSynced() {
			synced(exports.Names())
		}
	}
	return ended(ctx, "watch cluster set", err)
}

// ended returns why a stream ended, or nil if ctx ended.
func ended(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the caller ended it
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the peer ended it", what)
	}
	return fmt.Errorf("%s: %w", what, wire.FromStatus(err))
}
