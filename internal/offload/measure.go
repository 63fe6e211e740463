package offload

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/internal/offloadedpod"
	"github.com/entente-dev/entente/internal/podmetrics"
	"github.com/entente-dev/entente/peering"
)

// Running returns the running pods of a contract.
func (p *Provider) Running(ctx context.Context, contract string) ([]podmetrics.Pod, error) {
	if err := p.await(ctx); err != nil {
		return nil, err
	}
	var out []podmetrics.Pod
	for _, o := range p.inv.of(contract) {
		pod, _ := p.inv.pod(o.Namespace, o.Name)
		// Another pod with its name is not the consumer's to measure.
		if pod == nil || !offloadedpod.IsPodOf(pod, o) || pod.Status.StartTime == nil || ended(pod.Status.Phase) {
			continue
		}
		out = append(out, podmetrics.Pod{
			UID: o.Spec.OriginUID, Namespace: pod.Namespace, Name: pod.Name, Started: pod.Status.StartTime.Time,
			Containers: offloadedpod.Containers(o),
		})
	}
	return out, nil
}

// runningPod returns the pod here that runs the consumer's pod ref, or a NotFound error. If a container is
// named, it has to be one that the consumer sent.
func (p *Provider) runningPod(ctx context.Context, contract string, ref peering.ObjectRef, container string) (types.NamespacedName, error) {
	var none types.NamespacedName
	if err := p.await(ctx); err != nil {
		return none, err
	}
	for _, o := range p.inv.of(contract) {
		if o.Spec.OriginUID != ref.UID || o.Spec.OriginNamespace != ref.Namespace || o.Spec.OriginName != ref.Name {
			continue
		}
		key := types.NamespacedName{Namespace: o.Namespace, Name: o.Name}
		pod := &corev1.Pod{}
		if err := p.client.Get(ctx, key, pod); err != nil {
			return none, fmt.Errorf("look for pod: %w", err)
		}
		// Another pod with its name is not the consumer's to look into.
		if !offloadedpod.IsPodOf(pod, o) {
			break
		}
		if container != "" {
			return key, offloadedpod.CheckContainer(o, container)
		}
		return key, nil
	}
	return none, apierrors.NewNotFound(corev1.Resource("pods"), ref.Name)
}
