package offload

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/volumes"
	"github.com/entente-dev/entente/peering"
)

// live reports whether a pod counts: until it ends. A pod that is being deleted still uses its
// resources.
func live(p *api.OffloadedPod) bool {
	return !ended(p.Status.Phase)
}

// fits returns why need does not fit into what used leaves of limit, or nil. A resource that the
// contract lacks is refused.
func fits(limit, used, need corev1.ResourceList) *peering.Refusal {
	for _, name := range slices.Sorted(maps.Keys(need)) {
		want := need[name]
		if want.IsZero() {
			continue
		}
		most, ok := limit[name]
		if !ok {
			return refuse(peering.RefusedQuota, false,
				"the contract has no %s and the pod asks for %s; ask for a contract with it, or take the request away", name, want.String())
		}
		sum := used[name].DeepCopy()
		sum.Add(want)
		if sum.Cmp(most) > 0 {
			u := used[name]
			return refuse(peering.RefusedQuota, true,
				"the contract has %s %s, of which live pods use %s; the pod asks for %s more; end a pod or ask for a larger contract",
				most.String(), name, u.String(), want.String())
		}
	}
	return nil
}

// confirmReserved asks the API server whether reserved pods of a contract exist that the cache
// should have by now.
func (p *Provider) confirmReserved(ctx context.Context, contract string) error {
	return p.ledger.Confirm(contract, func(key client.ObjectKey) (*api.OffloadedPod, error) {
		now := &api.OffloadedPod{}
		switch err := p.client.Get(ctx, key, now); {
		case apierrors.IsNotFound(err):
			return nil, nil // it does not exist
		case err != nil:
			return nil, fmt.Errorf("look for offloaded pod: %w", err)
		}
		return now, nil
	}, func(gone *api.OffloadedPod) { p.stock.Drop(podKey(gone)) })
}

// Usage returns the resources that the live pods of a contract use, and how many pods that are. A
// pod that is being deleted is live until it ends.
func (p *Provider) Usage(ctx context.Context, contract string) (used corev1.ResourceList, pods int, err error) {
	if err := p.await(ctx); err != nil {
		return nil, 0, err
	}
	if err := p.confirmReserved(ctx, contract); err != nil {
		return nil, 0, err
	}
	used, pods = p.ledger.Of(contract)
	maps.Copy(used, volumes.Usage(typed[*corev1.PersistentVolumeClaim](p.inv.claims.List()), contract, heldKey(contract)))
	return used, pods, nil
}
