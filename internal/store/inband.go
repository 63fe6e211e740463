package store

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
)

// ConnectInBand makes a cluster reachable in-band by the parameters that an administrator gave, approves it, and
// returns the name of its ForeignCluster. Errors have the reasons PEER_NAME_TAKEN, PEERING_EXISTS and CONFLICT.
func ConnectInBand(ctx context.Context, c client.Client, cache client.Reader, p inband.Parameters, name string) (string, error) {
	contracts, err := ContractsWith(ctx, cache, p.ID)
	if err != nil {
		return "", err
	}
	tunnels := slices.ContainsFunc(contracts, func(contract v1alpha1.Contract) bool { return Unverified(&contract).Desired().Tunnel })
	otherwise := false // it was reached another way before
	fc, hint, _, err := place(ctx, c, nil, p.ID, identity.ClusterInfo{Name: p.Name}, name, func(fc *v1alpha1.ForeignCluster) error {
		if tunnels && fc.Spec.InBand == nil {
			return peering.Errorf(peering.ReasonPeeringExists,
				"contracts with %s are in force by a tunnel that is not in-band, and would lose it until both administrators did this: end them first with `entente unpeer`", fc.Name)
		}
		otherwise = fc.Spec.InBand == nil
		fc.Spec.InBand = inBandOf(p)
		fc.Spec.Endpoints, fc.Spec.JoinToken = nil, nil
		fc.Spec.Decision = v1alpha1.DecisionApproved
		fc.TakeFromPolicy()
		controllerutil.AddFinalizer(fc, v1alpha1.Finalizer)
		return nil
	})
	if err != nil {
		return "", err
	}
	return fc.Name, editStatus(ctx, c, fc, func(status *v1alpha1.ForeignClusterStatus) {
		status.Source = cmp.Or(status.Source, v1alpha1.SourceManual)
		inherit(status, hint)
		if otherwise {
			status.PresharedKey = nil // an in-band tunnel begins with its first key
		}
	})
}

func inBandOf(p inband.Parameters) *v1alpha1.InBand {
	out := &v1alpha1.InBand{ExchangeKey: base64.StdEncoding.EncodeToString(p.ExchangeKey[:])}
	for _, g := range p.Gateways {
		out.Gateways = append(out.Gateways, v1alpha1.InBandGateway{
			Name: g.Name, PublicKey: base64.StdEncoding.EncodeToString(g.PublicKey[:]), Endpoints: slices.Clone(g.Endpoints),
		})
	}
	return out
}
