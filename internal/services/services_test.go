package services

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

var (
	peerID = peering.ClusterID(strings.Repeat("a", 52))
	db     = peering.ServiceName{Namespace: "bank", Name: "db"}
)

func foreignCluster(change ...func(*api.ForeignCluster)) *api.ForeignCluster {
	fc := &api.ForeignCluster{
		ObjectMeta: metav1.ObjectMeta{Name: "office", Labels: map[string]string{api.LabelPeer: string(peerID)}},
		Spec:       api.ForeignClusterSpec{ClusterID: string(peerID)},
	}
	for _, f := range change {
		f(fc)
	}
	return fc
}

func contract(change ...func(*api.Contract)) *api.Contract {
	c := &api.Contract{ObjectMeta: metav1.ObjectMeta{Name: "c-1"}, Spec: api.ContractSpec{
		Role: api.ContractConsumer, PeerID: string(peerID), Network: api.NetworkTunnel, Exposure: peering.ExposureExported,
	}, Status: api.ContractStatus{Phase: "Active"}}
	for _, f := range change {
		f(c)
	}
	return c
}

func imported() *api.ImportedService {
	return &api.ImportedService{
		ObjectMeta: metav1.ObjectMeta{Namespace: "till", Name: "accounts", UID: "i-1", Generation: 1},
		Spec:       api.ImportedServiceSpec{ForeignCluster: "office", Service: api.ServiceReference{Namespace: "bank", Name: "db"}},
	}
}

func end(address string, ready bool) peering.ServiceEndpoint {
	return peering.ServiceEndpoint{Address: address, Ready: ready, Serving: ready, Ports: map[string]int32{"sql": 5432}}
}

func said(change ...func(*peering.ExportedService)) *peering.ExportedService {
	s := &peering.ExportedService{ServiceName: db, Service: peering.ServiceObject{
		SessionAffinity: "None", Ports: []peering.ServicePort{{Name: "sql", Protocol: "TCP", Port: 5432}},
		Endpoints: []peering.ServiceEndpoint{end("10.1.0.7", true), end("10.1.0.8", false), end("192.168.0.1", true)},
	}}
	for _, f := range change {
		f(s)
	}
	return s
}

// home knows 10.1.0.0/16 of the peer as 10.241.0.0/16, and nothing else.
func home(_ peering.ClusterID, a netip.Addr) (netip.Addr, bool) {
	b := a.As4()
	if b[0] != 10 || b[1] != 1 {
		return netip.Addr{}, false
	}
	b[1] = 241
	return netip.AddrFrom4(b), true
}

func TestAnImportedServiceFollowsItsExport(t *testing.T) {
	t.Parallel()
	down := foreignCluster(func(fc *api.ForeignCluster) {
		fc.Status.Conditions = []metav1.Condition{{Type: api.ConditionNetwork, Status: metav1.ConditionFalse}}
	})
	partly := foreignCluster(func(fc *api.ForeignCluster) {
		fc.Status.Conditions = []metav1.Condition{{Type: api.ConditionNetwork, Status: metav1.ConditionFalse, Reason: api.ReasonNodesCutOff}}
	})
	for name, test := range map[string]struct {
		s         importSnapshot
		status    metav1.ConditionStatus
		reason    string
		change    bool
		service   bool
		endpoints int
	}{
		"as it should be":  {importSnapshot{peer: foreignCluster(), contract: "c", last: said()}, "True", "Imported", true, true, 2},
		"no cluster":       {importSnapshot{}, "False", "NoForeignCluster", true, false, 0},
		"no contract":      {importSnapshot{peer: foreignCluster(), last: said()}, "False", "NoContract", true, false, 0},
		"nothing sent yet": {importSnapshot{peer: foreignCluster(), contract: "c"}, "Unknown", "Waiting", false, false, 0},
		"sent before a restart, and a tunnel that drops": {importSnapshot{peer: down, contract: "c"}, "False", "NetworkDown", true, false, 0},
		"not exported":        {importSnapshot{peer: foreignCluster(), contract: "c", last: &peering.ExportedService{Refusal: "no"}}, "False", "NotExported", true, false, 0},
		"a tunnel that drops": {importSnapshot{peer: down, contract: "c", last: said()}, "False", "NetworkDown", true, true, 0},
		"a node is cut off":   {importSnapshot{peer: partly, contract: "c", last: said()}, "True", "Imported", true, true, 2},
	} {
		test.s.imported = imported()
		p := planImport(test.s, func(e peering.ServiceEndpoint) (netip.Addr, bool) {
			return home(peerID, netip.MustParseAddr(e.Address))
		})
		n := 0
		for _, slice := range p.slices(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "accounts"}}) {
			n += len(slice.Endpoints)
		}
		if p.condition.Status != test.status || p.condition.Reason != test.reason || p.change != test.change || (p.service != nil) != test.service || n != test.endpoints {
			t.Errorf("%s: %+v with %d endpoints", name, p.condition, n)
		}
	}
}

