package tunnel

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// attack is a packet that a peer puts into its tunnel by hand.
type attack struct {
	what     string
	from, to netip.Addr
	protocol plan.Protocol // zero is a ping
	port     uint16
	// forged says that the source is not the peer's: the cipher drops it.
	forged bool
	// carried says that the gateway passes it on to the pod's node, which decides.
	carried bool
	// arrives says that it is not an attack: the pod gets it.
	arrives bool
	// why a rule drops it, if not because it is not exposed; overlay says that the rule does not
	// count by peer.
	why     firewall.Reason
	overlay bool
}

// packet is the attack on the wire. The number marks it, by the identification of IPv4 and the
// flow label of IPv6.
func (a attack) packet(number uint16) []byte {
	kind, four := byte(a.protocol), a.to.Is4()
	var body []byte
	switch a.protocol {
	case plan.TCP: // a SYN
		body = binary.BigEndian.AppendUint16([]byte{0x9c, 0x40}, a.port)
		body = append(body, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 2, 0xff, 0xff, 0, 0, 0, 0)
	case plan.UDP:
		body = binary.BigEndian.AppendUint16([]byte{0x9c, 0x40}, a.port)
		body = append(body, 0, 12, 0, 0, 'e', 'v', 'i', 'l')
	default: // an echo request
		kind, body = unix.IPPROTO_ICMP, []byte{8, 0, 0, 0, 0, 1, 0, 1}
		if !four {
			kind, body[0] = unix.IPPROTO_ICMPV6, 128
		}
	}
	source, destination := a.from.AsSlice(), a.to.AsSlice()
	at := map[byte]int{unix.IPPROTO_TCP: 16, unix.IPPROTO_UDP: 6, unix.IPPROTO_ICMP: 2, unix.IPPROTO_ICMPV6: 2}[kind]
	var pseudo []byte
	if kind != unix.IPPROTO_ICMP {
		pseudo = append(append(append([]byte{}, source...), destination...), 0, kind, 0, byte(len(body)))
	}
	binary.BigEndian.PutUint16(body[at:], checksum(append(pseudo, body...)))
	if !four {
		head := []byte{0x60, 0, byte(number >> 8), byte(number), 0, byte(len(body)), kind, 64}
		return append(append(append(head, source...), destination...), body...)
	}
	head := []byte{0x45, 0, 0, byte(20 + len(body)), byte(number >> 8), byte(number), 0, 0, 64, kind, 0, 0}
	head = append(append(head, source...), destination...)
	binary.BigEndian.PutUint16(head[10:], checksum(head))
	return append(head, body...)
}

// checksum is that of IP, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// inject puts a packet into a device.
func (r *rig) inject(ns, device string, to netip.Addr, packet []byte) {
	r.t.Helper()
	err := r.inNS(ns, func() error {
		family, address := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{})
		if to.Is4() {
			address.(*unix.SockaddrInet4).Addr = to.As4()
		} else {
			family, address = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.As16()}
		}
		fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
			unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, device),
			unix.Sendto(fd, packet, 0, address))
	})
	if err != nil {
		r.t.Fatalf("send to %v: %v", to, err)
	}
}

// watch counts the packets with a number where they come out of the tunnel, where a node would
// take them in, where it has passed them on, and where a pod gets them.
func (r *rig) watch(numbers int, nodes []*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		for ns, chains := range map[string]map[string]string{
			n.ns:  {"came": "prerouting priority -400; iifname != " + n.device + " return", "node": "input priority 400; udp dport 51820 return", "passed": "postrouting priority 400; udp sport 51820 return"},
			n.pod: {"pod": "input priority -400;"},
		} {
			var b strings.Builder
			b.WriteString("table inet watch {\n")
			for name, hook := range chains {
				fmt.Fprintf(&b, "  chain %s {\n    type filter hook %s\n", name, hook)
				for i := range numbers {
					for _, match := range []string{"ip id", "ip6 flowlabel"} {
						fmt.Fprintf(&b, "    %s %d counter comment \"%s %d\"\n", match, attackNumber(i), name, i)
					}
				}
				b.WriteString("  }\n")
			}
			b.WriteString("}\n")
			r.in(ns, "nft -f - <<END\n"+b.String()+"END\n")
		}
	}
}

func attackNumber(i int) uint16 { return uint16(0x4000 + i) }

