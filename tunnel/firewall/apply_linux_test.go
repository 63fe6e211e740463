package firewall

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/tunnel/plan"
)

func cidr(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// alone calls a function on a thread in a network namespace of its own.
func alone(t *testing.T, do func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a network namespace")
	}
	failed := make(chan error, 1)
	go func() {
		var err error
		defer func() { failed <- err }() // a test that fails ends the goroutine
		runtime.LockOSThread()           // never unlocked: the thread ends here
		if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			err = do()
		}
	}()
	return <-failed
}

// peerNumber is a peer with a gateway and one exposure, all different from other peers'.
func peerNumber(i int) plan.Peer {
	return plan.Peer{
		ClusterID: fmt.Sprintf("peer%d", i), PresharedKey: plan.PresharedKey{byte(i), byte(i >> 8), 1},
		Gateways: []plan.Gateway{{Node: "x", PublicKey: plan.PublicKey{byte(i), byte(i >> 8), 9}, Endpoints: []string{"192.0.2.9:51820"}}},
		Local:    []plan.Mapping{{Real: cidr("10.200.0.0/16"), Alias: netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i), 0, 0}), 16)}},
		Remote:   []plan.Mapping{{Real: cidr("10.200.0.0/16"), Alias: netip.PrefixFrom(netip.AddrFrom4([4]byte{12, byte(i), 0, 0}), 16)}},
		Inbound:  []plan.Exposure{{Name: "a pod", AnySource: true, Destinations: []plan.Destination{{Addr: netip.AddrFrom4([4]byte{10, 200, 1, byte(i)})}}}},
	}
}

func rulesFor(t interface{ Fatal(...any) }, peers ...plan.Peer) ruleset {
	return rulesDirectly(t, nil, peers...)
}

// rulesDirectly are the rules where packets go directly to some nodes of peers.
func rulesDirectly(t interface{ Fatal(...any) }, nodes []string, peers ...plan.Peer) ruleset {
	d := plan.Desired{
		ClusterID: "home", Node: "gw", Reserved: []netip.Prefix{cidr("10.96.0.0/16")}, Peers: peers,
		Nodes: []plan.Node{
			{Name: "gw", PublicKey: plan.PublicKey{1}, Endpoints: []string{"192.0.2.1:51820"}, PodCIDRs: []netip.Prefix{cidr("10.200.1.0/24"), cidr("fd77:1::/72")}, Gateway: true},
			{Name: "worker", PublicKey: plan.PublicKey{2}, Endpoints: []string{"192.0.2.2:51820"}, PodCIDRs: []netip.Prefix{cidr("10.200.2.0/24")}},
		},
		Announced: []netip.Prefix{cidr("10.200.1.0/24"), cidr("fd77:1::/72")},
	}
	o := plan.Observed{Sources: []netip.Addr{netip.MustParseAddr("10.200.1.1"), netip.MustParseAddr("fd77:1::1")}}
	known, problems := plan.RemoteNodes(d)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, n := range known {
		o.Direct, o.Counted = append(o.Direct, plan.Direct{RemoteNode: n, Use: true}), append(o.Counted, n.Aliases...)
	}
	slices.SortFunc(o.Counted, netip.Prefix.Compare)
	layout, err := plan.Plan(d, o)
	if err != nil || len(layout.Problems) > 0 {
		t.Fatal(err, layout.Problems)
	}
	for i := range o.Direct { // the other side announces the agreement that it receives
		for _, w := range layout.Peers {
			if w.Cluster == o.Direct[i].Cluster && w.Node == o.Direct[i].Node && slices.Contains(nodes, w.Cluster+"/"+w.Node) {
				o.Direct[i].Received = w.Agreement
			}
		}
	}
	if layout, err = plan.Plan(d, o); err != nil {
		t.Fatal(err)
	}
	return rules(layout, countedSets(layout.Counted), "entente0", Ports{Probe: 7445, Relay: 7448})
}

// handles are the kernel's numbers of the rules of each chain: a rule that was written again
// has another one, and its counters begin at zero.
func handles() (map[string][]uint64, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	out := map[string][]uint64{}
	for _, chain := range chains {
		found, err := c.GetRules(table(), chain)
		if err != nil {
			return nil, err
		}
		out[chain.Name] = []uint64{}
		for _, r := range found {
			out[chain.Name] = append(out[chain.Name], r.Handle)
		}
	}
	return out, nil
}

// change makes the table match by changing what differs, and nothing else helps.
func change(want ruleset) error {
	for pass := 0; ; pass++ {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		chains, err := readChains(c)
		if err != nil {
			return err
		}
		have, err := readTable(c, chains)
		if err != nil {
			return err
		}
		d := compareTable(have, want)
		switch {
		case d.none():
			return nil
		case pass == 1 || d.replace:
			return fmt.Errorf("the table differs after a change: %+v", d)
		}
		if err := changeTable(d); err != nil {
			return err
		}
	}
}