func TestByWhichContractServicesAreImported(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		contracts []api.Contract
		want      string
	}{
		"none":         {nil, ""},
		"one":          {[]api.Contract{*contract()}, "c-1"},
		"always one":   {[]api.Contract{*contract(func(c *api.Contract) { c.Name = "z" }), *contract()}, "c-1"},
		"no exports":   {[]api.Contract{*contract(func(c *api.Contract) { c.Spec.Exposure = peering.ExposureOffloaded })}, ""},
		"a closed one": {[]api.Contract{*contract(func(c *api.Contract) { c.Status.Phase = "Closed" })}, ""},
		"a contract in which we are the provider": {[]api.Contract{*contract(func(c *api.Contract) { c.Spec.Role = api.ContractProvider })}, ""},
		"no tunnel": {[]api.Contract{*contract(func(c *api.Contract) { c.Spec.Network = api.NetworkNone })}, ""},
	} {
		if got := ImportContract(test.contracts); got != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// newImports returns Imports over an API server of its own, and a function by which the peer
// sends the state of a Service; next is what is reconciled then.
func newImports(t *testing.T, objects ...client.Object) (r *Imports, say func(*peering.ExportedService)) {
	t.Helper()
	c := peertest.Client(t, objects...)
	r = &Imports{
		Client: c, Direct: c, ServiceAccount: client.ObjectKey{Namespace: "entente-system", Name: "entente-agent"}, Home: home,
		Budget: &store.WriteBudget{Now: time.Now},
	}
	told, heard := make(chan peering.ExportedService), make(chan struct{}, 1)
	r.followers.Watch = func(ctx context.Context, _ peering.ClusterID, _ Subscription, changed func(peering.ExportedService), _ func([]peering.ServiceName)) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case s := <-told:
				changed(s)
				heard <- struct{}{}
			}
		}
	}
	r.followers.Changed = r.changed
	t.Cleanup(r.followers.Stop)
	return r, func(s *peering.ExportedService) {
		t.Helper()
		if s != nil {
			told <- *s
			<-heard
		}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(imported())}); err != nil {
			t.Fatal(err)
		}
	}
}

// shown is what an import shows: why, the ports of its Service, and its endpoints with whether
// they are ready.
func shown(t *testing.T, r *Imports) string {
	t.Helper()
	var got api.ImportedService
	if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(imported()), &got); err != nil {
		return "gone"
	}
	out := []string{"nothing"}
	if c := meta.FindStatusCondition(got.Status.Conditions, api.ConditionImported); c != nil {
		out[0] = c.Reason
	}
	var svc corev1.Service
	if r.Client.Get(t.Context(), client.ObjectKeyFromObject(imported()), &svc) == nil {
		for _, p := range svc.Spec.Ports {
			out = append(out, fmt.Sprintf("%s=%d", p.Name, p.Port))
		}
	}
	var list discoveryv1.EndpointSliceList
	if err := r.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			out = append(out, fmt.Sprintf("%s:%d/%t", e.Addresses[0], *s.Ports[0].Port, *e.Conditions.Ready))
		}
	}
	return strings.Join(out, " ")
}

