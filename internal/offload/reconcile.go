package offload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/recent"
	"github.com/entente-dev/entente/peering"
)

// podStep is what to do about an OffloadedPod.
type podStep uint8

const (
	// podWait: nothing.
	podWait podStep = iota
	// podHold: set the finalizer, so that it cannot go before its pod.
	podHold
	// podCreate: make the pod.
	podCreate
	// podAdopt: record the pod, which a process before this one made.
	podAdopt
	// podUpdate: give the pod the labels, annotations and images of now.
	podUpdate
	// podRecount: see whether a pod that is being resized has what it asks for.
	podRecount
	// podRecord: record the phase.
	podRecord
	// podLost: record that the pod went away without being asked to.
	podLost
	// podTaken: record that another pod has the name.
	podTaken
	// podDelete: delete the pod.
	podDelete
	// podRelease: nothing runs; let the OffloadedPod go, or keep it until home heard how the pod ended.
	podRelease
)

// decidePod says what to do about an OffloadedPod. pod is the pod of its name,
// nil if there positively is none.
//
//	OffloadedPod       no pod        its pod             another's pod
//	new                create        adopt               taken, wait
//	made               lost (final)  update, record,     lost (final)
//	                                 recount
//	ended              wait          wait                wait
//	being deleted      release       delete, then wait   release
func decidePod(o *api.OffloadedPod, pod *corev1.Pod) podStep {
	mine := pod != nil && isPodOf(pod, o) && (o.Status.PodUID == "" || o.Status.PodUID == string(pod.UID))
	if o.DeletionTimestamp != nil {
		switch {
		case !mine:
			return podRelease
		case pod.DeletionTimestamp == nil || shorter(o, pod):
			return podDelete
		}
		return podWait
	}
	switch {
	case !live(o):
		return podWait
	case !controllerutil.ContainsFinalizer(o, api.Finalizer):
		return podHold
	case o.Status.PodUID == "" && pod == nil:
		return podCreate
	case o.Status.PodUID == "" && mine:
		return podAdopt
	case o.Status.PodUID == "":
		return podTaken
	case !mine:
		return podLost
	case pod.DeletionTimestamp == nil && pod.Annotations[api.AnnotationHash] != o.Spec.Hash:
		return podUpdate
	case phaseOf(pod) != o.Status.Phase || o.Status.Reason != "" || !slices.Equal(podIPs(pod), o.Status.PodIPs):
		return podRecord
	case mayHaveSettled(o, pod):
		return podRecount
	}
	return podWait
}

// phaseOf returns a pod's phase; one that was just made has none yet.
func phaseOf(pod *corev1.Pod) corev1.PodPhase {
	if pod.Status.Phase == "" {
		return corev1.PodPending
	}
	return pod.Status.Phase
}

// podIPs returns the addresses that are a pod's alone, as long as it has not ended.
func podIPs(pod *corev1.Pod) (out []string) {
	if ended(pod.Status.Phase) || pod.Spec.HostNetwork {
		return nil
	}
	for _, ip := range pod.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// grace returns the grace period with which a pod is to be deleted; nil leaves
// it to the pod.
func grace(o *api.OffloadedPod) *int64 {
	s, ok := o.Annotations[noteGrace]
	if !ok {
		return nil
	}
	g, err := strconv.ParseInt(s, 10, 64)
	if err != nil || g < 0 {
		return nil
	}
	return new(min(g, podspec.MaxGrace))
}

// shorter says whether a pod that is being deleted is to end sooner than that.
func shorter(o *api.OffloadedPod, pod *corev1.Pod) bool {
	g := grace(o)
	return g != nil && pod.DeletionGracePeriodSeconds != nil && *g < *pod.DeletionGracePeriodSeconds
}

// Reconcile makes one OffloadedPod's pod so. It is what Run calls. A write that has
// to wait leaves the worker to the pods of other peers.
func (p *Provider) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	err := p.tellHomeIPs(ctx, req.NamespacedName)
	if err == nil {
		err = p.reconcile(ctx, req)
	}
	if over, ok := errors.AsType[*paced.OverBudget](err); ok {
		return reconcile.Result{RequeueAfter: max(over.Wait, budgetAgain)}, nil
	}
	return reconcile.Result{}, err
}

