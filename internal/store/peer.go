package store

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// AddPeer records that a cluster is trusted and returns the name of its
// ForeignCluster. A cluster that is known keeps its name. wanted overrides the
// name that the cluster gives itself; a name that another cluster has here is
// refused where it was wanted, and else extended.
func AddPeer(ctx context.Context, c client.Client, id peering.ClusterID, info wire.ClusterInfo, wanted string) (string, error) {
	var list v1alpha1.ForeignClusterList
	if err := c.List(ctx, &list); err != nil {
		return "", fmt.Errorf("list foreign clusters: %w", err)
	}
	taken := map[string]bool{}
	for i := range list.Items {
		fc := &list.Items[i]
		taken[fc.Name] = true
		if fc.Spec.ClusterID != string(id) {
			continue
		}
		if !fc.DeletionTimestamp.IsZero() {
			return "", wire.Errorf(wire.ReasonConflict, "cluster %s is being forgotten here as %s; try again in a moment", id.Short(), fc.Name)
		}
		fc.Spec.TrustBundle, fc.Spec.Endpoints = info.PEM(), info.Endpoints
		if err := c.Update(ctx, fc, client.FieldOwner(v1alpha1.Manager)); err != nil {
			return "", fmt.Errorf("renew the trust in %s: %w", fc.Name, err)
		}
		return fc.Name, nil
	}
	name := info.Name
	switch {
	case wanted != "" && taken[wanted]:
		return "", wire.Errorf(wire.ReasonPeerNameTaken, "another cluster is called %s here: choose another name", wanted)
	case wanted != "":
		name = wanted
	case name == "":
		name = "peer-" + id.Short()
	case taken[name]:
		name = name[:min(len(name), 63-1-len(id.Short()))] + "-" + id.Short()
	}
	err := c.Create(ctx, &v1alpha1.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelPeer: string(id)}},
		Spec:       v1alpha1.ForeignClusterSpec{ClusterID: string(id), Endpoints: info.Endpoints, TrustBundle: info.PEM()},
	}, client.FieldOwner(v1alpha1.Manager))
	if apierrors.IsAlreadyExists(err) {
		return "", wire.Errorf(wire.ReasonConflict, "another cluster just took the name %s; try again", name)
	}
	if err != nil {
		return "", fmt.Errorf("keep the trust in %s: %w", name, err)
	}
	return name, nil
}
