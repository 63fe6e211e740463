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
	"github.com/entente-dev/entente/internal/offloadedpod"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// subResize is the subresource that changes the resources of a running pod.
const subResize = "resize"

// resizePod makes an OffloadedPod count the larger of its old and new resources, if the API server
// would resize its pod and the contract has room. Once the kubelet has acted, recountPod counts the
// new ones alone.
func (p *Provider) resizePod(ctx context.Context, c Contract, o peering.Object, old *api.OffloadedPod, was, t *podspec.Template) (undo func(), err error) {
	resized, err := podspec.Resized(&was.Spec, &t.Spec)
	if err != nil {
		return nil, refuse(peering.RefusedInvalid, false, "%s: %v", o.Ref, err)
	}
	// The overhead of its class stays as it was when the pod was created.
	t.Spec.Overhead = was.Spec.Overhead
	need, err := podspec.Demand(&t.Spec)
	if err != nil {
		return nil, refuse(peering.RefusedInvalid, false, "%s: %v", o.Ref, err)
	}
	if !resized {
		// Only a resize may change what a pod uses, whichever field decides that.
		if before, err := podspec.Demand(was.Spec.DeepCopy()); err != nil || !equality.Semantic.DeepEqual(need, before) {
			return nil, refuse(peering.RefusedInvalid, false, "%s uses other resources than before, though none of its containers asks for others; delete it", o.Ref)
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
	if err := p.confirmReserved(ctx, old.Spec.Contract); err != nil {
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

// tryResize asks the API server by a dry run whether it would resize a pod, before the resources
// are reserved. A pod that does not exist here will be created in its new size.
func (p *Provider) tryResize(ctx context.Context, ref peering.ObjectRef, o *api.OffloadedPod, want *corev1.PodSpec) error {
	pod, err := p.askPod(ctx, o)
	if err != nil || pod == nil || !offloadedpod.IsPodOf(pod, o) || !podspec.Resize(&pod.Spec, want) {
		return err
	}
	err = p.client.SubResource(subResize).Update(ctx, pod, client.DryRunAll, client.FieldOwner(api.Manager))
	switch {
	case notServed(err):
		return refuse(peering.RefusedInvalid, false, "%s: the provider's API server does not serve pods/resize, which needs Kubernetes 1.33; delete the pod to run it with other resources", ref)
	case apierrors.IsInvalid(err):
		return refusalOf(err, ref)
	case apierrors.IsForbidden(err):
		return refuse(peering.RefusedInvalid, true, "the provider's cluster does not resize %s: %s", ref, peering.Text(err.Error(), statusDetail))
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return refuse(peering.RefusedInternal, true, "%s is being changed at the provider; it is tried again", ref)
	}
	if err != nil {
		return fmt.Errorf("try to resize the pod: %w", err)
	}
	return nil
}

// notServed reports whether an API server lacks the subresource, as opposed to the object.
func notServed(err error) bool {
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || !apierrors.IsNotFound(err) {
		return false
	}
	// The status names a missing object, but not a path that is not served.
	return status.ErrStatus.Details == nil || status.ErrStatus.Details.Name == "" ||
		slices.ContainsFunc(status.ErrStatus.Details.Causes, func(c metav1.StatusCause) bool { return c.Type == metav1.CauseTypeUnexpectedServerResponse })
}

// resize sets the CPU and memory of a pod.
func (p *Provider) resize(ctx context.Context, pod *corev1.Pod, want *corev1.PodSpec) error {
	if !podspec.Resize(&pod.Spec, want) {
		return nil
	}
	return p.client.SubResource(subResize).Update(ctx, pod, client.FieldOwner(api.Manager))
}

// mayBeResized reports whether a pod that is being resized may have its new resources: it is as it
// was applied last, and no condition says that its kubelet has not acted.
func mayBeResized(o *api.OffloadedPod, pod *corev1.Pod) bool {
	if o.Annotations[noteResizing] == "" {
		return false
	}
	return !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return podspec.ResizeCondition(c.Type) })
}

// recountPod counts a pod's new resources alone, once its kubelet has acted.
func (p *Provider) recountPod(ctx context.Context, o *api.OffloadedPod) error {
	t, err := readPod(o.Spec.Template.Raw)
	if err != nil {
		return p.recordProblem(ctx, o, "TemplateInvalid", err.Error(), false)
	}
	// Not from the cache, which may show the pod before the resize.
	pod, err := p.askPod(ctx, o)
	if err != nil || pod == nil || string(pod.UID) != o.Status.PodUID || !podspec.ResizeDone(&t.Spec, pod) {
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
