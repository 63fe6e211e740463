package server

import (
	"context"
	"maps"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// Exports returns the Services that peers may import.
type Exports interface {
	// Exported returns the current state of the named Services that the consumer of a contract may
	// import, sorted by name, and a channel that is closed when that may have changed. It returns
	// an error if the contract is unknown or closed.
	Exported(ctx context.Context, peer peering.ClusterID, contract string, names []peering.ServiceName) ([]peering.ExportedService, <-chan struct{}, error)
	// InSet returns the Services that are exported to a cluster set of the consumer, each with its
	// export. It returns an error if the contract is unknown or closed.
	InSet(ctx context.Context, peer peering.ClusterID, contract string) ([]peering.ExportedService, <-chan struct{}, error)
}

// exportServer is the ExportService. A peer has one stream of each kind.
type exportServer struct {
	ententev1.UnimplementedExportServiceServer
	exports       Exports
	watches, sets *streamCount
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
	}, stream.Send, func() error { return nil })
	return watchEnded(ctx, err, "services exported to", peer)
}

// WatchClusterSet implements ExportService.
func (s *exportServer) WatchClusterSet(req *ententev1.WatchClusterSetRequest, stream grpc.ServerStreamingServer[ententev1.WatchClusterSetResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	contract, err := wire.ContractIDFrom(req.GetContractId())
	if err != nil {
		return err
	}
	ctx, leave := s.sets.enter(stream.Context(), peer)
	defer leave()
	synced := false
	err = sendExports(ctx, func(ctx context.Context) ([]peering.ExportedService, <-chan struct{}, error) {
		return s.exports.InSet(ctx, peer, contract)
	}, func(m *ententev1.WatchServicesResponse) error {
		return stream.Send(&ententev1.WatchClusterSetResponse{Change: m})
	}, func() error {
		if synced {
			return nil
		}
		synced = true
		return stream.Send(&ententev1.WatchClusterSetResponse{Synced: true})
	})
	return watchEnded(ctx, err, "cluster set of", peer)
}

// sendExports sends changes of Services until ctx or the contract ends. It also checks the
// contract and the policy once per ExportCheck. A Service that is no longer exported is refused.
// round is called whenever all changes were sent.
func sendExports(
	ctx context.Context, current func(context.Context) ([]peering.ExportedService, <-chan struct{}, error),
	send func(*ententev1.WatchServicesResponse) error, round func() error,
) error {
	sent := map[peering.ServiceName]*peering.ExportedService{}
	for {
		var changed <-chan struct{}
		if err := middleware.OnFreshStack("exported services", func() (err error) {
			var now []peering.ExportedService
			if now, changed, err = current(ctx); err != nil {
				return err
			}
			if err := sendChanged(now, sent, send); err != nil {
				return err
			}
			return round()
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
		select { // changes in this pause are sent together
		case <-ctx.Done():
			return ctx.Err()
		case <-pause:
		}
	}
}

// sendChanged sends the Services that differ from sent, which is what was sent before, and
// updates sent.
func sendChanged(now []peering.ExportedService, sent map[peering.ServiceName]*peering.ExportedService, send func(*ententev1.WatchServicesResponse) error) error {
	gone := maps.Clone(sent)
	for i := range now {
		name := now[i].ServiceName
		for _, m := range wire.ExportTo(now[i], sent[name]) {
			if err := send(m); err != nil {
				return err
			}
		}
		sent[name] = &now[i]
		delete(gone, name)
	}
	for name := range gone {
		refused := peering.ExportedService{ServiceName: name, Refusal: "it is no longer exported"}
		for _, m := range wire.ExportTo(refused, gone[name]) {
			if err := send(m); err != nil {
				return err
			}
		}
		delete(sent, name)
	}
	return nil
}
