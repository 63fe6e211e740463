package plan

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// home is a cluster with a gateway and a worker that peers with one other.
func home(node string) Desired {
	return Desired{
		ClusterID: "home", Node: node, Reserved: []netip.Prefix{pfx("10.96.0.0/16")},
		Nodes: []Node{
			{Name: "gw", PublicKey: PublicKey{1}, Endpoints: []string{"192.0.2.1:51820"}, PodCIDRs: []netip.Prefix{pfx("10.200.1.0/24")}, Gateway: true},
			{Name: "worker", PublicKey: PublicKey{2}, Endpoints: []string{"192.0.2.2:51820"}, PodCIDRs: []netip.Prefix{pfx("10.200.2.0/24")}},
		},
		Peers: []Peer{{
			ClusterID: "away", PresharedKey: PresharedKey{7},
			Gateways: []Gateway{{Node: "x", PublicKey: PublicKey{3}, Endpoints: []string{"away.example:51820"}}, {Node: "y", PublicKey: PublicKey{4}}},
			Local:    []Mapping{{pfx("10.200.0.0/16"), pfx("10.241.0.0/16")}},
			Remote:   []Mapping{{pfx("10.200.0.0/16"), pfx("10.242.0.0/16")}},
			Inbound:  []Exposure{opened(netip.MustParseAddr("10.200.2.9"))},
		}},
	}
}

// opened opens all of an address to all of a peer.
func opened(a netip.Addr) Exposure {
	return Exposure{Name: a.String(), AnySource: true, Destinations: []Destination{{Addr: a}}}
}

func compareAddrs() cmp.Option {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	}
}

func TestPlanOfTheCarrier(t *testing.T) {
	source := netip.MustParseAddr("10.200.1.1")
	got, err := Plan(home("gw"), Observed{Sources: []netip.Addr{source}, Carriers: map[string]Carrier{"away": {Home: "gw", Peer: "y", Claims: true}}})
	if err != nil {
		t.Fatal(err)
	}
	self, worker, x, y := Overlay("home", "gw"), Overlay("home", "worker"), Overlay("away", "x"), Overlay("away", "y")
	routes := []Route{{Prefix: pfx("10.242.0.0/16"), Source: source, Way: y}}
	overlays := []netip.Addr{worker, x, y}
	slices.SortFunc(overlays, netip.Addr.Compare)
	for _, o := range overlays {
		routes = append(routes, Route{Prefix: host(o), Source: self})
	}
	routes = append(routes, Route{Prefix: pfx("10.200.2.0/24"), Return: true, Way: worker})
	open := classOf("away", "any", []string{"10.200.2.9"})
	want := Layout{
		Overlay: self, Sources: []netip.Addr{source},
		Peers: []WireGuardPeer{
			{PublicKey: PublicKey{2}, Endpoints: []string{"192.0.2.2:51820"}, AllowedIPs: []netip.Prefix{pfx("10.200.2.0/24"), host(worker)}, Keepalive: keepalive, Cluster: "home", Node: "worker", Overlay: worker},
			{PublicKey: PublicKey{3}, PresharedKey: PresharedKey{7}, Endpoints: []string{"away.example:51820"}, AllowedIPs: []netip.Prefix{host(x)}, Keepalive: keepalive, Cluster: "away", Node: "x", Overlay: x, Remote: true, Carries: true},
			{PublicKey: PublicKey{4}, PresharedKey: PresharedKey{7}, AllowedIPs: []netip.Prefix{pfx("10.242.0.0/16"), host(y)}, Keepalive: keepalive, Cluster: "away", Node: "y", Overlay: y, Remote: true, Carries: true},
		},
		Routes:       routes,
		Translations: []Translation{{Cluster: "away", Remote: []netip.Prefix{pfx("10.242.0.0/16")}, Local: []Mapping{{pfx("10.200.0.0/16"), pfx("10.241.0.0/16")}}}},
		Own:          []netip.Prefix{pfx("10.200.1.0/24")}, Home: []netip.Prefix{pfx("10.200.0.0/16")},
		Others: []netip.Prefix{pfx("10.200.2.0/24")}, Remote: []netip.Prefix{pfx("10.242.0.0/16")},
		Names: []Names{{"away", []netip.Prefix{pfx("10.241.0.0/16")}}},
		Inbound: Inbound{
			Prefixes: []PrefixClass{{pfx("10.242.0.0/16"), open}},
			Open:     []Opening{{open, Destination{Addr: netip.MustParseAddr("10.200.2.9")}}},
		},
	}
	if diff := cmp.Diff(want, got, compareAddrs()); diff != "" {
		t.Errorf("plan differs (-want +got):\n%s", diff)
	}
}

