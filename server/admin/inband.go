package admin

import (
	"context"
	"fmt"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server/internal/middleware"
)

func (s *service) GetNetworkParameters(ctx context.Context, _ *ententev1.GetNetworkParametersRequest) (*ententev1.GetNetworkParametersResponse, error) {
	own, err := s.cfg.NetworkParameters(ctx)
	if err != nil {
		return nil, fmt.Errorf("read this cluster's network parameters: %w", err)
	}
	if len(own.Gateways) == 0 {
		return nil, peering.Errorf(peering.ReasonNoEndpoint, "no node of this cluster is a gateway that has announced its key: check DaemonSet entente-fabric")
	}
	out := &ententev1.NetworkParameters{ClusterId: string(own.ID), DisplayName: own.Name, ExchangeKey: own.ExchangeKey[:]}
	for _, g := range own.Gateways {
		out.Gateways = append(out.Gateways, &ententev1.InBandGateway{Name: g.Name, PublicKey: g.PublicKey[:], Endpoints: g.Endpoints})
	}
	return &ententev1.GetNetworkParametersResponse{Parameters: out}, nil
}

func (s *service) ConnectInBand(ctx context.Context, req *ententev1.ConnectInBandRequest) (*ententev1.ConnectInBandResponse, error) {
	parameters, err := parametersFrom(req.GetParameters())
	if err != nil {
		return nil, middleware.BadField("parameters", "%s", jointoken.Redact(err.Error()))
	}
	self, err := s.cfg.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe this cluster: %w", err)
	}
	if parameters.ID == self.ID {
		return nil, &peering.Error{Reason: peering.ReasonPeerIsSelf, Message: "the parameters are this cluster's own: they are for the administrator of the other one"}
	}
	name, err := s.cfg.ConnectInBand(ctx, parameters, req.GetName())
	if err != nil {
		return nil, fmt.Errorf("connect in-band to cluster %s: %w", parameters.ID, err)
	}
	peer, err := s.peerNamed(ctx, name)
	return &ententev1.ConnectInBandResponse{Peer: peer}, err
}

// parametersFrom reads parameters, whose form the proto's constraints have checked.
func parametersFrom(m *ententev1.NetworkParameters) (inband.Parameters, error) {
	out := inband.Parameters{ID: peering.ClusterID(m.GetClusterId()), Name: m.GetDisplayName()}
	if copy(out.ExchangeKey[:], m.GetExchangeKey()) != len(m.GetExchangeKey()) {
		return out, fmt.Errorf("exchange_key has %d bytes, not %d", len(m.GetExchangeKey()), len(out.ExchangeKey))
	}
	for _, g := range m.GetGateways() {
		gateway := peering.Gateway{Name: g.GetName(), Endpoints: g.GetEndpoints()}
		if copy(gateway.PublicKey[:], g.GetPublicKey()) != len(g.GetPublicKey()) {
			return out, fmt.Errorf("public_key of gateway %s has %d bytes, not %d", g.GetName(), len(g.GetPublicKey()), len(gateway.PublicKey))
		}
		out.Gateways = append(out.Gateways, gateway)
	}
	return out, out.Check()
}
