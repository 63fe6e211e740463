package clusterset

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/services"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// member is a cluster that shares its namespaces with all others, without a network in between.
type member struct {
	id      peering.ClusterID
	c       client.Client
	r       *Reconciler
	exports *services.Exports
	// streams are those to peers, and opened has one that was begun.
	streams map[peering.ClusterID]stream
	opened  chan stream
}

// stream is the subscription of a peer.
type stream struct {
	changed func(peering.ExportedService)
	synced  func([]peering.ServiceName)
}

// newMember returns a cluster whose pods are in 10.n.0.0/16, with names exported in namespace shop.
func newMember(t *testing.T, id peering.ClusterID, n int, peers []peering.ClusterID, names ...string) *member {
	t.Helper()
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&api.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "set"}, Spec: api.PeeringPolicySpec{ClusterSet: &api.ClusterSet{}}},
	}
	for _, peer := range peers {
		objects = append(objects, &api.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: string(peer[:1])}, Spec: api.ForeignClusterSpec{ClusterID: string(peer)}})
	}
	for i, name := range names {
		objects = append(objects,
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80, Protocol: "TCP"}}}},
			&mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(n), 0))}},
			&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
				AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("web"), Port: new(int32(8080))}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.%d.0.%d", n, i+1)}}},
			})
	}
	c := peertest.Indexed(fake.NewClientBuilder().WithScheme(kube.Scheme()).WithObjects(objects...).WithStatusSubresource(&mcs.ServiceExport{}, &mcs.ServiceImport{}))
	m := &member{id: id, c: c, streams: map[peering.ClusterID]stream{}, opened: make(chan stream)}
	m.r = &Reconciler{
		Client: c, Direct: c, Self: id, Changed: func() {}, ServiceAccount: client.ObjectKey{Namespace: "entente-system", Name: "entente-agent"},
		Home:   func(_ peering.ClusterID, a netip.Addr) (netip.Addr, bool) { return a, true },
		Budget: &store.WriteBudget{Now: time.Now}, Events: &peertest.Recorder{},
	}
	m.r.served.Store(true)
	m.r.subscribed.Store(true) // tests call followers.Set
	m.exports = &services.Exports{
		Reader: c, Export: m.r.Export, May: func(peering.ClusterID, string) error { return nil },
		Own: func(context.Context) (func(netip.Addr) bool, error) {
			return netip.MustParsePrefix(fmt.Sprintf("10.%d.0.0/16", n)).Contains, nil
		},
		// All Services, as if each were exported: those that are not are left out.
		Offered: func(ctx context.Context, _ peering.ClusterID) (out []peering.OfferedService, changed <-chan struct{}, err error) {
			var list corev1.ServiceList
			err = c.List(ctx, &list)
			for i := range list.Items {
				out = append(out, peering.OfferedService{Namespace: list.Items[i].Namespace, Name: list.Items[i].Name, InSet: true})
			}
			return out, nil, err
		},
	}
	m.r.Own = m.exports.Shared
	m.r.followers.Changed = func(peering.ClusterID, peering.ServiceName) {}
	m.r.followers.Watch = func(ctx context.Context, _ peering.ClusterID, _ services.Subscription, changed func(peering.ExportedService), synced func([]peering.ServiceName)) error {
		m.opened <- stream{changed, synced}
		<-ctx.Done()
		return nil
	}
	t.Cleanup(m.r.followers.Stop)
	return m
}

// hear sends a member all that another exports.
func (m *member) hear(t *testing.T, from *member) {
	t.Helper()
	list, _, err := from.exports.InSet(t.Context(), m.id, "c")
	if err != nil {
		t.Fatal(err)
	}
	s, open := m.streams[from.id]
	if !open {
		want := map[peering.ClusterID]services.Subscription{from.id: {Contract: "c"}}
		for id := range m.streams {
			want[id] = services.Subscription{Contract: "c"}
		}
		m.r.followers.Set(want)
		s = <-m.opened
		m.streams[from.id] = s
	}
	var names []peering.ServiceName
	for _, e := range list {
		s.changed(e)
		names = append(names, e.ServiceName)
	}
	slices.SortFunc(names, peering.CompareServiceNames)
	s.synced(names)
}

// settle reconciles all known names.
func (m *member) settle(t *testing.T) {
	t.Helper()
	names, err := m.r.names(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := m.r.Reconcile(t.Context(), key(name)); err != nil {
			t.Fatal(err)
		}
	}
}

