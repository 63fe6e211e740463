// Package kube has what the parts that read the API server have in common: its kinds, their relevant changes, and
// the addresses in them.
package kube

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Scheme returns a scheme with Kubernetes' kinds, ours, and those of the Multi-Cluster Services
// API.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(s))
	utilruntime.Must(v1alpha1.AddToScheme(s))
	utilruntime.Must(mcs.Install(s))
	return s
}

// Addrs returns the texts that are addresses.
func Addrs(texts []string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// HasFamily reports whether a Service is reached at addresses of a host of this one's family. One that names no
// family yet may be of any.
func HasFamily(service *corev1.Service, address string) bool {
	a, err := netip.ParseAddr(address)
	family := corev1.IPv4Protocol
	if a.Is6() {
		family = corev1.IPv6Protocol
	}
	return err != nil || len(service.Spec.IPFamilies) == 0 || slices.Contains(service.Spec.IPFamilies, family)
}

// Prefixes returns the texts that are prefixes.
func Prefixes(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}
