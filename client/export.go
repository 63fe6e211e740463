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
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return errors.New("watch services: the peer ended it")
	}
	return fmt.Errorf("watch services: %w", wire.FromStatus(err))
}
