package offload

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// checkClusterDomain returns what is wrong with the domain of a consumer's cluster. "" means the
// default domain.
func checkClusterDomain(domain string) error {
	if domain == "" {
		return nil
	}
	if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 || len(domain) > maxClusterDomain {
		return fmt.Errorf("clusterDomain %q is not a domain of at most %d characters in lower case; set cluster.domain of the consumer's chart", domain, maxClusterDomain)
	}
	return nil
}

// noteClusterDomain writes the domain of a namespace's cluster into its annotation.
func (p *Provider) noteClusterDomain(ctx context.Context, ns *corev1.Namespace, domain string) error {
	if ns.Annotations[api.AnnotationClusterDomain] == domain {
		return nil
	}
	before := ns.DeepCopy()
	setAnnotation(ns, api.AnnotationClusterDomain, domain)
	if domain == "" {
		delete(ns.Annotations, api.AnnotationClusterDomain)
	}
	if err := p.patch(ctx, ns, before); err != nil {
		return fmt.Errorf("note the cluster domain on namespace %s: %w", ns.Name, err)
	}
	return nil
}

// ClusterDomain returns the domain of the cluster from which a namespace here comes.
func ClusterDomain(ns metav1.Object) string {
	if domain := ns.GetAnnotations()[api.AnnotationClusterDomain]; domain != "" && checkClusterDomain(domain) == nil {
		return domain
	}
	return peering.DefaultClusterDomain
}

// nameAsAtHome makes a pod use the resolver for the names of its home, if this cluster has one.
func (p *Provider) nameAsAtHome(t *podspec.Template, ns *corev1.Namespace, ref peering.ObjectRef) error {
	if p.cfg.Resolver == nil {
		return nil
	}
	server, err := p.cfg.Resolver()
	if err != nil {
		p.cfg.Log.Warn("pods of consumers wait for the resolver of names", "err", err)
		return refuse(peering.RefusedInternal, true, "%s: the provider's cluster does not know where its resolver of names is; its owner has to look at the agent's log", ref)
	}
	podspec.SetResolver(&t.Spec, server, ns.Labels[api.LabelOriginNamespace], ClusterDomain(ns))
	return nil
}
