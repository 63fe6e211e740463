package tunnel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// endsLimit is how long a way may be broken, or mended, until the status shows it.
const endsLimit = 15 * time.Second

// end is the result of a node's end-to-end probes of the only peer.
func (n *rigNode) end() EndStatus {
	for _, e := range n.fabric.seen().Ends {
		return e
	}
	return EndStatus{}
}

// wantEnd waits until end-to-end probes have a result for a node, all of whose probes in tunnels are
// answered meanwhile.
func (n *rigNode) wantEnd(state probe.EndState, of string) time.Duration {
	n.r.t.Helper()
	return n.r.eventually(fmt.Sprintf("from %s: %s %v", n.name, of, state), func() error {
		if e := n.end(); e.State != state || e.Node != of && of != "" || e.Known != e.Ways {
			return fmt.Errorf("%v of %s at %v, %d bad, %d of %d known; %v", e.State, e.Node, e.Addr, e.Bad, e.Known, e.Ways, n.fabric.seen().Problems)
		}
		for _, p := range n.fabric.seen().Peers {
			if p.State != probe.PathUp {
				return fmt.Errorf("probes inside the tunnel to %s: %v", p.Node, p.State)
			}
		}
		return nil
	})
}

// endsRig is two clusters with equal prefixes of both families.
type endsRig struct {
	*directRig
	// desired is the desired state of a node.
	desired func(*rigNode) plan.Desired
}

// bridge6 is the address of a node among its pods' in IPv6.
func (n *rigNode) bridge6() netip.Addr { return address("fd77:" + n.name[1:] + "::1") }

// wide has aliases for whole prefixes.
func (r *endsRig) wide(n *rigNode) plan.Desired {
	own, other, local, remote, local6, remote6 := r.a, r.b, directAliasOfA, directAliasOfB, "fdaa", "fdab"
	if n.cluster == "b" {
		own, other, local, remote, local6, remote6 = r.b, r.a, directAliasOfB, directAliasOfA, "fdab", "fdaa"
	}
	q := peering(other[0], local, remote)
	for _, i := range []string{"1", "2"} {
		real := prefix("fd77:" + i + "::/32")
		q.Local = append(q.Local, plan.Mapping{Real: real, Alias: prefix(local6 + ":" + i + "::/32")})
		q.Remote = append(q.Remote, plan.Mapping{Real: real, Alias: prefix(remote6 + ":" + i + "::/32")})
	}
	for _, o := range other {
		q.Probed = append(q.Probed, plan.Probed{Node: o.name, Addrs: []netip.Addr{remap(r.t, o.bridge, remote), address(remote6 + ":" + o.name[1:] + "::1")}})
	}
	d := n.desired(own, q)
	for i := range d.Nodes {
		d.Nodes[i].PodCIDRs = append(d.Nodes[i].PodCIDRs, prefix("fd77:"+d.Nodes[i].Name[1:]+"::/64"))
	}
	return d
}

// single has aliases for the nodes' addresses one by one.
func (r *endsRig) single(n *rigNode) plan.Desired {
	four := map[string]string{"a": "10.248.0.", "b": "10.249.0."}
	six := map[string]string{"a": "fd88:a::", "b": "fd88:b::"}
	own, other := r.a, r.b
	if n.cluster == "b" {
		own, other = r.b, r.a
	}
	q := plan.Peer{ClusterID: clusterID(other[0].cluster), PresharedKey: plan.PresharedKey{1, 2, 3}, Gateways: []plan.Gateway{other[0].gateway()}}
	q.RemoteBlocks = []netip.Prefix{prefix(four[other[0].cluster] + "0/28"), prefix(six[other[0].cluster] + "/124")}
	for i, o := range own {
		q.Local = append(q.Local, single(o.bridge, fmt.Sprint(four[n.cluster], i+1)), single(o.bridge6(), fmt.Sprint(six[n.cluster], i+1)))
	}
	for i, o := range other {
		q.Probed = append(q.Probed, plan.Probed{Node: o.name, Addrs: []netip.Addr{address(fmt.Sprint(four[o.cluster], i+1)), address(fmt.Sprint(six[o.cluster], i+1))}})
	}
	d := n.desired(own, q)
	d.Pods = []netip.Prefix{prefix("10.200.0.0/16"), prefix("fd77::/16")}
	for i := range d.Nodes {
		d.Nodes[i].PodCIDRs = append(d.Nodes[i].PodCIDRs, prefix("fd77:"+d.Nodes[i].Name[1:]+"::/64"))
	}
	return d
}