// watched is how many packets were counted where, of one number.
func (r *rig) watched(where string, number int, nodes []*rigNode) (sum int) {
	r.t.Helper()
	line := regexp.MustCompile(fmt.Sprintf(`counter packets (\d+) bytes \d+ comment "%s %d"`, where, number))
	for _, n := range nodes {
		ns := n.ns
		if where == "pod" {
			ns = n.pod
		}
		for _, m := range line.FindAllStringSubmatch(r.in(ns, "nft list table inet watch"), -1) {
			count, _ := strconv.Atoi(m[1])
			sum += count
		}
	}
	return sum
}

// dropped counts the packets that the rules of fabrics have dropped from and to peers, by reason.
func (r *rig) dropped(nodes []*rigNode, peers []plan.Peer) map[firewall.Drop]uint64 {
	r.t.Helper()
	sum := map[firewall.Drop]uint64{}
	for _, n := range nodes {
		err := r.inNS(n.ns, func() error {
			counted, err := firewall.ReadTotals(peers)
			for why, c := range counted.Dropped {
				sum[why] += c.Packets
			}
			return err
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	return sum
}

// A peer that has the keys of its tunnel and sends any packets through it reaches the port
// that is exposed to it. All else is dropped and counted as its packets: by the cipher where the source is not
// the peer's, and where it is, by a rule.
func TestAHostilePeerReachesExposedPortsOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gateway, worker, third, evil := r.node("a", 1, "11"), r.node("a", 2, "21"), r.node("c", 1, "13"), r.node("h", 1, "14")
	worker.worker = true
	// As A knows the others, and as they know A.
	const aliasOfC, aliasOfH, aliasOfA = "10.251.0.0/16", "10.250.0.0/16", "10.240.0.0/16"
	own := []*rigNode{gateway, worker}
	open := func(n *rigNode) plan.Exposure {
		return plan.Exposure{Name: "web of " + n.name, AnySource: true, Destinations: []plan.Destination{{Addr: n.podAddr, Protocol: plan.TCP, Port: 8080}}}
	}
	peers := []plan.Peer{
		peering(third, aliasOfA, aliasOfC, openTo(gateway.podAddr)),
		peering(evil, aliasOfA, aliasOfH, open(gateway), open(worker)),
	}
	for _, n := range own {
		n.set(n.desired(own, peers...))
	}
	third.set(third.desired([]*rigNode{third}, peering(gateway, aliasOfC, aliasOfA, openTo(third.podAddr))))
	evil.set(evil.desired([]*rigNode{evil}, peering(gateway, aliasOfH, aliasOfA)))
	for _, n := range append(own, third, evil) {
		n.up()
	}
	overlay := func(n *rigNode) netip.Addr { return plan.Overlay(clusterID(n.cluster), n.name) }
	// It has the keys and no fabric.
	evil.fabric.kill()
	r.in(evil.ns, fmt.Sprintf("nft delete table inet entente; wg set %[1]s peer %[2]s allowed-ips 0.0.0.0/0,::/0; ip route add fd00::/8 dev %[1]s", evil.device, gateway.key()))

	web, away, mine, others := remap(t, gateway.podAddr, aliasOfA), remap(t, worker.podAddr, aliasOfA), remap(t, evil.podAddr, aliasOfH), remap(t, third.podAddr, aliasOfC)
	attacks := []attack{
		{what: "a pod's open port", from: mine, to: web, protocol: plan.TCP, port: 8080, arrives: true},
		{what: "an open port of a pod on another node", from: mine, to: away, protocol: plan.TCP, port: 8080, arrives: true},

		{what: "an open port, in the name of another peer", from: others, to: web, protocol: plan.TCP, port: 8080, forged: true},
		{what: "a pod, in the name of a pod of the cluster", from: worker.podAddr, to: web, protocol: plan.TCP, port: 8080, forged: true},
		{what: "a pod, in the name of the node", from: gateway.underlay, to: web, protocol: plan.TCP, port: 8080, forged: true},
		{what: "the overlay, in the name of a node of the cluster", from: overlay(worker), to: overlay(gateway), protocol: plan.UDP, port: 7447, forged: true},

		{what: "a port that is not open", from: mine, to: web, protocol: plan.TCP, port: 22},
		{what: "another protocol on an open port", from: mine, to: web, protocol: plan.UDP, port: 8080},
		{what: "a ping to a pod of which a port is open", from: mine, to: web},
		{what: "a port that is not open on another node", from: mine, to: away, protocol: plan.TCP, port: 22, carried: true},
		{what: "a pod that is not exposed", from: mine, to: remap(t, address("10.200.1.99"), aliasOfA), protocol: plan.TCP, port: 8080},
		{what: "an address of the node among its pods'", from: mine, to: remap(t, gateway.bridge, aliasOfA), protocol: plan.TCP, port: 10250},
		{what: "the node's own address", from: mine, to: gateway.underlay, protocol: plan.TCP, port: 10250, why: firewall.NotOurs},
		{what: "another node's own address", from: mine, to: worker.underlay, protocol: plan.TCP, port: 10250, why: firewall.NotOurs},
		{what: "the Service of the API server", from: mine, to: address("10.96.0.1"), protocol: plan.TCP, port: 443, why: firewall.NotOurs},
		{what: "a pod by its real address", from: mine, to: gateway.podAddr, protocol: plan.TCP, port: 8080, why: firewall.NotOurs},
		{what: "a pod of another node by its real address", from: mine, to: worker.podAddr, protocol: plan.TCP, port: 8080, why: firewall.NotOurs},
		{what: "a third peer", from: mine, to: others, protocol: plan.TCP, port: 8080, why: firewall.NotOurs},
		{what: "itself, through the cluster", from: mine, to: mine, protocol: plan.TCP, port: 8080, why: firewall.NotOurs},
		{what: "the Internet", from: mine, to: address("192.0.2.1"), protocol: plan.UDP, port: 53, why: firewall.NotOurs},
		{what: "all hosts", from: mine, to: address("224.0.0.1"), protocol: plan.UDP, port: 5353, why: firewall.NotOurs},
		{what: "everybody", from: mine, to: address("255.255.255.255"), protocol: plan.UDP, port: 67, why: firewall.NotOurs},
		{what: "another port of the gateway's overlay address", from: overlay(evil), to: overlay(gateway), protocol: plan.TCP, port: 10250, overlay: true},
		{what: "the overlay address of another node", from: overlay(evil), to: overlay(worker), protocol: plan.UDP, port: 7447, overlay: true, why: firewall.Transit},
		{what: "the overlay address of a third peer", from: overlay(evil), to: overlay(third), protocol: plan.UDP, port: 7447, overlay: true, why: firewall.Transit},
	}
	victims := append(own, third)
	r.watch(len(attacks), victims)
	for i, a := range attacks {
		t.Run(a.what, func(t *testing.T) {
			r.t = t
			before, refused := r.dropped(own, peers), gateway.fabric.refused(evil.cluster)
			count := func(where string) int { return r.watched(where, i, victims) }
			want := map[string]int{}
			switch {
			case a.arrives:
				want["pod"], want["came"] = 1, 1
			case !a.forged:
				want["came"] = 1
			}
			for range 3 { // of each one
				r.inject(evil.ns, evil.device, a.to, a.packet(attackNumber(i)))
			}
			r.eventually("the packets to come", func() error {
				for where, least := range want {
					if got := count(where); got < least {
						return fmt.Errorf("%d at %q; %d came, %d were passed on", got, where, count("came"), count("passed"))
					}
				}
				if a.forged {
					if n := gateway.fabric.refused(evil.cluster); n < refused+3 { // its kernel sends some more, in response to those that arrived
						return fmt.Errorf("%d packets are counted as refused by the cipher, want at least 3 more than %d", n, refused)
					}
				}
				if a.arrives || a.forged {
					return nil
				}
				now := r.dropped(own, peers)
				why := firewall.Drop{Reason: cmp.Or(a.why, firewall.NotExposed), Peer: clusterID(evil.cluster)}
				if a.overlay {
					why.Peer = ""
				}
				if now[why] == before[why] {
					return fmt.Errorf("none is counted as %v: %v, before %v", why, now, before)
				}
				return nil
			})
			if n := gateway.fabric.refused(third.cluster); n != 0 {
				t.Errorf("%d packets are counted as refused from the peer that sent none of them", n)
			}
			for _, where := range []string{"came", "pod", "node", "passed"} {
				fine := a.arrives || where == "came" && !a.forged || where == "passed" && a.carried
				if got := count(where); got > 0 && !fine {
					t.Errorf("%d packets were counted at %q", got, where)
				}
			}
		})
	}
}
