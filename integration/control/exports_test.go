package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
)

func serviceIn(namespace, name string, edit ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"tier": "edge"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, AppProtocol: new("kubernetes.io/h2c")}}},
	}
	for _, e := range edit {
		e(s)
	}
	return s
}

// offeredServices returns the services that a peer lets a cluster import, as its
// ForeignCluster has them.
func offeredServices(ctx context.Context, c *cluster, peer string) ([]string, error) {
	var fc v1alpha1.ForeignCluster
	if err := c.get(ctx, peer, &fc); err != nil {
		return nil, err
	}
	if fc.Status.Offer == nil {
		return nil, errors.New("there is no offer yet")
	}
	out := []string{}
	for _, s := range fc.Status.Offer.Services {
		out = append(out, s.Namespace+"/"+s.Name)
	}
	return out, nil
}

// servicesAre waits until a peer lets a cluster import these and no others.
func servicesAre(ctx context.Context, c *cluster, peer string, want ...string) error {
	return eventually.Is(ctx, soon, fmt.Sprintf("%s to receive the offer %s", c.name, want), func(ctx context.Context) error {
		got, err := offeredServices(ctx, c, peer)
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			err = fmt.Errorf("it received %s", got)
		}
		return err
	})
}

// TestServicesAreOfferedToThePeerThatMayImportThem: a provider's policy lets one peer import services of one namespace,
// and another peer those of another. Each sees only its own, in all five ways, within seconds of any change.
func TestServicesAreOfferedToThePeerThatMayImportThem(t *testing.T) {
	home, abroad := agents(t)
	f := newFiveWays(t, home, abroad)
	third := another(t, "third")
	ctx := t.Context()
	shop, jobs := newNamespace(t, abroad, "shop"), newNamespace(t, abroad, "jobs")
	create := func(s *corev1.Service) *corev1.Service {
		t.Helper()
		if err := abroad.client.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	create(serviceIn(shop, "cart"))
	create(serviceIn(shop, "db", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.Ports = corev1.ClusterIPNone, nil }))
	create(serviceIn(shop, "internal", func(s *corev1.Service) { s.Labels = nil }))
	create(serviceIn(shop, "outside", func(s *corev1.Service) {
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
	}))
	create(serviceIn(jobs, "queue"))
	edge := &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "edge"}}
	for peer, entries := range map[*cluster][]v1alpha1.ServiceExports{
		// The agent's own namespace, and one that is not there, come to nothing.
		home:  {{Namespace: shop, Selector: edge}, {Namespace: systemNamespace}, {Namespace: "default"}, {Namespace: "nowhere"}},
		third: {{Namespace: jobs, Names: []string{"queue", "later"}}},
	} {
		party, err := partyOf(ctx, peer)
		if err != nil {
			t.Fatal(err)
		}
		p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "aa-" + peer.name}, Spec: v1alpha1.PeeringPolicySpec{
			ClusterIDs: []string{string(party.ID)}, Accept: v1alpha1.AcceptAutomatic, Services: entries,
		}}
		if err := abroad.client.Create(ctx, p); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { remove(t, abroad, p) })
	}
	if err := errors.Join(joined(ctx, home, abroad, abroadName), joined(ctx, third, abroad, abroadName)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(servicesAre(ctx, home, abroadName, shop+"/cart", shop+"/db"), servicesAre(ctx, third, abroadName, jobs+"/queue")); err != nil {
		t.Fatal(err)
	}
	f.sameServices(t, shop)

	begin := time.Now()
	added := create(serviceIn(shop, "pay"))
	if err := servicesAre(ctx, home, abroadName, shop+"/cart", shop+"/db", shop+"/pay"); err != nil {
		t.Fatal(err)
	}
	t.Logf("a new Service was known at the consumer after %s", time.Since(begin).Round(time.Millisecond))
	begin = time.Now()
	if err := abroad.client.Delete(ctx, added); err != nil {
		t.Fatal(err)
	}
	if err := servicesAre(ctx, home, abroadName, shop+"/cart", shop+"/db"); err != nil {
		t.Fatal(err)
	}
	t.Logf("its end was known after %s", time.Since(begin).Round(time.Millisecond))

	// A second agent in the provider's place announces the same.
	if err := abroad.restart(ctx); err != nil {
		t.Fatal(err)
	}
	if err := joinedAgain(ctx, home, third); err != nil {
		t.Fatal(err)
	}
	create(serviceIn(jobs, "later"))
	if err := servicesAre(ctx, third, abroadName, jobs+"/later", jobs+"/queue"); err != nil {
		t.Error(err)
	}
	// Its owner keeps one back.
	cart := serviceIn(shop, "cart")
	if err := abroad.get(ctx, cart.Name, cart); err != nil {
		t.Fatal(err)
	}
	cart.Labels[v1alpha1.LabelExport] = "false"
	if err := abroad.client.Update(ctx, cart); err != nil {
		t.Fatal(err)
	}
	if err := servicesAre(ctx, home, abroadName, shop+"/db"); err != nil {
		t.Error(err)
	}
	// A Service that is no longer announced is removed everywhere.
	for _, peer := range []string{homeName, "third"} {
		remove(t, abroad, &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "aa-" + peer}})
	}
	if err := errors.Join(servicesAre(ctx, home, abroadName), servicesAre(ctx, third, abroadName)); err != nil {
		t.Error(err)
	}
	// Abroad forgets both while the third's agent still lives.
	if err := abroad.client.DeleteAllOf(ctx, &v1alpha1.ForeignCluster{}); err != nil {
		t.Fatal(err)
	}
	if err := empty(ctx, abroad, later); err != nil {
		t.Error(err)
	}
}

