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

// SendDatagrams sends a peer's agent frames for its gateways, as next returns them, until next
// ends with io.EOF or the peer refuses.
func SendDatagrams(ctx context.Context, conn grpc.ClientConnInterface, next func(context.Context) ([]byte, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := ententev1.NewRelayServiceClient(conn).SendDatagrams(ctx)
	if err != nil {
		return fmt.Errorf("send datagrams: %w", wire.FromStatus(err))
	}
	for {
		frames, err := next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			_, err = stream.CloseAndRecv()
			return refused(err)
		case err != nil:
			return err
		}
		if err := stream.Send(&ententev1.SendDatagramsRequest{Frames: frames}); err != nil {
			_, why := stream.CloseAndRecv()
			return errors.Join(refused(why), err)
		}
	}
}

// refused is why a peer ended a stream of datagrams; nil if it did not.
func refused(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("send datagrams: %w", wire.FromStatus(err))
}