// objects lists the objects that the reconciler makes, with their versions.
func (m *member) objects(t *testing.T) []string {
	t.Helper()
	var imports mcs.ServiceImportList
	var services corev1.ServiceList
	var list discoveryv1.EndpointSliceList
	for _, l := range []client.ObjectList{&imports, &services, &list} {
		if err := m.c.List(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	var out []string
	for _, i := range imports.Items {
		out = append(out, "import "+i.Name+" "+i.ResourceVersion)
	}
	for _, s := range services.Items {
		out = append(out, "service "+s.Name+" "+s.ResourceVersion)
	}
	for _, s := range list.Items {
		out = append(out, "slice "+s.Name+" "+s.ResourceVersion)
	}
	return out
}

// Three clusters that export the same names to each other have one ServiceImport for each name, with
// one Service and the endpoints of three, and after that nothing is written any more, however often each receives the exports
// of the others. When one stops, only its endpoints are removed, in all clusters.
func TestThreeClustersThatExportTheSameNamesComeToRest(t *testing.T) {
	t.Parallel()
	ids := []peering.ClusterID{here, there, third}
	var ring []*member
	for n, id := range ids {
		peers := slices.DeleteFunc(slices.Clone(ids), func(o peering.ClusterID) bool { return o == id })
		ring = append(ring, newMember(t, id, n+1, peers, "hello", "world"))
	}
	round := func() {
		for _, m := range ring {
			for _, from := range ring {
				if from != m {
					m.hear(t, from)
				}
			}
			m.settle(t)
		}
	}
	round()
	round()
	var before [][]string
	for _, m := range ring {
		now := m.objects(t)
		// Of each name: an import, its own Service and the derived one, its own slice and three.
		if len(now) != 2*(1+2+4) {
			t.Errorf("%s has %d objects: %v", m.id[:1], len(now), now)
		}
		before = append(before, now)
	}
	for range 20 {
		round()
	}
	for i, m := range ring {
		if now := m.objects(t); !slices.Equal(now, before[i]) {
			t.Errorf("%s has %v, after %v", m.id[:1], now, before[i])
		}
	}
	export := &mcs.ServiceExport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello"}}
	if err := ring[0].c.Delete(t.Context(), export); err != nil {
		t.Fatal(err)
	}
	round()
	round()
	for _, m := range ring {
		var list discoveryv1.EndpointSliceList
		if err := m.c.List(t.Context(), &list, client.MatchingLabels{mcs.LabelServiceName: "hello"}); err != nil {
			t.Fatal(err)
		}
		var from []string
		for _, s := range list.Items {
			from = append(from, s.Labels[mcs.LabelSourceCluster][:1]+" "+s.Endpoints[0].Addresses[0])
		}
		slices.Sort(from)
		if got := strings.Join(from, ", "); got != "b 10.2.0.1, c 10.3.0.1" {
			t.Errorf("when the first exports it no longer %s has %s", m.id[:1], got)
		}
	}
}

// sources lists the clusters whose endpoints a Service has.
func (m *member) sources(t *testing.T, name string) string {
	t.Helper()
	var list discoveryv1.EndpointSliceList
	if err := m.c.List(t.Context(), &list, client.MatchingLabels{mcs.LabelServiceName: name}); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range list.Items {
		out = append(out, s.Labels[mcs.LabelSourceCluster][:1])
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// An agent that starts does not know what a peer exports, but does know that the tunnel to it is down.
func TestEndpointsOfAPeerThatIsDownGoAtOnce(t *testing.T) {
	t.Parallel()
	m, b := newMember(t, here, 1, []peering.ClusterID{there}, "hello"), newMember(t, there, 2, []peering.ClusterID{here}, "hello")
	m.hear(t, b)
	m.settle(t)
	if got := m.sources(t, "hello"); got != "a b" {
		t.Fatalf("it has endpoints of %q", got)
	}
	m.r.followers.Stop()
	m.r.followers.Set(map[peering.ClusterID]services.Subscription{there: {Contract: "c"}})
	m.streams[there] = <-m.opened
	m.settle(t)
	if got := m.sources(t, "hello"); got != "a b" {
		t.Errorf("before the peer sends again it has endpoints of %q", got)
	}
	fc := &api.ForeignCluster{}
	if err := m.c.Get(t.Context(), client.ObjectKey{Name: "b"}, fc); err != nil {
		t.Fatal(err)
	}
	fc.Status.Conditions = []metav1.Condition{{Type: api.ConditionNetwork, Status: metav1.ConditionFalse}}
	if err := m.c.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	m.settle(t)
	var i mcs.ServiceImport
	if err := m.c.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "hello"}, &i); err != nil {
		t.Fatal(err)
	}
	if got := m.sources(t, "hello"); got != "a" || len(i.Status.Clusters) != 2 {
		t.Errorf("while the tunnel is down it has endpoints of %q, and %d clusters export it", got, len(i.Status.Clusters))
	}
	fc.Status.Conditions = nil
	if err := m.c.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	m.hear(t, b)
	m.settle(t)
	if got := m.sources(t, "hello"); got != "a b" {
		t.Errorf("when the tunnel is up and the peer sent again it has endpoints of %q", got)
	}
}

// An agent that starts may come to a Service before it has subscribed to the peers that export it: their endpoints stay.
func TestEndpointsOfPeersStayWhereAnAgentStartsWithTheService(t *testing.T) {
	t.Parallel()
	m, b := newMember(t, here, 1, []peering.ClusterID{there}, "hello"), newMember(t, there, 2, []peering.ClusterID{here}, "hello")
	contract := &api.Contract{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: api.ContractSpec{
		Role: api.ContractConsumer, PeerID: string(there), Network: api.NetworkTunnel, Exposure: peering.ExposureExported,
	}, Status: api.ContractStatus{Phase: "Active"}}
	if err := m.c.Create(t.Context(), contract); err != nil {
		t.Fatal(err)
	}
	m.hear(t, b)
	m.settle(t)
	slices := func() (out []string) {
		for _, o := range m.objects(t) {
			if strings.HasPrefix(o, "slice clusterset-") {
				out = append(out, o)
			}
		}
		return out
	}
	before := slices()
	m.r.followers.Stop()
	m.r.subscribed.Store(false)
	if _, err := m.r.Reconcile(t.Context(), key(peering.ServiceName{Namespace: "shop", Name: "hello"})); err != nil {
		t.Fatal(err)
	}
	if now := slices(); fmt.Sprint(now) != fmt.Sprint(before) || len(now) != 2 {
		t.Fatalf("before the peer sends again there is %v, want %v", now, before)
	}
	m.streams[there] = <-m.opened
	m.hear(t, b)
	m.settle(t)
	if now := slices(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("when it sent the same again there is %v, want %v", now, before)
	}
}
