package agent

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
	"github.com/entente-dev/entente/internal/placementserver"
)

// placePods serves the placement webhook, for API servers that have no MutatingAdmissionPolicies.
func (a *agent) placePods(ctx context.Context, cfg PlacementConfig) error {
	// Its informer has to exist before the first pod.
	if _, err := a.mgr.GetCache().GetInformer(ctx, &v1alpha1.NamespaceOffloading{}); err != nil {
		return fmt.Errorf("watch NamespaceOffloadings: %w", err)
	}
	daemonSets := placementserver.NewKeptOff(a.direct, a.events)
	watch, serve, err := placementserver.Listen(ctx, placementserver.Config{
		Address: cfg.Address, Certificate: cfg.Certificate, Log: a.log,
		Webhook: &placement.Webhook{Offloading: a.offloadingOf, KeptOff: daemonSets.Add, Log: a.log},
	})
	if err != nil {
		return err
	}
	for _, run := range []func(context.Context) error{daemonSets.Run, watch, serve} {
		if err := a.run(run); err != nil {
			return err
		}
	}
	return nil
}

// checkPlacement builds the check of what places pods.
func (a *agent) checkPlacement(context.Context) error {
	a.placed.By, a.placed.Client, a.placed.Address = a.cfg.PlacementBy, a.direct, a.cfg.Placement.Address
	return a.run(a.placed.Run)
}

// offloadingOf returns how a namespace is offloaded; nil if it is not, or no longer.
func (a *agent) offloadingOf(ctx context.Context, namespace string) (*v1alpha1.NamespaceOffloading, error) {
	var o v1alpha1.NamespaceOffloading
	err := a.mgr.GetCache().Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}, &o)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // nil means not offloaded
	case err != nil:
		return nil, fmt.Errorf("read the NamespaceOffloading of namespace %s: %w", namespace, err)
	}
	return &o, nil
}
