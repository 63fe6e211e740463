package podspec

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// SetResolver makes a pod that would use the cluster's resolver use the one for consumers instead,
// with the search domains that it has at home. The pod's own DNS configuration is added, as a
// kubelet does. Pods with the policies Default and None do not use the cluster's resolver.
func SetResolver(s *corev1.PodSpec, server netip.Addr, namespace, domain string) {
	// On the host's network the resolver could not identify the pod.
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
