package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

func nodeWith(name, external, internal string, isReady bool) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if external != "" {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: external})
	}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: internal})
	status := corev1.ConditionFalse
	if isReady {
		status = corev1.ConditionTrue
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return n
}

func TestServiceEndpointsFollowTheServiceType(t *testing.T) {
	t.Parallel()
	service := func(kind corev1.ServiceType, ingress ...corev1.LoadBalancerIngress) *corev1.Service {
		return &corev1.Service{
			Spec:   corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Name: "other", Port: 1}, {Name: "peer", Port: 7443, NodePort: 30743}}},
			Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: ingress}},
		}
	}
	virtual := nodeWith("v", "", "10.0.0.9", true)
	virtual.Labels = map[string]string{v1alpha1.LabelVirtualNode: "true"}
	var many []corev1.Node
	for i := range 20 {
		many = append(many, nodeWith(string(rune('a'+i)), "", netip.AddrFrom4([4]byte{10, 0, 1, byte(i)}).String(), true))
	}
	both := nodeWith("a", "", "10.0.0.1", true)
	both.Status.Addresses = append(both.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "fd00::1"})
	of := func(families ...corev1.IPFamily) *corev1.Service {
		s := service(corev1.ServiceTypeNodePort)
		s.Spec.IPFamilies = families
		return s
	}
	for name, tc := range map[string]struct {
		service *corev1.Service
		nodes   []corev1.Node
		count   int
		want    []string
	}{
		"a NodePort is dialled at each ready node": {
			service: service(corev1.ServiceTypeNodePort),
			nodes:   []corev1.Node{nodeWith("b", "", "10.0.0.2", true), nodeWith("a", "", "10.0.0.1", true), nodeWith("c", "", "10.0.0.3", false), virtual},
			want:    []string{"10.0.0.1:30743", "10.0.0.2:30743"},
		},
		"external addresses go before internal ones": {
			service: service(corev1.ServiceTypeNodePort), nodes: []corev1.Node{nodeWith("a", "192.0.2.1", "10.0.0.1", true)}, want: []string{"192.0.2.1:30743"},
		},
		"IPv6 is bracketed": {service: service(corev1.ServiceTypeNodePort), nodes: []corev1.Node{nodeWith("a", "", "fd00::1", true)}, want: []string{"[fd00::1]:30743"}},
		"a Service of one family is dialled at addresses of that": {service: of(corev1.IPv6Protocol), nodes: []corev1.Node{both}, want: []string{"[fd00::1]:30743"}},
		"one of both at each": {
			service: of(corev1.IPv4Protocol, corev1.IPv6Protocol), nodes: []corev1.Node{both}, want: []string{"10.0.0.1:30743", "[fd00::1]:30743"},
		},
		"a load balancer is dialled at its own port": {
			service: service(corev1.ServiceTypeLoadBalancer, corev1.LoadBalancerIngress{IP: "192.0.2.7"}, corev1.LoadBalancerIngress{Hostname: "lb.example"}),
			want:    []string{"192.0.2.7:7443", "lb.example:7443"},
		},
		"a ClusterIP cannot be dialled":         {service: service(corev1.ServiceTypeClusterIP), nodes: many},
		"as many as a peer may be sent":         {service: service(corev1.ServiceTypeNodePort), nodes: many, count: peering.MaxEndpoints},
		"a Service without our port is nothing": {service: &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}}, nodes: many},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ServiceEndpoints(tc.service, tc.nodes)
			if tc.count > 0 {
				if len(got) != tc.count {
					t.Errorf("%d endpoints, want %d", len(got), tc.count)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAddressesAreTranslatedByTheAliasesOfBothSides(t *testing.T) {
	t.Parallel()
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "milan"}}
	fc.Spec.ClusterID = "p"
	fc.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.240.0.0/16"}}
	fc.Status.Network = &v1alpha1.PeerNetwork{Aliases: []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.250.0.0/16"}}}
	fc.Status.AliasBlocks = []v1alpha1.AliasBlock{{Alias: "10.248.0.4/30", Addresses: []string{"", "192.168.5.1", "", "10.201.0.7"}}}
	a := &addresses{client: indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc))}
	for name, tc := range map[string]struct {
		translate func(peering.ClusterID, netip.Addr) (netip.Addr, bool)
		peer      peering.ClusterID
		in, want  string
	}{
		"the peer's pod at home":              {translate: a.home, peer: "p", in: "10.200.3.4", want: "10.240.3.4"},
		"a pod that is known by itself":       {translate: a.home, peer: "p", in: "10.201.0.7", want: "10.248.0.7"},
		"a host that is known by itself":      {translate: a.home, peer: "p", in: "192.168.5.1", want: "10.248.0.5"},
		"its neighbour is not":                {translate: a.home, peer: "p", in: "10.201.0.8"},
		"an address that is not the peer's":   {translate: a.home, peer: "p", in: "10.9.3.4"},
		"this cluster's, as the peer has it":  {translate: a.own, peer: "p", in: "10.250.3.4", want: "10.200.3.4"},
		"another's, as this cluster has it":   {translate: a.own, peer: "p", in: "10.240.3.4"},
		"a stranger knows none of this one's": {translate: a.own, peer: "x", in: "10.250.3.4"},
		"a stranger has no addresses":         {translate: a.home, peer: "x", in: "10.200.3.4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := tc.translate(tc.peer, netip.MustParseAddr(tc.in))
			if ok != (tc.want != "") || (ok && got.String() != tc.want) {
				t.Errorf("%s is %s (%t), want %q", tc.in, got, ok, tc.want)
			}
		})
	}
}

