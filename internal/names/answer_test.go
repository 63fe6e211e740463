package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

const (
	homeA = "consumer-a"
	homeB = "consumer-b"
)

// twoConsumers has two consumers with a namespace shop each, in which both have web.
func twoConsumers() *Book {
	b := NewBook()
	http := []Port{{Name: "http", Protocol: "tcp", Number: 80}, {Name: "metrics", Protocol: "tcp", Number: 9090}}
	b.SetNamespace("shop-a", homeA, "shop", "cluster.local")
	b.SetNamespace("shop-b", homeB, "shop", "home.example")
	b.SetNamespace("db-a", homeA, "db", "cluster.local")
	b.SetService("shop-a", "web", Service{Addresses: addrs("10.96.0.1", "fd00::1"), Ports: http})
	b.SetService("shop-b", "web", Service{Addresses: addrs("10.96.0.2"), Ports: http})
	b.SetService("shop-a", "plain", Service{Addresses: addrs("10.96.0.3"), Ports: []Port{{Protocol: "tcp", Number: 7}}})
	b.SetService("db-a", "pg", Service{Headless: true, Ports: []Port{{Name: "sql", Protocol: "tcp", Number: 5432}}})
	sql := []Port{{Name: "sql", Protocol: "tcp", Number: 15432}}
	b.SetSlice("db-a", "pg-1", "pg", []Endpoint{
		{Address: addrs("10.244.0.5")[0], Hostname: "pg-0", Ports: sql},
		{Address: addrs("10.244.0.6")[0], Hostname: "pg-1", Ports: sql},
	})
	b.SetSlice("db-a", "pg-2", "pg", []Endpoint{{Address: addrs("10.244.0.7")[0], Ports: sql}})
	b.SetSlice("db-a", "pg-3", "pg", []Endpoint{{Address: addrs("fd00:1::5")[0], Hostname: "pg-0", Ports: sql}})
	b.SetService("db-a", "idle", Service{Headless: true, Ports: []Port{{Name: "sql", Protocol: "tcp", Number: 5432}}})
	b.SetPod("shop-a", "curl", addrs("10.244.1.1"))
	b.SetPod("shop-b", "curl", addrs("10.244.1.2"))
	return b
}

// say formats an answer on one line: rcode, then name, type and content of each record.
func say(a Answer) string {
	if a.Forward {
		return "forward"
	}
	out := []string{dns.RcodeToString[a.Rcode]}
	for _, part := range [][]dns.RR{a.Aliases, a.Records, a.Extra} {
		for _, rr := range part {
			out = append(out, strings.TrimPrefix(strings.ReplaceAll(rr.String(), "\t", " "), ""))
		}
	}
	for _, rr := range a.Authority {
		out = append(out, "soa "+rr.Header().Name)
	}
	if a.Outside != "" {
		out = append(out, "ask "+a.Outside)
	}
	text := strings.Join(out, " | ")
	return strings.ReplaceAll(text, " 5 IN ", " ")
}