func TestAnImportedServiceFollowsItsPeer(t *testing.T) {
	t.Parallel()
	r, say := newImports(t, foreignCluster(), contract(), imported())
	for i, step := range []struct {
		say  *peering.ExportedService
		want string
	}{
		{nil, "Waiting"},
		{said(), "Imported sql=5432 10.241.0.7:5432/true 10.241.0.8:5432/false"},
		{said(func(s *peering.ExportedService) {
			s.Service.Endpoints = []peering.ServiceEndpoint{end("10.1.0.8", true)}
		}), "Imported sql=5432 10.241.0.8:5432/true"},
		{said(func(s *peering.ExportedService) { s.Service.Ports[0].Port = 15432 }), "Imported sql=15432 10.241.0.7:5432/true 10.241.0.8:5432/false"},
		{&peering.ExportedService{ServiceName: db, Refusal: "not exported"}, "NotExported sql=15432"},
		{said(), "Imported sql=5432 10.241.0.7:5432/true 10.241.0.8:5432/false"},
		{said(func(s *peering.ExportedService) {
			s.Service.Endpoints = []peering.ServiceEndpoint{end("127.0.0.1", true), end("10.2.0.1", true)}
		}), "Imported sql=5432"},
	} {
		if say(step.say); shown(t, r) != step.want {
			t.Errorf("step %d: %s, want %s", i, shown(t, r), step.want)
		}
	}
	var svc corev1.Service
	if err := r.Client.Get(t.Context(), client.ObjectKeyFromObject(imported()), &svc); err != nil {
		t.Fatal(err)
	}
	if svc.Labels[api.LabelManaged] != api.Manager || len(svc.Spec.Selector) > 0 || !metav1.IsControlledBy(&svc, imported()) {
		t.Errorf("the Service is %+v", svc)
	}
}

func TestANameThatIsTakenStaysItsOwners(t *testing.T) {
	t.Parallel()
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "till", Name: "accounts"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 80}}}}
	r, say := newImports(t, foreignCluster(), contract(), imported(), theirs)
	say(nil)
	say(said())
	if got := shown(t, r); got != "NameTaken web=80" {
		t.Errorf("%s", got)
	}
}

func TestRightsGoWithTheLastImport(t *testing.T) {
	t.Parallel()
	other := imported()
	other.Name, other.UID = "other", "i-2"
	r, say := newImports(t, foreignCluster(), contract(), imported(), other)
	say(nil)
	say(said())
	bound := func() bool {
		return r.Client.Get(t.Context(), client.ObjectKey{Namespace: "till", Name: importClusterRole}, &rbacv1.RoleBinding{}) == nil
	}
	for i, o := range []*api.ImportedService{imported(), other} {
		if !bound() {
			t.Fatalf("the rights are gone before import %d", i)
		}
		if err := r.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		say(nil)
	}
	if bound() || len(r.followers.peers) > 0 {
		t.Error("the rights, or a watch, are left when nothing is imported")
	}
}

func TestServicesOfAPeerOutliveItsStreamAndOtherImports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var asked [][]peering.ServiceName
		f := &Followers{Changed: func(peering.ClusterID, peering.ServiceName) {}}
		f.Watch = func(ctx context.Context, _ peering.ClusterID, what Subscription, changed func(peering.ExportedService), _ func([]peering.ServiceName)) error {
			mu.Lock()
			asked = append(asked, what.Names)
			n := len(asked)
			mu.Unlock()
			if n == 1 {
				changed(*said())
			}
			if n%2 == 1 {
				return fmt.Errorf("it ended")
			}
			<-ctx.Done()
			return nil
		}
		f.Set(map[peering.ClusterID]Subscription{peerID: {Contract: "c", Names: []peering.ServiceName{db}}})
		time.Sleep(time.Minute)
		var w Subscription
		w.Contract = "c"
		for _, n := range []peering.ServiceName{{Namespace: "z", Name: "z"}, db, {Namespace: "a", Name: "a"}, db} {
			w.add(n)
		}
		f.Set(map[peering.ClusterID]Subscription{peerID: w})
		time.Sleep(time.Minute)
		if s := f.last(peerID, db); s == nil || len(s.Service.Endpoints) != 3 {
			t.Errorf("the last state is %v", s)
		}
		f.Stop()
		synctest.Wait()
		if f.last(peerID, db) != nil {
			t.Error("it outlives the last import")
		}
		if len(asked) != 4 || len(asked[3]) != 3 || !slices.IsSortedFunc(asked[3], peering.CompareServiceNames) {
			t.Errorf("asked %v", asked)
		}
	})
}

