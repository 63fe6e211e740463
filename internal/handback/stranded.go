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

// freeStranded sees to pods that find no node because a volume of theirs is in another cluster. One that may run there
// now, but was made when its namespace's pods could not, does not tolerate virtual nodes: it is evicted, and its
// controller makes another. Of others, and those that nobody would make again, it records an event, once per claim and strategy.
func (r *Reconciler) freeStranded(ctx context.Context, f *facts, mem *memory) error {
	told, evicted := map[types.UID]string{}, 0
	for i := range f.pods {
		p := &f.pods[i]
		remote := placement.StrategyOf(p, &f.offloading.Spec) == v1alpha1.StrategyRemote
		if !findsNoNode(p) || remote && (!mem.older(f, p) || evicted == maxEvictions) {
			continue
		}
		claim, whole, err := r.strandedBy(ctx, f, p, mem, told)
		if err != nil {
			return err
		}
		if whole == nil {
			continue
		}
		if !remote || notMadeAgain(p, countsAsFailed+deleteIt) != "" {
			r.warnStranded(p, &f.offloading.Spec, claim)
			continue
		}
		delete(told, p.UID) // if it changed meanwhile, it is evicted the next time
		evicted++
		why := fmt.Sprintf("the volume of claim %s is in another cluster, and this pod was made when it could not run there; its controller creates another", claim)
		if _, err := r.evict(ctx, verdict{whole, why}, "HandedBack"); err != nil {
			return err
		}
	}
	mem.stranded = told
	return nil
}

// older reports whether a pod is older than what placement knows, and that is the NamespaceOffloading's current
// generation. Younger ones would be the same if they were made again.
func (m *memory) older(f *facts, p *corev1.Pod) bool {
	return m.knows(f) && p.CreationTimestamp.Time.Before(m.since.Add(placementLag))
}

// strandedBy returns the claim for whose volume a pod waits, and the whole pod; nil if there is none, if the pod
// tolerates virtual nodes, or if that was told before.
func (r *Reconciler) strandedBy(ctx context.Context, f *facts, p *corev1.Pod, mem *memory, told map[types.UID]string) (string, *corev1.Pod, error) {
	claim, err := r.claimAbroad(ctx, p)
	if err != nil || claim == "" {
		return "", nil, err
	}
	about := claim + " " + string(placement.StrategyOf(p, &f.offloading.Spec))
	if told[p.UID] = about; mem.stranded[p.UID] == about {
		return "", nil, nil
	}
	var whole corev1.Pod
	if err := r.Direct.Get(ctx, client.ObjectKeyFromObject(p), &whole); err != nil {
		if apierrors.IsNotFound(err) {
			return "", nil, nil
		}
		return "", nil, fmt.Errorf("read pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	if whole.UID != p.UID || !findsNoNode(&whole) { // the cache is behind
		delete(told, p.UID)
		return "", nil, nil
	}
	if tolerates(&whole) {
		return "", nil, nil
	}
	return claim, &whole, nil
}

func (r *Reconciler) warnStranded(p *corev1.Pod, o *v1alpha1.NamespaceOffloadingSpec, claim string) {
	strategy := placement.StrategyOf(p, o)
	if strategy == v1alpha1.StrategyRemote {
		r.Events.Eventf(p, nil, corev1.EventTypeWarning, "VolumeAbroad", "Place",
			"the volume of claim %s is in another cluster, and this pod was made when it could not run there: delete it, and one that is created now can", claim)
		return
	}
	r.Events.Eventf(p, nil, corev1.EventTypeWarning, "VolumeAbroad", "Place",
		"the volume of claim %s is in another cluster, and with the strategy %s a pod with a claim runs at home: annotate the template of its pods with %s: %s, "+
			"or move the volume here: entente move volume %s -n %s --to home",
		claim, strategy, v1alpha1.AnnotationPodStrategy, v1alpha1.StrategyRemote, claim, p.Namespace)
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