// Probes inside the tunnels go from node to node. What they do not see, as the way from the peer's
// gateway to its worker, is seen by those that take the way of pods' packets.
func TestEndToEndProbesFindFaultsThatTunnelProbesMiss(t *testing.T) {
	t.Parallel()
	for _, aliases := range []string{"whole prefixes", "single addresses"} {
		t.Run(aliases, func(t *testing.T) {
			t.Parallel()
			r := &endsRig{directRig: newDirectRig(t)}
			r.desired = r.wide
			if aliases == "single addresses" {
				r.desired = r.single
			}
			for _, n := range r.all() {
				n.set(r.desired(n))
			}
			for _, n := range r.all() {
				n.up()
			}
			for _, n := range r.all() {
				n.wantEnd(probe.EndUp, "")
			}
			r.breakEnds()
		})
	}
}

// breakEnds breaks the way from a worker to one of the other cluster in many ways.
func (r *endsRig) breakEnds() {
	t, from, gateway, worker := r.t.(*testing.T), r.a[1], r.b[0], r.b[1]
	drop := func(n *rigNode, hook, match string) func() {
		r.in(n.ns, "nft add table inet cut; nft 'add chain inet cut c { type filter hook "+hook+"; }'; nft 'add rule inet cut c "+match+" drop'")
		return func() { r.in(n.ns, "nft delete table inet cut") }
	}
	fromTunnel := "prerouting priority -400"
	for _, tt := range []struct {
		what  string
		state probe.EndState
		node  string
		do    func() (mend func())
	}{
		{"IPv4 of pods is dropped on the worker", probe.EndDown, worker.name, func() func() {
			return drop(worker, fromTunnel, "iifname "+worker.device+" meta nfproto ipv4")
		}},
		{"IPv6 of pods is dropped on the worker", probe.EndDown, worker.name, func() func() {
			return drop(worker, fromTunnel, "iifname "+worker.device+" ip6 daddr fd77::/16")
		}},
		{"the worker does not forward", probe.EndBlocked, worker.name, func() func() {
			r.in(worker.ns, "echo 0 > /proc/sys/net/ipv4/ip_forward")
			return func() { r.in(worker.ns, "echo 1 > /proc/sys/net/ipv4/ip_forward") }
		}},
		{"the worker is cut off from its gateway", probe.EndDown, worker.name, func() func() {
			return drop(worker, fromTunnel, "ip saddr "+gateway.underlay.String())
		}},
		{"the gateway does not translate", probe.EndDown, gateway.name, func() func() {
			gateway.fabric.kill() // it would repair
			r.in(gateway.ns, "nft delete table inet entente")
			return func() {
				gateway.startFabric()
				gateway.set(r.desired(gateway))
			}
		}},
		{"large packets of pods are lost on the worker", probe.EndLargeLost, worker.name, func() func() {
			// Those of probes inside the tunnel pass, or the routes would be adapted to the path MTU.
			return drop(worker, fromTunnel, "iifname "+worker.device+" meta nfproto ipv4 meta length > 1300")
		}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			r.t = t
			began := time.Now()
			mend := sync.OnceFunc(tt.do())
			defer mend()
			seen := from.wantEnd(tt.state, tt.node)
			limit := endsLimit
			if tt.state == probe.EndLargeLost {
				limit *= 2
			}
			if took := time.Since(began); took > limit && !testing.Short() {
				t.Errorf("it was seen after %v, want at most %v", took, limit)
			}
			mend()
			back := from.wantEnd(probe.EndUp, "")
			if back > endsLimit {
				t.Errorf("it was seen that it is mended after %v, want at most %v", back, endsLimit)
			}
			t.Logf("seen after %v, mended after %v", seen.Round(100*time.Millisecond), back.Round(100*time.Millisecond))
		})
	}
	t.Run("less passes behind the gateway", func(t *testing.T) {
		r.t = t
		defer drop(worker, fromTunnel, "iifname "+worker.device+" meta length > 1320")()
		r.eventually("the gateway finds out what passes to the worker", func() error {
			for _, p := range gateway.fabric.seen().Peers {
				if p.Node == worker.name && p.MTU > 1320 {
					return fmt.Errorf("it sends packets of %d bytes", p.MTU)
				}
			}
			return nil
		})
		// It reports that to senders of larger packets, in both families, about a worker with another prefix.
		r.eventually("large packets pass", func() error {
			time.Sleep(endsLimit)
			if e := from.end(); e.State != probe.EndUp {
				return fmt.Errorf("%v to %s at %v", e.State, e.Node, e.Addr)
			}
			return nil
		})
	})
	r.t = t
	if from.end().Ways != 4 {
		t.Errorf("%d addresses are probed, want 4", from.end().Ways)
	}
	for _, n := range r.all() {
		if i := slices.IndexFunc(n.fabric.seen().Problems, func(p plan.Problem) bool { return p.Peer == "" }); i >= 0 {
			t.Errorf("%s: %v", n.name, n.fabric.seen().Problems[i])
		}
	}
}