func TestAnswerFollowsTheSpecificationOfServiceDiscovery(t *testing.T) {
	t.Parallel()
	a, b := Who{Peer: homeA, Domain: "cluster.local"}, Who{Peer: homeB, Domain: "home.example"}
	for what, tc := range map[string]struct {
		who   Who
		name  string
		qtype uint16
		want  string
	}{
		"a Service has its cluster address":                {a, "web.shop.svc.cluster.local.", dns.TypeA, "NOERROR | web.shop.svc.cluster.local. A 10.96.0.1"},
		"of the other family, too":                         {a, "web.shop.svc.cluster.local.", dns.TypeAAAA, "NOERROR | web.shop.svc.cluster.local. AAAA fd00::1"},
		"the question is repeated as it was asked":         {a, "wEb.Shop.SVC.cluster.LOCAL.", dns.TypeA, "NOERROR | wEb.Shop.SVC.cluster.LOCAL. A 10.96.0.1"},
		"the other family has no data":                     {b, "web.shop.svc.home.example.", dns.TypeAAAA, "NOERROR | soa home.example."},
		"another type has no data":                         {a, "web.shop.svc.cluster.local.", dns.TypeMX, "NOERROR | soa cluster.local."},
		"two consumers with one name have their own":       {b, "web.shop.svc.home.example.", dns.TypeA, "NOERROR | web.shop.svc.home.example. A 10.96.0.2"},
		"no consumer sees another's namespace":             {b, "pg.db.svc.home.example.", dns.TypeA, "NXDOMAIN | soa home.example."},
		"nor by its name here":                             {a, "web.shop-b.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"the name of a namespace here does not exist":      {a, "web.shop-a.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a Service that home has not":                      {a, "nope.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a namespace that home has not":                    {a, "web.nope.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a namespace has no data":                          {a, "shop.svc.cluster.local.", dns.TypeA, "NOERROR | soa cluster.local."},
		"svc has no data":                                  {a, "svc.cluster.local.", dns.TypeA, "NOERROR | soa cluster.local."},
		"the domain has no data":                           {a, "cluster.local.", dns.TypeA, "NOERROR | soa cluster.local."},
		"another name in the domain does not exist":        {a, "kubernetes.default.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"the API server is not offloaded":                  {a, "kubernetes.default.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"this cluster's domain is hidden":                  {b, "web.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a search domain too many":                         {a, "web.shop.svc.cluster.local.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"too many labels":                                  {a, "a.b.c.d.e.web.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a dot in a label does not separate labels":        {a, `web\.shop.svc.cluster.local.`, dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"the Internet is forwarded":                        {a, "example.com.", dns.TypeA, "forward"},
		"so is a name with a similar end":                  {a, "notcluster.local.", dns.TypeA, "forward"},
		"and the root":                                     {a, ".", dns.TypeNS, "forward"},
		"short names are the client's search list's":       {a, "web.shop.", dns.TypeA, "forward"},
		"a headless one with addresses, once each":         {a, "pg.db.svc.cluster.local.", dns.TypeAAAA, "NOERROR | pg.db.svc.cluster.local. AAAA fd00:1::5"},
		"a pod of a StatefulSet":                           {a, "pg-1.pg.db.svc.cluster.local.", dns.TypeA, "NOERROR | pg-1.pg.db.svc.cluster.local. A 10.244.0.6"},
		"a pod of both families":                           {a, "pg-0.pg.db.svc.cluster.local.", dns.TypeAAAA, "NOERROR | pg-0.pg.db.svc.cluster.local. AAAA fd00:1::5"},
		"an endpoint without a name goes by its address":   {a, "10-244-0-7.pg.db.svc.cluster.local.", dns.TypeA, "NOERROR | 10-244-0-7.pg.db.svc.cluster.local. A 10.244.0.7"},
		"one with a name does not":                         {a, "10-244-0-6.pg.db.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a pod that is not there":                          {a, "pg-7.pg.db.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"a headless one without endpoints does not exist":  {a, "idle.db.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"nor has it ports":                                 {a, "_sql._tcp.idle.db.svc.cluster.local.", dns.TypeSRV, "NXDOMAIN | soa cluster.local."},
		"SRV of a named port":                              {a, "_http._tcp.web.shop.svc.cluster.local.", dns.TypeSRV, "NOERROR | _http._tcp.web.shop.svc.cluster.local. SRV 0 100 80 web.shop.svc.cluster.local. | web.shop.svc.cluster.local. A 10.96.0.1 | web.shop.svc.cluster.local. AAAA fd00::1"},
		"SRV of a Service has all its ports":               {b, "web.shop.svc.home.example.", dns.TypeSRV, "NOERROR | web.shop.svc.home.example. SRV 0 50 80 web.shop.svc.home.example. | web.shop.svc.home.example. SRV 0 50 9090 web.shop.svc.home.example. | web.shop.svc.home.example. A 10.96.0.2"},
		"SRV of a headless one has its endpoints' ports":   {a, "_sql._tcp.pg.db.svc.cluster.local.", dns.TypeSRV, "NOERROR | _sql._tcp.pg.db.svc.cluster.local. SRV 0 25 15432 pg-0.pg.db.svc.cluster.local. | _sql._tcp.pg.db.svc.cluster.local. SRV 0 25 15432 pg-1.pg.db.svc.cluster.local. | _sql._tcp.pg.db.svc.cluster.local. SRV 0 25 15432 10-244-0-7.pg.db.svc.cluster.local. | _sql._tcp.pg.db.svc.cluster.local. SRV 0 25 15432 pg-0.pg.db.svc.cluster.local. | pg-0.pg.db.svc.cluster.local. A 10.244.0.5 | pg-1.pg.db.svc.cluster.local. A 10.244.0.6 | 10-244-0-7.pg.db.svc.cluster.local. A 10.244.0.7"},
		"SRV of the wrong protocol":                        {a, "_http._udp.web.shop.svc.cluster.local.", dns.TypeSRV, "NXDOMAIN | soa cluster.local."},
		"SRV of a port that it has not":                    {a, "_ftp._tcp.web.shop.svc.cluster.local.", dns.TypeSRV, "NXDOMAIN | soa cluster.local."},
		"a port without a name has no name":                {a, "_._tcp.plain.shop.svc.cluster.local.", dns.TypeSRV, "NXDOMAIN | soa cluster.local."},
		"the name of a port has no address":                {a, "_http._tcp.web.shop.svc.cluster.local.", dns.TypeA, "NOERROR | soa cluster.local."},
		"a protocol has names below it":                    {a, "_tcp.web.shop.svc.cluster.local.", dns.TypeSRV, "NOERROR | soa cluster.local."},
		"PTR of a cluster address":                         {a, "1.0.96.10.in-addr.arpa.", dns.TypePTR, "NOERROR | 1.0.96.10.in-addr.arpa. PTR web.shop.svc.cluster.local."},
		"PTR of IPv6":                                      {a, "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.", dns.TypePTR, "NOERROR | 1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa. PTR web.shop.svc.cluster.local."},
		"PTR of a headless one's pod":                      {a, "5.0.244.10.in-addr.arpa.", dns.TypePTR, "NOERROR | 5.0.244.10.in-addr.arpa. PTR pg-0.pg.db.svc.cluster.local."},
		"PTR of another consumer's address":                {b, "1.0.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN | soa 1.0.96.10.in-addr.arpa."},
		"PTR of a private address of this cluster":         {a, "10.0.96.10.in-addr.arpa.", dns.TypePTR, "NXDOMAIN | soa 10.0.96.10.in-addr.arpa."},
		"a name below a private prefix":                    {a, "96.10.in-addr.arpa.", dns.TypeNS, "NXDOMAIN | soa 96.10.in-addr.arpa."},
		"PTR of the Internet is forwarded":                 {a, "8.8.8.8.in-addr.arpa.", dns.TypePTR, "forward"},
		"so is a malformed reverse name":                   {a, "x.8.8.8.in-addr.arpa.", dns.TypePTR, "forward"},
		"which version of the specification":               {a, "dns-version.cluster.local.", dns.TypeTXT, `NOERROR | dns-version.cluster.local. TXT "1.1.0"`},
		"the domain's authority":                           {a, "cluster.local.", dns.TypeSOA, "NOERROR | cluster.local. SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"},
		"ANY gets a HINFO record":                          {a, "web.shop.svc.cluster.local.", dns.TypeANY, `NOERROR | web.shop.svc.cluster.local. HINFO "RFC8482" ""`},
		"a transfer is refused":                            {a, "cluster.local.", dns.TypeAXFR, "REFUSED"},
		"a consumer without a namespace sees an empty one": {Who{Peer: "nobody", Domain: "cluster.local"}, "web.shop.svc.cluster.local.", dns.TypeA, "NXDOMAIN | soa cluster.local."},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			got := say(twoConsumers().Answer(tc.who, dns.Question{Name: tc.name, Qtype: tc.qtype, Qclass: dns.ClassINET}, 100, ClusterNames{Hidden: []string{"cluster.local"}}))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", tc.name, dns.TypeToString[tc.qtype], diff)
			}
		})
	}
}

func TestAClustersOwnNamesShowOnlyWhereTheyAreVisible(t *testing.T) {
	t.Parallel()
	who := Who{Peer: homeA, Domain: "cluster.local"}
	for name, visible := range map[string]string{
		"web.other.svc.cluster.local.":   "forward",
		"other.svc.cluster.local.":       "forward",
		"web.shop.svc.cluster.local.":    "NOERROR | web.shop.svc.cluster.local. A 10.96.0.1",
		"nope.shop.svc.cluster.local.":   "NXDOMAIN | soa cluster.local.",
		"own.shop.svc.cluster.local.":    "NXDOMAIN | soa cluster.local.",
		"web.shop.svc.provider.example.": "forward",
		"10.0.96.10.in-addr.arpa.":       "forward",
	} {
		q := dns.Question{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET}
		cluster := ClusterNames{Hidden: []string{"cluster.local", "provider.example"}, Visible: true}
		if got := say(twoConsumers().Answer(who, q, 100, cluster)); got != visible {
			t.Errorf("visible: %s is %q; want %q", name, got, visible)
		}
		cluster.Visible = false
		if got := say(twoConsumers().Answer(who, q, 100, cluster)); got == "forward" {
			t.Errorf("hidden: %s is forwarded", name)
		}
	}
}

func TestSourceIsTheConsumerWhosePodItIs(t *testing.T) {
	t.Parallel()
	at := addrs("10.244.1.1")[0]
	type step func(b *Book)
	for what, tc := range map[string]struct {
		steps []step
		want  string
	}{
		"a pod of a consumer":             {nil, homeA},
		"a pod that ended has no address": {[]step{func(b *Book) { b.SetPod("shop-a", "curl", nil) }}, ""},
		"another pod of the same consumer, whose pod had the address": {[]step{
			func(b *Book) { b.SetPod("db-a", "new", addrs("10.244.1.1")) },
		}, homeA},
		"while pods of two consumers seem to have it, none": {[]step{
			func(b *Book) { b.SetPod("shop-b", "new", addrs("10.244.1.1")) },
		}, ""},
		"the address went to another consumer's pod": {[]step{
			func(b *Book) { b.SetPod("shop-b", "new", addrs("10.244.1.1")) },
			func(b *Book) { b.SetPod("shop-a", "curl", nil) },
		}, homeB},
		"its namespace is not known to be a consumer's": {[]step{func(b *Book) { b.DeleteNamespace("shop-a") }}, ""},
		"it has another address now":                    {[]step{func(b *Book) { b.SetPod("shop-a", "curl", addrs("10.244.1.9")) }}, ""},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := twoConsumers()
			for _, do := range tc.steps {
				do(b)
			}
			who, ok := b.Source(at)
			if who.Peer != tc.want || ok != (tc.want != "") {
				t.Errorf("Source(%s) = %+v, %v; want %q", at, who, ok, tc.want)
			}
		})
	}
}

func TestBookIsEmptyAfterAllDeletes(t *testing.T) {
	t.Parallel()
	b := twoConsumers()
	// Services and endpoints may go before their namespace or after it.
	b.DeleteNamespace("shop-a")
	for _, ns := range []string{"shop-a", "shop-b", "db-a"} {
		for _, svc := range []string{"web", "plain", "pg", "idle"} {
			b.DeleteService(ns, svc)
		}
		for _, slice := range []string{"pg-1", "pg-2", "pg-3"} {
			b.DeleteSlice(ns, slice)
		}
		b.SetPod(ns, "curl", nil)
	}
	b.DeleteNamespace("shop-b")
	b.DeleteNamespace("db-a")
	if len(b.spaces)+len(b.homes)+len(b.reverse)+len(b.pods)+len(b.podAddresses) > 0 {
		t.Errorf("left: %d namespaces, %d consumers, %d addresses, %d pods", len(b.spaces), len(b.homes), len(b.reverse), len(b.podAddresses))
	}
}

func TestServicesAreFoundOnceTheirNamespaceIs(t *testing.T) {
	t.Parallel()
	b := NewBook()
	b.SetService("shop-a", "web", Service{Addresses: addrs("10.96.0.1")})
	q := dns.Question{Name: "web.shop.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	who := Who{Peer: homeA, Domain: "cluster.local"}
	if a := b.Answer(who, q, 1, ClusterNames{}); a.Rcode != dns.RcodeNameError {
		t.Errorf("before its namespace is known: %s", say(a))
	}
	b.SetNamespace("shop-a", homeA, "shop", "cluster.local")
	if a := b.Answer(who, q, 1, ClusterNames{}); len(a.Records) != 1 {
		t.Errorf("once its namespace is known: %s", say(a))
	}
}

func TestAnswerHasNoMoreRecordsThanAskedFor(t *testing.T) {
	t.Parallel()
	b := NewBook()
	b.SetNamespace("big-a", homeA, "big", "cluster.local")
	b.SetService("big-a", "all", Service{Headless: true, Ports: []Port{{Name: "p", Protocol: "tcp", Number: 1}}})
	for i := range 50 {
		var list []Endpoint
		for j := range 100 {
			list = append(list, Endpoint{Address: netip.AddrFrom4([4]byte{10, 1, byte(i), byte(j)}), Ports: []Port{{Name: "p", Protocol: "tcp", Number: 1}}})
		}
		b.SetSlice("big-a", fmt.Sprintf("all-%d", i), "all", list)
	}
	for _, tc := range []struct {
		name  string
		qtype uint16
	}{
		{"all.big.svc.cluster.local.", dns.TypeA},
		{"_p._tcp.all.big.svc.cluster.local.", dns.TypeSRV},
	} {
		a := b.Answer(Who{homeA, "cluster.local"}, dns.Question{Name: tc.name, Qtype: tc.qtype}, 100, ClusterNames{})
		if len(a.Records) != 100 || !a.Partial || a.Work > 200 {
			t.Errorf("%s: %d records, partial %v, looked at %d", tc.name, len(a.Records), a.Partial, a.Work)
		}
	}
	// The work of reading all of them is counted.
	a := b.Answer(Who{homeA, "cluster.local"}, dns.Question{Name: "nope.all.big.svc.cluster.local.", Qtype: dns.TypeA}, 100, ClusterNames{})
	if a.Rcode != dns.RcodeNameError || a.Work != 5000 {
		t.Errorf("a pod that is not there: %s after %d", say(a), a.Work)
	}
}

func TestTenThousandServicesAreAnsweredAtOnce(t *testing.T) {
	t.Parallel()
	b := NewBook()
	for n := range 20 {
		home := fmt.Sprintf("ns-%d", n)
		b.SetNamespace(home+"-a", homeA, home, "cluster.local")
		for i := range 500 {
			b.SetService(home+"-a", fmt.Sprintf("svc-%d", i), Service{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(96 + n), byte(i >> 8), byte(i)})}})
		}
	}
	who := Who{homeA, "cluster.local"}
	for n := range 20 {
		for i := range 500 {
			q := dns.Question{Name: fmt.Sprintf("svc-%d.ns-%d.svc.cluster.local.", i, n), Qtype: dns.TypeA}
			want := netip.AddrFrom4([4]byte{10, byte(96 + n), byte(i >> 8), byte(i)}).String()
			a := b.Answer(who, q, 100, ClusterNames{})
			if len(a.Records) != 1 || a.Records[0].(*dns.A).A.String() != want || a.Work != 1 {
				t.Fatalf("%s: %s, looked at %d; want %s", q.Name, say(a), a.Work, want)
			}
		}
	}
}

