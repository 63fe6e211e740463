package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/cmd/entente/internal/places"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// discovered is a world in which two have peered and discovery finds others.
func discovered() *world {
	w := peered()
	w.browsed = &places.Places{LAN: true, Domains: []string{"example.com"}}
	sighting := func(source, where, node string, endpoints ...string) *ententev1.Sighting {
		return &ententev1.Sighting{Source: source, Location: where, Node: node, Endpoints: endpoints, LastSeenTime: timestamppb.New(epoch.Add(-time.Minute))}
	}
	untrusted := func(reason string) *ententev1.Condition {
		return &ententev1.Condition{Type: "Trusted", Status: "False", Reason: reason}
	}
	w.hints = []*ententev1.Peer{
		{
			Name: "peers/workshop", ClusterId: strings.Repeat("w", 32), Source: "LAN", Conditions: []*ententev1.Condition{untrusted("Discovered")},
			Sightings: []*ententev1.Sighting{sighting("LAN", "eth0", "node-a", "192.0.2.7:7443", "[2001:db8::7]:7443"), sighting("DNS", "example.com", "", "198.51.100.7:7443")},
		},
		{
			Name: "peers/provider-llllllll", ClusterId: strings.Repeat("l", 32), Source: "LAN",
			Conditions: []*ententev1.Condition{untrusted("Discovered"), {
				Type: "Impostor", Status: "True", Reason: "NameOfAnother", Message: "it calls itself \"provider\x1b[2J\" as the peer provider does, and has another key",
			}},
			Sightings: []*ententev1.Sighting{sighting("LAN", "eth0", "node-a", "192.0.2.66:7443")},
		},
	}
	return w
}

func TestDiscoverListsFoundClusters(t *testing.T) {
	golden(t, "discover", discovered(),
		[]string{"discover"}, []string{"discover", "--domain", "Example.com."}, []string{"discover", "--domain", "example.org"},
		[]string{"discover", "--lan"}, []string{"discover", "--lan", "--domain", "example.com"},
		[]string{"discover", "--domain", "example.com", "-o", "yaml"}, []string{"info"},
	)
	golden(t, "discover-none", peered(), []string{"discover"}, []string{"discover", "-o", "json"})
	for _, args := range [][]string{{"discover", "--watch"}, {"discover", "--watch", "--domain", "example.com", "-o", "json"}} {
		golden(t, "discover-watch"+map[bool]string{true: "-domain"}[len(args) > 2], discovered(), args)
	}
}

// TestDiscoverSaysWhyNothingIsFound covers the four reasons: discovery is off, it is off at
// the places that were asked for, something is wrong, or there is no other cluster.
func TestDiscoverSaysWhyNothingIsFound(t *testing.T) {
	all := [][]string{{"discover"}, {"discover", "--lan"}, {"discover", "--domain", "example.com"}, {"discover", "--lan", "--domain", "Example.COM.,example.org"}}
	const unreachable = `discovery in the domain "example.com": resolver 192.0.2.53:53: i/o timeout`
	for name, tt := range map[string]struct {
		browsed  *places.Places
		problems []string
		more     [][]string
	}{
		"off":     {browsed: &places.Places{}, more: [][]string{{"discover", "-o", "json"}, {"discover", "--watch"}}},
		"lan":     {browsed: &places.Places{LAN: true}},
		"domain":  {browsed: &places.Places{Domains: []string{"example.com"}}},
		"domains": {browsed: &places.Places{LAN: true, Domains: []string{"a.example", "b.example", "c.example", "example.com"}}},
		"problem": {
			browsed: &places.Places{LAN: true, Domains: []string{"example.com", "example.org"}},
			problems: []string{
				unreachable, "node node-a: discovery on its LANs: 192.0.2.9 announces this cluster's name", "peer office: Connected is False: no answer",
			},
			more: [][]string{{"discover", "-o", "json"}},
		},
		"unknown": {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.browsed, w.problems = tt.browsed, tt.problems
			golden(t, "discover-nothing-"+name, w, append(all, tt.more...)...)
		})
	}
}

func TestDiscoverRefusesMalformedDomains(t *testing.T) {
	for _, domain := range []string{"bad domain!", "", "example..com", "192.0.2.1:53", "good.example,"} {
		w := discovered()
		out, errOut, code := w.run(t, "", "discover", "--domain", domain)
		if code != exit.Usage || out != "" || !strings.Contains(errOut, "--domain") {
			t.Errorf("%q: exit %d\n%s%s", domain, code, out, errOut)
		}
		sent(t, w.consumer)
	}
}

func TestDiscoverZonePrintsRecords(t *testing.T) {
	golden(t, "discover-zone", newWorld(),
		[]string{"discover", "zone", "Example.com", "--address", "192.0.2.10", "--address", "2001:db8::10"},
		[]string{"discover", "zone", "example.com", "--address", "192.0.2.10", "--instance", `the "office" of Zoë`, "--ttl", "1h"},
		[]string{"discover", "zone", "example.com", "--address", "192.0.2.10", "-o", "json"}, []string{"discover", "zone", "example.com", "--address", "192.0.2.10", "--get", "[1].value"},
		[]string{"discover", "zone", "example.com"}, []string{"discover", "zone"}, []string{"discover", "zone", "not a domain", "--address", "192.0.2.10"},
		[]string{"discover", "zone", "example.com", "--address", "127.0.0.1"}, []string{"discover", "zone", "example.com", "--address", "office"},
		[]string{"discover", "zone", "example.com", "--address", "192.0.2.10", "--ttl", "1s"},
	)
}

