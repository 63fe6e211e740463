package names

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

const (
	clusterA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	clusterB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// sets has Services of two consumers' cluster sets.
func sets() *Book {
	b := twoConsumers()
	http := []Port{{Name: "http", Protocol: "tcp", Number: 80}}
	b.SetService("shop-a", "clusterset-1", Service{Set: "hello", Addresses: addrs("10.96.0.50"), Ports: http})
	b.SetSlice("shop-a", "clusterset-1-a", "clusterset-1", []Endpoint{{Address: addrs("10.244.0.8")[0], Hostname: "h-0", Cluster: clusterA, Ports: http}})
	b.SetService("shop-a", "clusterset-2", Service{Set: "db", Headless: true, Ports: http})
	b.SetSlice("shop-a", "clusterset-2-a", "clusterset-2", []Endpoint{
		{Address: addrs("10.244.0.5")[0], Hostname: "db-0", Cluster: clusterA, Ports: http}, {Address: addrs("10.244.0.6")[0], Cluster: clusterA, Ports: http},
	})
	b.SetSlice("shop-a", "clusterset-2-b", "clusterset-2", []Endpoint{{Address: addrs("198.18.0.5")[0], Hostname: "db-0", Cluster: clusterB, Ports: http}})
	b.SetService("shop-a", "clusterset-3", Service{Set: "idle", Headless: true, Ports: http})
	b.SetService("shop-a", "front", Service{Headless: true, ExternalName: "hello.shop.svc.clusterset.local"})
	b.SetService("shop-b", "clusterset-1", Service{Set: "hello", Addresses: addrs("10.96.0.51"), Ports: http})
	return b
}

func TestNamesOfTheClusterSetAreHomes(t *testing.T) {
	t.Parallel()
	a, b := Who{Peer: homeA, Domain: "cluster.local"}, Who{Peer: homeB, Domain: "home.example"}
	const db = "db.shop.svc.clusterset.local."
	const none = "NXDOMAIN | soa clusterset.local."
	for what, tc := range map[string]struct {
		who   Who
		name  string
		qtype uint16
		want  string
	}{
		"one with an address":                      {a, "hello.shop.svc.clusterset.local.", dns.TypeA, "NOERROR | hello.shop.svc.clusterset.local. A 10.96.0.50"},
		"none of the other family":                 {a, "hello.shop.svc.clusterset.local.", dns.TypeAAAA, "NOERROR | soa clusterset.local."},
		"each consumer has its own":                {b, "hello.shop.svc.clusterset.local.", dns.TypeA, "NOERROR | hello.shop.svc.clusterset.local. A 10.96.0.51"},
		"its ports":                                {a, "_http._tcp.hello.shop.svc.clusterset.local.", dns.TypeSRV, "NOERROR | _http._tcp.hello.shop.svc.clusterset.local. SRV 0 100 80 hello.shop.svc.clusterset.local. | hello.shop.svc.clusterset.local. A 10.96.0.50"},
		"it has no names by cluster":               {a, clusterA + ".hello.shop.svc.clusterset.local.", dns.TypeA, none},
		"nor of pods":                              {a, "h-0." + clusterA + ".hello.shop.svc.clusterset.local.", dns.TypeA, none},
		"a headless one, of all clusters":          {a, db, dns.TypeA, "NOERROR | " + db + " A 10.244.0.5 | " + db + " A 10.244.0.6 | " + db + " A 198.18.0.5"},
		"a pod of one cluster":                     {a, "db-0." + clusterA + "." + db, dns.TypeA, "NOERROR | db-0." + clusterA + "." + db + " A 10.244.0.5"},
		"one of that name of another":              {a, "db-0." + clusterB + "." + db, dns.TypeA, "NOERROR | db-0." + clusterB + "." + db + " A 198.18.0.5"},
		"one without a name":                       {a, "10-244-0-6." + clusterA + "." + db, dns.TypeA, "NOERROR | 10-244-0-6." + clusterA + "." + db + " A 10.244.0.6"},
		"a pod without its cluster":                {a, "db-0." + db, dns.TypeA, none},
		"a cluster has names below it":             {a, clusterA + "." + db, dns.TypeA, "NOERROR | soa clusterset.local."},
		"a cluster that does not export it":        {a, "db-0.cccccccccccccccccccccccccccccccc." + db, dns.TypeA, none},
		"a headless one's ports":                   {b, "_http._tcp." + db, dns.TypeSRV, none},
		"by pod and cluster":                       {a, "_http._tcp." + db, dns.TypeSRV, "NOERROR | _http._tcp." + db + " SRV 0 33 80 db-0." + clusterA + "." + db + " | _http._tcp." + db + " SRV 0 33 80 10-244-0-6." + clusterA + "." + db + " | _http._tcp." + db + " SRV 0 33 80 db-0." + clusterB + "." + db + " | db-0." + clusterA + "." + db + " A 10.244.0.5 | 10-244-0-6." + clusterA + "." + db + " A 10.244.0.6 | db-0." + clusterB + "." + db + " A 198.18.0.5"},
		"one without endpoints does not exist":     {a, "idle.shop.svc.clusterset.local.", dns.TypeA, none},
		"a Service that is not exported":           {a, "web.shop.svc.clusterset.local.", dns.TypeA, none},
		"nor is it called as it is here":           {a, "clusterset-1.shop.svc.clusterset.local.", dns.TypeA, none},
		"also not in home's own domain":            {a, "clusterset-1.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"nor by its name in the set":               {a, "hello.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a namespace that is not here":             {a, "hello.hr.svc.clusterset.local.", dns.TypeA, none},
		"a namespace has no data":                  {a, "shop.svc.clusterset.local.", dns.TypeA, "NOERROR | soa clusterset.local."},
		"the domain's authority":                   {a, "clusterset.local.", dns.TypeSOA, "NOERROR | clusterset.local. SOA ns.dns.clusterset.local. hostmaster.clusterset.local. 1 7200 1800 86400 5"},
		"addresses have no names of it":            {a, "50.0.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN | soa 50.0.96.10.in-addr.arpa."},
		"a Service of home that is an alias of it": {a, "front.shop.svc.cluster.local.", dns.TypeA, "NOERROR | front.shop.svc.cluster.local. CNAME hello.shop.svc.clusterset.local. | hello.shop.svc.clusterset.local. A 10.96.0.50"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			got := say(sets().Answer(tc.who, dns.Question{Name: tc.name, Qtype: tc.qtype, Qclass: dns.ClassINET}, 100, ClusterNames{Hidden: []string{"cluster.local"}}))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Where this cluster shows its names, its cluster set shows where home has no such namespace.
func TestNamesOfThisClustersSetAreSeenWhereHomeHasNone(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"hello.shop.svc.clusterset.local.": "NOERROR | hello.shop.svc.clusterset.local. A 10.96.0.50",
		"web.shop.svc.clusterset.local.":   "NXDOMAIN | soa clusterset.local.",
		"hello.hr.svc.clusterset.local.":   "forward",
	} {
		got := say(sets().Answer(Who{Peer: homeA, Domain: "cluster.local"}, dns.Question{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET}, 100, ClusterNames{Visible: true}))
		if got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestANameOfTheClusterSetGoesWithItsService(t *testing.T) {
	t.Parallel()
	b := sets()
	ask := func(name string) string {
		return say(b.Answer(Who{Peer: homeA, Domain: "cluster.local"}, dns.Question{Name: name + ".shop.svc.clusterset.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET}, 100, ClusterNames{}))
	}
	const none = "NXDOMAIN | soa clusterset.local."
	b.SetService("shop-a", "clusterset-1", Service{Set: "other", Addresses: addrs("10.96.0.50")})
	if got := ask("hello"); got != none {
		t.Errorf("it is still called hello: %s", got)
	}
	if got := ask("other"); got == none {
		t.Error("it is not called other")
	}
	// While one takes the place of another.
	b.SetService("shop-a", "clusterset-9", Service{Set: "other", Addresses: addrs("10.96.0.59")})
	b.DeleteService("shop-a", "clusterset-1")
	if got := ask("other"); got != "NOERROR | other.shop.svc.clusterset.local. A 10.96.0.59" {
		t.Errorf("the younger one is %s", got)
	}
	b.DeleteService("shop-a", "clusterset-9")
	if got := ask("other"); got != none {
		t.Errorf("the deleted Service is %s", got)
	}
}
