package namespaces

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

// notAgreed is why the pods of a namespace that asks for a fence have none at a provider.
const notAgreed = "the provider did not agree to the fence yet: until it does, pods there are kept while it does not respond"

// awaitingAgreement is why a namespace has two fences at a provider.
func awaitingAgreement(agreed, asked time.Duration) string {
	return fmt.Sprintf("the provider agreed to a fence of %s, and has not responded yet about one of %s: until it does, the longer one counts", agreed, asked)
}

// Fenced is the longest fence to which the provider may keep by a contract, as the status says; 0 means none.
func Fenced(o *v1alpha1.NamespaceOffloading, contract string) time.Duration {
	c := byContract(o.Status.Clusters, contract)
	switch {
	case c == nil || c.Fence == nil:
		return 0
	case c.PendingFence == nil:
		return c.Fence.Duration
	}
	return max(c.Fence.Duration, c.PendingFence.Duration)
}

// byContract returns the state of a namespace by a contract; nil if there is none.
func byContract(all []v1alpha1.NamespaceInCluster, contract string) *v1alpha1.NamespaceInCluster {
	i := slices.IndexFunc(all, func(c v1alpha1.NamespaceInCluster) bool { return c.Contract == contract })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// fences returns the states of a namespace with the fences to record, with which the next process begins: what was
// agreed and what is about to be asked for, and none if none is wanted, before a provider is asked for either. If a
// virtual node does not run yet, what was agreed lasts as long as its node object exists.
func (r *Reconciler) fences(ctx context.Context, o *v1alpha1.NamespaceOffloading, is []v1alpha1.NamespaceInCluster) ([]v1alpha1.NamespaceInCluster, error) {
	want := placement.LossOf(o).Fence()
	for i := range is {
		switch c := &is[i]; {
		case want == 0:
			c.Fence, c.PendingFence = nil, nil
		case c.Fence != nil:
			split(c, byContract(o.Status.Clusters, c.Contract), want)
		case c.State == v1alpha1.OffloadingReady:
			c.Message = notAgreed
		}
	}
	if want == 0 {
		return is, nil
	}
	for _, was := range o.Status.Clusters {
		if was.Fence == nil || byContract(is, was.Contract) != nil {
			continue
		}
		starts, err := r.Starts(ctx, was.Contract)
		if err != nil {
			return nil, err
		}
		if starts {
			was.State, was.Message = v1alpha1.OffloadingPending, ""
			is = append(is, was)
		}
	}
	slices.SortFunc(is, ByCluster)
	return is, nil
}

// split divides the fence on which home counts into the one that the provider agreed to, and the one that it was,
// or is about to be, asked for. While it has not responded, the status keeps the one that it agreed to.
func split(c, was *v1alpha1.NamespaceInCluster, want time.Duration) {
	longest := max(c.Fence.Duration, want)
	if c.PendingFence != nil && was != nil && was.Fence != nil {
		c.Fence = was.Fence.DeepCopy()
	}
	c.PendingFence = nil
	agreed, asked := c.Fence.Duration, longest
	if longest <= agreed {
		asked = want
	}
	if asked == agreed {
		return
	}
	c.PendingFence = &metav1.Duration{Duration: asked}
	c.Message = cmp.Or(c.Message, awaitingAgreement(agreed, asked))
}

// ByCluster orders a namespace's states by provider and contract.
func ByCluster(a, b v1alpha1.NamespaceInCluster) int {
	return cmp.Or(cmp.Compare(a.ForeignCluster, b.ForeignCluster), cmp.Compare(a.Contract, b.Contract))
}

// recordAgreed records events for the fences that were agreed on since the status before.
func (r *Reconciler) recordAgreed(before, now *v1alpha1.NamespaceOffloading) {
	for _, c := range now.Status.Clusters {
		if was := byContract(before.Status.Clusters, c.Contract); c.Fence == nil || was != nil && was.Fence != nil && was.Fence.Duration == c.Fence.Duration {
			continue
		}
		r.Events.Eventf(now, nil, corev1.EventTypeNormal, "FenceAgreed", "Fence", "%s", fmt.Sprintf(
			"%s stops the pods of the namespace by itself, at the latest a minute before it has received nothing from this cluster for %s; they run elsewhere after that",
			c.ForeignCluster, c.Fence.Duration))
	}
}
