package offload

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
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
			setResolver(got, netip.MustParseAddr("10.96.0.77"), "shop", "home.example")
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestSearchDomainsOfTheLongestNamesAreValid(t *testing.T) {
	t.Parallel()
	domain := strings.Repeat(strings.Repeat("d", 59)+".", 3)[:maxClusterDomain-1]
	if err := checkClusterDomain(domain); err != nil {
		t.Fatal(err)
	}
	var s corev1.PodSpec
	setResolver(&s, netip.MustParseAddr("10.96.0.77"), strings.Repeat("n", apivalidation.DNS1123LabelMaxLength), domain)
	for _, search := range s.DNSConfig.Searches {
		if problems := apivalidation.IsDNS1123Subdomain(search); len(problems) > 0 {
			t.Errorf("%s: %s", search, problems)
		}
	}
	if all := strings.Join(s.DNSConfig.Searches, " "); len(all) > maxSearchBytes {
		t.Errorf("search domains have %d characters", len(all))
	}
}

func TestClusterDomainsAreDomains(t *testing.T) {
	t.Parallel()
	for domain, ok := range map[string]bool{
		"": true, "cluster.local": true, "a": true, "K8s.example": false, "a..b": false, ".": false, "x y": false, "a.": false, "_x.example": false,
		strings.Repeat("a.", maxClusterDomain/2): false, strings.Repeat("a.", maxClusterDomain/2) + "aa": false,
	} {
		if err := checkClusterDomain(domain); (err == nil) != ok {
			t.Errorf("checkClusterDomain(%q) = %v", domain, err)
		}
	}
}

// testNames is part of the suite.
func testNames(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	object := func(domain string) peering.Object {
		return thing(peering.KindNamespace, "", name, "uid-"+name, fmt.Sprintf(`{"mapping":"Suffixed","clusterDomain":%q}`, domain))
	}
	refused(t, p.Apply(t.Context(), id, object("Not A Domain")), peering.RefusedInvalid, false, "clusterDomain")
	ns := &corev1.Namespace{}
	for _, domain := range []string{"", "home.example", "other.example"} {
		apply(t, p, id, object(domain))
		if !c.get(t, "", name+"-aaaaaaaa", ns) || ns.Annotations[api.AnnotationClusterDomain] != domain {
			t.Errorf("the namespace is annotated with %q; want %q", ns.Annotations[api.AnnotationClusterDomain], domain)
		}
	}
	eventually(t, "the domain is seen", func() bool {
		seen := matchNamespace(p.inv.namespaces(), peerA, name, "")
		return seen != nil && ClusterDomain(seen) == "other.example"
	})
	apply(t, p, id, podObject(name, "web-0", "100m"))
	pod := &corev1.Pod{}
	eventually(t, "the pod is made", func() bool { return c.get(t, ns.Name, "web-0", pod) })
	if pod.Spec.DNSPolicy != corev1.DNSNone || pod.Spec.DNSConfig.Nameservers[0] != "10.96.0.77" ||
		pod.Spec.DNSConfig.Searches[0] != name+".svc.other.example" {
		t.Errorf("the pod resolves with %s, %+v", pod.Spec.DNSPolicy, pod.Spec.DNSConfig)
	}

	// Its address is recorded while it has one.
	ips := func(want string) func() bool {
		return func() bool {
			o := &api.OffloadedPod{}
			return c.get(t, ns.Name, "web-0", o) && strings.Join(o.Status.PodIPs, " ") == want
		}
	}
	c.setPhase(t, ns.Name, "web-0", corev1.PodRunning, "10.244.0.9")
	eventually(t, "the address is recorded", ips("10.244.0.9"))
	c.setPhase(t, ns.Name, "web-0", corev1.PodRunning, "10.244.0.10")
	eventually(t, "another address is recorded", ips("10.244.0.10"))
	c.setPhase(t, ns.Name, "web-0", corev1.PodSucceeded, "10.244.0.10")
	eventually(t, "of a pod that ended there is none", ips(""))

	// Where the resolver cannot be found, pods wait rather than ask another.
	p.cfg.Resolver = func() (netip.Addr, error) { return netip.Addr{}, errors.New("no such Service") }
	refused(t, p.Apply(t.Context(), id, podObject(name, "web-1", "100m")), peering.RefusedInternal, true, "resolver")
	p.cfg.Resolver = nil
	apply(t, p, id, podObject(name, "web-2", "100m"))
	eventually(t, "a pod is made without a resolver", func() bool { return c.get(t, ns.Name, "web-2", pod) })
	if pod.Spec.DNSPolicy != corev1.DNSClusterFirst && pod.Spec.DNSPolicy != "" {
		t.Errorf("without a resolver for consumers the pod resolves with %s", pod.Spec.DNSPolicy)
	}
}