// FuzzAnswer asks anything: an answer never has a record outside of the consumer's own zone, and
// answers repeat the question's name.
func FuzzAnswer(f *testing.F) {
	for _, name := range []string{
		"web.shop.svc.cluster.local.", "_http._tcp.web.shop.svc.cluster.local.", `a\.b.shop.svc.cluster.local.`, `\000.svc.cluster.local.`,
		"1.0.96.10.in-addr.arpa.", "ip6.arpa.", ".", "..", "svc.home.example.", strings.Repeat("a.", 126),
	} {
		f.Add(name, dns.TypeA)
		f.Add(name, dns.TypeSRV)
		f.Add(name, dns.TypePTR)
	}
	b := twoConsumers()
	f.Fuzz(func(t *testing.T, name string, qtype uint16) {
		a := b.Answer(Who{homeB, "home.example"}, dns.Question{Name: name, Qtype: qtype, Qclass: dns.ClassINET}, 100, ClusterNames{Hidden: []string{"cluster.local"}})
		for _, rr := range slices.Concat(a.Aliases, a.Records, a.Extra) {
			text := rr.String()
			for _, other := range []string{"10.96.0.1", "10.96.0.3", "10.244.0.", "fd00:", "cluster.local"} {
				if strings.Contains(strings.TrimPrefix(text, rr.Header().Name), other) {
					t.Errorf("%q: an answer for %s has %q", name, homeB, text)
				}
			}
		}
		for _, rr := range a.Records {
			if a.Forward || (rr.Header().Name != name && rr.Header().Rrtype != dns.TypeSOA) {
				t.Errorf("%q: answered for %q, forward %v", name, rr.Header().Name, a.Forward)
			}
		}
	})
}

