package names

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// withAliases adds Services to those of twoConsumers that are aliases of other names.
func withAliases() *Book {
	b := twoConsumers()
	for name, target := range map[string]string{
		"out": "db.example.org", "same": "web.shop.svc.cluster.local", "other": "pg.db.svc.cluster.local", "pod": "pg-0.pg.db.svc.cluster.local",
		"twice": "same.shop.svc.cluster.local", "far": "out.shop.svc.cluster.local", "api": "kubernetes.default.svc.cluster.local",
		"unknown": "web.hr.svc.cluster.local", "theirs": "web.default.svc.provider.example", "set": "web.shop.svc.clusterset.local",
		"self": "self.shop.svc.cluster.local", "ping": "pong.shop.svc.cluster.local", "pong": "ping.shop.svc.cluster.local", "lost": "nope.shop.svc.cluster.local",
	} {
		b.SetService("shop-a", name, Service{Headless: true, ExternalName: target})
	}
	for i := range maxAliases + 2 {
		b.SetService("shop-a", fmt.Sprintf("hop-%d", i), Service{Headless: true, ExternalName: fmt.Sprintf("hop-%d.shop.svc.cluster.local", i+1)})
	}
	b.SetService("shop-a", fmt.Sprintf("hop-%d", maxAliases+2), Service{Addresses: addrs("10.96.0.9")})
	b.SetService("shop-b", "theirs", Service{Headless: true, ExternalName: "web.shop.svc.cluster.local"})
	return b
}

// hidden is the ClusterNames of a cluster.
func hidden(visible bool) ClusterNames {
	return ClusterNames{Hidden: []string{"cluster.local", "clusterset.local", "provider.example"}, Visible: visible}
}

func TestAServiceMayStandForAnotherName(t *testing.T) {
	t.Parallel()
	a, b := Who{Peer: homeA, Domain: "cluster.local"}, Who{Peer: homeB, Domain: "home.example"}
	for what, tc := range map[string]struct {
		who   Who
		name  string
		qtype uint16
		want  string
	}{
		"of the Internet: that is asked for":                {a, "out", dns.TypeA, "NOERROR | out.shop.svc.cluster.local. CNAME db.example.org. | ask db.example.org."},
		"whatever of it is asked for":                       {a, "out", dns.TypeMX, "NOERROR | out.shop.svc.cluster.local. CNAME db.example.org. | ask db.example.org."},
		"the question is repeated as it was asked":          {a, "Out", dns.TypeAAAA, "NOERROR | Out.shop.svc.cluster.local. CNAME db.example.org. | ask db.example.org."},
		"a question for the alias alone is answered":        {a, "out", dns.TypeCNAME, "NOERROR | out.shop.svc.cluster.local. CNAME db.example.org."},
		"and of one of home's no more":                      {a, "same", dns.TypeCNAME, "NOERROR | same.shop.svc.cluster.local. CNAME web.shop.svc.cluster.local."},
		"of home's own Service":                             {a, "same", dns.TypeA, "NOERROR | same.shop.svc.cluster.local. CNAME web.shop.svc.cluster.local. | web.shop.svc.cluster.local. A 10.96.0.1"},
		"of one in another namespace of home":               {a, "other", dns.TypeAAAA, "NOERROR | other.shop.svc.cluster.local. CNAME pg.db.svc.cluster.local. | pg.db.svc.cluster.local. AAAA fd00:1::5"},
		"of a pod of home":                                  {a, "pod", dns.TypeA, "NOERROR | pod.shop.svc.cluster.local. CNAME pg-0.pg.db.svc.cluster.local. | pg-0.pg.db.svc.cluster.local. A 10.244.0.5"},
		"with ports":                                        {a, "same", dns.TypeSRV, "NOERROR | same.shop.svc.cluster.local. CNAME web.shop.svc.cluster.local. | web.shop.svc.cluster.local. SRV 0 50 80 web.shop.svc.cluster.local. | web.shop.svc.cluster.local. SRV 0 50 9090 web.shop.svc.cluster.local. | web.shop.svc.cluster.local. A 10.96.0.1 | web.shop.svc.cluster.local. AAAA fd00::1"},
		"an alias of another":                               {a, "twice", dns.TypeA, "NOERROR | twice.shop.svc.cluster.local. CNAME same.shop.svc.cluster.local. | same.shop.svc.cluster.local. CNAME web.shop.svc.cluster.local. | web.shop.svc.cluster.local. A 10.96.0.1"},
		"of the Internet in the end":                        {a, "far", dns.TypeA, "NOERROR | far.shop.svc.cluster.local. CNAME out.shop.svc.cluster.local. | out.shop.svc.cluster.local. CNAME db.example.org. | ask db.example.org."},
		"of home's API server, not of this cluster's":       {a, "api", dns.TypeA, "NXDOMAIN | api.shop.svc.cluster.local. CNAME kubernetes.default.svc.cluster.local. | soa cluster.local."},
		"of a namespace of home that is not here":           {a, "unknown", dns.TypeA, "NXDOMAIN | unknown.shop.svc.cluster.local. CNAME web.hr.svc.cluster.local. | soa cluster.local."},
		"of a Service that home has not":                    {a, "lost", dns.TypeA, "NXDOMAIN | lost.shop.svc.cluster.local. CNAME nope.shop.svc.cluster.local. | soa cluster.local."},
		"of a Service of this cluster's":                    {a, "theirs", dns.TypeA, "NXDOMAIN | theirs.shop.svc.cluster.local. CNAME web.default.svc.provider.example. | soa provider.example."},
		"of home's cluster set, not of this cluster's":      {a, "set", dns.TypeA, "NXDOMAIN | set.shop.svc.cluster.local. CNAME web.shop.svc.clusterset.local. | soa clusterset.local."},
		"of this cluster's domain, where home's is another": {b, "theirs.shop.svc.home.example.", dns.TypeA, "NXDOMAIN | theirs.shop.svc.home.example. CNAME web.shop.svc.cluster.local. | soa cluster.local."},
		"itself":                                {a, "self", dns.TypeA, "SERVFAIL"},
		"of an alias of it":                     {a, "ping", dns.TypeA, "SERVFAIL"},
		"too many times":                        {a, "hop-0", dns.TypeA, "SERVFAIL"},
		"it has no ports":                       {a, "_http._tcp.out", dns.TypeSRV, "NXDOMAIN | soa cluster.local."},
		"and no pods":                           {a, "a.out", dns.TypeA, "NXDOMAIN | soa cluster.local."},
		"another consumer has no such name":     {b, "out.shop.svc.home.example.", dns.TypeA, "NXDOMAIN | soa home.example."},
		"a question for all types has no alias": {a, "out", dns.TypeANY, `NOERROR | out.shop.svc.cluster.local. HINFO "RFC8482" ""`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name := tc.name
			if !dns.IsFqdn(name) {
				name += ".shop.svc.cluster.local."
			}
			q := dns.Question{Name: name, Qtype: tc.qtype, Qclass: dns.ClassINET}
			// The targets of home's names do not depend on what else its pods can resolve.
			for _, visible := range []bool{false, true} {
				if diff := cmp.Diff(tc.want, say(withAliases().Answer(tc.who, q, 100, hidden(visible)))); diff != "" {
					t.Errorf("%s %s, visible %v (-want +got):\n%s", name, dns.TypeToString[tc.qtype], visible, diff)
				}
			}
		})
	}
}