func TestFirewallLeavesTheRulesOfOtherPeersAlone(t *testing.T) {
	err := alone(t, func() error {
		var before map[string][]uint64
		for step, peers := range [][]plan.Peer{
			{peerNumber(1)},
			{peerNumber(1), peerNumber(2)},
			{peerNumber(1), peerNumber(2), peerNumber(3)},
			{peerNumber(1), peerNumber(3)},
			{peerNumber(1)},
		} {
			if err := change(rulesFor(t, peers...)); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			after, err := handles()
			if err != nil {
				return err
			}
			for chain, is := range after {
				if was, existed := before[chain]; existed && !slices.Equal(was, is) {
					t.Errorf("step %d: the rules of chain %s were written again: %v, were %v", step, chain, is, was)
				}
			}
			before = after
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A change of direct nodes changes elements of a map, and no rule; counts stay.
func TestFirewallOpensDirectPathsOneByOne(t *testing.T) {
	var peers []plan.Peer
	for i := range 3 {
		p := peerNumber(i)
		p.Local = append(p.Local, plan.Mapping{Real: cidr("fd77:1::/64"), Alias: cidr(fmt.Sprintf("fd88:%x::/64", 1+i))})
		p.Remote = append(p.Remote, plan.Mapping{Real: cidr("fd77:1::/64"), Alias: cidr(fmt.Sprintf("fd99:0:0:%x::/64", 1+i))})
		p.Gateways[0].Pods = []netip.Prefix{cidr("10.200.7.0/24"), cidr("fd77:1:0:0:700::/72")}
		p.Nodes = []plan.Gateway{{Node: "z", PublicKey: plan.PublicKey{byte(i), 77}, Pods: []netip.Prefix{cidr("10.200.8.0/25"), cidr("10.200.9.0/24")}}}
		peers = append(peers, p)
	}
	err := alone(t, func() error {
		if err := change(rulesDirectly(t, []string{"peer0/x"}, peers...)); err != nil {
			return err
		}
		before, err := handles()
		if err != nil {
			return err
		}
		for step, open := range [][]string{{"peer0/x", "peer0/z"}, {"peer0/z"}, nil, {"peer0/x", "peer0/z", "peer1/z"}, {"peer0/z"}} {
			want := rulesDirectly(t, open, peers...)
			if err := change(want); err != nil {
				return fmt.Errorf("step %d: %w", step, err)
			}
			after, err := handles()
			if err != nil {
				return err
			}
			if !maps.EqualFunc(before, after, slices.Equal[[]uint64]) {
				t.Errorf("step %d: chains and rules changed:\n%v, were\n%v", step, after, before)
			}
		}
		counts, err := Counts()
		if err != nil {
			return err
		}
		if want := 3 * 4; len(counts) != want {
			t.Errorf("%d prefixes are counted, want %d: %v", len(counts), want, counts)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// From any state the table becomes the desired one: peers come, go, and change.
func TestFirewallFollowsAnySequence(t *testing.T) {
	if os.Getenv("ENTENTE_MATRIX") == "" { // each change waits for the kernel
		if err := flag.Set("rapid.checks", "30"); err != nil {
			t.Fatal(err)
		}
	}
	err := alone(t, func() error {
		rapid.Check(t, func(t *rapid.T) {
			for range rapid.IntRange(1, 5).Draw(t, "steps") {
				var peers []plan.Peer
				var open []string
				for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 0, 4, rapid.ID).Draw(t, "peers") {
					p := peerNumber(i)
					// Neighbours in the address space, and prefixes inside others' former ones.
					bits := rapid.SampledFrom([]int{16, 17, 24}).Draw(t, "bits")
					p.Remote[0] = plan.Mapping{Real: netip.PrefixFrom(p.Remote[0].Real.Addr(), bits), Alias: netip.PrefixFrom(p.Remote[0].Alias.Addr(), bits)}
					p.Local[0].Alias = netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(rapid.IntRange(0, 3).Draw(t, "local")), 0, 0}), 16)
					if rapid.Bool().Draw(t, "six") {
						p.Local = append(p.Local, plan.Mapping{Real: cidr("fd77:1::/64"), Alias: cidr(fmt.Sprintf("fd88:%x::/64", 1+i))})
						p.Remote = append(p.Remote, plan.Mapping{Real: cidr("fd77:1::/64"), Alias: cidr(fmt.Sprintf("fd99:0:0:%x::/64", 1+i))})
					}
					for e := range rapid.IntRange(0, 3).Draw(t, "exposures") {
						a := netip.AddrFrom4([4]byte{10, 200, 1, byte(rapid.IntRange(0, 9).Draw(t, "pod"))})
						p.Inbound = append(p.Inbound, plan.Exposure{
							Name: fmt.Sprint(e), Sources: []netip.Addr{p.Remote[0].Alias.Addr().Next()},
							Destinations: []plan.Destination{{Addr: a, Protocol: 6, Port: uint16(rapid.IntRange(1, 3).Draw(t, "port"))}},
						})
					}
					if rapid.Bool().Draw(t, "directly") {
						p.Gateways[0].Pods = []netip.Prefix{netip.PrefixFrom(p.Remote[0].Real.Addr(), rapid.IntRange(bits, 32).Draw(t, "pods"))}
					}
					peers = append(peers, p)
					if rapid.Bool().Draw(t, "open") {
						open = append(open, p.ClusterID+"/x")
					}
				}
				if err := change(rulesDirectly(t, open, peers...)); err != nil {
					t.Fatal(err)
				}
			}
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