func (p *Provider) reconcile(ctx context.Context, req reconcile.Request) error {
	made := p.made.Take(req.NamespacedName, p.inv.offloaded(req.NamespacedName))
	if done, err := p.reconcileSeen(ctx, req.NamespacedName); done {
		return err
	}
	o := made
	if o == nil {
		o = &api.OffloadedPod{}
		if err := p.client.Get(ctx, req.NamespacedName, o); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	if o.DeletionTimestamp != nil {
		ctx = paced.Urgent(ctx)
	}
	pod, err := p.currentPod(ctx, o)
	if err != nil {
		return err
	}
	if decidePod(o, pod) == podCreate {
		// Its name is the pod's alone, so making it finds out whether it is there.
		if err := p.createPod(ctx, o); !apierrors.IsAlreadyExists(err) {
			return err
		}
		if pod, err = p.askPod(ctx, o); err != nil {
			return err
		}
	}
	return p.step(ctx, o, pod)
}

// reconcileSeen does what the cache alone decides: nothing, for most changes of a pod that
// runs; a record of its phase, in the version that the cache has; or a delete of the pod with
// the UID that the cache has. What else may be to do is decided by the object itself. A cache
// that is behind shows what is so later, and the pod is reconciled again then.
func (p *Provider) reconcileSeen(ctx context.Context, key types.NamespacedName) (done bool, err error) {
	if !p.inv.known() {
		return false, nil
	}
	seen := p.inv.offloaded(key)
	if seen == nil || seen.Status.PodUID != "" {
		p.named.Forget(key)
	}
	if seen == nil {
		return true, nil // it is gone, or comes: then it is reconciled again
	}
	pod, _ := p.inv.pod(key.Namespace, key.Name)
	switch decidePod(seen, pod) { //nolint:exhaustive // all else is decided by the object itself
	case podWait:
		return true, nil
	case podAdopt:
		if p.named.Has(key, pod.UID) {
			return true, nil // the cache is behind, and tells of it next
		}
	case podDelete:
		return true, p.deleteRunning(paced.Urgent(ctx), seen, pod)
	case podRelease:
		// That it is being deleted never changes. That there is no pod has to be asked for, unless the pod ended before
		// it went: then nothing runs, whatever the cache does not show.
		if _, over := p.inv.endedLast(seen.Namespace, types.UID(seen.Status.PodUID)); pod != nil || !over {
			if pod, err := p.currentPod(ctx, seen); err != nil || decidePod(seen, pod) != podRelease {
				return err != nil, err
			}
		}
		if err := p.letGo(paced.Urgent(ctx), seen.DeepCopy()); !apierrors.IsConflict(err) {
			return true, err
		}
	case podRecord:
		// If something changed since, the API server does not take it.
		if err := p.recordPod(ctx, seen.DeepCopy(), pod); !apierrors.IsConflict(err) {
			return true, client.IgnoreNotFound(err)
		}
	}
	// What would wait in the end does not ask the API server first.
	if seen.DeletionTimestamp == nil && seen.Status.PodUID == "" {
		if err := p.client.Room(peering.ClusterID(seen.Spec.PeerID)); err != nil {
			return true, err
		}
	}
	return false, nil
}

// step does what there is to do about an OffloadedPod.
func (p *Provider) step(ctx context.Context, o *api.OffloadedPod, pod *corev1.Pod) error {
	switch decidePod(o, pod) {
	case podHold:
		before := o.DeepCopy()
		controllerutil.AddFinalizer(o, api.Finalizer)
		return p.patch(ctx, o, before)
	case podCreate:
		return p.createPod(ctx, o)
	case podAdopt, podRecord:
		return p.recordPod(ctx, o, pod)
	case podUpdate:
		return p.updatePod(ctx, o)
	case podRecount:
		return p.recountPod(ctx, o)
	case podTaken:
		return p.recordProblem(ctx, o, "NameTaken", fmt.Sprintf(
			"a pod %s/%s that is not the consumer's is there already; the provider has to delete or rename it", pod.Namespace, pod.Name), true)
	case podLost:
		return p.recordLost(ctx, o)
	case podDelete:
		return p.deleteRunning(ctx, o, pod)
	case podWait:
	case podRelease:
		return p.letGo(ctx, o)
	}
	return nil
}

// letGo lets an OffloadedPod go that is being deleted and has no pod, unless home has to hear of its end first.
func (p *Provider) letGo(ctx context.Context, o *api.OffloadedPod) error {
	if kept, err := p.keepEnd(ctx, o); kept || err != nil {
		return client.IgnoreNotFound(err)
	}
	// Before it goes: the watch tells of that later, and an apply that comes in
	// between would find nothing, and run the pod again.
	p.graves.Add(peering.ClusterID(o.Spec.PeerID), graveOf(o.Spec.Contract, o.Spec.OriginUID))
	before := o.DeepCopy()
	if controllerutil.RemoveFinalizer(o, api.Finalizer) {
		return client.IgnoreNotFound(p.patch(ctx, o, before))
	}
	return nil
}

func (p *Provider) deleteRunning(ctx context.Context, o *api.OffloadedPod, pod *corev1.Pod) error {
	opts := &client.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}, GracePeriodSeconds: grace(o)}
	if err := p.client.Delete(ctx, pod, opts); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete pod: %w", err)
	}
	return nil
}

