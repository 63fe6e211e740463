package offload

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
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
		if pod == nil || !isPodOf(pod, o) || pod.Status.StartTime == nil || ended(pod.Status.Phase) {
			continue
		}
		out = append(out, podmetrics.Pod{
			UID: o.Spec.OriginUID, Namespace: pod.Namespace, Name: pod.Name, Started: pod.Status.StartTime.Time,
			Containers: containersOf(o),
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
		if !isPodOf(pod, o) {
			break
		}
		if container != "" {
			return key, checkContainer(o, container)
		}
		return key, nil
	}
	return none, apierrors.NewNotFound(corev1.Resource("pods"), ref.Name)
}

// containersOf returns the names of the containers that a consumer sent of a pod. All others in the pod here were
// added by this cluster, as by a webhook of its mesh or by its administrators, and may have secrets of it.
func containersOf(o *api.OffloadedPod) []string {
	if len(o.Spec.Template.Raw) == 0 { // it is of the cache
		return strings.Split(o.Annotations[noteContainers], ",")
	}
	type named []struct{ Name string }
	var t struct {
		Spec struct{ Containers, InitContainers, EphemeralContainers named }
	}
	if json.Unmarshal(o.Spec.Template.Raw, &t) != nil {
		return nil // no pod is made of it either
	}
	var out []string
	for _, c := range slices.Concat(t.Spec.Containers, t.Spec.InitContainers, t.Spec.EphemeralContainers) {
		out = append(out, c.Name)
	}
	return out
}

// checkContainer refuses a container that the consumer did not send.
func checkContainer(o *api.OffloadedPod, name string) error {
	own := containersOf(o)
	if slices.Contains(own, name) {
		return nil
	}
	return peering.Errorf(peering.ReasonRequestInvalid, "container %s is not one of those with which pod %s/%s was sent: the provider's cluster added it, and gives no access to it, or there is none; its containers are %s",
		name, o.Spec.OriginNamespace, o.Spec.OriginName, strings.Join(slices.Sorted(slices.Values(own)), ", "))
}

// withoutAdded returns a pod's status without those of containers that the consumer did not send.
func withoutAdded(s corev1.PodStatus, o *api.OffloadedPod) corev1.PodStatus {
	own := containersOf(o)
	for _, list := range []*[]corev1.ContainerStatus{&s.InitContainerStatuses, &s.ContainerStatuses, &s.EphemeralContainerStatuses} {
		*list = slices.DeleteFunc(slices.Clone(*list), func(c corev1.ContainerStatus) bool { return !slices.Contains(own, c.Name) })
	}
	return s
}
