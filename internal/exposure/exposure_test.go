package exposure

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

func asIs() Translation { return func(a netip.Addr) (netip.Addr, bool) { return a, true } }

// serviceIn is a Service of a namespace as it crosses: port 80 leads to 8080.
func serviceIn(t *testing.T, namespace, name string, addrs ...string) peering.Object {
	t.Helper()
	s := peering.ServiceObject{Ports: []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}, {Name: "dns", Protocol: "UDP", Port: 53}}}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, peering.ServiceEndpoint{Address: a, Ports: map[string]int32{"http": 8080, "dns": 53, "not of the Service": 9}})
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return peering.Object{Ref: peering.ObjectRef{Kind: peering.KindService, Namespace: namespace, Name: name, UID: namespace + name}, JSON: data}
}

// podIn is the status of a pod with these addresses.
func podIn(t *testing.T, namespace, uid string, addrs ...string) peering.PodStatus {
	t.Helper()
	var status corev1.PodStatus
	for _, a := range addrs {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: a})
	}
	data, err := json.Marshal(status)
	if err != nil {
		t.Fatal(err)
	}
	return peering.PodStatus{Ref: peering.ObjectRef{Kind: peering.KindPod, Namespace: namespace, Name: uid, UID: uid}, Status: data}
}

// wantPods has pods wanted, as home knows them.
func wantPods(e *Exposure, namespace string, uids ...string) {
	for _, uid := range uids {
		e.Want(peering.Object{Ref: peering.ObjectRef{Kind: peering.KindPod, Namespace: namespace, Name: uid, UID: uid}})
	}
}

func exposedBy(e *Exposure) []allow.Exposed {
	out, _ := e.Exposed(Reachable{Pods: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}})
	slices.SortFunc(out, func(a, b allow.Exposed) int { return strings.Compare(a.Namespace, b.Namespace) })
	return out
}

func TestExposureKeepsPortsAndNamespacesApart(t *testing.T) {
	t.Parallel()
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}}
	e.Want(serviceIn(t, "shop", "web", "10.200.0.1", "10.9.0.1"))
	e.Want(serviceIn(t, "bank", "db", "10.200.0.2"))
	e.Want(serviceIn(t, "none", "web", "10.200.0.3"))
	wantPods(e, "shop", "a")
	wantPods(e, "bank", "b")
	e.Status(podIn(t, "shop", "a", "10.240.0.1"))
	e.Status(podIn(t, "bank", "b", "10.240.0.2"))
	open := func(a string) []allow.Destination {
		addr := netip.MustParseAddr(a)
		return []allow.Destination{{Addr: addr, Port: v1alpha1.DestinationPort{Protocol: "TCP", Port: 8080}}, {Addr: addr, Port: v1alpha1.DestinationPort{Protocol: "UDP", Port: 53}}}
	}
	want := []allow.Exposed{
		{Contract: "c", Namespace: "bank", From: []netip.Addr{netip.MustParseAddr("10.240.0.2")}, To: open("10.200.0.2")},
		{Contract: "c", Namespace: "shop", From: []netip.Addr{netip.MustParseAddr("10.240.0.1")}, To: open("10.200.0.1")},
	}
	if diff := cmp.Diff(want, exposedBy(e), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("exposed (-want +got):\n%s", diff)
	}
}

func addrsOf(list []allow.Destination) []netip.Addr {
	var out []netip.Addr
	for _, d := range list {
		out = append(out, d.Addr)
	}
	return out
}

