// Package slim reduces the objects in caches to what is read of them.
package slim

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/market"
)

// Pod reduces the pods in a cache to what is read of them: what they use and where, their addresses, whether they
// wait for a virtual node or for a node behind it, and their controllers. A cache has all pods of the cluster, and a peer influences
// how large the pods that run for it are: a few bytes of text can take a hundred times as much memory.
func Pod(o any) (any, error) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	slim := &corev1.Pod{
		TypeMeta: p.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Generation: p.Generation,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp, Labels: ownKeys(p.Labels),
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs},
	}
	if owner := metav1.GetControllerOf(p); owner != nil {
		slim.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if market.OffloadedBy(p) != "" {
		takes := market.Requests(p)
		delete(takes, corev1.ResourcePods)
		slim.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: takes}}}
		return slim, nil
	}
	if own, ok := p.Annotations[v1alpha1.AnnotationPodStrategy]; ok {
		slim.Annotations = map[string]string{v1alpha1.AnnotationPodStrategy: own}
	}
	slim.Spec.Overhead, slim.Spec.Resources = p.Spec.Overhead, p.Spec.Resources
	slim.Spec.Containers, slim.Spec.InitContainers = slimContainers(p.Spec.Containers), slimContainers(p.Spec.InitContainers)
	waits := unscheduledAbroad(p)
	if slim.Spec.NodeName == "" || waits {
		slim.Spec.Affinity, slim.Spec.NodeSelector = p.Spec.Affinity, p.Spec.NodeSelector
		slim.Spec.Volumes = slimVolumes(p.Spec.Volumes)
	}
	slim.Status.Resources, slim.Status.AllocatedResources = p.Status.Resources, p.Status.AllocatedResources
	slim.Status.ContainerStatuses, slim.Status.InitContainerStatuses = slimStatuses(p.Status.ContainerStatuses), slimStatuses(p.Status.InitContainerStatuses)
	for _, c := range p.Status.Conditions {
		own := corev1.PodCondition{Type: c.Type, Status: c.Status, Reason: c.Reason}
		if waits && c.Type == v1alpha1.PodOffloaded {
			own.LastTransitionTime = c.LastTransitionTime
		}
		slim.Status.Conditions = append(slim.Status.Conditions, own)
	}
	return slim, nil
}

// unscheduledAbroad reports whether a pod waits for a node of a provider.
func unscheduledAbroad(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == v1alpha1.PodOffloaded && c.Reason == corev1.PodReasonUnschedulable
	})
}

// slimVolumes keeps which claims a pod mounts.
func slimVolumes(in []corev1.Volume) (out []corev1.Volume) {
	for i := range in {
		if in[i].PersistentVolumeClaim != nil {
			out = append(out, corev1.Volume{Name: in[i].Name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: in[i].PersistentVolumeClaim}})
		}
	}
	return out
}

// ownKeys returns the labels of this project.
func ownKeys(in map[string]string) map[string]string {
	out := maps.Clone(in)
	maps.DeleteFunc(out, func(key, _ string) bool {
		return key != v1alpha1.LabelManaged && !strings.HasPrefix(key, v1alpha1.GroupVersion.Group+"/")
	})
	return out
}

func slimContainers(in []corev1.Container) (out []corev1.Container) {
	for i := range in {
		out = append(out, corev1.Container{Name: in[i].Name, Resources: in[i].Resources, RestartPolicy: in[i].RestartPolicy})
	}
	return out
}

// slimStatuses keeps of the statuses of containers what shows a resize.
func slimStatuses(in []corev1.ContainerStatus) (out []corev1.ContainerStatus) {
	for i := range in {
		if s := &in[i]; s.Resources != nil || s.AllocatedResources != nil {
			out = append(out, corev1.ContainerStatus{Name: s.Name, Resources: s.Resources, AllocatedResources: s.AllocatedResources})
		}
	}
	return out
}

// Service reduces the Services in a cache to what is announced of them, except for those of the agent's own
// namespace, which it needs completely.
func Service(own string) toolscache.TransformFunc {
	return func(o any) (any, error) {
		s, ok := o.(*corev1.Service)
		if !ok {
			return o, nil
		}
		s.ManagedFields = nil
		if s.Namespace == own {
			return s, nil
		}
		slim := &corev1.Service{
			TypeMeta: s.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{
				Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
				Labels: s.Labels, DeletionTimestamp: s.DeletionTimestamp,
			},
			Spec: corev1.ServiceSpec{
				Type: s.Spec.Type, SessionAffinity: s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
				InternalTrafficPolicy: s.Spec.InternalTrafficPolicy, TrafficDistribution: s.Spec.TrafficDistribution,
			},
		}
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			slim.Spec.ClusterIP = corev1.ClusterIPNone
		}
		for _, p := range s.Spec.Ports {
			slim.Spec.Ports = append(slim.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, AppProtocol: p.AppProtocol, Port: p.Port})
		}
		return slim, nil
	}
}

// Names is a cache's transform for objects of which only names and versions are needed: what a user applied is in
// an annotation of it.
func Names(object any) (any, error) {
	if m, ok := object.(metav1.Object); ok {
		m.SetAnnotations(nil)
		m.SetManagedFields(nil)
	}
	return object, nil
}
