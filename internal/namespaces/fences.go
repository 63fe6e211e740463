package namespaces

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

// notAgreed is why the pods of a namespace that wants a fence have none at a provider.
const notAgreed = "the provider did not agree to the fence yet: until it does, pods there are kept while it does not answer"

// Fenced is the fence that was agreed by a contract, as the status says; 0 is none.
func Fenced(o *v1alpha1.NamespaceOffloading, contract string) time.Duration {
	for _, c := range o.Status.Clusters {
		if c.Fence != nil && c.Contract == contract {
			return c.Fence.Duration
		}
	}
	return 0
}

// fences returns the states of a namespace with the fences as they are written down, which a
// process after this one begins with: of what was agreed and what is about to be asked for the
// longer one, and none where none is wanted, before a provider hears of either. Where a virtual
// node does not run yet, what was agreed holds as long as its node object stands.
func (r *Reconciler) fences(ctx context.Context, o *v1alpha1.NamespaceOffloading, is []v1alpha1.NamespaceInCluster) ([]v1alpha1.NamespaceInCluster, error) {
	want := placement.LossOf(o).Fence()
	for i := range is {
		switch c := &is[i]; {
		case want == 0:
			c.Fence = nil
		case c.Fence != nil:
			c.Fence.Duration = max(c.Fence.Duration, want)
		case c.State == "Ready":
			c.Message = notAgreed
		}
	}
	if want == 0 {
		return is, nil
	}
	for _, was := range o.Status.Clusters {
		if was.Fence == nil || slices.ContainsFunc(is, func(c v1alpha1.NamespaceInCluster) bool { return c.Contract == was.Contract }) {
			continue
		}
		starts, err := r.Starts(ctx, was.Contract)
		if err != nil {
			return nil, err
		}
		if starts {
			was.State, was.Message = "Pending", ""
			is = append(is, was)
		}
	}
	slices.SortFunc(is, ByCluster)
	return is, nil
}

// ByCluster orders a namespace's states by provider and contract.
func ByCluster(a, b v1alpha1.NamespaceInCluster) int {
	return cmp.Or(cmp.Compare(a.ForeignCluster, b.ForeignCluster), cmp.Compare(a.Contract, b.Contract))
}

// sayFences records which fences count that did not by the status before.
func (r *Reconciler) sayFences(before, now *v1alpha1.NamespaceOffloading) {
	for _, c := range now.Status.Clusters {
		if c.Fence == nil || Fenced(before, c.Contract) == c.Fence.Duration {
			continue
		}
		r.Events.Eventf(now, nil, corev1.EventTypeNormal, "FenceAgreed", "Fence", "%s", fmt.Sprintf(
			"%s stops the pods of the namespace by itself, at the latest a minute before it has heard nothing of this cluster for %s; they run elsewhere after that",
			c.ForeignCluster, c.Fence.Duration))
	}
}
