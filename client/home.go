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

// HomeConnection is a connection of a pod that runs here to the API server of its home.
type HomeConnection struct {
	stream grpc.BidiStreamingClient[ententev1.ConnectAPIRequest, ententev1.ConnectAPIResponse]
	end    context.CancelFunc
}

// ConnectHomeAPI asks a consumer's agent to answer a connection of a pod that runs here by a
// contract, and has a UID there. It returns once home answers; an error may be for the pod. The
// call ends with ctx.
func ConnectHomeAPI(ctx context.Context, conn grpc.ClientConnInterface, contract, uid string) (*HomeConnection, error) {
	ctx, cancel := context.WithCancel(ctx)
	c, err := connectHomeAPI(ctx, conn, contract, uid)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("connect to the API of home: %w", err)
	}
	c.end = cancel
	return c, nil
}

func connectHomeAPI(ctx context.Context, conn grpc.ClientConnInterface, contract, uid string) (*HomeConnection, error) {
	stream, err := ententev1.NewHomeServiceClient(conn).ConnectAPI(ctx)
	if err != nil {
		return nil, wire.FromStatus(err)
	}
	start := &ententev1.ConnectAPIRequest{Message: &ententev1.ConnectAPIRequest_Start_{
		Start: &ententev1.ConnectAPIRequest_Start{ContractId: contract, PodUid: uid},
	}}
	// io.EOF says only that the call has ended; Recv says why.
	if err := stream.Send(start); err != nil && !errors.Is(err, io.EOF) {
		return nil, wire.FromStatus(err)
	}
	c := &HomeConnection{stream: stream}
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

// Send sends bytes to home. It does not keep them.
func (c *HomeConnection) Send(data []byte) error {
	return c.stream.Send(&ententev1.ConnectAPIRequest{Message: &ententev1.ConnectAPIRequest_Data{Data: data}})
}

// Recv returns the bytes that came next, and io.EOF after the last.
func (c *HomeConnection) Recv() ([]byte, error) {
	return carried(c.stream.Recv())
}

// End ends the call. It may be called from anywhere.
func (c *HomeConnection) End(error) { c.end() }
