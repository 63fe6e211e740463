package server

import (
	"context"
	"errors"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// PodMetrics implements the OffloadService.
func (s *Offload) PodMetrics(req *ententev1.PodMetricsRequest, stream ententev1.OffloadService_PodMetricsServer) error {
	ctx, cancel := context.WithTimeout(stream.Context(), offloadMetricsTimeout)
	defer cancel()
	peer, err := s.authorize(ctx, req.GetContractId())
	if err != nil {
		return err
	}
	if s.cfg.Metrics == nil {
		return peering.Errorf(peering.ReasonMetricsUnavailable, "this cluster does not measure pods")
	}
	m, err := s.cfg.Metrics.PodMetrics(ctx, req.GetContractId())
	if own, ok := errors.AsType[*peering.Error](err); ok {
		return own
	}
	if err != nil {
		s.cfg.Log.Warn("measure the pods of a contract", "contract", req.GetContractId(), "peer", peer, "err", err)
		return peering.Errorf(peering.ReasonKubernetes, "the provider's cluster cannot measure its pods now")
	}
	for _, message := range wire.PodMetricsTo(m) {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return nil
}
