package tunnel

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// host makes a machine on the network of the nodes that knows no way but its neighbours: it runs
// what pods run.
func (r *rig) host(name, at, at6 string) (four, six netip.Addr) {
	r.t.Helper()
	r.addNS(name)
	r.in("inet", fmt.Sprintf("ip link add e%s type veth peer name eth0 netns %s%s && ip link set e%s master br0 up", name, r.prefix, name, name))
	r.in(name, fmt.Sprintf("ip link set lo up; ip addr add %s/24 dev eth0; ip addr add %s/64 dev eth0 nodad; ip link set eth0 up", at, at6))
	server := r.start(name, "server", nil)
	r.t.Cleanup(server.kill)
	return address(at), address(at6)
}

// A host beside the nodes, which has no route to any pod or alias, is reached from a peer's pod
// on the port that is open, in both families, and sees the node that carries the peer. So is what
// listens on that node.
func TestAHostThatIsNotAPodIsReached(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	four, six := r.host("vm", "172.31.0.50", "fd31::50")
	r.in(a.ns, "ip addr add fd31::11/64 dev eth0 nodad")
	onNode := r.start(a.ns, "server", nil)
	t.Cleanup(onNode.kill)
	pods := []netip.Prefix{prefix("10.200.0.0/16"), prefix("fd77::/16")}
	block, block6 := prefix("10.248.0.0/28"), prefix("fd88:a::/124")
	open := func(ports ...uint16) plan.Exposure {
		e := plan.Exposure{Name: "/databases", AnySource: true}
		for _, addr := range []netip.Addr{four, six, a.underlay} {
			for _, p := range ports {
				e.Destinations = append(e.Destinations, plan.Destination{Addr: addr, Protocol: plan.TCP, Port: p}, plan.Destination{Addr: addr, Protocol: plan.UDP, Port: p})
			}
		}
		return e
	}
	inA := func(exposed plan.Exposure) plan.Desired {
		d := a.desired([]*rigNode{a}, plan.Peer{
			ClusterID: clusterID("b"), PresharedKey: plan.PresharedKey{1, 2, 3}, Gateways: []plan.Gateway{b.gateway()},
			Local: []plan.Mapping{
				single(four, "10.248.0.1"), single(six, "fd88:a::1"), single(a.underlay, "10.248.0.3"), single(a.podAddr, "10.248.0.9"),
			},
			RemoteBlocks: []netip.Prefix{prefix("10.249.0.0/30"), prefix("fd88:b::/127")},
			Inbound:      []plan.Exposure{exposed},
		})
		d.Pods = pods
		return d
	}
	inB := b.desired([]*rigNode{b}, plan.Peer{
		ClusterID: clusterID("a"), PresharedKey: plan.PresharedKey{1, 2, 3}, Gateways: []plan.Gateway{a.gateway()},
		Local:        []plan.Mapping{single(b.podAddr, "10.249.0.3"), single(b.bridge, "10.249.0.1"), single(address("fd77:1::10"), "fd88:b::1")},
		RemoteBlocks: []netip.Prefix{block, block6},
	})
	inB.Pods = pods
	b.set(inB)
	a.set(inA(open(8080, 9)))
	a.up()
	b.up()
	for _, network := range []string{"tcp", "udp"} {
		r.wantSeen(network+" to the host", b.pod, network, address("10.248.0.1"), 8080, a.underlay.String())
		r.wantSeen(network+" to the host, over IPv6", b.pod, network, address("fd88:a::1"), 8080, "fd31::11")
	}
	r.wantSeen("to the node that carries", b.pod, "tcp", address("10.248.0.3"), 8080, "10.249.0.3")
	r.wantRefused("an error of the host comes back", b.pod, address("10.248.0.1"))
	r.wantRefused("and over IPv6", b.pod, address("fd88:a::1"))

	refused := firewall.Drop{Reason: firewall.NotExposed, Peer: clusterID("b")}
	seen := []*rigNode{a}
	before := r.dropped(seen, inA(open(8080, 9)).Peers)[refused]
	for _, alias := range []string{"10.248.0.1", "fd88:a::1"} {
		r.wantClosed("a port that is not open", b.pod, "tcp", address(alias), 22)
	}
	if n := r.dropped(seen, inA(open(8080, 9)).Peers)[refused] - before; n < 2 {
		t.Errorf("%d packets of the peer to closed ports were counted, want one of each family at least", n)
	}
	r.wantClosed("a host that was not exported", b.pod, "tcp", address("10.248.0.2"), 8080)
	// The host gets no way to the peer: it may answer, and no more.
	r.in("vm", "ip route add 10.249.0.0/30 via 172.31.0.11; ip -6 route add fd88:b::/127 via fd31::11")
	for _, alias := range []string{"10.249.0.3", "fd88:b::1"} {
		r.wantClosed("from the host to a pod of the peer", "vm", "tcp", address(alias), 8080)
	}
	r.in("vm", "ip route del 10.249.0.0/30; ip -6 route del fd88:b::/127")

	// What is closed is closed for flows that exist, too.
	echo := r.hold(b.pod, address("10.248.0.1"))
	if err := echo(); err != nil {
		t.Fatal(err)
	}
	a.set(inA(open(9)))
	r.eventually("a port that is closed ends its flows", func() error {
		if err := echo(); err == nil {
			return fmt.Errorf("bytes still pass")
		}
		return nil
	})
}
