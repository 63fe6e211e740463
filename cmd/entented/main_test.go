package main

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/internal/agent"
	"github.com/entente-dev/entente/internal/dnsupdate"
	"github.com/entente-dev/entente/internal/fabric"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestAgentFlagsMakeItsConfiguration(t *testing.T) {
	t.Parallel()
	env := map[string]string{"POD_NAMESPACE": "entente-system", "POD_NAME": "agent-1", "POD_UID": "u1", "POD_IP": "10.1.2.3"}
	defaults := agent.Config{
		FabricServiceFamilies: corev1.IPFamilyPolicyPreferDualStack,
		Namespace:             "entente-system", Pod: "agent-1", PodUID: "u1", PodIP: netip.MustParseAddr("10.1.2.3"),
		AliasPool: prefixes("198.18.0.0/15", "fdd7:585b:e300::/40"),
		Gateways:  3, PresharedKeyEvery: 168 * time.Hour,
		Direct:      "All",
		Update:      dnsupdate.Config{SecretKey: "key", Algorithm: "hmac-sha256", TTL: 5 * time.Minute},
		PeerAddress: ":7443", AdminAddress: ":7444", InBandAddress: ":7448", KubeletAddress: ":10250", HealthAddress: ":7446", MetricsAddress: ":7447",
		Relay:              agent.RelayConfig{Address: ":7449", Rate: 12 << 20, AllRate: 48 << 20},
		Carry:              agent.CarryConfig{For: agent.CarryForNone, Through: true, Rate: 12 << 20, AllRate: 48 << 20},
		Placement:          agent.PlacementConfig{Certificate: "/etc/entente/placement"},
		KubeletCertificate: agent.OwnCertificate, LeafLife: 24 * time.Hour, LeaseDuration: 20 * time.Second,
	}
	for name, tc := range map[string]struct {
		args   []string
		env    map[string]string
		change func(*agent.Config)
		err    string
	}{
		"without flags":                    {change: func(*agent.Config) {}},
		"in no pod":                        {env: map[string]string{}, err: "POD_NAME, POD_NAMESPACE and POD_IP have to be set"},
		"no gateways":                      {args: []string{"--gateways=0"}, err: "--gateways 0 must be from 1 to 16"},
		"an agent stands by":               {args: []string{"--lease-duration=6s"}, change: func(c *agent.Config) { c.LeaseDuration = 6 * time.Second }},
		"a lease that is too short":        {args: []string{"--lease-duration=3s"}, err: "--lease-duration 3s must be whole seconds, from 4s to 25s"},
		"a lease that is too long":         {args: []string{"--lease-duration=26s"}, err: "from 4s to 25s"},
		"a lease of a fraction":            {args: []string{"--lease-duration=4500ms"}, err: "whole seconds"},
		"keys that last for ever":          {args: []string{"--preshared-key-every=0s"}, change: func(c *agent.Config) { c.PresharedKeyEvery = 0 }},
		"keys that are replaced too often": {args: []string{"--preshared-key-every=59m"}, err: "--preshared-key-every 59m0s must be 0 or at least 1h"},
		"malformed lists":                  {args: []string{"--pod-cidr=10.1.0.0"}, err: "--pod-cidr: "},
		"with prefixes": {
			args: []string{"--pod-cidr=10.1.2.3/16", "--service-cidr=10.2.0.0/16", "--service-cidr=fd00::/108", "--alias-pool=100.64.0.0/10", "--external-hosts=192.168.7.9/24"},
			change: func(c *agent.Config) {
				c.PodCIDRs, c.ServiceCIDRs, c.AliasPool = prefixes("10.1.0.0/16"), prefixes("10.2.0.0/16", "fd00::/108"), prefixes("100.64.0.0/10")
				c.ExternalHosts = prefixes("192.168.7.0/24")
			},
		},
		"with discovery": {
			args: []string{"--discovery-lan", "--discovery-interface=eth*", "--discovery-domain=example.com", "--discovery-resolver=192.0.2.1", "--discovery-resolver=[2001:db8::1]:5353"},
			change: func(c *agent.Config) {
				c.DiscoveryLAN, c.DiscoveryInterfaces, c.DiscoveryDomains = true, []string{"eth*"}, []string{"example.com"}
				c.DiscoveryResolvers = []string{"192.0.2.1", "[2001:db8::1]:5353"}
			},
		},
		"with a zone": {
			args: []string{"--discovery-update-server=ns", "--discovery-update-zone=example.com", "--discovery-update-secret=tsig"},
			change: func(c *agent.Config) {
				c.Update.Server, c.Update.Zone, c.Update.Secret = "ns", "example.com", "tsig"
			},
		},
		"with Services of gateways": {
			args: []string{"--fabric-service=LoadBalancer", "--fabric-service-class=example.com/lb", "--fabric-service-families=SingleStack", "--fabric-service-annotation=a=b,c=d", "--fabric-service-annotation=e="},
			change: func(c *agent.Config) {
				c.FabricService, c.FabricServiceClass, c.FabricServiceFamilies = "LoadBalancer", "example.com/lb", "SingleStack"
				c.FabricServiceAnnotations = map[string]string{"a": "b,c=d", "e": ""}
			},
		},
		"with Services of another type": {args: []string{"--fabric-service=ClusterIP"}, err: "--fabric-service \"ClusterIP\" must be"},
		"with half an annotation":       {args: []string{"--fabric-service-annotation=a"}, err: "must be KEY=VALUE"},
		"without relaying":              {args: []string{"--relay-address="}, change: func(c *agent.Config) { c.Relay.Address = "" }},
		"with slow relaying": {
			args: []string{"--relay-rate=100k", "--relay-total-rate=1Mi"},
			change: func(c *agent.Config) {
				c.Relay.Rate, c.Relay.AllRate, c.Carry.Rate, c.Carry.AllRate = 100_000, 1<<20, 100_000, 1<<20
			},
		},
		"that carries": {
			args:   []string{"--carry-for-peers=Contracts", "--carry-through-peers=false"},
			change: func(c *agent.Config) { c.Carry.For, c.Carry.Through = agent.CarryForContracts, false },
		},
		"that carries for an unknown group": {args: []string{"--carry-for-peers=All"}, err: "--carry-for-peers \"All\" must be None, Contracts or Peers"},
		"with relaying of nothing":          {args: []string{"--relay-rate=0"}, err: "--relay-rate \"0\" must be bytes a second"},
		"with relaying of a number":         {args: []string{"--relay-total-rate=much"}, err: "--relay-total-rate \"much\" must be bytes a second"},
		"with another signer": {
			args:   []string{"--kubelet-certificate=Cluster", "--kubelet-address=:10251"},
			change: func(c *agent.Config) { c.KubeletCertificate, c.KubeletAddress = agent.ClusterCertificate, ":10251" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o agentOptions
			flags := pflag.NewFlagSet("agent", pflag.ContinueOnError)
			o.add(flags)
			if err := flags.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			vars := env
			if tc.env != nil {
				vars = tc.env
			}
			got, err := o.config(func(name string) string { return vars[name] })
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := defaults
			tc.change(&want)
			same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			if diff := cmp.Diff(want, got, same, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("configuration (-want +got):\n%s", diff)
			}
		})
	}
}