// currentPod returns the pod of the OffloadedPod's name, nil if there positively
// is none: what the cache does not show is asked for. One that was not made yet, and
// that nothing was in the way of so far, is not asked for: that it is there after all
// is what making it says.
func (p *Provider) currentPod(ctx context.Context, o *api.OffloadedPod) (*corev1.Pod, error) {
	pod, known := p.inv.pod(o.Namespace, o.Name)
	if pod != nil && string(pod.UID) == o.Status.PodUID {
		return pod, nil
	}
	if pod == nil && known && o.DeletionTimestamp == nil && o.Status.PodUID == "" && o.Status.Reason == "" {
		return nil, nil //nolint:nilnil // no pod is the answer
	}
	return p.askPod(ctx, o)
}

// askPod asks for the pod of the OffloadedPod's name, nil if there positively is none.
func (p *Provider) askPod(ctx context.Context, o *api.OffloadedPod) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, pod)
	switch {
	case err == nil:
		return pod, nil
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // no pod is the answer
	case apierrors.IsForbidden(err) && o.DeletionTimestamp != nil && p.terminating(ctx, o.Namespace):
		// The namespace is being deleted by its cluster's owner, and our right to look
		// went first. Its pods go with it, whatever we do.
		return nil, nil //nolint:nilnil // no pod is the answer
	}
	return nil, fmt.Errorf("look for pod: %w", err)
}

// terminating says whether a namespace positively is being deleted, or gone.
func (p *Provider) terminating(ctx context.Context, name string) bool {
	ns := &corev1.Namespace{}
	if err := p.client.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return apierrors.IsNotFound(err)
	}
	return ns.DeletionTimestamp != nil
}

// patch writes metadata, unless something else did in the meantime.
func (p *Provider) patch(ctx context.Context, o, before client.Object) error {
	return p.client.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(api.Manager))
}

// createPod makes the pod. If this process dies before the pod is recorded, the
// next finds it by its name and owner.
func (p *Provider) createPod(ctx context.Context, o *api.OffloadedPod) error {
	if p.fenced(o.Spec.Contract, p.inv.space(o.Namespace)) {
		return errFenced
	}
	pod, err := makePod(o)
	if err != nil {
		return p.recordProblem(ctx, o, "TemplateInvalid", err.Error(), false)
	}
	// Ephemeral containers are added to a pod that is there. Without its hash it is
	// updated next, which adds them.
	if len(pod.Spec.EphemeralContainers) > 0 {
		pod.Spec.EphemeralContainers = nil
		delete(pod.Annotations, api.AnnotationHash)
	}
	err = p.client.Create(ctx, pod, client.FieldOwner(api.Manager))
	switch {
	case err == nil:
		if err = p.recordPod(ctx, o, pod); err == nil {
			p.named.Add(o)
		}
		return err
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("create pod: %w", err)
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsNotFound(err):
		p.trials.Forget(func(recent.Trial) bool { return true })
		return p.recordProblem(ctx, o, "Refused", "the provider's cluster does not take the pod: "+err.Error(), true)
	}
	return fmt.Errorf("create pod: %w", err)
}

