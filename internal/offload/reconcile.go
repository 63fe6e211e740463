package offload

import (
	"context"
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
	"github.com/entente-dev/entente/internal/offloadedpod"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/internal/recent"
	"github.com/entente-dev/entente/peering"
)

// podStep is what to do about an OffloadedPod.
type podStep uint8

const (
	// podWait: nothing.
	podWait podStep = iota
	// podAddFinalizer: add the finalizer, so that it cannot be deleted before its pod.
	podAddFinalizer
	// podCreate: create the pod.
	podCreate
	// podAdopt: record the pod, which an earlier process created.
	podAdopt
	// podUpdate: set the pod's labels, annotations and images.
	podUpdate
	// podRecount: check whether a pod that is being resized has its new resources.
	podRecount
	// podRecord: record the phase.
	podRecord
	// podLost: record that the pod was deleted without a request.
	podLost
	// podTaken: record that another pod has the name.
	podTaken
	// podDelete: delete the pod.
	podDelete
	// podRelease: remove the pod's finalizer, as its end is recorded, or cannot be any more.
	podRelease
	// podRemoveFinalizer: nothing runs; remove the finalizer, or keep it until home knows how the pod ended.
	podRemoveFinalizer
)

// decidePod returns what to do about an OffloadedPod. pod is the pod of its name; nil means that it
// certainly does not exist.
//
//	OffloadedPod       no pod        its pod             another's pod
//	new                create        adopt               taken, wait
//	made               lost (final)  update, record,     lost (final)
//	                                 recount
//	ended              wait          release, then wait  wait
//	being deleted      remove        delete, release,    remove
//	                                 then wait
//
// A pod that is being deleted and whose OffloadedPod is gone, or records another pod, is released first. One that
// its OffloadedPod does not record, as two agents each created one at a hand-over, goes before the other is lost: home
// replaces that at once.
func decidePod(o *api.OffloadedPod, pod *corev1.Pod) podStep {
	mine := pod != nil && offloadedpod.IsPodOf(pod, o) && (o.Status.PodUID == "" || o.Status.PodUID == string(pod.UID))
	if pod != nil && controllerutil.ContainsFinalizer(pod, api.Finalizer) && (mine && releasable(o, pod) || pod.DeletionTimestamp != nil && !mine) {
		return podRelease
	}
	if o.DeletionTimestamp != nil {
		switch {
		case !mine:
			return podRemoveFinalizer
		case pod.DeletionTimestamp == nil || shorter(o, pod):
			return podDelete
		}
		return podWait
	}
	switch {
	case !live(o):
		return podWait
	case !controllerutil.ContainsFinalizer(o, api.Finalizer):
		return podAddFinalizer
	case o.Status.PodUID == "" && pod == nil:
		return podCreate
	case o.Status.PodUID == "" && mine:
		return podAdopt
	case o.Status.PodUID == "":
		return podTaken
	case !mine && pod != nil && offloadedpod.IsPodOf(pod, o):
		if pod.DeletionTimestamp == nil {
			return podDelete
		}
		return podWait
	case !mine:
		return podLost
	case pod.DeletionTimestamp == nil && pod.Annotations[api.AnnotationHash] != o.Spec.Hash:
		return podUpdate
	case phaseOf(pod) != o.Status.Phase || o.Status.Reason != "" || !slices.Equal(podIPs(pod), o.Status.PodIPs):
		return podRecord
	case mayBeResized(o, pod):
		return podRecount
	}
	return podWait
}

// phaseOf returns a pod's phase; a new pod without one is pending.
func phaseOf(pod *corev1.Pod) corev1.PodPhase {
	if pod.Status.Phase == "" {
		return corev1.PodPending
	}
	return pod.Status.Phase
}

// podIPs returns the addresses that only this pod has, until it ends.
func podIPs(pod *corev1.Pod) (out []string) {
	if ended(pod.Status.Phase) || pod.Spec.HostNetwork {
		return nil
	}
	for _, ip := range pod.Status.PodIPs {
		out = append(out, ip.IP)
	}
	return out
}

// grace returns the grace period with which to delete a pod; nil means the pod's own.
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

