package agent

import (
	"cmp"
	"slices"

	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/peering"
)

// provisionVolumes provisions the claims of this cluster.
func (a *agent) provisionVolumes() error {
	a.nodes.volumes = &volumes.Home{
		Client: a.mgr.GetClient(), Reader: a.direct, Providers: a.nodes, Events: a.events, Changed: a.contractsWake.wake, Namespace: a.cfg.Namespace,
	}
	return a.nodes.volumes.SetupWithManager(a.mgr)
}

var _ volumes.Providers = (*nodes)(nil)

func (n *nodes) Contracts(peer peering.ClusterID) []volumes.Contract {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []volumes.Contract
	for id, v := range n.running {
		if v.spec.Peer == peer {
			out = append(out, volumes.Contract{ID: id, Resources: v.spec.Capacity})
		}
	}
	slices.SortFunc(out, func(a, b volumes.Contract) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

func (n *nodes) Want(contract string, o peering.Object) {
	if v := n.of(contract); v != nil {
		v.mirror.Want(o)
	}
}

func (n *nodes) Unwant(contract string, ref peering.ObjectRef) {
	if v := n.of(contract); v != nil {
		v.mirror.Unwant(ref, nil)
	}
}