// updatePod gives the pod what may change of a pod that runs.
func (p *Provider) updatePod(ctx context.Context, o *api.OffloadedPod) error {
	want, err := makePod(o)
	if err != nil {
		return p.recordProblem(ctx, o, "TemplateInvalid", err.Error(), false)
	}
	pod := &corev1.Pod{}
	if err := p.client.Get(ctx, client.ObjectKeyFromObject(want), pod); err != nil {
		return fmt.Errorf("look for pod: %w", err)
	}
	if string(pod.UID) != o.Status.PodUID {
		return fmt.Errorf("pod %s/%s was replaced", pod.Namespace, pod.Name)
	}
	// Before the hash, which says that all was done.
	if addEphemeral(&pod.Spec, want.Spec.EphemeralContainers) {
		err = p.client.SubResource("ephemeralcontainers").Update(ctx, pod, client.FieldOwner(api.Manager))
	}
	if err == nil {
		err = p.resize(ctx, pod, &want.Spec)
	}
	if err == nil {
		pod.Labels, pod.Annotations = want.Labels, want.Annotations
		setImages(pod.Spec.InitContainers, want.Spec.InitContainers)
		setImages(pod.Spec.Containers, want.Spec.Containers)
		if d := want.Spec.ActiveDeadlineSeconds; d != nil {
			pod.Spec.ActiveDeadlineSeconds = d
		}
		err = p.client.Update(ctx, pod, client.FieldOwner(api.Manager))
	}
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		return p.recordProblem(ctx, o, "UpdateRefused", "the provider's cluster does not take the change: "+err.Error(), true)
	}
	if err != nil {
		return fmt.Errorf("update pod: %w", err)
	}
	return nil
}

// addEphemeral adds the ephemeral containers that a pod does not have, and says
// whether there are such. None is ever changed or taken away.
func addEphemeral(s *corev1.PodSpec, want []corev1.EphemeralContainer) bool {
	added := false
	for _, c := range want {
		if !slices.ContainsFunc(s.EphemeralContainers, func(have corev1.EphemeralContainer) bool { return have.Name == c.Name }) {
			s.EphemeralContainers = append(s.EphemeralContainers, c)
			added = true
		}
	}
	return added
}

func setImages(have, want []corev1.Container) {
	images := make(map[string]string, len(want))
	for _, c := range want {
		images[c.Name] = c.Image
	}
	for i := range have {
		if image, ok := images[have[i].Name]; ok {
			have[i].Image = image
		}
	}
}

// recordPod writes down that there is the pod, and its phase; when it ended, its
// status for good.
func (p *Provider) recordPod(ctx context.Context, o *api.OffloadedPod, pod *corev1.Pod) error {
	o.Status.PodUID, o.Status.Phase = string(pod.UID), phaseOf(pod)
	o.Status.PodIPs = podIPs(pod)
	o.Status.Reason, o.Status.Message = "", ""
	if ended(pod.Status.Phase) {
		if err := keepStatus(o, pod.Status); err != nil {
			return err
		}
	}
	return p.writeStatus(ctx, o)
}

func keepStatus(o *api.OffloadedPod, s corev1.PodStatus) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	o.Status.PodStatus = &runtime.RawExtension{Raw: raw}
	return nil
}

// recordLost writes down that a pod went away here: by its last word, if it had
// ended, else as failed. It is not made again; whoever made it at home makes
// another.
func (p *Provider) recordLost(ctx context.Context, o *api.OffloadedPod) error {
	o.Status.PodIPs = nil
	if s, ok := p.inv.lastWords(o.Namespace, types.UID(o.Status.PodUID)); ok {
		o.Status.Phase, o.Status.Reason, o.Status.Message = s.Phase, "", ""
		if err := keepStatus(o, s); err != nil {
			return err
		}
		return p.writeStatus(ctx, o)
	}
	o.Status.Phase = corev1.PodFailed
	o.Status.Reason = "PodDeleted"
	o.Status.Message = "the pod was deleted or evicted in the provider's cluster, by its owner or its node; it is not run again"
	return p.writeStatus(ctx, o)
}

// recordProblem writes down why there is no pod, and with retry has it tried
// again.
func (p *Provider) recordProblem(ctx context.Context, o *api.OffloadedPod, reason, message string, retry bool) error {
	message = peering.Text(message, statusDetail)
	if o.Status.Reason != reason || o.Status.Message != message {
		o.Status.Reason, o.Status.Message = reason, message
		if o.Status.Phase == "" {
			o.Status.Phase = corev1.PodPending
		}
		if err := p.writeStatus(ctx, o); err != nil {
			return err
		}
	}
	if retry {
		return fmt.Errorf("%s: %s", reason, message)
	}
	return nil
}

func (p *Provider) writeStatus(ctx context.Context, o *api.OffloadedPod) error {
	if err := p.client.Status().Update(ctx, o, client.FieldOwner(api.Manager)); err != nil {
		return fmt.Errorf("record status: %w", err)
	}
	return nil
}
