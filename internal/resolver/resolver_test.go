package resolver

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/charttest"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/names"
	"github.com/entente-dev/entente/internal/waittest"
)

func TestResolversAreThoseThatAPodCanAsk(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	text := "# a comment\nsearch lan shop.svc.k8s.example svc.k8s.example k8s.example\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver fd00::1\nnameserver\nnameserver x\nnameserver 0.0.0.0\noptions ndots:5\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := upstreams(file)
	want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[fd00::1]:53")}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" || err != nil {
		t.Errorf("resolvers: %v (-want +got):\n%s", err, diff)
	}
	if _, err := upstreams(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there has resolvers")
	}
}

func TestOnlyEndpointsThatTakeTrafficHaveNames(t *testing.T) {
	t.Parallel()
	got := nameEndpoints(&discoveryv1.EndpointSlice{
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(8080))}, {Protocol: new(corev1.ProtocolUDP), Port: new(int32(53))}, {Name: new("all")},
		},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, Hostname: new("web-0"), Conditions: discoveryv1.EndpointConditions{Ready: new(true)}},
			{Addresses: []string{"10.0.0.2"}},
			{Addresses: []string{"10.0.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true)}},
			{Addresses: []string{"web.example"}},
		},
	})
	ports := []names.Port{{Name: "http", Protocol: "tcp", Number: 8080}, {Protocol: "udp", Number: 53}}
	want := []names.Endpoint{
		{Address: netip.MustParseAddr("10.0.0.1"), Hostname: "web-0", Ports: ports},
		{Address: netip.MustParseAddr("10.0.0.2"), Ports: ports},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPodsAskFromTheirAddressesUntilTheyEnd(t *testing.T) {
	t.Parallel()
	for phase, want := range map[corev1.PodPhase]int{corev1.PodPending: 2, corev1.PodRunning: 2, corev1.PodSucceeded: 0, corev1.PodFailed: 0} {
		p := &v1alpha1.OffloadedPod{Status: v1alpha1.OffloadedPodStatus{Phase: phase, PodIPs: []string{"10.0.0.1", "fd00::1", "x"}}}
		if got := nameAddresses(p); len(got) != want {
			t.Errorf("%s: %v; want %d", phase, got, want)
		}
	}
}

// TestTheResolverOnARealAPIServer runs the resolver with the rights that the chart gives it, which
// suffice and allow nothing more.
func TestTheResolverOnARealAPIServer(t *testing.T) {
	server := charttest.StartAPIServer(t)
	owner, err := client.New(server.Owner, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	as := server.As("entente-dns")
	resolver, err := client.New(as, client.Options{Scheme: kube.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.SecretList{}, &corev1.ConfigMapList{}, &corev1.NodeList{}, &v1alpha1.ContractList{}, &v1alpha1.ForeignClusterList{}} {
		if err := resolver.List(t.Context(), list); !apierrors.IsForbidden(err) {
			t.Errorf("the resolver lists %T: %v", list, err)
		}
	}

	create := func(o client.Object) {
		t.Helper()
		if err := owner.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	ours := func(more ...string) map[string]string {
		l := map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelPeer: "peer-a"}
		for i := 0; i < len(more); i += 2 {
			l[more[i]] = more[i+1]
		}
		return l
	}
	service := func(ns string, l map[string]string, ip string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web", Labels: l},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	create(service("shop", nil, ""))
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: "shop-peer", Labels: ours(v1alpha1.LabelOriginNamespace, "shop"), Annotations: map[string]string{v1alpha1.AnnotationClusterDomain: "home.example"},
	}})
	pod := &v1alpha1.OffloadedPod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop-peer", Name: "web-0", Labels: ours()},
		Spec: v1alpha1.OffloadedPodSpec{
			Contract: "c", PeerID: "peer-a", OriginNamespace: "shop", OriginName: "web-0", OriginUID: "u", Hash: "h",
			Template: runtime.RawExtension{Raw: []byte(`{}`)}, Requests: corev1.ResourceList{},
		},
	}
	create(pod)
	pod.Status = v1alpha1.OffloadedPodStatus{Phase: corev1.PodRunning, PodIPs: []string{"127.0.0.1"}}
	if err := owner.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}

	var listen net.ListenConfig
	free, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{Kubernetes: as, Address: address, HealthAddress: "0", ResolvConf: conf, Log: slog.New(slog.DiscardHandler)})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	resolves := func(name string, qtype uint16, want string) {
		t.Helper()
		var got string
		if !waittest.Soon(func() bool {
			in, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeContext(t.Context(), new(dns.Msg).SetQuestion(name, qtype), address)
			if err != nil {
				got = err.Error()
				return false
			}
			got = dns.RcodeToString[in.Rcode]
			for _, rr := range in.Answer {
				got += " " + rr.String()[len(rr.Header().String()):]
			}
			return got == want
		}) {
			t.Fatalf("%s is %q; want %q", name, got, want)
		}
	}
	// The home's Service is not here yet; the provider's own is another one.
	resolves("web.shop.svc.home.example.", dns.TypeA, "NXDOMAIN")
	resolves("web.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN")
	reflected := service("shop-peer", ours(), "")
	create(reflected)
	resolves("web.shop.svc.home.example.", dns.TypeA, "NOERROR "+reflected.Spec.ClusterIP)
	resolves("_http._tcp.web.shop.svc.home.example.", dns.TypeSRV, "NOERROR 0 100 80 web.shop.svc.home.example.")

	headless := service("shop-peer", ours(), corev1.ClusterIPNone)
	headless.Name = "db"
	create(headless)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop-peer", Name: "db-1", Labels: ours(discoveryv1.LabelServiceName, "db", discoveryv1.LabelManagedBy, v1alpha1.Manager)},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.9.0.1"}, Hostname: new("db-0")}},
	}
	create(slice)
	resolves("db-0.db.shop.svc.home.example.", dns.TypeA, "NOERROR 10.9.0.1")
	slice.Endpoints[0].Conditions.Ready = new(false)
	if err := owner.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	resolves("db-0.db.shop.svc.home.example.", dns.TypeA, "NXDOMAIN")
	if err := owner.Delete(t.Context(), reflected); err != nil {
		t.Fatal(err)
	}
	resolves("web.shop.svc.home.example.", dns.TypeA, "NXDOMAIN")

	// An alias is one of home's names, too.
	alias := service("shop-peer", ours(), corev1.ClusterIPNone)
	alias.Name, alias.Spec.Ports = "alias", nil
	alias.Annotations = map[string]string{v1alpha1.AnnotationExternalName: "db-0.db.shop.svc.home.example"}
	create(alias)
	slice.Endpoints[0].Conditions.Ready = nil
	if err := owner.Update(t.Context(), slice); err != nil {
		t.Fatal(err)
	}
	resolves("alias.shop.svc.home.example.", dns.TypeA, "NOERROR db-0.db.shop.svc.home.example. 10.9.0.1")
	for target, want := range map[string]string{
		"kubernetes.default.svc.cluster.local": "NXDOMAIN kubernetes.default.svc.cluster.local.",
		"web.shop.svc.clusterset.local":        "NXDOMAIN web.shop.svc.clusterset.local.",
		"example.org":                          "SERVFAIL", // this node has no resolver
		"10.9.0.1":                             "NXDOMAIN", // and a Service that is not reflected does not exist
	} {
		alias.Annotations[v1alpha1.AnnotationExternalName] = target
		if err := owner.Update(t.Context(), alias); err != nil {
			t.Fatal(err)
		}
		resolves("alias.shop.svc.home.example.", dns.TypeA, want)
	}

	// Services of home's cluster set, in two clusters.
	set := service("shop-peer", ours(), "")
	set.Name, set.Annotations = "clusterset-1", map[string]string{v1alpha1.AnnotationSetName: "hello"}
	create(set)
	resolves("hello.shop.svc.clusterset.local.", dns.TypeA, "NOERROR "+set.Spec.ClusterIP)
	set = service("shop-peer", ours(), corev1.ClusterIPNone)
	set.Name, set.Annotations = "clusterset-2", map[string]string{v1alpha1.AnnotationSetName: "db"}
	create(set)
	for cluster, address := range map[string]string{"a": "10.9.0.1", "b": "10.9.0.2"} {
		create(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop-peer", Name: "clusterset-2-" + cluster, Labels: ours(
				discoveryv1.LabelServiceName, "clusterset-2", discoveryv1.LabelManagedBy, v1alpha1.Manager, v1alpha1.LabelSourceCluster, cluster)},
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Hostname: new("db-0")}},
		})
	}
	resolves("db-0.b.db.shop.svc.clusterset.local.", dns.TypeA, "NOERROR 10.9.0.2")
	resolves("db-0.db.shop.svc.clusterset.local.", dns.TypeA, "NXDOMAIN")

	// A pod that ended is not a source.
	pod.Status.PodIPs = nil
	if err := owner.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	resolves("web.shop.svc.home.example.", dns.TypeA, "REFUSED")
}