// A node checks itself with the prefixes of the agent, and with the one Service whose address
// each pod gets.
func TestNodeFlagsMakeItsConfiguration(t *testing.T) {
	t.Parallel()
	var o nodeOptions
	flags := pflag.NewFlagSet("node", pflag.ContinueOnError)
	o.add(flags)
	if err := flags.Parse([]string{"--pod-cidr=10.1.2.3/16", "--service-cidr=10.96.0.0/12", "--alias-pool=100.64.0.0/10", "--alias-pool=fd00::/40"}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"NODE_NAME": "a", "POD_NAMESPACE": "entente-system", "KUBERNETES_SERVICE_HOST": "10.97.0.1"}
	got, err := o.config(func(name string) string { return env[name] })
	want := fabric.Config{
		Node: "a", Namespace: "entente-system", Interface: "entente0", Port: 51820, HealthAddress: "127.0.0.1:7446", KeyEvery: 720 * time.Hour,
		PodCIDRs: prefixes("10.1.0.0/16"), ServiceCIDRs: prefixes("10.96.0.0/12", "10.97.0.1/32"), AliasPool: prefixes("100.64.0.0/10", "fd00::/40"),
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || diff != "" {
		t.Errorf("%v, configuration (-want +got):\n%s", err, diff)
	}
	if _, err := o.config(func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "NODE_NAME") {
		t.Errorf("in no pod: %v", err)
	}
}
