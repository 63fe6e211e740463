package charttest

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// What can never be exported is refused before any component reads it, and the agent writes no
// more of an ExternalHost than its status.
func (c cluster) testExternalHosts(t *testing.T) {
	port := func(p int32) []v1alpha1.DestinationPort {
		return []v1alpha1.DestinationPort{{Protocol: "TCP", Port: p}}
	}
	for what, tc := range map[string]struct {
		spec v1alpha1.ExternalHostSpec
		want string // "" is that it is taken
	}{
		"both families":           {v1alpha1.ExternalHostSpec{Addresses: []string{"192.168.7.9", "2001:db8::9"}, Ports: port(5432)}, ""},
		"every port":              {v1alpha1.ExternalHostSpec{Addresses: []string{"2001:db8::9"}}, ""},
		"no address":              {v1alpha1.ExternalHostSpec{}, "Required value"},
		"three addresses":         {v1alpha1.ExternalHostSpec{Addresses: []string{"192.168.7.9", "2001:db8::9", "192.168.7.8"}}, "at most 2"},
		"two of one family":       {v1alpha1.ExternalHostSpec{Addresses: []string{"192.168.7.9", "192.168.7.8"}}, "at most one address of each family"},
		"a name":                  {v1alpha1.ExternalHostSpec{Addresses: []string{"db.example.com"}}, "canonical form"},
		"a prefix":                {v1alpha1.ExternalHostSpec{Addresses: []string{"192.168.7.0/24"}}, "canonical form"},
		"another spelling":        {v1alpha1.ExternalHostSpec{Addresses: []string{"2001:DB8::9"}}, "canonical form"},
		"IPv4 in IPv6":            {v1alpha1.ExternalHostSpec{Addresses: []string{"::ffff:192.168.7.9"}}, "canonical form"},
		"loopback":                {v1alpha1.ExternalHostSpec{Addresses: []string{"127.0.0.1"}}, "of the machine itself"},
		"loopback, IPv6":          {v1alpha1.ExternalHostSpec{Addresses: []string{"::1"}}, "of the machine itself"},
		"unspecified":             {v1alpha1.ExternalHostSpec{Addresses: []string{"0.0.0.0"}}, "of the machine itself"},
		"link-local, of metadata": {v1alpha1.ExternalHostSpec{Addresses: []string{"169.254.169.254"}}, "or of its link"},
		"link-local, IPv6":        {v1alpha1.ExternalHostSpec{Addresses: []string{"fe80::1"}}, "or of its link"},
		"no port":                 {v1alpha1.ExternalHostSpec{Addresses: []string{"192.168.7.9"}, Ports: port(0)}, "greater than or equal to 1"},
		"an unknown protocol":     {v1alpha1.ExternalHostSpec{Addresses: []string{"192.168.7.9"}, Ports: []v1alpha1.DestinationPort{{Protocol: "ICMP", Port: 1}}}, "supported values"},
	} {
		host := &v1alpha1.ExternalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name("host")}, Spec: tc.spec}
		err := c.admin.Create(t.Context(), host, client.DryRunAll)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s: %v", what, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s: %v, want it refused with %q", what, err, tc.want)
		}
	}
	host := &v1alpha1.ExternalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name("host")}, Spec: v1alpha1.ExternalHostSpec{Addresses: []string{"192.168.7.9"}}}
	c.create(t, host)
	agent := c.as(t, "entente-agent", nil)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"clusters":["milan"]},"status":{"clusters":[{"foreignCluster":"milan","addresses":["198.18.0.1"]}]}}`))
	if err := agent.Patch(t.Context(), host.DeepCopy(), patch); !apierrors.IsForbidden(err) {
		t.Errorf("the agent writes whom a host is exported to: %v", err)
	}
	if err := agent.Status().Patch(t.Context(), host, patch); err != nil || len(host.Status.Clusters) != 1 || len(host.Spec.Clusters) != 0 {
		t.Errorf("the agent does not write the status alone: %+v, %v", host, err)
	}
	if err := c.as(t, "entente-fabric", nil).Get(t.Context(), client.ObjectKeyFromObject(host), &v1alpha1.ExternalHost{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node reads external hosts: %v", err)
	}
}
