package exposure

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
)

func offloading(namespace string, openTo ...string) v1alpha1.NamespaceOffloading {
	return v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}, Spec: v1alpha1.NamespaceOffloadingSpec{OpenTo: openTo}}
}

func TestServicesAreOpenToThePodsThatTheirOwnersName(t *testing.T) {
	t.Parallel()
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}}
	e.Want(serviceIn(t, "shop", "web", "10.200.0.1"))
	e.Want(serviceIn(t, "data", "db", "10.200.0.2", "192.0.2.1"))
	for uid, namespace := range map[string]string{"s": "shop", "b": "bank"} {
		wantPods(e, namespace, uid)
		e.Status(podIn(t, namespace, uid, map[string]string{"s": "10.240.0.1", "b": "10.240.0.2"}[uid]))
	}
	ending := offloading("data", "shop")
	ending.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	for name, tc := range map[string]struct {
		offloadings []v1alpha1.NamespaceOffloading
		want        map[string][]string // endpoints, by the namespace of the pods
	}{
		"none names another":              {[]v1alpha1.NamespaceOffloading{offloading("data"), offloading("shop")}, map[string][]string{"shop": {"10.200.0.1"}}},
		"data names shop":                 {[]v1alpha1.NamespaceOffloading{offloading("data", "shop")}, map[string][]string{"shop": {"10.200.0.1", "10.200.0.2"}}},
		"who is named opens nothing":      {[]v1alpha1.NamespaceOffloading{offloading("shop", "data")}, map[string][]string{"shop": {"10.200.0.1"}}},
		"data names all":                  {[]v1alpha1.NamespaceOffloading{offloading("data", "*")}, map[string][]string{"shop": {"10.200.0.1", "10.200.0.2"}, "bank": {"10.200.0.2"}}},
		"data names itself":               {[]v1alpha1.NamespaceOffloading{offloading("data", "data"), offloading("shop", "shop", "*")}, map[string][]string{"shop": {"10.200.0.1"}, "bank": {"10.200.0.1"}}},
		"data is not offloaded any more":  {[]v1alpha1.NamespaceOffloading{ending}, map[string][]string{"shop": {"10.200.0.1"}}},
		"a name that only begins as shop": {[]v1alpha1.NamespaceOffloading{offloading("data", "shop-2", "sho")}, map[string][]string{"shop": {"10.200.0.1"}}},
	} {
		open, _ := e.Exposed(Reachable{Pods: []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16")}, Opened: OpenedBy(tc.offloadings)})
		for _, x := range open {
			var got []string
			for _, a := range addrsOf(slices.Concat(append(slices.Collect(maps.Values(x.Opened)), x.To)...)) {
				got = append(got, a.String())
			}
			slices.Sort(got)
			if got = slices.Compact(got); !slices.Equal(got, tc.want[x.Namespace]) {
				t.Errorf("%s: pods of %s reach %v, want %v", name, x.Namespace, got, tc.want[x.Namespace])
			}
		}
		if len(open) != len(tc.want) {
			t.Errorf("%s: %d namespaces have something open, want %d", name, len(open), len(tc.want))
		}
	}
}

// A namespace opens to others what its own Services may lead to: its hosts, and not those of the others.
func TestHostsAreOpenedByTheirOwnNamespace(t *testing.T) {
	t.Parallel()
	e := &Exposure{Contract: "c", Home: asIs, Changed: func() {}}
	e.Want(serviceIn(t, "data", "db", "192.0.2.1"))
	wantPods(e, "shop", "s")
	e.Status(podIn(t, "shop", "s", "10.240.0.1"))
	opened := OpenedBy([]v1alpha1.NamespaceOffloading{offloading("data", "shop")})
	for namespace, want := range map[string]int{"data": 1, "shop": 0} {
		host := allow.Host{Namespace: namespace, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}
		if open, _ := e.Exposed(Reachable{Hosts: []allow.Host{host}, Opened: opened}); len(open) != want {
			t.Errorf("a host that names %s opens %+v, want %d", namespace, open, want)
		}
	}
}

func TestOpeningsNoticeWhatChanged(t *testing.T) {
	t.Parallel()
	var o Openings
	for i, step := range []struct {
		now  Opened
		want bool
	}{
		{Opened{}, false}, {Opened{"data": {"shop"}}, true}, {Opened{"data": {"shop"}}, false}, {Opened{"data": {"bank"}}, true}, {Opened{"shop": {"bank"}}, true}, {Opened{}, true},
	} {
		if got := o.Changed(step.now); got != step.want {
			t.Errorf("step %d, %v: %t, want %t", i, step.now, got, step.want)
		}
	}
}
