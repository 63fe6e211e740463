package server

import (
	"context"
	"time"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// HomeAPI serves the API of this cluster to its pods that run at a provider.
type HomeAPI interface {
	// Connect serves a connection, until it ends, of a pod that a provider runs under a contract.
	// uid is that of the pod in this cluster.
	Connect(ctx context.Context, provider peering.ClusterID, contract, uid string, s CarryStream) error
}

// homeStream is one end of a call, which the provider opened.
type homeStream struct {
	grpc.BidiStreamingServer[ententev1.ConnectAPIRequest, ententev1.ConnectAPIResponse]
}

func (s homeStream) Send(data []byte) error {
	return s.BidiStreamingServer.Send(&ententev1.ConnectAPIResponse{Data: data})
}

func (s homeStream) Recv() ([]byte, error) {
	m, err := s.BidiStreamingServer.Recv()
	switch {
	case err != nil:
		return nil, err
	case m.GetStart() != nil:
		return nil, &peering.Error{Reason: peering.ReasonRequestInvalid, Message: "only the first request is a start"}
	}
	return m.GetData(), nil
}

func (s homeStream) End(why error) { endStream(s.Context(), why) }

// homeServer serves HomeService.
type homeServer struct {
	ententev1.UnimplementedHomeServiceServer
	home HomeAPI
}

func (s *homeServer) ConnectAPI(stream grpc.BidiStreamingServer[ententev1.ConnectAPIRequest, ententev1.ConnectAPIResponse]) error {
	peer, err := caller(stream.Context())
	if err != nil {
		return err
	}
	ctx := stream.Context()
	late := time.AfterFunc(CarryOpenTimeout, func() { endStream(ctx, errNoRequest) })
	first, err := stream.Recv()
	late.Stop()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return peering.Errorf(peering.ReasonRequestInvalid, "the first request is a start")
	}
	return s.home.Connect(ctx, peer, start.GetContractId(), start.GetPodUid(), homeStream{stream})
}