func TestPlanOfAWorkerLeadsToTheCarrier(t *testing.T) {
	got, err := Plan(home("worker"), Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.2.1")}})
	if err != nil {
		t.Fatal(err)
	}
	gw := Overlay("home", "gw")
	peers := []WireGuardPeer{{
		PublicKey: PublicKey{1}, Endpoints: []string{"192.0.2.1:51820"}, Keepalive: keepalive, Cluster: "home", Node: "gw", Overlay: gw,
		AllowedIPs: []netip.Prefix{pfx("10.200.1.0/24"), pfx("10.242.0.0/16"), host(gw)},
	}}
	if diff := cmp.Diff(peers, got.Peers, compareAddrs()); diff != "" {
		t.Errorf("peers differ (-want +got):\n%s", diff)
	}
	if len(got.Translations) != 0 || len(got.Problems) != 0 {
		t.Errorf("translations %v, problems %v, want none", got.Translations, got.Problems)
	}
}

// second is another peer beside that of home.
func second(change func(*Peer)) Peer {
	p := Peer{
		ClusterID: "evil",
		Gateways:  []Gateway{{Node: "e", PublicKey: PublicKey{66}, Endpoints: []string{"203.0.113.1:51820"}}, {Node: "f", PublicKey: PublicKey{67}}},
		Local:     []Mapping{{pfx("10.200.0.0/17"), pfx("10.241.0.0/17")}, {pfx("10.200.130.7/32"), pfx("10.249.0.7/32")}},
		Remote:    []Mapping{{pfx("10.200.0.0/16"), pfx("10.243.0.0/16")}}, RemoteBlocks: []netip.Prefix{pfx("10.248.0.0/26")},
	}
	change(&p)
	return p
}

func TestPlanRefusesABadPeerAndKeepsTheOthers(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Peer)
		want   string
	}{
		"our own cluster ID":        {func(p *Peer) { p.ClusterID = "home" }, "our own cluster ID"},
		"the cluster ID of another": {func(p *Peer) { p.ClusterID = "away" }, "listed twice"},
		"no cluster ID":             {func(p *Peer) { p.ClusterID = "" }, "no cluster ID"},
	} {
		t.Run(name, func(t *testing.T) {
			d := home("gw")
			without, err := Plan(d, Observed{})
			if err != nil {
				t.Fatal(err)
			}
			d.Peers = append(d.Peers, second(tt.change))
			got, err := Plan(d, Observed{})
			if err != nil {
				t.Fatalf("one bad peer stops all: %v", err)
			}
			last := got.Problems[len(got.Problems)-1]
			if !strings.Contains(last.Text, tt.want) {
				t.Errorf("problem %q, want it to contain %q", last.Text, tt.want)
			}
			got.Problems = without.Problems
			if diff := cmp.Diff(without, got, compareAddrs()); diff != "" {
				t.Errorf("the bad peer changed the plan (-without +with):\n%s", diff)
			}
		})
	}
}