// shorter reports whether a pod that is being deleted has to end sooner than it would.
func shorter(o *api.OffloadedPod, pod *corev1.Pod) bool {
	g := grace(o)
	return g != nil && pod.DeletionGracePeriodSeconds != nil && *g < *pod.DeletionGracePeriodSeconds
}

// Reconcile creates, updates or deletes the pod of one OffloadedPod. Run calls it. A write that has
// to wait is requeued, and the worker goes on to the pods of other peers.
func (p *Provider) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	err := p.writeHomeIPs(ctx, req.NamespacedName)
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

// reconcileSeen does what can be decided from the cache alone: nothing, for most changes of a
// running pod; recording its phase, in the version of the cache; or deleting the pod with the UID
// of the cache. Every other step reads the object itself first. If the cache is behind, a later
// event reconciles the pod again.
func (p *Provider) reconcileSeen(ctx context.Context, key types.NamespacedName) (done bool, err error) {
	if !p.inv.known() {
		return false, nil
	}
	seen := p.inv.offloaded(key)
	if seen == nil || seen.Status.PodUID != "" {
		p.named.Forget(key)
	}
	if seen == nil {
		return true, p.releaseOrphan(paced.Urgent(ctx), key)
	}
	pod, _ := p.inv.pod(key.Namespace, key.Name)
	switch decidePod(seen, pod) { //nolint:exhaustive // every other step reads the object itself
	case podWait:
		return true, nil
	case podAdopt:
		if p.named.Has(key, pod.UID) {
			return true, nil // the cache is behind, and a later event follows
		}
	case podDelete:
		return true, p.deleteRunning(paced.Urgent(ctx), seen, pod)
	case podRelease:
		if err := p.releasePod(paced.Urgent(ctx), seen.DeepCopy(), pod); !apierrors.IsConflict(err) {
			return true, client.IgnoreNotFound(err)
		}
	case podRemoveFinalizer:
		// A deletion timestamp is never removed. The API server has to be asked whether the pod exists,
		// unless it ended before it was deleted: then nothing runs, even if the cache is behind.
		if _, over := p.inv.endedLast(seen.Namespace, types.UID(seen.Status.PodUID)); pod != nil || !over {
			if pod, err := p.currentPod(ctx, seen); err != nil || decidePod(seen, pod) != podRemoveFinalizer {
				return err != nil, err
			}
		}
		if err := p.removeFinalizer(paced.Urgent(ctx), seen.DeepCopy()); !apierrors.IsConflict(err) {
			return true, err
		}
	case podRecord:
		// If the object changed since, the API server refuses the write.
		if err := p.recordPod(ctx, seen.DeepCopy(), pod); !apierrors.IsConflict(err) {
			return true, client.IgnoreNotFound(err)
		}
	}
	// A pod that would have to wait in the end is not read first.
	if seen.DeletionTimestamp == nil && seen.Status.PodUID == "" {
		if err := p.client.Room(peering.ClusterID(seen.Spec.PeerID)); err != nil {
			return true, err
		}
	}
	return false, nil
}

// step does the next step for an OffloadedPod.
func (p *Provider) step(ctx context.Context, o *api.OffloadedPod, pod *corev1.Pod) error {
	switch decidePod(o, pod) {
	case podAddFinalizer:
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
			"a pod %s/%s that is not the consumer's exists already; the provider has to delete or rename it", pod.Namespace, pod.Name), true)
	case podLost:
		return p.recordLost(ctx, o)
	case podDelete:
		return p.deleteRunning(ctx, o, pod)
	case podWait:
	case podRelease:
		return client.IgnoreNotFound(p.releasePod(paced.Urgent(ctx), o, pod))
	case podRemoveFinalizer:
		return p.removeFinalizer(ctx, o)
	}
	return nil
}

