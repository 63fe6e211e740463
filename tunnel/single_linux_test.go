package tunnel

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// single is a peer's alias for one address of ours.
func single(own netip.Addr, alias string) plan.Mapping {
	a := address(alias)
	return plan.Mapping{Real: netip.PrefixFrom(own, own.BitLen()), Alias: netip.PrefixFrom(a, a.BitLen())}
}

// hold opens a TCP connection, and returns what tries whether it still passes bytes both ways.
func (r *rig) hold(ns string, to netip.Addr) func() error {
	r.t.Helper()
	var conn net.Conn
	err := r.inNS(ns, func() (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, 8080).String(), 5*time.Second)
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	lines := bufio.NewReader(conn)
	if _, err := lines.ReadString('\n'); err != nil { // the server begins with what it sees
		r.t.Fatal(err)
	}
	return func() error {
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write([]byte("hello\n")); err != nil {
			return err
		}
		_, err := lines.ReadString('\n')
		return err
	}
}

// Two clusters with the same pod prefix that know of each other no more than single addresses:
// those are reached, and seen, by their aliases, and pods that have none by their nodes'.
func TestAddressesThatAreKnownOneByOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gw, worker, b := r.node("a", 1, "11"), r.node("a", 2, "13"), r.node("b", 1, "12")
	worker.worker = true
	r.in(gw.ns, "ip route add 10.200.2.0/24 via 172.31.0.13")
	r.in(worker.ns, "ip route add 10.200.1.0/24 via 172.31.0.11")
	blockOfA, blockOfB := []netip.Prefix{prefix("10.248.0.0/28"), prefix("fd88:a::/124")}, []netip.Prefix{prefix("10.249.0.0/30"), prefix("fd88:b::/127")}
	const bAsSeen, bAsSeen6 = "10.249.0.3", "fd88:b::1"
	knownOfA := []plan.Mapping{
		single(gw.bridge, "10.248.0.1"), single(worker.bridge, "10.248.0.2"), single(gw.podAddr, "10.248.0.9"),
		single(address("fd77:1::1"), "fd88:a::1"), single(address("fd77:2::1"), "fd88:a::2"),
	}
	knownOfB := []plan.Mapping{single(b.podAddr, bAsSeen), single(b.bridge, "10.249.0.1"), single(address("fd77:1::10"), bAsSeen6)}
	pods := []netip.Prefix{prefix("10.200.0.0/16"), prefix("fd77::/16")}
	inA := func(n *rigNode, known []plan.Mapping) plan.Desired {
		d := n.desired([]*rigNode{gw, worker}, plan.Peer{
			ClusterID: clusterID("b"), PresharedKey: plan.PresharedKey{1, 2, 3}, Gateways: []plan.Gateway{b.gateway()},
			Local: known, RemoteBlocks: blockOfB, Inbound: []plan.Exposure{openTo(gw.podAddr), openTo(worker.podAddr)},
		})
		for i := range d.Nodes {
			d.Nodes[i].PodCIDRs = append(d.Nodes[i].PodCIDRs, prefix(fmt.Sprintf("fd77:%d::/64", i+1)))
		}
		d.Pods = pods
		return d
	}
	inB := b.desired([]*rigNode{b}, plan.Peer{
		ClusterID: clusterID("a"), PresharedKey: plan.PresharedKey{1, 2, 3}, Gateways: []plan.Gateway{gw.gateway()},
		Local: knownOfB, RemoteBlocks: blockOfA, Inbound: []plan.Exposure{openTo(b.podAddr), openTo(address("fd77:1::10"))},
	})
	inB.Pods = pods
	inB.Nodes[0].PodCIDRs = append(inB.Nodes[0].PodCIDRs, prefix("fd77:1::/64"))
	b.set(inB)
	gw.set(inA(gw, knownOfA))
	worker.set(inA(worker, knownOfA))
	gw.up()
	b.up()
	for _, network := range []string{"tcp", "udp"} {
		r.wantSeen(network+" from a pod that is known", gw.pod, network, address(bAsSeen), 8080, "10.248.0.9")
		r.wantSeen(network+" from a pod that is not", worker.pod, network, address(bAsSeen), 8080, "10.248.0.2")
		r.wantSeen(network+" from a node", gw.ns, network, address(bAsSeen), 8080, "10.248.0.1")
		r.wantSeen(network+" from a pod that is not, over IPv6", worker.pod, network, address(bAsSeen6), 8080, "fd88:a::2")
		r.wantSeen(network+" back", b.pod, network, address("10.248.0.9"), 8080, bAsSeen)
	}
	r.in(worker.pod, "ping -c 2 -i 0.2 -W 5 "+bAsSeen)
	r.wantRefused("an error comes back to a pod that is known", gw.pod, address(bAsSeen))
	r.wantRefused("and to one that is not", worker.pod, address(bAsSeen))
	r.wantRefused("and over IPv6", gw.pod, address(bAsSeen6))
	r.wantClosed("a name of no address", gw.pod, "tcp", address("10.249.0.2"), 8080)
	r.wantClosed("a pod that is open and has no name there", b.pod, "tcp", address("10.248.0.10"), 8080)

	// A pod gets a name, among thousands of others, under a flow that began without it.
	echo := r.hold(worker.pod, address(bAsSeen))
	known := append(knownOfA, single(worker.podAddr, "10.248.0.10"))
	for i := range 4000 {
		known = append(known, single(netip.AddrFrom4([4]byte{10, 200, byte(2 + i/200), byte(20 + i%200)}), fmt.Sprintf("10.247.%d.%d", i/200, i%200)))
	}
	began := time.Now()
	gw.set(inA(gw, known))
	worker.set(inA(worker, known))
	r.eventually("a pod that was given a name is seen by it", func() error {
		got, err := r.ask(worker.pod, "tcp", address(bAsSeen), 8080)
		if err == nil && got != "10.248.0.10" {
			return fmt.Errorf("it is seen as %s", got)
		}
		return err
	})
	t.Logf("4,000 names more took %v", time.Since(began).Round(time.Millisecond))
	r.wantSeen("and reached by it", b.pod, "tcp", address("10.248.0.10"), 8080, bAsSeen)
	if err := echo(); err != nil {
		t.Errorf("a flow that began before is cut: %v", err)
	}
	table := r.in(gw.ns, "nft list table inet entente")
	if n := strings.Count(table, "ip saddr set"); n > 20 {
		t.Errorf("%d rules rewrite sources: there are as many as names", n)
	}
}