// A part of a peer that cannot be used is left out by itself: the rest of it works, as if the part had
// never been announced, and so do all other peers.
func TestPlanLeavesOutBadPartsOnly(t *testing.T) {
	for name, tt := range map[string]struct {
		bad func(*Peer)
		// less is the same without the bad part; nil means that nothing was added.
		less func(*Peer)
		want string
	}{
		"no key":                                   {bad: func(p *Peer) { p.Gateways[0].PublicKey = PublicKey{} }, less: func(p *Peer) { p.Gateways = p.Gateways[1:] }, want: "no WireGuard key"},
		"a key of another peer":                    {bad: func(p *Peer) { p.Gateways[0].PublicKey = PublicKey{3} }, less: func(p *Peer) { p.Gateways = p.Gateways[1:] }, want: "the same WireGuard key"},
		"a key of a node":                          {bad: func(p *Peer) { p.Gateways[0].PublicKey = PublicKey{2} }, less: func(p *Peer) { p.Gateways = p.Gateways[1:] }, want: "the WireGuard key of node worker"},
		"one key twice":                            {bad: func(p *Peer) { p.Gateways[1].PublicKey = PublicKey{66} }, less: func(p *Peer) { p.Gateways = p.Gateways[:1] }, want: "listed twice"},
		"one name twice":                           {bad: func(p *Peer) { p.Gateways[1].Node = "e" }, less: func(p *Peer) { p.Gateways = p.Gateways[:1] }, want: "listed twice"},
		"one overlay address twice":                {bad: func(p *Peer) { p.Gateways[1].Overlay = Overlay("evil", "e") }, less: func(p *Peer) { p.Gateways = p.Gateways[:1] }, want: "of another one"},
		"an overlay address of another":            {bad: func(p *Peer) { p.Gateways[0].Overlay = Overlay("away", "x") }, less: func(p *Peer) { p.Gateways = p.Gateways[1:] }, want: "not in its cluster's"},
		"our overlay address":                      {bad: func(p *Peer) { p.Gateways[0].Overlay = Overlay("home", "gw") }, less: func(p *Peer) { p.Gateways = p.Gateways[1:] }, want: "not in its cluster's"},
		"the alias of another peer":                {bad: func(p *Peer) { p.Remote[0].Alias = pfx("10.242.0.0/16") }, less: func(p *Peer) { p.Remote = p.Remote[1:] }, want: "in use"},
		"part of the alias of another peer":        {bad: func(p *Peer) { p.RemoteBlocks[0] = pfx("10.242.7.0/24") }, less: func(p *Peer) { p.RemoteBlocks = nil }, want: "in use"},
		"two aliases that overlap":                 {bad: func(p *Peer) { p.RemoteBlocks[0] = pfx("10.243.7.0/24") }, less: func(p *Peer) { p.RemoteBlocks = nil }, want: "in use"},
		"an alias over our pods":                   {bad: func(p *Peer) { p.Remote[0].Alias = pfx("10.200.0.0/16") }, less: func(p *Peer) { p.Remote = p.Remote[1:] }, want: "in use"},
		"an alias over our services":               {bad: func(p *Peer) { p.Remote[0].Alias = pfx("10.96.0.0/16") }, less: func(p *Peer) { p.Remote = p.Remote[1:] }, want: "in use"},
		"all addresses":                            {bad: func(p *Peer) { p.RemoteBlocks = append(p.RemoteBlocks, pfx("0.0.0.0/0")) }, want: "shorter than"},
		"loopback":                                 {bad: func(p *Peer) { p.RemoteBlocks = append(p.RemoteBlocks, pfx("127.0.0.0/8")) }, want: "special-purpose"},
		"an IPv4 address written as IPv6":          {bad: func(p *Peer) { p.RemoteBlocks = append(p.RemoteBlocks, pfx("::ffff:10.0.0.0/112")) }, want: "invalid prefix"},
		"no prefix":                                {bad: func(p *Peer) { p.RemoteBlocks = append(p.RemoteBlocks, netip.Prefix{}) }, want: "invalid prefix"},
		"too many aliases":                         {bad: func(p *Peer) { p.RemoteBlocks = manyPrefixes(p.RemoteBlocks, maxAliases+7) }, less: func(p *Peer) { p.RemoteBlocks = manyPrefixes(p.RemoteBlocks, maxAliases-1) }, want: "maxAliases"},
		"an endpoint inside the tunnel":            {bad: func(p *Peer) { p.Gateways[1].Endpoints = []string{"10.243.0.1:51820"} }, want: "reached through the tunnel"},
		"an endpoint on loopback":                  {bad: func(p *Peer) { p.Gateways[1].Endpoints = []string{"127.0.0.1:51820"} }, want: "not the address of a host"},
		"an endpoint without port":                 {bad: func(p *Peer) { p.Gateways[1].Endpoints = []string{"203.0.113.1"} }, want: "host:port"},
		"an endless endpoint":                      {bad: func(p *Peer) { p.Gateways[1].Endpoints = []string{strings.Repeat("h", 300) + ":1"} }, want: "maxEndpointLen"},
		"one bad endpoint of two":                  {bad: func(p *Peer) { p.Gateways[0].Endpoints = []string{"x", "203.0.113.1:51820"} }, want: "host:port"},
		"too many endpoints":                       {bad: func(p *Peer) { p.Gateways[1].Endpoints = slices.Repeat([]string{"h:1"}, MaxEndpoints+1) }, less: func(p *Peer) { p.Gateways[1].Endpoints = slices.Repeat([]string{"h:1"}, MaxEndpoints) }, want: "MaxEndpoints"},
		"too many gateways":                        {bad: func(p *Peer) { p.Gateways = manyGateways(maxGateways + 1) }, less: func(p *Peer) { p.Gateways = manyGateways(maxGateways) }, want: "maxGateways"},
		"two names for the same local prefix":      {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{p.Local[0].Real, pfx("10.7.0.0/17")}) }, want: "overlap"},
		"one name for two local prefixes":          {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{pfx("10.7.0.0/17"), p.Local[0].Alias}) }, want: "overlap"},
		"an address inside of a prefix":            {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{pfx("10.200.0.9/32"), pfx("10.7.0.0/32")}) }, want: "overlap"},
		"a name inside of that of a prefix":        {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{pfx("10.7.0.0/32"), pfx("10.241.0.9/32")}) }, want: "overlap"},
		"two names for one address":                {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{p.Local[1].Real, pfx("10.7.0.0/32")}) }, want: "listed twice"},
		"one name for two addresses":               {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{pfx("10.7.0.0/32"), p.Local[1].Alias}) }, want: "listed twice"},
		"a local prefix and a name of other sizes": {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{pfx("10.7.0.0/16"), pfx("10.7.0.0/17")}) }, want: "differ in family or length"},
		"a local address in an alias":              {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{pfx("10.243.0.9/32"), pfx("10.7.0.0/32")}) }, want: "an alias of a peer"},
		"a local address in another's alias":       {bad: func(p *Peer) { p.Local = append(p.Local, Mapping{pfx("10.242.0.9/32"), pfx("10.7.0.0/32")}) }, want: "an alias of a peer"},
		"too many local prefixes":                  {bad: func(p *Peer) { p.Local = manyLocal(maxPrefixes + 3) }, less: func(p *Peer) { p.Local = manyLocal(maxPrefixes) }, want: "maxPrefixes"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.less == nil {
				tt.less = func(*Peer) {}
			}
			plan := func(change func(*Peer)) Layout {
				d := home("gw")
				d.Peers = append(d.Peers, second(change))
				got, err := Plan(d, Observed{Carriers: map[string]Carrier{"evil": {Home: "gw", Peer: "f"}}})
				if err != nil {
					t.Fatalf("one bad peer stops all: %v", err)
				}
				return got
			}
			got, want := plan(tt.bad), plan(tt.less)
			if !slices.ContainsFunc(got.Problems, func(p Problem) bool { return p.Peer == "evil" && strings.Contains(p.Text, tt.want) }) {
				t.Errorf("problems %q, want one with %q", got.Problems, tt.want)
			}
			got.Problems, got.Contested = want.Problems, want.Contested
			if diff := cmp.Diff(want, got, compareAddrs()); diff != "" {
				t.Errorf("the plan is not what it is without it (-without +with):\n%s", diff)
			}
		})
	}
}

