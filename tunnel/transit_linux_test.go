package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/entente-dev/entente/tunnel/firewall"
	"github.com/entente-dev/entente/tunnel/plan"
)

// end is a cluster of one node that peers with the one in between, which knows its pod as four and
// six, and of a third cluster's pod as third4 and third6.
type end struct {
	*rigNode
	four, six      string // prefixes by which the cluster in between knows it
	third4, third6 string // its names for the pod of the other end
}

func (e end) seen() []netip.Addr {
	e.r.t.Helper()
	six, _ := plan.Remap(address("fd77:1::10"), prefix("fd77:1::/64"), prefix(e.six))
	return []netip.Addr{remap(e.r.t, e.podAddr, e.four), six}
}

// knows is the desired peer of the cluster in between for an end, where the pod of another reaches ports.
func (e end) knows(third *end, ports ...uint16) plan.Peer {
	q := peering(e.rigNode, "10.243.0.0/16", e.four)
	q.Remote = append(q.Remote, plan.Mapping{Real: prefix("fd77:1::/64"), Alias: prefix(e.six)})
	if third == nil {
		return q
	}
	open := plan.Exposure{Name: "shop", Third: clusterID(third.cluster), Sources: e.seen()}
	for i, as := range []string{e.third4, e.third6} {
		real := third.seen()[i]
		q.Transit = append(q.Transit, plan.Transit{Cluster: open.Third, Mapping: single(real, as)})
		for _, port := range ports {
			open.Destinations = append(open.Destinations, plan.Destination{Addr: real, Protocol: plan.TCP, Port: port}, plan.Destination{Addr: real, Protocol: plan.UDP, Port: port})
		}
	}
	q.Inbound = []plan.Exposure{open}
	return q
}

// wants is the desired state of an end for the cluster in between: its pod is open to all of that one's addresses.
func (e end) wants(gateways []*rigNode) plan.Desired {
	q := peering(gateways[0], e.four, "10.243.0.0/16", openTo(e.podAddr), openTo(address("fd77:1::10")))
	q.Gateways = nil
	for _, g := range gateways {
		q.Gateways = append(q.Gateways, g.gateway())
	}
	q.Local = append(q.Local, plan.Mapping{Real: prefix("fd77:1::/64"), Alias: prefix(e.six)})
	for _, single := range []string{e.third4, e.third6} {
		q.RemoteBlocks = append(q.RemoteBlocks, netip.PrefixFrom(address(single), address(single).BitLen()))
	}
	d := e.desired([]*rigNode{e.rigNode}, q)
	d.Nodes[0].PodCIDRs = append(d.Nodes[0].PodCIDRs, prefix("fd77:1::/64"))
	return d
}

// Two clusters that peer with a third alone, whose two gateways carry one of them each, reach each
// other's pods through it, in both families, both ways, as far as it lists both pods; not by
// another pod, at another port, or by its own names, and not at all once it lists them no more.
func TestAThirdClusterPassesOnListedFlowsOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hub := []*rigNode{r.node("b", 1, "21"), r.node("b", 2, "22")}
	best := func(cluster string) string {
		rank := func(n *rigNode) uint64 { return plan.Rank(clusterID("b"), clusterID(cluster), n.name) }
		return slices.MaxFunc(hub, func(a, b *rigNode) int { return map[bool]int{true: 1, false: -1}[rank(a) > rank(b)] }).name
	}
	other := "c"
	for best(other) == best("a") { // so that it takes both gateways
		other += "c"
	}
	a := end{r.node("a", 1, "11"), "10.241.0.0/16", "fd41:1::/64", "10.250.0.1", "fd50::1"}
	c := end{r.node(other, 1, "31"), "10.242.0.0/16", "fd42:1::/64", "10.251.0.1", "fd51::1"}
	a.set(a.wants(hub))
	c.set(c.wants(hub))
	inHub := func(peers ...plan.Peer) {
		for _, n := range hub {
			n.set(n.desired(hub, peers...))
		}
	}
	inHub(a.knows(nil), c.knows(nil))
	for _, n := range append(hub, a.rigNode, c.rigNode) {
		n.up()
	}
	r.eventually("each gateway to carry one of the two", func() error {
		for _, n := range hub {
			if !slices.ContainsFunc(n.fabric.seen().Peers, func(p PeerStatus) bool { return p.Active && p.Remote }) {
				return fmt.Errorf("%s carries none", n.name)
			}
		}
		return nil
	})
	for _, e := range []end{a, c} {
		r.wantClosed("without permission", e.pod, "tcp", address(e.third4), 8080)
		r.wantClosed("without permission, over IPv6", e.pod, "tcp", address(e.third6), 8080)
	}

	passing := []plan.Peer{a.knows(&c, 8080, 9), c.knows(&a, 8080)}
	inHub(passing...)
	for _, network := range []string{"tcp", "udp"} {
		r.wantSeen(network+" from A to C", a.pod, network, address(a.third4), 8080, c.third4)
		r.wantSeen(network+" from C to A", c.pod, network, address(c.third4), 8080, a.third4)
		r.wantSeen(network+" from A to C, over IPv6", a.pod, network, address(a.third6), 8080, c.third6)
		r.wantSeen(network+" from C to A, over IPv6", c.pod, network, address(c.third6), 8080, a.third6)
	}
	r.wantRefused("an error of the pod in C comes back", a.pod, address(a.third4))
	r.wantRefused("and over IPv6", a.pod, address(a.third6))
	refused := func(why firewall.Drop, what string, try func()) {
		t.Helper()
		before := r.dropped(hub, passing)[why]
		try()
		if n := r.dropped(hub, passing)[why] - before; n == 0 {
			t.Errorf("%s: no packet was counted as %v: %v", what, why, r.dropped(hub, passing))
		}
	}
	transit := firewall.Drop{Reason: firewall.Transit}
	refused(transit, "a port that is not listed", func() { r.wantClosed("a port that is not listed", a.pod, "tcp", address(a.third4), 22) })
	refused(transit, "a port that is open the other way alone", func() {
		r.wantClosed("a port that is open the other way alone", c.pod, "udp", address(c.third4), 9)
	})
	r.in(a.pod, "ip addr add 10.200.1.11/24 dev eth0")
	refused(transit, "another pod of A", func() {
		if got, err := r.askFrom(a.pod, address("10.200.1.11"), "tcp", address(a.third4), 8080); err == nil {
			t.Errorf("another pod of A reaches C, seen as %s", got)
		}
	})
	// What is not listed any more ends flows that exist, too.
	echo := r.hold(c.pod, address(c.third4))
	if err := echo(); err == nil {
		inHub(a.knows(&c), c.knows(&a))
		r.eventually("a flow that is not listed ends", func() error {
			if err := echo(); err == nil {
				return fmt.Errorf("bytes still pass")
			}
			return nil
		})
	} else {
		t.Error(err)
	}
	inHub(a.knows(nil), c.knows(nil))
	r.eventually("nothing passes", func() error {
		if _, err := r.ask(c.pod, "tcp", address(c.third4), 8080); err == nil {
			return fmt.Errorf("it is reached")
		}
		return nil
	})
}
