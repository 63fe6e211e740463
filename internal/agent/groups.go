package agent

import (
	"context"
	"time"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// newGroups builds what proves, to others and of others, that they hold the secret of a
// group. Secret, Admit and Failed are for the policies that name groups: none does yet, so
// every group is unknown.
func (a *agent) newGroups() *controller.Groups {
	return &controller.Groups{
		Self: a.source.ID(), Cache: a.mgr.GetClient(), Forgotten: a.forgotten, Now: time.Now,
		Call: func(ctx context.Context, endpoint string, id peering.ClusterID, group string, secret []byte) (wire.ClusterInfo, error) {
			return client.Prove(ctx, client.ProveConfig{Endpoint: endpoint, ID: id, Source: a.source, Self: a.self(), Group: group, Secret: secret})
		},
	}
}

// Prove implements server.Trust.
func (j joining) Prove(ctx context.Context, p server.Proof) (wire.ClusterInfo, []byte, []byte, error) {
	share, confirmation, err := j.a.groups.Prove(ctx, controller.Proof(p))
	return j.a.self(), share, confirmation, err
}

// Confirm implements server.Trust.
func (j joining) Confirm(ctx context.Context, id peering.ClusterID, channel [32]byte, confirmation []byte) error {
	return j.a.groups.Confirm(ctx, id, channel, confirmation)
}
