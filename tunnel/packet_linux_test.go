package tunnel

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/plan/plantest"
)

// realNet opens flows between pods of a rig. Each pod listens on a port of its own.
type realNet struct {
	r     *rig
	nodes []*rigNode
}

func (n realNet) port(p plantest.Pod) int {
	return 9000 + slices.IndexFunc(n.nodes, func(m *rigNode) bool { return clusterID(m.cluster) == p.Cluster && m.podAddr == p.Addr })
}

// Open implements plantest.Net.
func (n realNet) Open(from, to plantest.Pod, at netip.Addr) (netip.Addr, error) {
	open := func() (netip.Addr, error) {
		seen, err := n.r.ask(n.nodes[n.port(from)-9000].pod, "tcp", at, n.port(to))
		if err != nil {
			return netip.Addr{}, err
		}
		return netip.ParseAddr(seen)
	}
	seen, err := open()
	if err != nil && to.Open { // a machine that is busy
		seen, err = open()
	}
	return seen, err
}

// TestRealPacketsArriveWhereTheyWereMeant asks of nodes, tunnels and firewalls what
// TestEachPacketArrivesAtThePodItWasMeantFor asks of plans. Aliases of one cluster are those that
// another uses for a third.
func TestRealPacketsArriveWhereTheyWereMeant(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	net := realNet{r, []*rigNode{r.node("a", 1, "11"), r.node("a", 2, "12"), r.node("b", 1, "21"), r.node("c", 1, "31")}}
	net.nodes[1].worker = true
	aliases := map[string]string{"ab": "10.242.0.0/16", "ac": "10.243.0.0/16", "ba": "10.243.0.0/16", "bc": "10.242.0.0/16", "ca": "10.242.0.0/16", "cb": "10.244.0.0/16"}
	find := func(n plantest.Node) *rigNode {
		return net.nodes[slices.IndexFunc(net.nodes, func(m *rigNode) bool { return m.name == n.Name })]
	}
	w := plantest.World{
		Real:      prefix("10.200.0.0/16"),
		Alias:     func(knows, known string) netip.Prefix { return prefix(aliases[knows[:1]+known[:1]]) },
		Key:       func(n plantest.Node) plan.PublicKey { return find(n).key() },
		Endpoints: func(n plantest.Node) []string { return find(n).node().Endpoints },
	}
	for i, n := range net.nodes {
		w.Nodes = append(w.Nodes, plantest.Node{Cluster: clusterID(n.cluster), Name: n.name, Pods: []netip.Prefix{n.podCIDR}, Gateway: !n.worker, Announced: true})
		w.Pods = append(w.Pods, plantest.Pod{Cluster: clusterID(n.cluster), Node: n.name, Addr: n.podAddr, Open: n.name != "c1"})
		server := r.start(n.pod, "server", []string{fmt.Sprint("TUNNEL_TEST_PORT=", 9000+i)})
		t.Cleanup(server.kill)
	}
	for i, n := range net.nodes {
		n.set(w.Desired(w.Nodes[i]))
	}
	for _, n := range net.nodes {
		n.up()
	}
	w.Direct = func(plantest.Node, plan.RemoteNode) (plan.Direct, bool) { return plan.Direct{Use: true}, true }
	simulated, err := plantest.Simulate(w)
	if err != nil {
		t.Fatal(err)
	}
	w.Check(t, simulated)
	if simulated.Direct == 0 {
		t.Error("no packet goes directly in the simulation")
	}
	w.Check(t, net)
	// With traffic the worker's packets go directly, too.
	worker, to := net.nodes[1], net.nodes[2]
	e := r.echoes(worker.pod, remap(t, to.podAddr, aliases["ab"]))
	defer e.stop()
	r.eventually("the worker's packets to go directly", func() error {
		if !worker.direct(to) || !to.direct(worker) {
			return fmt.Errorf("they do not: %+v", worker.fabric.seen())
		}
		return nil
	})
	w.Check(t, net)
}
