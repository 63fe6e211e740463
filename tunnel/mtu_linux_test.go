package tunnel

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// echo sends so many bytes over TCP, or in one datagram, and wants them back.
func (r *rig) echo(ns, network string, to netip.Addr, size int) error {
	return r.inNS(ns, func() error {
		c, err := net.DialTimeout(network, netip.AddrPortFrom(to, 8080).String(), 10*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		sent := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		if network == "udp" {
			if _, err := c.Write(sent); err != nil {
				return err
			}
			got := make([]byte, 1<<16)
			n, err := c.Read(got)
			if err == nil && !bytes.Equal(got[:n], sent) {
				err = fmt.Errorf("%d bytes came back of %d", n, len(sent))
			}
			return err
		}
		failed := make(chan error, 1)
		go func() {
			_, err := c.Write(sent)
			failed <- err
		}()
		var line [1]byte // the server first sends the address that it sees
		for line[0] != '\n' && err == nil {
			_, err = io.ReadFull(c, line[:])
		}
		got := make([]byte, len(sent))
		if err == nil {
			_, err = io.ReadFull(c, got)
		}
		if werr := <-failed; werr != nil {
			return werr
		}
		if err == nil && !bytes.Equal(got, sent) {
			err = fmt.Errorf("other bytes came back")
		}
		return err
	})
}

// A network in between passes less than either end's link, without ICMP errors. What
// passes is found, that of the other peer stays, and nothing stalls; also when it becomes less
// while the tunnel is up, and over a restart of the fabric.
func TestSizeThatPassesIsFoundForEachPeer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b, c := r.node("a", 1, "11"), r.node("b", 1, "12"), r.node("c", 1, "13")
	const aliasOfA, aliasOfB, aliasOfC = "10.241.0.0/16", "10.242.0.0/16", "10.243.0.0/16"
	narrow := func(mtu int) {
		// A port of a bridge drops packets larger than its own MTU. Packets must be cut
		// before they reach it.
		r.in("inet", fmt.Sprintf("ip link set e%s mtu %d", b.name, mtu))
		for _, n := range []*rigNode{a, b} {
			r.in(n.ns, "ip link set eth0 gso_max_segs 1")
		}
	}
	narrow(1400)
	fromA := a.desired([]*rigNode{a}, peering(b, aliasOfA, aliasOfB, openTo(a.podAddr)), peering(c, aliasOfA, aliasOfC, openTo(a.podAddr)))
	a.set(fromA)
	b.set(b.desired([]*rigNode{b}, peering(a, aliasOfB, aliasOfA, openTo(b.podAddr))))
	c.set(c.desired([]*rigNode{c}, peering(a, aliasOfC, aliasOfA, openTo(c.podAddr))))
	for _, n := range []*rigNode{a, b, c} {
		n.up()
	}
	passes := func(n *rigNode, to *rigNode, limit int) {
		t.Helper()
		took := r.eventually(fmt.Sprintf("the size that passes from %s to %s", n.name, to.name), func() error {
			for _, p := range n.fabric.seen().Peers {
				if p.Cluster == clusterID(to.cluster) && p.MTU != limit {
					return fmt.Errorf("%d bytes, want %d", p.MTU, limit)
				}
			}
			return nil
		})
		t.Logf("%s to %s: %d bytes after %v", n.name, to.name, limit, took.Round(100*time.Millisecond))
	}
	carries := func(from, to *rigNode, alias string) {
		t.Helper()
		for _, m := range []struct {
			network string
			size    int
		}{{"tcp", 4 << 20}, {"udp", 1344}, {"udp", 8 << 10}, {"udp", 60 << 10}} {
			err := r.echo(from.pod, m.network, remap(t, to.podAddr, alias), m.size)
			for range 2 { // a datagram too large is lost, and its sender notified: it may come from either end
				if m.network == "udp" && err != nil {
					err = r.echo(from.pod, m.network, remap(t, to.podAddr, alias), m.size)
				}
			}
			if err != nil {
				t.Errorf("%d bytes over %s from %s to %s and back: %v", m.size, m.network, from.name, to.name, err)
			}
		}
	}
	// IPv4, UDP and WireGuard take 60 bytes, and packets are padded to a multiple of 16.
	passes(a, b, 1328)
	passes(b, a, 1328)
	passes(a, c, 1420)
	carries(a, b, aliasOfB)
	carries(b, a, aliasOfA)
	carries(a, c, aliasOfC)

	narrow(1360)
	passes(a, b, 1296)
	passes(b, a, 1296)
	carries(a, b, aliasOfB)
	carries(b, a, aliasOfA)

	// A fabric that begins uses the MTU of the routes until it knows a better one.
	before := r.state(a)
	a.fabric.kill()
	a.startFabric()
	a.set(fromA)
	carries(a, b, aliasOfB)
	if after := r.state(a); after != before {
		t.Errorf("after a restart:\n%s\nbefore:\n%s", after, before)
	}
	passes(a, c, 1420)
}
