package offload

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/ledger"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// subResize is the subresource by which the resources of a pod that runs change.
const subResize = "resize"

// resizePod has an OffloadedPod count the larger of what it takes and what it is to take, if the
// API server would give its pod that and the contract has room. What counts comes down again when
// the kubelet has acted, see recountPod.
func (p *Provider) resizePod(ctx context.Context, c Contract, o peering.Object, old *api.OffloadedPod, was, t *podspec.Template) (undo func(), err error) {
	resized, err := podspec.Resized(&was.Spec, &t.Spec)
	if err != nil {
		return nil, refuse(peering.RefusedInvalid, false, "%s: %v", o.Ref, err)
	}
	// What a class takes besides the containers is as it was when the pod was made.
	t.Spec.Overhead = was.Spec.Overhead
	need, err := podspec.Demand(&t.Spec)
	if err != nil {
		return nil, refuse(peering.RefusedInvalid, false, "%s: %v", o.Ref, err)
	}
	if !resized {
		// Whatever of a pod decides what it takes: nothing else than a resize changes that.
		if before, err := podspec.Demand(was.Spec.DeepCopy()); err != nil || !equality.Semantic.DeepEqual(need, before) {
			return nil, refuse(peering.RefusedInvalid, false, "%s takes other resources than before, though none of its containers asks for others; delete it", o.Ref)
		}
		return func() {}, nil
	}
	if err := p.tryResize(ctx, o.Ref, old, &t.Spec); err != nil {
		return nil, err
	}
	release, err := p.locks.Lock(ctx, "contract/"+old.Spec.Contract)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := p.settle(ctx, old.Spec.Contract); err != nil {
		return nil, err
	}
	most := podspec.Most(old.Spec.Requests, need)
	used, _ := p.ledger.Of(old.Spec.Contract)
	more := ledger.Minus(most, old.Spec.Requests)
	if refusal := fits(c.Resources, used, more); refusal != nil {
		return nil, refusal
	}
	undo = p.ledger.Grow(old, most)
	old.Spec.Requests = most
	setAnnotation(old, noteResizing, "true")
	return undo, nil
}

// tryResize asks the API server whether it would resize a pod, before room is kept for that. A pod
// that is not here is made as it is to be.
func (p *Provider) tryResize(ctx context.Context, ref peering.ObjectRef, o *api.OffloadedPod, want *corev1.PodSpec) error {
	pod, err := p.askPod(ctx, o)
	if err != nil || pod == nil || !isPodOf(pod, o) || !podspec.Resize(&pod.Spec, want) {
		return err
	}
	err = p.client.SubResource(subResize).Update(ctx, pod, client.DryRunAll, client.FieldOwner(api.Manager))
	switch {
	case notServed(err):
		return refuse(peering.RefusedInvalid, false, "%s: the provider's API server does not serve pods/resize, which it does from Kubernetes 1.33 on; delete the pod to run it with other resources", ref)
	case apierrors.IsInvalid(err):
		return refusalOf(err, ref)
	case apierrors.IsForbidden(err):
		return refuse(peering.RefusedInvalid, true, "the provider's cluster does not resize %s: %s", ref, peering.Text(err.Error(), statusDetail))
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return refuse(peering.RefusedInternal, true, "%s changes here at the moment; it is tried again", ref)
	}
	if err != nil {
		return fmt.Errorf("ask whether the pod can be resized: %w", err)
	}
	return nil
}

// notServed says whether an API server has no such subresource, as opposed to no such object.
func notServed(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) {
		return false
	}
	// An object that is not there is named, a path that is not served is not.
	return status.ErrStatus.Details == nil || status.ErrStatus.Details.Name == "" ||
		slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeUnexpectedServerResponse })
}

// resize gives a pod the CPU and memory that it is to have.
func (p *Provider) resize(ctx context.Context, pod *corev1.Pod, want *corev1.PodSpec) error {
	if !podspec.Resize(&pod.Spec, want) {
		return nil
	}
	return p.client.SubResource(subResize).Update(ctx, pod, client.FieldOwner(api.Manager))
}

// mayHaveSettled says whether a pod that is being resized may have what it asks for: it is as it
// was applied last, and no condition says that its kubelet has not acted.
func mayHaveSettled(o *api.OffloadedPod, pod *corev1.Pod) bool {
	if o.Annotations[noteResizing] == "" {
		return false
	}
	return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return podspec.ResizeCondition(c.Type) })
}

// recountPod has a pod count what it asks for, once its kubelet has acted.
func (p *Provider) recountPod(ctx context.Context, o *api.OffloadedPod) error {
	t, err := readPod(o.Spec.Template.Raw)
	if err != nil {
		return p.recordProblem(ctx, o, "TemplateInvalid", err.Error(), false)
	}
	// Not as the cache has it, which may show the pod before the resize.
	pod, err := p.askPod(ctx, o)
	if err != nil || pod == nil || string(pod.UID) != o.Status.PodUID || !podspec.Settled(&t.Spec, pod) {
		return err
	}
	need, err := podspec.Demand(&t.Spec)
	if err != nil {
		return p.recordProblem(ctx, o, "TemplateInvalid", err.Error(), false)
	}
	before := o.DeepCopy()
	delete(o.Annotations, noteResizing)
	if !equality.Semantic.DeepEqual(o.Spec.Requests, need) {
		o.Spec.Requests = need
	}
	return p.patch(ctx, o, before)
}