// Home gives each of a provider's prefixes an alias, also those of a family that no pod at home has.
func TestPodsAbroadHaveAddressesOfFamiliesThatPodsOfHomeHave(t *testing.T) {
	t.Parallel()
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "milan"}}
	fc.Spec.ClusterID = "p"
	fc.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.240.0.0/16"}, {Prefix: "fd00:200::/48", Alias: "fd00:240::/48"}}
	for name, tc := range map[string]struct {
		home []string
		err  error
		want []string
	}{
		"home has IPv6":         {home: []string{"fd00:1::/48"}, want: []string{"fd00:240::7"}},
		"home has IPv4":         {home: []string{"10.1.0.0/16", "10.2.0.0/16"}, want: []string{"10.240.3.4"}},
		"home has both":         {home: []string{"10.1.0.0/16", "fd00:1::/48"}, want: []string{"10.240.3.4", "fd00:240::7"}},
		"home's pods have none": {want: []string{"10.240.3.4", "fd00:240::7"}},
		"home's are not known":  {err: errors.New("no response"), want: []string{"10.240.3.4", "fd00:240::7"}},
		"home's cannot be read": {home: []string{"fd00:1::/48"}, err: errors.New("no response"), want: []string{"10.240.3.4", "fd00:240::7"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &addresses{
				client: indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc)),
				pods:   func() ([]netip.Prefix, error) { return kube.Prefixes(tc.home), tc.err },
			}
			var got []string
			for _, there := range []string{"10.200.3.4", "fd00:200::7", "10.9.3.4"} {
				if home, ok := a.reached("p", netip.MustParseAddr(there)); ok {
					got = append(got, home.String())
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("addresses at home (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod abroad that asks for its addresses at home waits for each, and not for one of a family that home does not have.
func TestAPeerKnowsNoPodsOfFamiliesThatItDoesNotHave(t *testing.T) {
	t.Parallel()
	ours := []v1alpha1.PrefixAlias{{Prefix: "10.1.0.0/16", Alias: "10.250.0.0/16"}, {Prefix: "fd00:1::/48", Alias: "fd00:250::/48"}}
	for name, tc := range map[string]struct {
		theirs []v1alpha1.PrefixAlias
		only4  bool // our pods have no IPv6
		v4, v6 string
	}{
		"it has IPv6":              {theirs: []v1alpha1.PrefixAlias{{Prefix: "fd00:200::/48", Alias: "fd00:240::/48"}}, v4: "invalid IP true", v6: "fd00:250::7 true"},
		"it has both":              {theirs: []v1alpha1.PrefixAlias{{Prefix: "fd00:200::/48", Alias: "fd00:240::/48"}, {Prefix: "10.200.0.0/16", Alias: "10.240.0.0/16"}}, v4: "10.250.3.4 true", v6: "fd00:250::7 true"},
		"it has none yet":          {v4: "10.250.3.4 true", v6: "fd00:250::7 true"},
		"it has no family of ours": {theirs: []v1alpha1.PrefixAlias{{Prefix: "fd00:200::/48", Alias: "fd00:240::/48"}}, only4: true, v4: "10.250.3.4 true", v6: "invalid IP false"},
		"it has IPv4 only":         {theirs: []v1alpha1.PrefixAlias{{Prefix: "10.200.0.0/16", Alias: "10.240.0.0/16"}}, v4: "10.250.3.4 true", v6: "invalid IP true"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "rome"}}
			fc.Spec.ClusterID, fc.Status.Aliases, fc.Status.Network = "p", tc.theirs, &v1alpha1.PeerNetwork{Aliases: ours}
			if tc.only4 {
				fc.Status.Network.Aliases = ours[:1]
			}
			a := &addresses{client: indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(fc))}
			for own, want := range map[string]string{"10.1.3.4": tc.v4, "fd00:1::7": tc.v6} {
				if got, ok := a.knownAs("p", netip.MustParseAddr(own)); fmt.Sprint(got, ok) != want {
					t.Errorf("it knows %s as %s %t, want %s", own, got, ok, want)
				}
			}
		})
	}
}

func TestALostLeaseSaysWhatHappened(t *testing.T) {
	t.Parallel()
	a := &agent{cfg: Config{Namespace: "entente-system"}}
	other := errors.New("the disk is full")
	if a.leaseLost(nil) != nil || a.leaseLost(other) != other { //nolint:errorlint // the same, not one like it
		t.Error("another end is taken for a lost lease")
	}
	lost := errors.New("leader election lost")
	err := a.leaseLost(lost)
	if !errors.Is(err, lost) || !strings.Contains(err.Error(), "entente-system/entente-agent") || !strings.Contains(err.Error(), "restarted") {
		t.Errorf("the error is %v", err)
	}
}

// indexed builds a client with the indexes of the agent's cache.
func indexed(b *fake.ClientBuilder) ctrlclient.WithWatch {
	for _, i := range store.Indexes() {
		b = b.WithIndex(i.Object, i.Field, i.Values)
	}
	return b.Build()
}
