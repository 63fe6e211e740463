package handback

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/placement"
)

// warnStranded records an event on pods that find no node because a volume of theirs is in another
// cluster: placement keeps pods with claims at home, since it does not see where volumes are. It does
// so once per claim.
func (r *Reconciler) warnStranded(ctx context.Context, f *facts, mem *memory) error {
	warned := map[types.UID]string{}
	for i := range f.pods {
		p := &f.pods[i]
		strategy := placement.StrategyOf(p, &f.offloading.Spec)
		if strategy == v1alpha1.StrategyRemote || !findsNoNode(p) {
			continue
		}
		claim, err := r.claimAbroad(ctx, p)
		if err != nil {
			return err
		}
		if claim == "" {
			continue
		}
		if warned[p.UID] = claim; mem.stranded[p.UID] == claim {
			continue
		}
		var whole corev1.Pod
		if err := r.Direct.Get(ctx, client.ObjectKeyFromObject(p), &whole); err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return fmt.Errorf("read pod %s/%s: %w", p.Namespace, p.Name, err)
		}
		if whole.UID != p.UID || tolerates(&whole) {
			continue
		}
		r.Events.Eventf(p, nil, corev1.EventTypeWarning, "VolumeAbroad", "Place",
			"the volume of claim %s is in another cluster, and with the strategy %s a pod with a claim runs at home: annotate the template of its pods with %s: %s, "+
				"or move the volume here: entente move volume %s -n %s --to home",
			claim, strategy, v1alpha1.AnnotationPodStrategy, v1alpha1.StrategyRemote, claim, p.Namespace)
	}
	mem.stranded = warned
	return nil
}

func findsNoNode(p *corev1.Pod) bool {
	return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
	})
}

// tolerates reports whether a pod has a toleration for virtual nodes that a user can write.
func tolerates(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Key == "" || t.Key == v1alpha1.LabelVirtualNode) && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule)
	})
}

// claimAbroad returns a claim of a pod that is bound to a volume in another cluster, or "".
func (r *Reconciler) claimAbroad(ctx context.Context, p *corev1.Pod) (string, error) {
	for i := range p.Spec.Volumes {
		source := p.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		var claim corev1.PersistentVolumeClaim
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: p.Namespace, Name: source.ClaimName}, &claim)
		if apierrors.IsNotFound(err) || err == nil && claim.Spec.VolumeName == "" {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("read claim %s/%s: %w", p.Namespace, source.ClaimName, err)
		}
		var pv corev1.PersistentVolume
		err = r.Client.Get(ctx, client.ObjectKey{Name: claim.Spec.VolumeName}, &pv)
		if client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("read volume %s: %w", claim.Spec.VolumeName, err)
		}
		if err == nil && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == v1alpha1.VolumeDriver {
			return claim.Name, nil
		}
	}
	return "", nil
}
