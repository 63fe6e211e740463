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

// WatchServices hands over how Services of the peer are, each at first and whenever it
// changes, until ctx ends (then it returns nil) or the stream does; then it says why. A peer
// that says more than exportRate waits: flow control holds it.
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

// WatchClusterSet is WatchServices of those that the peer exports to a cluster set. synced is
// called once all were handed over, with their names.
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

// ended returns why a stream did; nil where ctx did.
func ended(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the caller ended it
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: the peer ended it", what)
	}
	return fmt.Errorf("%s: %w", what, wire.FromStatus(err))
}