// The exception for end-to-end probes opens one port of one address to the nodes of a peer, a number
// of packets a second, and nothing else: not to the peer's pods, nor another port, protocol or
// address. Other packets are not answered.
func TestTheWayOfEndToEndProbesIsOpenToNothingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, evil := r.node("a", 1, "11"), r.node("h", 1, "14")
	const aliasOfH, aliasOfA = "10.250.0.0/16", "10.240.0.0/16"
	probing := func(to *rigNode, local, remote string) plan.Peer {
		q := peering(to, local, remote)
		q.Probed = []plan.Probed{{Node: to.name, Addrs: []netip.Addr{remap(t, to.bridge, remote)}}}
		return q
	}
	inA := a.desired([]*rigNode{a}, probing(evil, aliasOfA, aliasOfH))
	a.set(inA)
	evil.set(evil.desired([]*rigNode{evil}, probing(a, aliasOfH, aliasOfA)))
	for _, n := range []*rigNode{a, evil} {
		n.up()
		n.wantEnd(probe.EndUp, "")
	}
	// It has the keys and no fabric.
	evil.fabric.kill()
	r.in(evil.ns, fmt.Sprintf("nft delete table inet entente; wg set %s peer %s allowed-ips 0.0.0.0/0,::/0", evil.device, a.key()))
	node, pod, source := remap(t, evil.bridge, aliasOfH), remap(t, evil.podAddr, aliasOfH), remap(t, a.bridge, aliasOfA)
	attacks := []attack{
		{what: "something that is not a probe, to the port", from: node, to: source, protocol: plan.UDP, port: 7445},
		{what: "another port", from: node, to: source, protocol: plan.UDP, port: 7446},
		{what: "TCP", from: node, to: source, protocol: plan.TCP, port: 7445},
		{what: "a ping", from: node, to: source},
		{what: "from a pod", from: pod, to: source, protocol: plan.UDP, port: 7445},
		{what: "to a pod", from: node, to: remap(t, a.podAddr, aliasOfA), protocol: plan.UDP, port: 7445},
	}
	r.watch(len(attacks), []*rigNode{a})
	r.in(evil.ns, fmt.Sprintf("nft add table inet got; nft 'add chain inet got in { type filter hook prerouting priority -450; }'; nft add rule inet got in iifname %s ip saddr %v udp sport 7445 counter", evil.device, source))
	for i, tt := range attacks {
		t.Run(tt.what, func(t *testing.T) {
			r.t = t
			for range 3 {
				r.inject(evil.ns, evil.device, tt.to, tt.packet(attackNumber(i)))
			}
			r.eventually("the packets to come", func() error {
				if r.watched("came", i, []*rigNode{a}) == 0 {
					return errors.New("none came")
				}
				return nil
			})
			time.Sleep(200 * time.Millisecond)
			if got := r.watched("node", i, []*rigNode{a}); (got > 0) != (i == 0) {
				t.Errorf("%d arrive at the node", got)
			}
			if got := r.watched("pod", i, []*rigNode{a}); got > 0 {
				t.Errorf("%d arrive at the pod", got)
			}
		})
	}
	r.t = t
	t.Run("a flood", func(t *testing.T) {
		r.t = t
		before := r.watched("node", 0, []*rigNode{a})
		began := time.Now()
		packet := attacks[0].packet(attackNumber(0))
		for range 1500 {
			r.inject(evil.ns, evil.device, source, packet)
		}
		took := time.Since(began).Seconds() + 1
		if got, most := r.watched("node", 0, []*rigNode{a})-before, int(plan.MaxEndProbes*(took+1)); got > most {
			t.Errorf("%d of 1500 arrive in %.1f s, want at most %d", got, took, most)
		}
	})
	if out := r.in(evil.ns, "nft list table inet got"); !strings.Contains(out, "counter packets 0 ") {
		t.Errorf("it was answered:\n%s", out)
	}
}
