package progress

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/peering"
)

// Begins waits until a stream is accepted, or reports that it was refused: then it has no
// headers, and reading from it returns why.
func Begins[M any](stream grpc.ServerStreamingClient[M]) (bool, error) {
	header, err := stream.Header()
	return header != nil, err
}

// Drain passes the messages of a stream to handle until it ends.
func Drain[M any](ctx context.Context, open func(context.Context) (grpc.ServerStreamingClient[M], error), handle func(*M) error) error {
	stream, err := open(ctx)
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := handle(m); err != nil {
			return err
		}
	}
}

// Transient reports whether a failed call is worth repeating.
func Transient(err error) bool {
	switch client.ReasonOf(err) {
	case peering.ReasonUnavailable, peering.ReasonKubernetes, peering.ReasonRateLimited, peering.ReasonTooManyCalls, peering.ReasonConflict, peering.ReasonStopping:
		return true
	default:
		return false
	}
}