func TestTheLongestChainOfAliasesIsFollowed(t *testing.T) {
	t.Parallel()
	q := dns.Question{Name: "hop-3.shop.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET}
	a := withAliases().Answer(Who{homeA, "cluster.local"}, q, 100, hidden(false))
	if len(a.Aliases) != maxAliases-1 || len(a.Records) != 1 {
		t.Errorf("%d aliases, then %s", len(a.Aliases), say(a))
	}
	q.Name = "hop-2.shop.svc.cluster.local."
	if a = withAliases().Answer(Who{homeA, "cluster.local"}, q, 100, hidden(false)); len(a.Aliases) != maxAliases || len(a.Records) != 1 {
		t.Errorf("%d aliases, then %s", len(a.Aliases), say(a))
	}
}

func TestServerFollowsAliasesOutOfHome(t *testing.T) {
	t.Parallel()
	node := upstream(t, func(q dns.Question, _ bool) *dns.Msg {
		answers := map[string][]dns.RR{
			"db.example.org./A": {
				&dns.CNAME{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: 60}, Target: "eu.example.org."},
				&dns.A{Hdr: dns.RR_Header{Name: "eu.example.org.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP("203.0.113.7")},
			},
			"rebind.example.org./A": {
				&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP("169.254.169.254")},
				&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60}, A: net.ParseIP("203.0.113.8")},
			},
			"rebind.example.org./AAAA": {&dns.AAAA{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeAAAA, Class: dns.ClassINET, Ttl: 60}, AAAA: net.ParseIP("fe80::1")}},
		}
		found, ok := answers[strings.ToLower(q.Name)+"/"+dns.TypeToString[q.Qtype]]
		switch {
		case strings.HasPrefix(q.Name, "broken."):
			return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeServerFailure}}
		case !ok:
			return &dns.Msg{MsgHdr: dns.MsgHdr{Rcode: dns.RcodeNameError}}
		}
		return &dns.Msg{Answer: found}
	})
	r := newRig(t, node)
	for name, target := range map[string]string{"out": "db.example.org", "rebind": "rebind.example.org", "broken": "broken.example.org", "none": "none.example.org", "near": "web.shop.svc.cluster.local"} {
		r.book.SetService("shop-a", name, Service{Headless: true, ExternalName: target})
	}
	for _, tc := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"out", dns.TypeA, "NOERROR CNAME db.example.org. CNAME eu.example.org. A 203.0.113.7"},
		{"out", dns.TypeA, "NOERROR CNAME db.example.org. CNAME eu.example.org. A 203.0.113.7"}, // of the cache
		{"out", dns.TypeCNAME, "NOERROR CNAME db.example.org."},
		{"rebind", dns.TypeA, "NOERROR CNAME rebind.example.org. A 203.0.113.8"},
		{"rebind", dns.TypeAAAA, "NOERROR CNAME rebind.example.org."},
		{"none", dns.TypeA, "NXDOMAIN CNAME none.example.org."},
		{"broken", dns.TypeA, "SERVFAIL"},
		{"near", dns.TypeA, "NOERROR CNAME web.shop.svc.cluster.local. A 10.96.0.1"},
	} {
		for _, network := range []string{"udp", "tcp"} {
			in, err := r.ask(t, network, "127.0.0.1", tc.name+".shop.svc.cluster.local.", tc.qtype, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := dns.RcodeToString[in.Rcode]
			for _, rr := range in.Answer {
				got += " " + dns.TypeToString[rr.Header().Rrtype] + " " + rr.String()[len(rr.Header().String()):]
			}
			if got != tc.want {
				t.Errorf("%s: %s %s is %q; want %q", network, tc.name, dns.TypeToString[tc.qtype], got, tc.want)
			}
		}
	}
	// A question for the target itself gets the answer of the node's resolvers.
	in, err := r.ask(t, "udp", "127.0.0.1", "rebind.example.org.", dns.TypeA, nil)
	if err != nil || len(in.Answer) != 2 {
		t.Errorf("the name itself: %v, %v", in, err)
	}
}
