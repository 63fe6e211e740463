package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
)

// ConnectHomeAPI asks a consumer's agent to serve a connection of a pod that runs here under a
// contract. uid is that of the pod there. It returns once home accepted the connection; an error
// may be shown to the pod. The call ends with ctx.
func ConnectHomeAPI(ctx context.Context, conn grpc.ClientConnInterface, contract, uid string) (*Carrying, error) {
	ctx, cancel := context.WithCancel(ctx)
	c, err := connectHomeAPI(ctx, conn, contract, uid)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("connect to the API of home: %w", err)
	}
	c.end = cancel
	return c, nil
}

func connectHomeAPI(ctx context.Context, conn grpc.ClientConnInterface, contract, uid string) (*Carrying, error) {
	stream, err := ententev1.NewHomeServiceClient(conn).ConnectAPI(ctx)
	if err != nil {
		return nil, wire.FromStatus(err)
	}
	start := &ententev1.ConnectAPIRequest{Message: &ententev1.ConnectAPIRequest_Start_{
		Start: &ententev1.ConnectAPIRequest_Start{ContractId: contract, PodUid: uid},
	}}
	// io.EOF means only that the call has ended; Recv returns why.
	if err := stream.Send(start); err != nil && !errors.Is(err, io.EOF) {
		return nil, wire.FromStatus(err)
	}
	c := &Carrying{
		send: func(data []byte) error {
			return stream.Send(&ententev1.ConnectAPIRequest{Message: &ententev1.ConnectAPIRequest_Data{Data: data}})
		},
		recv: func() ([]byte, error) { return carried(stream.Recv()) },
	}
	switch first, err := c.Recv(); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("peer closed the stream without a status")
	case err != nil:
		return nil, err
	case len(first) > 0:
		return nil, errors.New("the peer's first response has data")
	}
	return c, nil
}