// removeFinalizer removes the finalizer of an OffloadedPod that is being deleted and has no pod, unless home
// has to learn its end first.
func (p *Provider) removeFinalizer(ctx context.Context, o *api.OffloadedPod) error {
	if kept, err := p.keepEnd(ctx, o); kept || err != nil {
		return client.IgnoreNotFound(err)
	}
	// This comes before the delete: the watch reports that later, and an apply in between would
	// find nothing, and run the pod again.
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

// currentPod returns the pod of the OffloadedPod's name; nil means that it certainly does not
// exist, as the API server is asked if the cache does not have it. It is not asked for a pod that
// is yet to be created and had no problem so far: creating the pod shows whether it exists.
func (p *Provider) currentPod(ctx context.Context, o *api.OffloadedPod) (*corev1.Pod, error) {
	pod, known := p.inv.pod(o.Namespace, o.Name)
	if pod != nil && string(pod.UID) == o.Status.PodUID {
		return pod, nil
	}
	if pod == nil && known && o.DeletionTimestamp == nil && o.Status.PodUID == "" && o.Status.Reason == "" {
		return nil, nil //nolint:nilnil // nil means no pod
	}
	return p.askPod(ctx, o)
}

// askPod reads the pod of the OffloadedPod's name from the API server; nil means that it does not exist.
func (p *Provider) askPod(ctx context.Context, o *api.OffloadedPod) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := p.client.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, pod)
	switch {
	case err == nil:
		return pod, nil
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // nil means no pod
	case apierrors.IsForbidden(err) && o.DeletionTimestamp != nil && p.terminating(ctx, o.Namespace):
		// This cluster's owner deletes the namespace, and our right to read it went first. Its pods
		// are deleted with it, whatever we do.
		return nil, nil //nolint:nilnil // nil means no pod
	}
	return nil, fmt.Errorf("look for pod: %w", err)
}

// terminating reports whether a namespace is certainly being deleted, or gone.
func (p *Provider) terminating(ctx context.Context, name string) bool {
	ns := &corev1.Namespace{}
	if err := p.client.Get(ctx, types.NamespacedName{Name: name}, ns); err != nil {
		return apierrors.IsNotFound(err)
	}
	return ns.DeletionTimestamp != nil
}

// patch writes metadata, unless the object changed in the meantime.
func (p *Provider) patch(ctx context.Context, o, before client.Object) error {
	return p.client.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(api.Manager))
}

// createPod creates the pod. If this process dies before the pod is recorded, the next one finds it
// by its name and owner.
func (p *Provider) createPod(ctx context.Context, o *api.OffloadedPod) error {
	if p.fenced(o.Spec.Contract, p.inv.space(o.Namespace)) {
		return errFenced
	}
	pod, err := makePod(o)
	if err != nil {
		return p.recordProblem(ctx, o, "TemplateInvalid", err.Error(), false)
	}
	// Ephemeral containers can only be added to a pod that exists. Without its hash it is updated
	// next, which adds them.
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

// updatePod writes those fields of the pod that may change while it runs.
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
	// Before the hash, which shows that everything was done.
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

// addEphemeral adds the ephemeral containers that a pod does not have, and reports whether there
// were any. None is ever changed or removed.
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

// recordPod records that the pod exists, and its phase; once it has ended, its final status too.
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
	raw, err := podstatus.Encode(&s)
	if err != nil {
		return err //nolint:wrapcheck // it says what it is about
	}
	o.Status.PodStatus = &runtime.RawExtension{Raw: raw}
	return nil
}

// recordLost records that a pod was deleted here: with its last status if it had ended, otherwise
// as failed. It is not created again; its controller at home creates another.
func (p *Provider) recordLost(ctx context.Context, o *api.OffloadedPod) error {
	o.Status.PodIPs = nil
	if s, ok := p.inv.endedLast(o.Namespace, types.UID(o.Status.PodUID)); ok {
		o.Status.Phase, o.Status.Reason, o.Status.Message = s.Phase, "", ""
		if err := keepStatus(o, s); err != nil {
			return err
		}
		return p.writeStatus(ctx, o)
	}
	o.Status.Phase, o.Status.Reason, o.Status.Message = corev1.PodFailed, podstatus.ReasonPodDeleted, podstatus.MessagePodDeleted
	return p.writeStatus(ctx, o)
}

// recordProblem records why there is no pod, and with retry returns an error so that it is tried
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
