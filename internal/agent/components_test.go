package agent

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/entente-dev/entente/internal/dnsupdate"
)

func TestComponentsFollowFromTheConfiguration(t *testing.T) {
	t.Parallel()
	prefixes := func(texts ...string) []netip.Prefix {
		var out []netip.Prefix
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	base := Config{
		LeafLife: 24 * time.Hour, PeerAddress: ":7443", AdminAddress: ":7444", KubeletAddress: ":10250", HealthAddress: ":7446", MetricsAddress: ":7447",
		KubeletCertificate: OwnCertificate,
	}
	least := []component{
		{Name: "lease", Config: time.Duration(0)},
		{Name: "API server"},
		{Name: "cluster domain", Config: ""},
		{Name: "identity", Config: 24 * time.Hour},
		{Name: "manager", Config: serveConfig{Health: ":7446", Metrics: ":7447"}},
		{Name: "certificates"},
		{Name: "states", Config: statesConfig{}},
		{Name: "provider", Config: ""},
		{Name: "discovery"},
		{Name: "relay", Config: RelayConfig{}},
		{Name: "home API", Config: HomeAPIConfig{}},
		{Name: "peer API", Config: peerConfig{Address: ":7443"}},
		{Name: "sessions"},
		{Name: "virtual nodes", Config: nodesConfig{Address: ":10250", Certificate: OwnCertificate}},
		{Name: "PeeringRequests"},
		{Name: "admin API", Config: ":7444"},
		{Name: "automatic peering"},
		{Name: "trust"},
		{Name: "ExternalHosts", Config: []netip.Prefix(nil)},
		{Name: "ForeignClusters", Config: []netip.Prefix(nil)},
		{Name: "gateways"},
		{Name: "orphans"},
		{Name: "Contracts"},
		{Name: "NamespaceOffloadings"},
		{Name: "ImportedServices"},
		{Name: "ServiceImports", Config: false},
		{Name: "ClusterProfiles"},
		{Name: "NodeDiscoveries", Config: []string(nil)},
		{Name: "sightings"},
		{Name: "DNS updates", Config: dnsupdate.Config{}},
	}
	// with returns the components of base, with those that differ in place of their
	// namesakes, or before another.
	with := func(before string, differ ...component) []component {
		out := slices.Clone(least)
		for _, c := range differ {
			i := slices.IndexFunc(out, func(o component) bool { return o.Name == c.Name })
			if i < 0 {
				i = slices.IndexFunc(out, func(o component) bool { return o.Name == before })
				out = slices.Insert(out, i, component{})
			}
			out[i] = c
		}
		return out
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   []component
	}{
		"without options there is no discovery": {change: func(*Config) {}, want: least},
		"servers listen where the configuration says": {
			change: func(c *Config) {
				c.PeerAddress, c.AdminAddress, c.KubeletAddress, c.HealthAddress, c.MetricsAddress = "a:1", "a:2", "a:3", "a:4", "a:5"
			},
			want: with("", component{Name: "peer API", Config: peerConfig{Address: "a:1"}}, component{Name: "admin API", Config: "a:2"},
				component{Name: "virtual nodes", Config: nodesConfig{Address: "a:3", Certificate: OwnCertificate}},
				component{Name: "manager", Config: serveConfig{Health: "a:4", Metrics: "a:5"}}),
		},
		"the cluster signs the kubelet certificate": {
			change: func(c *Config) { c.KubeletCertificate = ClusterCertificate },
			want:   with("", component{Name: "virtual nodes", Config: nodesConfig{Address: ":10250", Certificate: ClusterCertificate}}),
		},
		"addresses are configured": {
			change: func(c *Config) {
				c.PodCIDRs, c.ServiceCIDRs, c.AliasPool = prefixes("10.1.0.0/16"), prefixes("10.2.0.0/16"), prefixes("198.18.0.0/15")
				c.ExternalHosts = prefixes("10.9.0.0/24")
				c.ClusterDomain, c.DNSService = "home.test", "entente-dns"
			},
			want: with("", component{Name: "states", Config: statesConfig{PodCIDRs: prefixes("10.1.0.0/16"), ServiceCIDRs: prefixes("10.2.0.0/16")}},
				component{Name: "ForeignClusters", Config: prefixes("198.18.0.0/15")}, component{Name: "ExternalHosts", Config: prefixes("10.9.0.0/24")},
				component{Name: "cluster domain", Config: "home.test"}, component{Name: "provider", Config: "entente-dns"}),
		},
		"clusters are looked for in domains": {
			change: func(c *Config) {
				c.DiscoveryDomains, c.DiscoveryResolvers = []string{"example.com"}, []string{"192.0.2.1"}
			},
			want: with("NodeDiscoveries", component{Name: "domains", Config: domainsConfig{
				[]string{"example.com"}, []string{"192.0.2.1"},
			}}),
		},
		"clusters are looked for on LANs": {
			change: func(c *Config) { c.DiscoveryLAN, c.DiscoveryInterfaces = true, []string{"eth*"} },
			want:   with("NodeDiscoveries", component{Name: "LANs"}, component{Name: "NodeDiscoveries", Config: []string{"eth*"}}),
		},
		"the API server has no policies": {
			change: func(c *Config) { c.Placement = PlacementConfig{":7451", "/etc"} },
			want:   with("NodeDiscoveries", component{Name: "placement", Config: PlacementConfig{":7451", "/etc"}}),
		},
		"the cluster publishes itself in DNS": {
			change: func(c *Config) { c.Update = dnsupdate.Config{Server: "ns.example.com", Zone: "example.com"} },
			want:   with("", component{Name: "DNS updates", Config: dnsupdate.Config{Server: "ns.example.com", Zone: "example.com"}}),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := base
			tc.change(&cfg)
			got := components(&cfg)
			if diff := cmp.Diff(tc.want, got, cmpopts.IgnoreUnexported(component{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("components (-want +got):\n%s", diff)
			}
			for _, c := range got {
				if c.build == nil {
					t.Errorf("nothing builds %s", c.Name)
				}
			}
		})
	}
}