// After a start of the agent, what a contract exposes is known once its Services were
// processed; where its pods run on is in their statuses, whether or not the provider
// can be asked.
func TestExposureAfterARestartFollowsFromThisClustersObjects(t *testing.T) {
	t.Parallel()
	complete := false
	pod := func(uid string) peering.ObjectRef {
		return peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: uid, UID: uid}
	}
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}, Local: func() (map[peering.ObjectRef][]netip.Addr, bool) {
		return map[peering.ObjectRef][]netip.Addr{
			pod("quiet"): {netip.MustParseAddr("10.240.0.1")},
			pod("moved"): {netip.MustParseAddr("10.240.0.2")},
			pod("ended"): {netip.MustParseAddr("10.240.0.4")},
		}, complete
	}}
	own := []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}
	known := func() bool {
		_, known := e.Exposed(Reachable{Pods: own})
		return known
	}
	if known() {
		t.Error("it is known before anything was wanted")
	}
	e.Want(serviceIn(t, "shop", "web", "10.200.0.1"))
	e.Status(podIn(t, "shop", "moved", "10.240.0.3"))
	e.Status(peering.PodStatus{Ref: pod("ended"), Gone: true})
	e.Status(podIn(t, "shop", "late", "10.240.0.5"))
	wantPods(e, "shop", "late", "quiet")
	e.Readied()
	if known() {
		t.Error("it is known before all Services were processed")
	}
	complete = true
	got, is := e.Exposed(Reachable{Pods: own})
	if !is || len(got) != 1 {
		t.Fatalf("known is %t, exposed %+v", is, got)
	}
	from := got[0].From
	slices.SortFunc(from, netip.Addr.Compare)
	if want := []netip.Addr{netip.MustParseAddr("10.240.0.1"), netip.MustParseAddr("10.240.0.3"), netip.MustParseAddr("10.240.0.5")}; !slices.Equal(from, want) {
		t.Errorf("sources are %v, want %v", from, want)
	}
}

// A pod whose address gets its alias after the provider sent it is a source from then on, by
// the alias that it has now.
func TestExposureTranslatesAsAliasesAreNow(t *testing.T) {
	t.Parallel()
	alias := netip.Addr{}
	e := &Exposure{Contract: "c", Changed: func() {}, Home: func() Translation {
		return func(netip.Addr) (netip.Addr, bool) { return alias, alias.IsValid() }
	}}
	e.Want(serviceIn(t, "shop", "web", "10.200.0.1"))
	wantPods(e, "shop", "a")
	e.Status(podIn(t, "shop", "a", "10.200.3.7"))
	if got := exposedBy(e); len(got) > 0 {
		t.Errorf("a pod without an alias opens %+v", got)
	}
	for _, text := range []string{"198.18.0.1", "198.18.0.9"} {
		alias = netip.MustParseAddr(text)
		if got := exposedBy(e); len(got) != 1 || !slices.Equal(got[0].From, []netip.Addr{alias}) {
			t.Errorf("known as %s, it opens %+v", text, got)
		}
	}
}

// A provider sends a pod's addresses once. It may do so before home's own cache has the pod.
func TestAddressesThatCameBeforeTheirPodOpenWhatItNeeds(t *testing.T) {
	t.Parallel()
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}, Local: func() (map[peering.ObjectRef][]netip.Addr, bool) { return nil, true }}
	e.Want(serviceIn(t, "shop", "web", "10.200.0.1"))
	e.Status(podIn(t, "shop", "before", "10.240.0.1"))
	e.Readied()
	if got := exposedBy(e); len(got) != 0 {
		t.Errorf("%d namespaces are open", len(got))
	}
	e.Status(podIn(t, "shop", "after", "10.240.0.2"))
	e.Status(podIn(t, "shop", "gone", "10.240.0.3"))
	e.Status(peering.PodStatus{Ref: podIn(t, "shop", "gone").Ref, Gone: true})
	wantPods(e, "shop", "before", "after", "gone")
	got := exposedBy(e)
	if len(got) != 1 || len(got[0].From) != 2 {
		t.Errorf("open is %+v, want the Service to the two pods that are there", got)
	}
}