func slice(name string, managed bool, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "bank", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "db", "other": "label"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("sql"), Port: new(int32(5432))}},
	}
	if managed {
		s.Labels[api.LabelManaged] = api.Manager
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, TargetRef: &corev1.ObjectReference{Kind: "Pod", UID: "p"}, NodeName: new("n")})
	}
	return s
}

// What is exported is the policy's, of this cluster's own pods, and nothing that came from
// elsewhere: so no export goes round in a circle.
func TestExportsFollowThePolicyAndOwnPodsOnly(t *testing.T) {
	t.Parallel()
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bank", Name: "db"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}, {Name: "admin", Port: 9}}}}
	told := []peering.OfferedService{{Namespace: "bank", Name: "db"}, {Namespace: "bank", Name: "gone"}}
	denied := peering.Errorf(peering.ReasonPolicyRefused, "no")
	e := &Exports{
		Reader: peertest.Client(t, svc, slice("one", false, "10.1.0.7", "10.9.0.1"), slice("theirs", true, "10.1.0.8"), slice("two", false, "10.1.0.6")),
		Offered: func(context.Context, peering.ClusterID) ([]peering.OfferedService, <-chan struct{}, error) {
			return told, nil, nil
		},
		Own: func(context.Context) (func(netip.Addr) bool, error) {
			return netip.MustParsePrefix("10.1.0.0/16").Contains, nil
		},
		May: func(_ peering.ClusterID, contract string) error {
			if contract != "c" {
				return denied
			}
			return nil
		},
	}
	names := []peering.ServiceName{db, {Namespace: "bank", Name: "gone"}, {Namespace: "bank", Name: "secret"}}
	got, changed, err := e.Exported(t.Context(), peerID, "c", names)
	if err != nil {
		t.Fatal(err)
	}
	want := []peering.ExportedService{
		*said(func(s *peering.ExportedService) {
			s.Service.Ports = append(s.Service.Ports, peering.ServicePort{Name: "admin", Protocol: "TCP", Port: 9})
			s.Service.Endpoints = []peering.ServiceEndpoint{end("10.1.0.6", true), end("10.1.0.7", true)}
		}),
		{ServiceName: names[1], Refusal: "Service bank/gone is gone"},
		{ServiceName: names[2], Refusal: "the provider exports no Service bank/secret to this cluster"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	ports, err := e.OpenTo(t.Context(), peerID)
	open := []Port{{"bank", netip.MustParseAddr("10.1.0.6"), "TCP", 5432}, {"bank", netip.MustParseAddr("10.1.0.7"), "TCP", 5432}}
	if diff := cmp.Diff(open, ports, cmpopts.EquateComparable(netip.Addr{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if _, _, err := e.Exported(t.Context(), peerID, "other", names); peering.ReasonOf(err) != peering.ReasonPolicyRefused {
		t.Errorf("by another contract: %v", err)
	}
	e.change()
	select {
	case <-changed:
	case <-time.After(10 * time.Second):
		t.Error("a change is not announced")
	}
}

func TestACachedSliceHasWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	for _, s := range []*discoveryv1.EndpointSlice{slice("one", false, "10.1.0.7"), slice("theirs", true, "10.1.0.8")} {
		svc := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "sql", Port: 5432}}}}
		all := func(netip.Addr) bool { return true }
		want := exportedService(svc, []discoveryv1.EndpointSlice{*s}, all)
		slim, err := SlimSlice(s.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, exportedService(svc, []discoveryv1.EndpointSlice{*slim.(*discoveryv1.EndpointSlice)}, all)); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
}
