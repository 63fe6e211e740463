package server

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// Datagrams takes the frames that gateways of peers send to gateways of this cluster through the
// agents.
type Datagrams interface {
	// Receive takes frames of a peer. It waits as long as the peer has to. An error that is not a
	// *peering.Error says that the frames are malformed.
	Receive(ctx context.Context, peer peering.ClusterID, frames []byte) error
}

// Carrier carries connections between peers, and takes those that peers carry to this cluster.
type Carrier interface {
	// Carry carries a connection of a peer to the cluster that it names, as CarryTarget does,
	// until it ends.
	Carry(ctx context.Context, from peering.ClusterID, nonce [16]byte, name [32]byte, s CarryStream) error
	// Take takes a connection that a peer carries, until it ends.
	Take(ctx context.Context, third peering.ClusterID, s CarryStream) error
}

// CarryStream is a call that carries a connection.
type CarryStream interface {
	Send(data []byte) error
	Recv() ([]byte, error)
	// End ends the call, for a reason or for nil. It may be called from anywhere.
	End(why error)
}

// carryStream is one end of a call, which the caller opened.
type carryStream struct {
	grpc.BidiStreamingServer[ententev1.CarryRequest, ententev1.CarryResponse]
}

func (s carryStream) Send(data []byte) error {
	return s.BidiStreamingServer.Send(&ententev1.CarryResponse{Data: data})
}

func (s carryStream) Recv() ([]byte, error) {
	m, err := s.BidiStreamingServer.Recv()
	switch {
	case err != nil:
		return nil, err
	case m.GetTarget() != nil:
		return nil, &peering.Error{Reason: peering.ReasonRequestInvalid, Message: "only the first request names a target"}
	}
	return m.GetData(), nil
}

func (s carryStream) End(why error) { endStream(s.Context(), why) }

// errNoRequest ends a call whose first request did not come in time.
var errNoRequest = peering.Errorf(peering.ReasonRequestInvalid, "the first request did not come within %s", CarryOpenTimeout)

// relayServer serves RelayService.
type relayServer struct {
	ententev1.UnimplementedRelayServiceServer
	cfg PeerConfig
	// datagrams are the streams that peers have open.
	datagrams *streamCount
}

func (s *relayServer) SendDatagrams(stream grpc.ClientStreamingServer[ententev1.SendDatagramsRequest, ententev1.SendDatagramsResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	if s.cfg.Datagrams == nil {
		return peering.Errorf(peering.ReasonPolicyRefused, "an administrator of this cluster turned off the relay of datagrams (network.relay.enabled)")
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

func (s *relayServer) Carry(stream grpc.BidiStreamingServer[ententev1.CarryRequest, ententev1.CarryResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	if s.cfg.Carrier == nil {
		return peering.Errorf(peering.ReasonPolicyRefused, "this cluster carries no connections of others")
	}
	ctx := stream.Context()
	late := time.AfterFunc(CarryOpenTimeout, func() { endStream(ctx, errNoRequest) })
	first, err := stream.Recv()
	late.Stop()
	switch target := first.GetTarget(); {
	case err != nil:
		return err
	case len(first.GetData()) > 0:
		return peering.Errorf(peering.ReasonRequestInvalid, "the first request has data")
	case target == nil:
		return s.cfg.Carrier.Take(ctx, peer, carryStream{stream})
	default:
		return s.cfg.Carrier.Carry(ctx, peer, [16]byte(target.GetNonce()), [32]byte(target.GetName()), carryStream{stream})
	}
}
