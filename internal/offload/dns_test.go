package offload

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

func TestSearchDomainsOfTheLongestNamesAreValid(t *testing.T) {
	t.Parallel()
	domain := strings.Repeat(strings.Repeat("d", 59)+".", 3)[:maxClusterDomain-1]
	if err := checkClusterDomain(domain); err != nil {
		t.Fatal(err)
	}
	var s corev1.PodSpec
	podspec.SetResolver(&s, netip.MustParseAddr("10.96.0.77"), strings.Repeat("n", apivalidation.DNS1123LabelMaxLength), domain)
	for _, search := range s.DNSConfig.Searches {
		if problems := apivalidation.IsDNS1123Subdomain(search); len(problems) > 0 {
			t.Errorf("%s: %s", search, problems)
		}
	}
	if all := strings.Join(s.DNSConfig.Searches, " "); len(all) > 2048 { // more are not valid
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
	eventually(t, "a pod that ended has none", ips(""))

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