// joinedAgain waits until clusters are connected with abroad.
func joinedAgain(ctx context.Context, clusters ...*cluster) error {
	for _, c := range clusters {
		err := eventually.Is(ctx, later, c.name+" to be connected again", func(ctx context.Context) error {
			var fc v1alpha1.ForeignCluster
			if err := c.get(ctx, abroadName, &fc); err != nil {
				return err
			}
			return conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// sameServices checks that the services that home may import are shown alike in all
// ways.
func (f *fiveWays) sameServices(t *testing.T, namespace string) {
	t.Helper()
	ctx := t.Context()
	var fc v1alpha1.ForeignCluster
	if err := f.home.get(ctx, abroadName, &fc); err != nil {
		t.Fatal(err)
	}
	type port struct {
		Name, Protocol, AppProtocol string
		Port                        int32
	}
	type service struct {
		Namespace, Name, Type string
		Ports                 []port
	}
	text := func(v any) string {
		t.Helper()
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	normal := func(way string, in []byte, err error) string {
		t.Helper()
		var offer struct{ Services []service }
		if err == nil {
			err = json.Unmarshal(in, &offer)
		}
		if err != nil {
			t.Errorf("%s: %v", way, err)
		}
		for i := range offer.Services {
			if len(offer.Services[i].Ports) == 0 {
				offer.Services[i].Ports = nil
			}
		}
		return text(offer.Services)
	}
	inPeer := func(in []byte, err error) ([]byte, error) {
		var got struct {
			Peer struct{ Offer json.RawMessage }
		}
		if err == nil {
			err = json.Unmarshal(in, &got)
		}
		return got.Peer.Offer, err
	}
	want := text([]service{
		{Namespace: namespace, Name: "cart", Type: "ClusterSetIP", Ports: []port{{"http", "TCP", "kubernetes.io/h2c", 80}}},
		{Namespace: namespace, Name: "db", Type: "Headless"},
	})
	got := map[string]string{"kubectl": normal("kubectl", []byte(text(fc.Status.Offer)), nil)}
	out, err := inPeer(f.grpcurl(ctx, f.home, "GetPeer", `{"name": "peers/abroad"}`))
	got["grpcurl"] = normal("grpcurl", out, err)
	out, err = inPeer(f.rest(ctx, f.home, http.MethodGet, "/v1/peers/abroad", ""))
	got["REST"] = normal("REST", out, err)
	printed, err := f.cli(ctx, f.home, "", "info", "peer", abroadName, "-o", "json")
	var cli struct{ Offer json.RawMessage }
	if err == nil {
		err = json.Unmarshal([]byte(printed), &cli)
	}
	got["the CLI"] = normal("the CLI", cli.Offer, err)
	resp, err := call(ctx, f.home, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.GetPeerResponse, error) {
		return a.GetPeer(ctx, &ententev1.GetPeerRequest{Name: "peers/" + abroadName})
	})
	if err == nil {
		out, err = protojson.Marshal(resp.GetPeer().GetOffer())
	}
	got["Go"] = normal("Go", out, err)
	for way, services := range got {
		if services != want {
			t.Errorf("%s shows\n%s\nwant\n%s", way, services, want)
		}
	}
	table, err := f.cli(ctx, f.home, "", "info", "peer", abroadName)
	if err != nil || !strings.Contains(table, "http 80/TCP (kubernetes.io/h2c)") || !strings.Contains(table, namespace+"/db") {
		t.Errorf("the CLI prints %v\n%s", err, table)
	}
}
