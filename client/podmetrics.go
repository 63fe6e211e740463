package client

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// PodMetrics asks the provider of a contract what the contract's pods use.
func PodMetrics(ctx context.Context, conn grpc.ClientConnInterface, contract string) (peering.ContractMetrics, error) {
	ctx, cancel := context.WithTimeout(ctx, podMetricsTimeout)
	defer cancel()
	var m peering.ContractMetrics
	stream, err := ententev1.NewOffloadServiceClient(conn).PodMetrics(ctx, &ententev1.PodMetricsRequest{ContractId: contract})
	if err != nil {
		return m, fmt.Errorf("ask what pods of contract %s use: %w", contract, wire.FromStatus(err))
	}
	for messages := 0; ; messages++ {
		msg, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF) && messages > 0:
			return m, nil
		case errors.Is(err, io.EOF):
			err = wire.Response(peering.Errorf(peering.ReasonRequestInvalid, "the provider's response is empty"))
		case err != nil:
			err = wire.FromStatus(err)
		case messages >= wire.MaxMetricsMessages:
			err = wire.Response(peering.Errorf(peering.ReasonRequestInvalid, "the response has more than %d messages", wire.MaxMetricsMessages))
		default:
			err = wire.Response(wire.PodMetricsFrom(&m, msg))
		}
		if err != nil {
			return peering.ContractMetrics{}, fmt.Errorf("ask what pods of contract %s use: %w", contract, err)
		}
	}
}