// Names of a StatefulSet's pods that software builds of its POD_NAMESPACE are those of home,
// whatever the namespace is called here: by its own name, with the peer's suffix, or cut.
func TestNamesOfPodsAreThoseOfHomeUnderEachMapping(t *testing.T) {
	for mapping, here := range map[string]string{"Same": "shop", "Suffixed": "shop-aaaaaaaa", "Suffixed and cut": "sh-1a2b3c4d-aaaaaaaa", "Chosen": "rome-web"} {
		t.Run(mapping, func(t *testing.T) {
			b := NewBook()
			b.SetNamespace(here, "a", "shop", "cluster.local.")
			b.SetService(here, "db", Service{Headless: true})
			b.SetSlice(here, "db-1", "db", []Endpoint{{Address: netip.MustParseAddr("10.244.0.5"), Hostname: "db-0"}})
			for _, name := range []string{"db-0.db.shop.svc.cluster.local.", "DB-0.db.shop.svc.cluster.local."} {
				a := b.Answer(Who{Peer: "a", Domain: "cluster.local."}, dns.Question{Name: name, Qtype: dns.TypeA, Qclass: dns.ClassINET}, 10, ClusterNames{})
				if len(a.Records) != 1 || !strings.HasSuffix(a.Records[0].String(), "10.244.0.5") {
					t.Errorf("%s is %+v", name, a)
				}
			}
			if a := b.Answer(Who{Peer: "b", Domain: "cluster.local."}, dns.Question{Name: "db-0.db.shop.svc.cluster.local.", Qtype: dns.TypeA}, 10, ClusterNames{}); len(a.Records) > 0 {
				t.Errorf("another consumer gets %v", a.Records)
			}
		})
	}
}
