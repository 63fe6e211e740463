// Package wiretest is for tests that serve messages without package server.
package wiretest

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// NewServer returns a gRPC server whose errors have their reasons, as those of package server.
func NewServer(opts ...grpc.ServerOption) *grpc.Server {
	return grpc.NewServer(append(opts,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			resp, err := next(ctx, req)
			return resp, statusOf(err)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			return statusOf(next(srv, stream))
		}))...)
}

func statusOf(err error) error {
	if e, ok := errors.AsType[*peering.Error](err); ok {
		return wire.Status(e).Err()
	}
	return err
}