// The printed records are those that the agent publishes itself.
func TestDiscoverZonePrintsTheRecordsThatTheAgentPublishes(t *testing.T) {
	w := newWorld()
	w.automatic = true
	golden(t, "discover-zone-automatic", w, []string{"discover", "zone", "example.com", "--address", "192.0.2.10"})
}

func TestInfoShowsDNSPublications(t *testing.T) {
	w := newWorld()
	kept := &ententev1.DNSPublication{
		Domain: "example.com", Zone: "example.com", Server: "ns.example.com", Instance: "office (2)", Host: "entente-cccccccc",
		LastConfirmedTime: timestamppb.New(epoch.Add(-3 * time.Minute)),
	}
	w.published = []*ententev1.DNSPublication{kept}
	golden(t, "info-dns", w, []string{"info"}, []string{"info", "--get", "cluster.dnsPublications"})
	refused := `"office" is not kept in DNS: publish in second.test: server 192.0.2.53:53, zone second.test.: REFUSED`
	kept.Removing = true
	w.published = []*ententev1.DNSPublication{{Domain: "second.test", Zone: "second.test", Server: "192.0.2.53", Instance: "office", Host: "entente-cccccccc", Problem: refused}, kept}
	w.problems = []string{"DNS domain second.test: " + refused}
	golden(t, "info-dns-refused", w, []string{"info"})
}

func TestInfoShowsWherePodPrefixesAreKnownFrom(t *testing.T) {
	w := newWorld()
	w.podPrefixes, w.podSources = []string{"10.0.0.0/16", "10.244.0.0/24"}, []string{"spec.podCIDRs of Nodes", "IPPools of Calico"}
	golden(t, "info-prefixes", w, []string{"info"}, []string{"info", "--get", "cluster.podPrefixSources"})
	for i := range 8 {
		w.podPrefixes = append(w.podPrefixes, fmt.Sprintf("10.245.%d.0/24", i))
	}
	w.podSources = []string{"cluster.podCIDRs"}
	golden(t, "info-prefixes-many", w, []string{"info"})
}

func TestInfoShowsDomains(t *testing.T) {
	w := newWorld()
	at := func(before time.Duration) *timestamppb.Timestamp { return timestamppb.New(epoch.Add(-before)) }
	const servfail = "ask resolver 192.0.2.53:53 for PTR _entente._tcp.second.test: SERVFAIL"
	w.domains = []*ententev1.DNSDomain{
		{Domain: "second.test", Error: servfail, ErrorStartTime: at(time.Hour)},
		{Domain: "a.test"},
		{Domain: "b.test", LastResponseTime: at(time.Minute)},
		{Domain: "c.test", Clusters: 2, LastResponseTime: at(time.Minute), Error: "REFUSED", ErrorStartTime: at(2 * time.Minute), Problems: []string{"no TXT record"}},
	}
	for range 6 {
		w.domains = append(w.domains, &ententev1.DNSDomain{Domain: "more.test", LastResponseTime: at(time.Minute), Omitted: 3})
	}
	w.problems = []string{"domain second.test cannot be queried for clusters since 2026-03-01T11:00:00Z: " + servfail}
	golden(t, "info-domains", w, []string{"info"}, []string{"info", "--get", "cluster.dnsDomains[3]"})
}

func TestServiceOfUsesEndpointsOrGivenAddresses(t *testing.T) {
	t.Parallel()
	info := func(endpoints ...string) *ententev1.GetInfoResponse {
		return &ententev1.GetInfoResponse{ClusterId: strings.Repeat("c", 32), ClusterName: "office", Protocol: 3, Endpoints: endpoints}
	}
	for name, tt := range map[string]struct {
		endpoints []string
		want      string
		fails     bool
	}{
		"an address":                       {endpoints: []string{"192.0.2.1:30743"}, want: "30743 [192.0.2.1]"},
		"two of one port":                  {endpoints: []string{"192.0.2.1:7443", "[2001:db8::1]:7443"}, want: "7443 [192.0.2.1 2001:db8::1]"},
		"another port does not match":      {endpoints: []string{"192.0.2.1:7443", "192.0.2.2:30743"}, want: "7443 [192.0.2.1]"},
		"addresses that peers cannot dial": {endpoints: []string{"127.0.0.1:7443"}, fails: true},
		"only a name":                      {endpoints: []string{"office.example:7443"}, fails: true},
		"nothing":                          {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := serviceOf(info(tt.endpoints...), "", nil)
			if got := fmt.Sprint(s.Port, " ", s.Addresses); tt.fails != (err != nil) || err == nil && got != tt.want {
				t.Errorf("got %s, %v, want %s", got, err, tt.want)
			}
		})
	}
}