// A provider that names pods which this cluster does not have makes it keep a bounded
// number of them until its next stream, and opens nothing by them: it does not decide on their namespaces.
func TestInventedPodsAreForgotten(t *testing.T) {
	t.Parallel()
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}, Local: func() (map[peering.ObjectRef][]netip.Addr, bool) { return nil, true }}
	e.Want(serviceIn(t, "shop", "web", "10.200.0.1"))
	e.Want(serviceIn(t, "stays", "db", "10.200.0.2"))
	kept := func() int { return len(e.pods) + len(e.early) }
	invented := podIn(t, "stays", "", "10.240.0.9")
	invent := func(from, to int) {
		for i := from; i < to; i++ {
			invented.Ref.UID, invented.Gone = fmt.Sprint("invented-", i), i%2 == 0
			e.Status(invented)
		}
	}
	const limit = maxUnknownPods
	invent(0, limit+1000)
	if got := kept(); got > limit {
		t.Errorf("before this cluster's pods are known %d of others are kept, want at most %d", got, limit)
	}

	e.Connected()
	if got := kept(); got != 0 {
		t.Errorf("after another stream begins %d are kept", got)
	}
	invent(0, limit/2)
	e.Readied()
	if got := exposedBy(e); len(got) > 0 {
		t.Errorf("invented pods open %d namespaces", len(got))
	}
	invent(limit, 4*limit)
	if got := kept(); got > limit || len(exposedBy(e)) > 0 {
		t.Errorf("once this cluster's pods are known %d of others are kept, and %d namespaces are open", got, len(exposedBy(e)))
	}
	e.Connected()
	// For an existing pod the provider sends another namespace, and addresses without end.
	wantPods(e, "shop", "a")
	many := make([]string, 0, 1000)
	for i := range cap(many) {
		many = append(many, netip.AddrFrom4([4]byte{10, 240, byte(i >> 8), byte(i)}).String())
	}
	e.Status(podIn(t, "stays", "a", append(many, "fd00::1", "fd00::2")...))
	if got := exposedBy(e); len(got) != 1 || got[0].Namespace != "shop" || len(got[0].From) != 2 {
		t.Errorf("%d namespaces are open, want shop alone for an address of each family", len(got))
	}
	e.Status(peering.PodStatus{Ref: podIn(t, "shop", "a").Ref, Gone: true})
	e.Unwant(podIn(t, "shop", "a").Ref)
	wantPods(e, "shop", "b")
	e.Unwant(podIn(t, "shop", "b").Ref)
	if got := kept(); got != 0 {
		t.Errorf("%d pods are kept that are gone, or never were", got)
	}
}

func TestExposureIsKeptAtStartUntilKnownOrTooOld(t *testing.T) {
	t.Parallel()
	var s Startup
	start := time.Now()
	for _, step := range []struct {
		after    time.Duration
		contract string
		known    bool
		want     bool
	}{
		{0, "a", false, true},
		{0, "b", true, false},
		{time.Minute, "a", false, true},
		{time.Minute, "a", true, false},
		{time.Minute, "a", false, false}, // what a peer does later does not start the wait again
		{time.Minute, "c", false, true},
		{grace, "c", false, false},
		{grace, "d", false, false},
	} {
		if got := s.Unsure(step.contract, step.known, start.Add(step.after)); got != step.want {
			t.Errorf("after %s contract %s is unsure: %t, want %t", step.after, step.contract, got, step.want)
		}
	}
}

func TestExposureFollowsAddressesAndKeepsPodsThatEnd(t *testing.T) {
	t.Parallel()
	changes := 0
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() { changes++ }}
	e.Want(serviceIn(t, "shop", "web", "10.200.0.1"))
	wantPods(e, "shop", "a")
	e.Status(podIn(t, "shop", "a", "10.240.0.1"))
	before := changes
	e.Status(podIn(t, "shop", "a", "10.240.0.2"))
	if changes == before {
		t.Error("another address under the same UID does not change it")
	}
	sources := func() []netip.Addr {
		var out []netip.Addr
		for _, x := range exposedBy(e) {
			out = append(out, x.From...)
		}
		return out
	}
	want := []netip.Addr{netip.MustParseAddr("10.240.0.2")}
	if got := sources(); !slices.Equal(got, want) {
		t.Errorf("sources are %v, want %v", got, want)
	}
	e.Unwant(podIn(t, "shop", "a").Ref)
	if got := sources(); !slices.Equal(got, want) {
		t.Errorf("a pod that begins to end has sources %v, want %v until it is gone", got, want)
	}
	before = changes
	e.Status(peering.PodStatus{Ref: podIn(t, "shop", "a").Ref, Gone: true})
	if got := sources(); len(got) > 0 || changes == before {
		t.Errorf("a pod that is gone has sources %v", got)
	}
}