// However many gateways of a peer have endpoints that cannot be dialled, that is one problem.
func TestRefusedEndpointsOfAPeerAreOneProblem(t *testing.T) {
	d := home("gw")
	d.Peers = []Peer{second(func(p *Peer) {
		p.Gateways = manyGateways(maxGateways)
		for i := range p.Gateways {
			p.Gateways[i].Endpoints = []string{"127.0.0.1:1", "203.0.113.1:51820"}
		}
	})}
	got, err := Plan(d, Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.1.1")}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Problems) != 1 || got.Problems[0].Peer != "evil" {
		t.Fatalf("%d problems, want one: %q", len(got.Problems), got.Problems)
	}
	for _, want := range []string{"gateway g0", "127.0.0.1 is not", fmt.Sprintf("%d more", maxGateways-1)} {
		if !strings.Contains(got.Problems[0].Text, want) {
			t.Errorf("%q does not have %q", got.Problems[0].Text, want)
		}
	}
}

func manyPrefixes(first []netip.Prefix, n int) []netip.Prefix {
	for i := 0; len(first) < n; i++ {
		first = append(first, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i / 100), byte(i % 100 * 2), 0}), 24))
	}
	return first
}

func manyGateways(n int) (out []Gateway) {
	for i := range n {
		out = append(out, Gateway{Node: fmt.Sprint("g", i), PublicKey: PublicKey{100, byte(i)}})
	}
	return out
}

