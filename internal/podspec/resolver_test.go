package podspec

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestPodsThatUseTheClustersResolverUseTheOneForConsumers(t *testing.T) {
	t.Parallel()
	options := func(kv ...string) (out []corev1.PodDNSConfigOption) {
		for i := 0; i < len(kv); i += 2 {
			out = append(out, corev1.PodDNSConfigOption{Name: kv[i], Value: new(kv[i+1])})
		}
		return out
	}
	home := []string{"shop.svc.home.example", "svc.home.example", "home.example"}
	plain := corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{
		Nameservers: []string{"10.96.0.77"}, Searches: home, Options: options("ndots", "5"),
	}}
	own := &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.53"}, Searches: []string{"corp.example"}, Options: options("ndots", "1")}
	many := &corev1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}}
	for i := range 31 {
		many.Searches = append(many.Searches, fmt.Sprintf("d%d.%s.example", i, strings.Repeat("x", 40)))
	}
	for what, tc := range map[string]struct{ in, want corev1.PodSpec }{
		"by default":                       {corev1.PodSpec{}, plain},
		"ClusterFirst":                     {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirst}, plain},
		"ClusterFirstWithHostNet without":  {corev1.PodSpec{DNSPolicy: corev1.DNSClusterFirstWithHostNet}, plain},
		"not those of the node's resolver": {corev1.PodSpec{DNSPolicy: corev1.DNSDefault, DNSConfig: own}, corev1.PodSpec{DNSPolicy: corev1.DNSDefault, DNSConfig: own}},
		"not those with their own":         {corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: own}, corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: own}},
		"not those of the host's network": {
			corev1.PodSpec{HostNetwork: true, DNSPolicy: corev1.DNSClusterFirstWithHostNet},
			corev1.PodSpec{HostNetwork: true, DNSPolicy: corev1.DNSClusterFirstWithHostNet},
		},
		"with what they configure themselves": {
			corev1.PodSpec{DNSConfig: &corev1.PodDNSConfig{
				Nameservers: []string{"192.0.2.53", "10.96.0.77"}, Searches: []string{"corp.example", "svc.home.example"}, Options: options("ndots", "1", "timeout", "3"),
			}},
			corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{
				Nameservers: []string{"10.96.0.77", "192.0.2.53"}, Searches: append(home[:3:3], "corp.example"), Options: options("ndots", "1", "timeout", "3"),
			}},
		},
		"with as much of it as is valid": {
			corev1.PodSpec{DNSConfig: many},
			corev1.PodSpec{DNSPolicy: corev1.DNSNone, DNSConfig: &corev1.PodDNSConfig{
				Nameservers: []string{"10.96.0.77", "192.0.2.1", "192.0.2.2"}, Searches: append(home[:3:3], many.Searches[:29]...), Options: options("ndots", "5"),
			}},
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			got := tc.in.DeepCopy()
			SetResolver(got, netip.MustParseAddr("10.96.0.77"), "shop", "home.example")
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
