package agent

import (
	"context"
	"time"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// newGroups builds what proves that this cluster has the secret of a group, and checks others' proofs. peerByPolicy
// adds Secret, Admit and Failed, which read policies.
func (a *agent) newGroups() *trust.Groups {
	return &trust.Groups{
		Self: a.source.ID(), Cache: a.mgr.GetClient(), Forgotten: a.forgotten, Now: time.Now,
		Call: prover(a.source, a.self),
	}
}

// prover is trust.Groups.Call.
func prover(source *identity.Source, self func() identity.ClusterInfo) func(context.Context, string, peering.ClusterID, string, []byte) (identity.ClusterInfo, error) {
	return func(ctx context.Context, endpoint string, id peering.ClusterID, group string, secret []byte) (identity.ClusterInfo, error) {
		return client.Prove(ctx, client.ProveConfig{Endpoint: endpoint, ID: id, Source: source, Self: self(), Group: group, Secret: secret})
	}
}

// proofs implements server.Proofs.
type proofs struct {
	*trust.Groups
	self func() identity.ClusterInfo
}

func (p proofs) Prove(ctx context.Context, proof identity.Proof) (self identity.ClusterInfo, share, confirmation []byte, err error) {
	share, confirmation, err = p.Groups.Prove(ctx, proof)
	return p.self(), share, confirmation, err
}