func manyLocal(n int) (out []Mapping) {
	for i := range n {
		out = append(out, Mapping{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 200, byte(i), 0}), 24), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(i), 0}), 24)})
	}
	return out
}

func TestPlanNeverGivesAPrefixToTwoPeers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := home(rapid.SampledFrom([]string{"gw", "worker"}).Draw(t, "node"))
		for i := range rapid.IntRange(0, 6).Draw(t, "peers") {
			d.Peers = append(d.Peers, Peer{
				ClusterID: fmt.Sprintf("c%d", rapid.IntRange(0, 4).Draw(t, "id")),
				Gateways:  []Gateway{{Node: fmt.Sprint("g", i), PublicKey: PublicKey{byte(rapid.IntRange(0, 9).Draw(t, "key"))}}},
				Local:     []Mapping{{pfx("10.200.0.0/16"), drawPrefix(t, "local", 16, 16)}},
				Remote:    []Mapping{{pfx("10.200.0.0/16"), drawPrefix(t, "remote", 16, 16)}}, RemoteBlocks: []netip.Prefix{drawPrefix(t, "second", 20, 32)},
			})
		}
		got, err := Plan(d, Observed{})
		if err != nil {
			t.Fatal(err)
		}
		again, _ := Plan(d, Observed{})
		if diff := cmp.Diff(got, again, compareAddrs()); diff != "" {
			t.Fatalf("not the same twice:\n%s", diff)
		}
		seen := map[PublicKey]bool{}
		var all []netip.Prefix
		for _, p := range got.Peers {
			if seen[p.PublicKey] || p.PublicKey.IsZero() {
				t.Fatalf("key %v twice or missing", p.PublicKey)
			}
			seen[p.PublicKey] = true
			for _, a := range p.AllowedIPs {
				if slices.ContainsFunc(all, a.Overlaps) {
					t.Fatalf("%v is given to two peers", a)
				}
				all = append(all, a)
			}
		}
		for _, r := range got.Remote {
			if slices.ContainsFunc(append(got.Home, d.Reserved...), r.Overlaps) {
				t.Fatalf("alias %v covers what is ours", r)
			}
		}
	})
}

func FuzzPlan(f *testing.F) {
	f.Add("away2", "gw", "h:1", "10.0.0.0/16", "10.9.0.0/16", "10.9.0.1/32")
	f.Fuzz(func(t *testing.T, id, via, endpoint, real, alias, source string) {
		parse := func(s string) netip.Prefix { p, _ := netip.ParsePrefix(s); return p }
		d := home("gw")
		d.Peers = append(d.Peers, Peer{
			ClusterID: id, Gateways: []Gateway{{Node: id, PublicKey: PublicKey{9}, Endpoints: []string{endpoint}}},
			Local: []Mapping{{pfx("10.200.0.0/16"), parse(alias)}, {parse(real), parse(alias)}}, Remote: []Mapping{{parse(real), parse(alias)}}, RemoteBlocks: []netip.Prefix{parse(real)},
			Inbound: []Exposure{{
				Name: via, Sources: []netip.Addr{parse(source).Addr()}, Destinations: []Destination{{Addr: netip.MustParseAddr("10.200.1.1"), Protocol: TCP, Port: 80}},
			}},
		})
		got, err := Plan(d, Observed{})
		if err != nil {
			t.Fatalf("a peer stops all: %v", err)
		}
		if len(got.Peers) < 3 {
			t.Fatal("a peer pushed another out")
		}
	})
}

