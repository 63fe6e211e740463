package server

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Datagrams takes what peers' gateways send to this cluster's through the agents.
type Datagrams interface {
	// Receive takes frames of a peer. It waits as long as the peer has to. An error that is no
	// *peering.Error says that the frames are malformed.
	Receive(ctx context.Context, peer peering.ClusterID, frames []byte) error
}

// relayServer serves RelayService.
type relayServer struct {
	ententev1.UnimplementedRelayServiceServer
	cfg PeerConfig
	// datagrams are the streams that peers have open.
	datagrams *streamCount
}

// SendDatagrams implements the RelayService.
func (s *relayServer) SendDatagrams(stream grpc.ClientStreamingServer[ententev1.SendDatagramsRequest, ententev1.SendDatagramsResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	if s.cfg.Datagrams == nil {
		return peering.Errorf(peering.ReasonPolicyRefused, "an administrator of this cluster turned off that its agent carries datagrams (network.relay.enabled)")
	}
	ctx, leave := s.datagrams.enter(stream.Context(), peer)
	defer leave()
	for {
		m, err := stream.Recv()
		switch {
		case context.Cause(ctx) != nil && errors.Is(context.Cause(ctx), errSuperseded):
			return errSuperseded
		case errors.Is(err, io.EOF):
			return stream.SendAndClose(&ententev1.SendDatagramsResponse{})
		case err != nil:
			return err
		}
		if err := s.cfg.Datagrams.Receive(ctx, peer, m.GetFrames()); err != nil {
			if _, ok := errors.AsType[*peering.Error](err); ok || ctx.Err() != nil {
				return err
			}
			return &peering.Error{Reason: peering.ReasonRequestInvalid, Message: "the frames are malformed", Err: err}
		}
	}
}
