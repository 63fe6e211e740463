package offload

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// checkClusterDomain says what is wrong with the domain of a consumer's cluster. None
// is the default one.
func checkClusterDomain(domain string) error {
	if domain == "" {
		return nil
	}
	if problems := validation.IsDNS1123Subdomain(domain); len(problems) > 0 || len(domain) > maxClusterDomain {
		return fmt.Errorf("clusterDomain %q is not a domain of at most %d characters in lower case; set cluster.domain of the consumer's chart", domain, maxClusterDomain)
	}
	return nil
}

// noteClusterDomain writes on a namespace which domain its cluster has.
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

// ClusterDomain returns the domain of the cluster that a namespace here is from.
func ClusterDomain(ns metav1.Object) string {
	if domain := ns.GetAnnotations()[api.AnnotationClusterDomain]; domain != "" && checkClusterDomain(domain) == nil {
		return domain
	}
	return peering.DefaultClusterDomain
}

// nameAsAtHome has a pod ask the resolver that knows the names of its home, if this
// cluster has one.
func (p *Provider) nameAsAtHome(t *podspec.Template, ns *corev1.Namespace, ref peering.ObjectRef) error {
	if p.cfg.Resolver == nil {
		return nil
	}
	server, err := p.cfg.Resolver()
	if err != nil {
		p.cfg.Log.Warn("pods of consumers wait for the resolver of names", "err", err)
		return refuse(peering.RefusedInternal, true, "%s: the provider's cluster cannot tell where its resolver of names is; its owner has to look at the agent's log", ref)
	}
	setResolver(&t.Spec, server, ns.Labels[api.LabelOriginNamespace], ClusterDomain(ns))
	return nil
}

// setResolver has a pod that would use the cluster's resolver use the one for consumers
// instead, with the search domains that it has at home. What the pod itself configures
// is added, as a kubelet does. Policies Default and None need no cluster's resolver.
func setResolver(s *corev1.PodSpec, server netip.Addr, namespace, domain string) {
	// On the host's network nobody can tell whose pod asks.
	if s.HostNetwork || s.DNSPolicy == corev1.DNSDefault || s.DNSPolicy == corev1.DNSNone {
		return
	}
	out := &corev1.PodDNSConfig{
		Nameservers: []string{server.String()},
		Searches:    []string{namespace + ".svc." + domain, "svc." + domain, domain},
		Options:     []corev1.PodDNSConfigOption{{Name: "ndots", Value: new("5")}},
	}
	if own := s.DNSConfig; own != nil {
		for _, server := range own.Nameservers {
			if len(out.Nameservers) < maxNameservers && !slices.Contains(out.Nameservers, server) {
				out.Nameservers = append(out.Nameservers, server)
			}
		}
		for _, search := range own.Searches {
			all := append(slices.Clip(out.Searches), search)
			if len(all) <= maxSearches && len(strings.Join(all, " ")) <= maxSearchBytes && !slices.Contains(out.Searches, search) {
				out.Searches = all
			}
		}
		for _, option := range own.Options {
			out.Options = slices.DeleteFunc(out.Options, func(o corev1.PodDNSConfigOption) bool { return o.Name == option.Name })
			out.Options = append(out.Options, option)
		}
	}
	s.DNSPolicy, s.DNSConfig = corev1.DNSNone, out
}