func TestPlanRefusesAnInvalidHome(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Desired)
		says   string
	}{
		"no cluster ID":            {func(d *Desired) { d.ClusterID = "" }, "cluster ID"},
		"a node that is not there": {func(d *Desired) { d.Node = "unknown" }, "not among the nodes"},
		"no prefix": {
			func(d *Desired) {
				d.Reserved = append(d.Reserved, netip.PrefixFrom(netip.MustParseAddr("10.9.0.0"), 33))
			},
			"reserved prefix 2, of the address 10.9.0.0, is invalid",
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := home("gw")
			tt.change(&d)
			if _, err := Plan(d, Observed{}); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want an error that says %q", err, tt.says)
			}
		})
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	secret := PresharedKey{1, 2, 3}
	plain := PublicKey(secret).String()
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "key", secret, "peer", Peer{PresharedKey: secret})
	data, err := json.Marshal(struct{ A PresharedKey }{secret})
	if err != nil {
		t.Fatal(err)
	}
	_, parse := ParsePublicKey(plain + "x")
	for _, text := range []string{
		fmt.Sprint(secret), fmt.Sprintf("%v %+v %#v %x %s %d", secret, secret, secret, secret, secret, secret),
		fmt.Sprintf("%+v", Peer{PresharedKey: secret}), log.String(), string(data), parse.Error(),
	} {
		if strings.Contains(text, plain) || strings.Contains(text, "1 2 3") || strings.Contains(text, "010203") || strings.Contains(text, "0x1, 0x2") {
			t.Errorf("printed: %s", text)
		}
	}
	if got, err := ParsePublicKey(plain); err != nil || got != PublicKey(secret) {
		t.Errorf("there and back: %v, %v", got, err)
	}
}

func TestObservedAddressesAreUsedIfTheyCanBeDialled(t *testing.T) {
	aliases := []netip.Prefix{netip.MustParsePrefix("198.18.0.0/16")}
	at := func(texts ...string) (out []netip.AddrPort) {
		for _, text := range texts {
			out = append(out, netip.MustParseAddrPort(text))
		}
		return out
	}
	for name, row := range map[string]struct{ seen, want []netip.AddrPort }{
		"places of hosts":        {at("203.0.113.1:7", "[2001:db8::1]:7"), at("203.0.113.1:7", "[2001:db8::1]:7")},
		"the same twice":         {at("203.0.113.1:7", "[::ffff:203.0.113.1]:7"), at("203.0.113.1:7")},
		"nowhere":                {append(at("203.0.113.1:0", "127.0.0.1:7", "[::1]:7", "0.0.0.0:7", "224.0.0.1:7", "169.254.169.254:7", "[fe80::1]:7", "255.255.255.255:7"), netip.AddrPort{}), nil},
		"inside the tunnel":      {at("198.18.3.4:7"), nil},
		"more than there may be": {at("203.0.113.1:1", "203.0.113.1:2", "203.0.113.1:3", "203.0.113.1:4", "203.0.113.1:5"), at("203.0.113.1:1", "203.0.113.1:2", "203.0.113.1:3", "203.0.113.1:4")},
	} {
		if got := observed(Gateway{Observed: row.seen}, aliases); !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}

// Whatever changes of an observation, it is another one.
func TestObservationsThatDifferAreNotEqual(t *testing.T) {
	full := func() Observed {
		return Observed{
			Sources: []netip.Addr{{}}, Routed: []netip.Prefix{{}}, Carriers: map[string]Carrier{"": {}}, Direct: []Direct{{}}, Counted: []netip.Prefix{{}},
			Proven: map[PublicKey]string{{}: ""}, InUse: map[netip.Addr]PublicKey{{}: {}}, Turn: 1,
		}
	}
	if !full().Equal(full()) {
		t.Error("an observation is not equal to itself")
	}
	for i := range reflect.TypeFor[Observed]().NumField() {
		o := full()
		field := reflect.ValueOf(&o).Elem().Field(i)
		if field.IsZero() {
			t.Errorf("%s is left out of this test", reflect.TypeFor[Observed]().Field(i).Name)
		}
		if field.SetZero(); full().Equal(o) || o.Equal(full()) {
			t.Errorf("%s makes no difference", reflect.TypeFor[Observed]().Field(i).Name)
		}
	}
}
