package homeapi

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// facts decide whether a pod abroad may call the API server of its home.
type facts struct {
	// pod is the calling pod on a virtual node of the provider, nil if no pod there has its UID.
	pod *corev1.Pod
	// offloading is the NamespaceOffloading of its namespace, or nil.
	offloading *v1alpha1.NamespaceOffloading
	// own is the agent's namespace.
	own string
	now time.Time
}

// refusal returns why the pod may not call, or nil if it may.
func (f facts) refusal() error {
	p := f.pod
	switch {
	case p == nil:
		return peering.Errorf(peering.ReasonPodUnknown, "no pod of that UID is on a virtual node of the caller's contract")
	case p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed:
		return peering.Errorf(peering.ReasonPodUnknown, "pod %s/%s has ended", p.Namespace, p.Name)
	// The deletion timestamp includes the grace period.
	case p.DeletionTimestamp != nil && f.now.After(p.DeletionTimestamp.Time):
		return peering.Errorf(peering.ReasonPodUnknown, "pod %s/%s was deleted", p.Namespace, p.Name)
	case p.Namespace == f.own || strings.HasPrefix(p.Namespace, "kube-"):
		return peering.Errorf(peering.ReasonPolicyRefused, "ServiceAccounts of namespace %s are never used for pods abroad", p.Namespace)
	case p.Annotations[v1alpha1.AnnotationHomeAPI] != "true":
		return peering.Errorf(peering.ReasonPolicyRefused, "pod %s/%s does not ask for its home's API: it has no annotation %s: \"true\"", p.Namespace, p.Name, v1alpha1.AnnotationHomeAPI)
	case f.offloading == nil || f.offloading.DeletionTimestamp != nil || f.offloading.Spec.HomeAPI != v1alpha1.HomeAPIAllowed:
		return peering.Errorf(peering.ReasonPolicyRefused, "namespace %s does not let its pods ask its home's API from abroad: its NamespaceOffloading has to say homeAPI: Allowed", p.Namespace)
	}
	return nil
}

// serviceAccount returns the name of a pod's ServiceAccount.
func serviceAccount(p *corev1.Pod) string {
	if p.Spec.ServiceAccountName == "" {
		return "default"
	}
	return p.Spec.ServiceAccountName
}
