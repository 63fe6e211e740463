package tunnel

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/entente-dev/entente/tunnel/plan"
)

// What is exposed is exposed on its ports, to the sources of its namespace, and no
// further: the kernel decides so packet by packet.
func TestExposureIsByPortAndSource(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.node("a", 1, "11"), r.node("b", 1, "12")
	other := r.start(b.pod, "server", []string{"TUNNEL_TEST_PORT=8081"})
	t.Cleanup(other.kill)
	const aliasOfA, aliasOfB = "10.241.0.0/16", "10.242.0.0/16"
	// Of A's pod's two addresses each belongs to a pod of another namespace; of B's,
	// too.
	r.in(a.pod, "ip addr add 10.200.1.11/24 dev eth0; ip addr add fd77:1::11/64 dev eth0 nodad preferred_lft 0")
	r.in(b.pod, "ip addr add 10.200.1.11/24 dev eth0; ip addr add fd77:1::11/64 dev eth0 nodad preferred_lft 0")
	type end struct{ real, alias netip.Addr }
	ends := func(alias4, alias6 string) map[string]end {
		return map[string]end{
			"shop 4": {address("10.200.1.10"), remap(t, address("10.200.1.10"), alias4)},
			"bank 4": {address("10.200.1.11"), remap(t, address("10.200.1.11"), alias4)},
			"shop 6": {address("fd77:1::10"), address(alias6 + "10")},
			"bank 6": {address("fd77:1::11"), address(alias6 + "11")},
		}
	}
	from, to := ends(aliasOfA, "fd88:a::"), ends(aliasOfB, "fd88:b::")
	desired := func(n, peer *rigNode, local4, local6, remote4, remote6 string, open ...plan.Exposure) plan.Desired {
		d := n.desired([]*rigNode{n}, peering(peer, local4, remote4, open...))
		d.Nodes[0].PodCIDRs = append(d.Nodes[0].PodCIDRs, prefix("fd77:1::/64"))
		d.Peers[0].Local = append(d.Peers[0].Local, plan.Mapping{Real: prefix("fd77:1::/64"), Alias: prefix(local6)})
		d.Peers[0].Remote = append(d.Peers[0].Remote, plan.Mapping{Real: prefix("fd77:1::/64"), Alias: prefix(remote6)})
		return d
	}
	exposure := func(name, source, destination string, protocol plan.Protocol, port uint16) plan.Exposure {
		e := plan.Exposure{Name: name}
		for _, family := range []string{" 4", " 6"} {
			e.Sources = append(e.Sources, from[source+family].alias)
			e.Destinations = append(e.Destinations, plan.Destination{Addr: to[destination+family].real, Protocol: protocol, Port: port})
		}
		return e
	}
	open := func(exposures ...plan.Exposure) {
		b.set(desired(b, a, aliasOfB, "fd88:b::/64", aliasOfA, "fd88:a::/64", exposures...))
	}
	a.set(desired(a, b, aliasOfA, "fd88:a::/64", aliasOfB, "fd88:b::/64"))
	// UDP to a pod's first address only: its server answers from there.
	shop := exposure("shop", "shop", "shop", plan.UDP, 8080)
	bank := exposure("bank", "bank", "bank", plan.TCP, 8080)
	open(shop, bank)
	a.up()
	b.up()
	type try struct {
		source, network, destination string
		port                         int
	}
	reached := func(tr try) error {
		_, err := r.askFrom(a.pod, from[tr.source].real, tr.network, to[tr.destination].alias, tr.port)
		return err
	}
	check := func(t *testing.T, opened []try, closed []try) {
		t.Helper()
		r.t = t
		for _, tr := range opened {
			r.eventually(fmt.Sprint(tr), func() error { return reached(tr) })
		}
		for _, tr := range closed {
			if reached(tr) == nil {
				t.Errorf("%v: reached, want it closed", tr)
			}
		}
	}
	for _, f := range []string{" 4", " 6"} {
		t.Run("ports, protocols and namespaces are kept apart, IPv"+f[1:], func(t *testing.T) {
			check(t,
				[]try{{"shop" + f, "udp", "shop" + f, 8080}, {"bank" + f, "tcp", "bank" + f, 8080}},
				[]try{
					{"shop" + f, "udp", "shop" + f, 8081},
					{"shop" + f, "tcp", "shop" + f, 8080},
					{"bank" + f, "tcp", "bank" + f, 8081},
					{"bank" + f, "udp", "shop" + f, 8080},
					{"shop" + f, "tcp", "bank" + f, 8080},
				})
		})
	}
	t.Run("errors of open flows come back, and nothing else answers pings", func(t *testing.T) {
		r.t = t
		closing := exposure("shop", "shop", "shop", plan.UDP, 9)
		open(closing)
		r.wantRefused("a closed port", a.pod, to["shop 4"].alias)
		if out, err := r.try(a.pod, "ping -c 1 -W 1 "+to["shop 4"].alias.String()); err == nil {
			t.Errorf("a pod of which one port is open answers pings:\n%s", out)
		}
	})
	t.Run("a source that moves to another namespace has its rights only", func(t *testing.T) {
		open(exposure("shop", "shop", "shop", plan.TCP, 8080), exposure("bank", "bank", "bank", plan.TCP, 8080))
		check(t, []try{{"shop 4", "tcp", "shop 4", 8080}, {"bank 4", "tcp", "bank 4", 8080}}, []try{{"shop 4", "tcp", "bank 4", 8080}})
		open(exposure("shop", "bank", "shop", plan.TCP, 8080), exposure("bank", "shop", "bank", plan.TCP, 8080))
		check(t, []try{{"bank 4", "tcp", "shop 4", 8080}, {"shop 4", "tcp", "bank 4", 8080}}, []try{{"shop 4", "tcp", "shop 4", 8080}, {"bank 4", "tcp", "bank 4", 8080}})
		if log := b.fabric.log(); strings.Contains(log, "nftables table entente") {
			t.Errorf("the fabric had trouble:\n%s", log)
		}
	})
	t.Run("a service for all of a peer, and all ports of a pod", func(t *testing.T) {
		export := plan.Exposure{Name: "export", AnySource: true, Destinations: []plan.Destination{{Addr: to["shop 4"].real, Protocol: plan.TCP, Port: 8081}}}
		whole := plan.Exposure{Name: "whole", Sources: []netip.Addr{from["bank 4"].alias}, Destinations: []plan.Destination{{Addr: to["bank 4"].real}}}
		open(export, whole)
		check(t,
			[]try{{"shop 4", "tcp", "shop 4", 8081}, {"bank 4", "tcp", "shop 4", 8081}, {"bank 4", "tcp", "bank 4", 8081}, {"bank 4", "tcp", "bank 4", 8080}},
			[]try{{"bank 4", "tcp", "shop 4", 8080}, {"shop 4", "tcp", "bank 4", 8081}, {"shop 6", "tcp", "shop 6", 8081}})
		r.in(a.pod, "ping -c 1 -W 5 -I 10.200.1.11 "+to["bank 4"].alias.String())
	})
	t.Run("SCTP", func(t *testing.T) {
		r.t = t
		r.in(b.pod, `set -e
nft add table ip watch
nft 'add chain ip watch input { type filter hook input priority -400; }'
nft add rule ip watch input ip protocol sctp th dport 8080 counter comment open
nft add rule ip watch input ip protocol sctp th dport 8081 counter comment closed`)
		open(exposure("shop", "shop", "shop", plan.SCTP, 8080))
		r.eventually("an INIT at the open port", func() error {
			r.sctpInit(a.pod, to["shop 4"].alias, 8081)
			r.sctpInit(a.pod, to["shop 4"].alias, 8080)
			if out := r.in(b.pod, "nft list table ip watch"); strings.Contains(out, `counter packets 0 bytes 0 comment "open"`) {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
		if out := r.in(b.pod, "nft list table ip watch"); !strings.Contains(out, `counter packets 0 bytes 0 comment "closed"`) {
			t.Errorf("the closed port was reached:\n%s", out)
		}
	})
	t.Run("a change of one exposure is a change of elements", func(t *testing.T) {
		r.t = t
		open(shop, bank)
		r.eventually("both", func() error { return reached(try{"bank 4", "tcp", "bank 4", 8080}) })
		handle := func() string { return r.in(b.ns, "nft -a list table inet entente | grep 'exposed [ot].*handle'") }
		before := handle()
		more := shop
		more.Destinations = append(more.Destinations, plan.Destination{Addr: to["shop 4"].real, Protocol: plan.TCP, Port: 8081})
		open(more, bank)
		r.eventually("another port", func() error { return reached(try{"shop 4", "tcp", "shop 4", 8081}) })
		if after := handle(); after != before {
			t.Errorf("rules were replaced:\n%s\nbefore:\n%s", after, before)
		}
	})
}

// sctpInit sends the first chunk of an association (RFC 9260).
func (r *rig) sctpInit(ns string, to netip.Addr, port uint16) {
	r.t.Helper()
	b := make([]byte, 12+20)
	binary.BigEndian.PutUint16(b[0:], 40000)
	binary.BigEndian.PutUint16(b[2:], port)
	b[12] = 1 // INIT
	binary.BigEndian.PutUint16(b[14:], 20)
	binary.BigEndian.PutUint32(b[16:], 7)     // initiate tag
	binary.BigEndian.PutUint32(b[20:], 1<<16) // window
	binary.BigEndian.PutUint16(b[24:], 1)     // streams
	binary.BigEndian.PutUint16(b[26:], 1)
	binary.BigEndian.PutUint32(b[28:], 1) // first TSN
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	err := r.inNS(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.As4()})
	})
	if err != nil {
		r.t.Fatalf("send SCTP from %s: %v", ns, err)
	}
}