// Of what is exported this cluster's own pods are open, by port and namespace, to all pods of
// the consumer.
func TestExportedPortsAreExposed(t *testing.T) {
	t.Parallel()
	port := func(namespace, addr string, number int32) services.Port {
		return services.Port{Namespace: namespace, Addr: netip.MustParseAddr(addr), Protocol: "TCP", Port: number}
	}
	got := Ports("c", []services.Port{
		port("bank", "10.200.0.1", 5432), port("bank", "10.200.0.2", 5432), port("bank", "10.241.0.1", 5432), port("shop", "10.200.0.3", 80),
	}, Reachable{Pods: prefixesOf("10.200.0.0/16")})
	to := func(addr string, number int32) allow.Destination {
		return allow.Destination{Addr: netip.MustParseAddr(addr), Port: v1alpha1.DestinationPort{Protocol: "TCP", Port: number}}
	}
	want := []allow.Exposed{
		{Contract: "c", Namespace: "bank", AnySource: true, To: []allow.Destination{to("10.200.0.1", 5432), to("10.200.0.2", 5432)}},
		{Contract: "c", Namespace: "shop", AnySource: true, To: []allow.Destination{to("10.200.0.3", 80)}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Of pods at another provider those are open that are endpoints of a Service of a namespace with
// pods at both, on its ports: none of another namespace, nor what a user wrote into a Service. All
// of the namespace's pods there need aliases.
func TestPodsAtAnotherProviderAreExposedByNamespaceAndService(t *testing.T) {
	t.Parallel()
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}}
	e.Want(serviceIn(t, "shop", "web", "10.242.0.1", "10.242.0.9", "10.242.0.3", "10.200.0.1"))
	e.Want(serviceIn(t, "bank", "db", "10.242.0.1", "10.242.0.3"))
	wantPods(e, "shop", "a")
	e.Status(podIn(t, "shop", "a", "10.240.0.1"))
	elsewhere := &Exposure{Contract: "d", Home: asIs, Changed: func() {}}
	wantPods(elsewhere, "shop", "x", "y")
	wantPods(elsewhere, "bank", "z")
	elsewhere.Status(podIn(t, "shop", "x", "10.242.0.1"))
	elsewhere.Status(podIn(t, "shop", "y", "10.242.0.2"))
	elsewhere.Status(podIn(t, "bank", "z", "10.242.0.3"))
	own := Reachable{Pods: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}}
	addr := netip.MustParseAddr
	ports := func(a string) []allow.Destination {
		return []allow.Destination{{Addr: addr(a), Port: v1alpha1.DestinationPort{Protocol: "TCP", Port: 8080}}, {Addr: addr(a), Port: v1alpha1.DestinationPort{Protocol: "UDP", Port: 53}}}
	}
	want := []allow.Exposed{{Contract: "c", Namespace: "shop", From: []netip.Addr{addr("10.240.0.1")}, To: ports("10.200.0.1")}}
	check := func(what string) {
		t.Helper()
		got, _ := e.Exposed(own)
		slices.SortFunc(got, func(a, b allow.Exposed) int { return strings.Compare(a.Third, b.Third) })
		for i := range got {
			slices.SortFunc(got[i].Known, netip.Addr.Compare)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("without transit")
	own.Thirds = map[string]map[string][]netip.Addr{"third": elsewhere.There()}
	want = append(want, allow.Exposed{
		Contract: "c", Namespace: "shop", Third: "third", From: []netip.Addr{addr("10.240.0.1")}, To: ports("10.242.0.1"), Known: []netip.Addr{addr("10.242.0.1"), addr("10.242.0.2")},
	})
	check("with transit")
}

// A Service opens an external host if an ExternalHost of its own namespace has the
// address and the port, and no other.
func TestServicesOpenHostsOfTheirNamespace(t *testing.T) {
	t.Parallel()
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}}
	for _, namespace := range []string{"shop", "bank"} {
		e.Want(serviceIn(t, namespace, "db", "192.168.7.9", "192.168.7.10"))
		wantPods(e, namespace, namespace+"-pod")
		e.Status(podIn(t, namespace, namespace+"-pod", "10.240.0.1"))
	}
	https := v1alpha1.DestinationPort{Protocol: "TCP", Port: 8080}
	host := allow.Host{Namespace: "shop", Addrs: []netip.Addr{netip.MustParseAddr("192.168.7.9")}, Ports: []v1alpha1.DestinationPort{https, {Protocol: "TCP", Port: 22}}}
	got, _ := e.Exposed(Reachable{Pods: prefixesOf("10.200.0.0/16"), Hosts: []allow.Host{host}})
	want := []allow.Exposed{{
		Contract: "c", Namespace: "shop", From: []netip.Addr{netip.MustParseAddr("10.240.0.1")},
		To: []allow.Destination{{Addr: netip.MustParseAddr("192.168.7.9"), Port: https}},
	}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	host.Ports = nil
	got, _ = e.Exposed(Reachable{Hosts: []allow.Host{host}})
	if len(got) != 1 || len(got[0].To) != 2 {
		t.Errorf("with every port open: %+v, want both of the Service", got)
	}
}

func prefixesOf(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestAProviderReachesOnlyReflectedServices(t *testing.T) {
	t.Parallel()
	changes := 0
	own := []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}
	home := func(a netip.Addr) (netip.Addr, bool) {
		return plan.Remap(a, own[0], netip.MustParsePrefix("10.240.0.0/16"))
	}
	e := &Exposure{Changed: func() { changes++ }, Home: func() Translation { return home }}
	check := func(when string, from, to []string) {
		t.Helper()
		got := allow.Exposed{}
		if all, _ := e.Exposed(Reachable{Pods: own}); len(all) > 0 {
			got = all[0]
		}
		text := func(addrs []netip.Addr) (out []string) {
			for _, a := range addrs {
				out = append(out, a.String())
			}
			return out
		}
		if diff := cmp.Diff([][]string{from, to}, [][]string{text(got.From), text(addrsOf(got.To))}, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	http := map[string]int32{"http": 8080}
	check("at first nothing is exposed", nil, nil)

	service := peering.ObjectRef{Kind: peering.KindService, Namespace: "shop", Name: "web", UID: "s"}
	body, err := json.Marshal(peering.ServiceObject{
		Ports:     []peering.ServicePort{{Name: "http", Protocol: "TCP", Port: 80}},
		Endpoints: []peering.ServiceEndpoint{{Address: "10.200.0.5", Ports: http}, {Address: "10.240.0.9", Ports: http}, {Address: "x", Ports: http}},
	})
	if err != nil {
		t.Fatal(err)
	}
	e.Want(peering.Object{Ref: service, JSON: body})
	e.Want(peering.Object{Ref: peering.ObjectRef{Kind: peering.KindSecret, UID: "k"}, JSON: []byte(`{}`)})
	pod := peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web-1", UID: "p"}
	status, err := json.Marshal(corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.200.0.7"}, {IP: "192.0.2.1"}}})
	if err != nil {
		t.Fatal(err)
	}
	e.Want(peering.Object{Ref: pod})
	e.Status(peering.PodStatus{Ref: pod, Status: status})
	check("our endpoints, from the pod that it runs", []string{"10.240.0.7"}, []string{"10.200.0.5"})

	before := changes
	e.Status(peering.PodStatus{Ref: pod, Status: status})
	if changes != before {
		t.Error("the same status counts as a change")
	}
	e.Status(peering.PodStatus{Ref: pod, Gone: true})
	e.Unwant(service)
	check("when both are gone nothing is exposed", nil, nil)
}
