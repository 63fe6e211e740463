package allow

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
)

func externalHost(namespace, name string, age time.Duration, clusters []string, addresses ...string) *v1alpha1.ExternalHost {
	return &v1alpha1.ExternalHost{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace + name), CreationTimestamp: metav1.NewTime(peertest.Now.Add(-age)), Generation: 1},
		Spec: v1alpha1.ExternalHostSpec{
			Addresses: addresses, Clusters: clusters, Ports: []v1alpha1.DestinationPort{{Protocol: "TCP", Port: 5432}},
		},
	}
}

// notLoopback refuses loopback addresses.
func notLoopback(_ context.Context, a netip.Addr) (string, error) {
	if a.IsLoopback() {
		return "it is loopback", nil
	}
	return "", nil
}

func TestAnExternalHostReportsItsState(t *testing.T) {
	t.Parallel()
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: "milan"}, Spec: v1alpha1.TunnelSpec{
		ForeignCluster: "milan", PeerID: "m",
		Allow:            []v1alpha1.Exposure{{Namespace: "shop", AnySource: true, To: []v1alpha1.Destination{{Addresses: []string{"192.168.7.9", "2001:db8::9"}, AnyPort: true}}}},
		LocalAliasBlocks: []v1alpha1.AliasBlock{{Alias: "198.18.0.64/30", Addresses: []string{"10.200.0.1", "", "192.168.7.9", ""}}},
	}}
	c := peertest.Client(t, tunnel,
		&v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "milan"}}, &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "rome"}},
		externalHost("shop", "db", time.Hour, []string{"milan", "rome", "nowhere"}, "192.168.7.9", "2001:db8::9"),
		externalHost("shop", "metadata", time.Hour, []string{"milan"}, "192.168.7.10", "127.0.0.1"),
	)
	changed := 0
	r := &Hosts{Client: c, Refusal: notLoopback, Changed: func() { changed++ }}
	status := func(name string) v1alpha1.ExternalHostStatus {
		t.Helper()
		key := client.ObjectKey{Namespace: "shop", Name: name}
		if _, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		var host v1alpha1.ExternalHost
		if err := c.Get(t.Context(), key, &host); err != nil {
			t.Fatal(err)
		}
		return host.Status
	}
	got := status("db")
	want := []v1alpha1.HostInCluster{
		{ForeignCluster: "milan", Addresses: []string{"198.18.0.66"}, Message: "waiting for the peer to choose an alias for 1 of 2 addresses"},
		{ForeignCluster: "nowhere", Message: "there is no ForeignCluster of this name"},
		{ForeignCluster: "rome", Message: "there is no tunnel to the cluster: it is created with a contract that wants one"},
	}
	if diff := cmp.Diff(want, got.Clusters); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	if !meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionAccepted) {
		t.Errorf("conditions are %+v, want it accepted", got.Conditions)
	}
	if status("db"); changed != 1 {
		t.Errorf("peers were planned again %d times, want once: nothing changed", changed)
	}
	refused := meta.FindStatusCondition(status("metadata").Conditions, v1alpha1.ConditionAccepted)
	if refused == nil || refused.Reason != "NotAllowed" || refused.Message != "127.0.0.1 may not be exported: it is loopback" {
		t.Errorf("a host with one refused address has %+v", refused)
	}
	hosts, err := r.Accepted(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr
	pg := v1alpha1.DestinationPort{Protocol: "TCP", Port: 5432}
	exposed := []Exposed{{Namespace: "shop", AnySource: true, To: []Destination{{addr("192.168.7.9"), pg}, {addr("2001:db8::9"), pg}}}}
	if diff := cmp.Diff(exposed, ExposedHosts(hosts, "rome"), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("what a named cluster reaches (-want +got):\n%s", diff)
	}
	if got := ExposedHosts(hosts, "paris"); got != nil {
		t.Errorf("a cluster that is not named reaches %+v", got)
	}
}

func TestOfTooManyExternalHostsTheOldestStay(t *testing.T) {
	t.Parallel()
	var objects []client.Object
	for i := range maxExternalHosts + 2 {
		objects = append(objects, externalHost("shop", fmt.Sprint("host-", i), time.Duration(i)*time.Minute, nil, netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}).String()))
	}
	objects = append(objects, externalHost("shop", "bad", 24*time.Hour, nil, "127.0.0.1")) // takes no other's place
	r := &Hosts{Client: peertest.Client(t, objects...), Refusal: notLoopback, Changed: func() {}}
	verdicts, err := r.judge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"host-0": "TooMany", "host-1": "TooMany", "host-2": "Allowed", "bad": "NotAllowed"} {
		if got := verdicts[client.ObjectKey{Namespace: "shop", Name: name}].Reason; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if hosts, err := r.Accepted(t.Context()); err != nil || len(hosts) != maxExternalHosts {
		t.Errorf("%d hosts are exported (%v), want %d", len(hosts), err, maxExternalHosts)
	}
}
