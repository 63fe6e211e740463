package lab

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
)

// Networks of nodes that are not the default: in each pods reach each other and Services
// on both nodes, and are seen under the addresses that the mode says.
func TestLabOfOtherNetworks(t *testing.T) {
	only.Matrix(t, "half a minute for each network")
	needLab(t)
	for _, tt := range []struct {
		name    string
		o       Options
		restart bool // the second node, and see again
	}{
		{"iptables", Options{Proxy: IPTablesProxy}, false},
		{"a prefix of each node that is in none of its fields", Options{NoNodeCIDRs: true}, false},
		{"a pool", Options{IPAM: PoolIPAM}, false},
		{"a shared pool, iptables, no podCIDRs", Options{IPAM: SharedPoolIPAM, NoNodeCIDRs: true, Proxy: IPTablesProxy}, false},
		{"two subnets", Options{Subnets: 2, Clusters: 2}, false},
		{"two subnets and a shared pool", Options{Subnets: 2, IPAM: SharedPoolIPAM}, true},
		{"dual-stack", Options{Families: DualStack, Clusters: 2}, true},
		{"dual-stack, iptables, a shared pool, two subnets", Options{Families: DualStack, Proxy: IPTablesProxy, IPAM: SharedPoolIPAM, NoNodeCIDRs: true, Subnets: 2}, false},
		{"IPv6", Options{Families: IPv6Only, Clusters: 2}, false},
		{"IPv6, iptables, a pool", Options{Families: IPv6Only, Proxy: IPTablesProxy, IPAM: PoolIPAM}, false},
		{"flannel", Options{CNI: FlannelCNI}, false},
		{"flannel, iptables, two subnets", Options{CNI: FlannelCNI, Proxy: IPTablesProxy, Subnets: 2}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.Name, tt.o.Clusters, tt.o.Nodes = "labmode", max(1, tt.o.Clusters), 2
			n := networkTest{testLab: upLab(t, tt.o)}
			tr := n.traces()
			n.runPods(0)
			n.podsHaveTheirAddresses()
			n.podsReachEachOther()
			n.servicesAreReached()
			n.podsAreHiddenBehindTheirNode()
			n.componentsRun()
			if tt.o.Clusters > 1 {
				n.faultsAreBetweenClusters()
			}
			if tt.restart {
				n.restartNode()
				n.podsHaveTheirAddresses()
				n.podsReachEachOther()
				n.servicesAreReached()
			}
			if err := Down(t.Context(), "labmode"); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, "labmode", tr)
		})
	}
}

// podsEach is how many pods each node runs: enough to have one in each of its ranges.
const podsEach = 6

type networkTest struct {
	*testLab
	address map[string][]netip.Addr // of pods, one for each family
}

// families are the numbers of the families of the lab's addresses, from 0.
func (n *networkTest) families() int { return len(n.plan.Clusters[0].PodCIDRs()) }

func at(a netip.Addr) string { return netip.AddrPortFrom(a, 8080).String() + "/" }

func podOf(node, i int) string { return fmt.Sprintf("p%d-%d", node, i) }

// runPods runs podsEach pods on each node and one in the node's own namespace, and a
// Service for those of each. Pods of the second node were restarted so often.
func (n *networkTest) runPods(restarts int) {
	n.t.Helper()
	var all, names []string
	add := func(name string, node int, host bool) {
		names = append(names, "pod/"+name)
		all = append(all, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"labels":{"node":"n%d","host":"%t"}},`+
			`"spec":{"hostNetwork":%t,"nodeName":%q,"terminationGracePeriodSeconds":0,"containers":[{"name":"p","image":%q}]}}`,
			name, node, host, host, n.plan.Clusters[0].Nodes[node-1].Name, ToolImage))
	}
	for node := 1; node <= 2; node++ {
		for i := 1; i <= podsEach; i++ {
			add(podOf(node, i), node, false)
		}
		add(fmt.Sprintf("h%d", node), node, true)
		all = append(all, fmt.Sprintf(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"n%d"},`+
			`"spec":{"ipFamilyPolicy":"PreferDualStack","selector":{"node":"n%[1]d","host":"false"},"ports":[{"port":80,"targetPort":8080}]}}`, node))
	}
	n.mustKube("1", strings.Join(all, "\n"), "apply", "-f", "-")
	n.mustKube("1", "", append([]string{"wait", "--for=condition=Ready", "--timeout=90s"}, names...)...)
	n.address = map[string][]netip.Addr{}
	for k, name := range names {
		if k > podsEach { // a pod is Ready for a moment after its node died
			is := fmt.Sprintf("--for=jsonpath={.status.containerStatuses[0].restartCount}=%d", restarts)
			n.mustKube("1", "", "wait", is, "--timeout=60s", name)
			n.mustKube("1", "", "wait", "--for=condition=Ready", "--timeout=60s", name)
		}
		n.address[strings.TrimPrefix(name, "pod/")] = n.addresses(name, "{.status.podIPs[*].ip}")
	}
}

// addresses are an object's, one for each family.
func (n *networkTest) addresses(object, path string) []netip.Addr {
	n.t.Helper()
	text := n.mustKube("1", "", "get", object, "-o", "jsonpath="+path)
	var all []netip.Addr
	for s := range strings.FieldsSeq(text) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			n.t.Fatal(err)
		}
		all = append(all, a)
	}
	if len(all) != n.families() {
		n.t.Fatalf("addresses of %s are %s, want one of each of %d families", object, text, n.families())
	}
	return all
}

// restartNode switches the second node off and on.
func (n *networkTest) restartNode() {
	n.t.Helper()
	node := n.plan.Clusters[0].Nodes[1].Name
	if err := n.StopNode(n.t.Context(), node); err != nil {
		n.t.Fatal(err)
	}
	if _, err := Up(n.t.Context(), n.plan.Options, nil); err != nil { // switches it on
		n.t.Fatal(err)
	}
	n.runPods(1)
}

// podsHaveTheirAddresses checks where pods have their addresses from, and that nothing
// goes to one that no pod has.
func (n *networkTest) podsHaveTheirAddresses() {
	n.t.Helper()
	for k, node := range n.plan.Clusters[0].Nodes {
		want := strings.ReplaceAll(list(node.PodCIDRs()), ",", " ")
		if n.plan.Options.NoNodeCIDRs {
			want = ""
		}
		if got := n.mustKube("1", "", "get", "node", node.Name, "-o", "jsonpath={.spec.podCIDRs[*]}"); got != want {
			n.t.Errorf("spec.podCIDRs of %s are %q, want %q", node.Name, got, want)
		}
		pods := map[netip.Prefix]int{}
		for i := 1; i <= podsEach; i++ {
			for _, a := range n.address[podOf(k+1, i)] {
				contains := func(p netip.Prefix) bool { return p.Contains(a) }
				in := slices.IndexFunc(node.Pods(), contains)
				if in < 0 {
					n.t.Errorf("%s has a pod at %s, want one of %v", node.Name, a, node.Pods())
					continue
				}
				pods[node.Pods()[in]]++
				if len(node.Blocks) > 0 && slices.ContainsFunc(node.PodCIDRs(), contains) {
					n.t.Errorf("%s has a pod at %s, in its podCIDRs %s", node.Name, a, node.PodCIDRs())
				}
			}
		}
		for _, block := range node.Blocks {
			if out, err := n.routeTo(node.Name, numbered(block, blockSize-6)); err == nil {
				n.t.Errorf("what %s sends to no pod of its own goes %s", node.Name, out)
			}
		}
		if len(pods) != len(node.Pods()) {
			n.t.Errorf("%s has pods in %v, want some in each of %v", node.Name, pods, node.Pods())
		}
	}
}

// seen is the address under which a pod is seen by the server at another address, with
// these arguments of the tool. A new Service takes a moment.
func (n *networkTest) seen(pod, server string, args ...string) string {
	n.t.Helper()
	var out string
	if err := eventually.Is(n.t.Context(), 20*time.Second, pod+" to reach "+server, func(context.Context) (err error) {
		command := append([]string{"exec", pod, "--", "/tool", "curl", "-t", "2s"}, args...)
		out, err = n.kube("1", "", append(command, "http://"+server)...)
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
	_, client, _ := strings.Cut(out, `"client":"`)
	client, _, _ = strings.Cut(client, `"`)
	a, err := netip.ParseAddrPort(client)
	if err != nil {
		n.t.Errorf("%s, asked by %s, answers %s", server, pod, out)
		return ""
	}
	return a.Addr().String()
}

func (n *networkTest) wantSeen(pod, server string, want netip.Addr, args ...string) {
	n.t.Helper()
	if got := n.seen(pod, server, args...); got != "" && got != want.String() {
		n.t.Errorf("%s reaches %s from %s, want %s", pod, server, got, want)
	}
}

// podsReachEachOther checks that each pod reaches one of the other node and one of its
// own, from its own address, and that large packets pass.
func (n *networkTest) podsReachEachOther() {
	n.t.Helper()
	for f := range n.families() {
		for i := 1; i <= podsEach; i++ {
			for node := 1; node <= 2; node++ {
				from := podOf(node, i)
				for _, to := range []string{podOf(3-node, i), podOf(node, i%podsEach+1)} {
					n.wantSeen(from, at(n.address[to][f]), n.address[from][f])
				}
			}
			for node := 1; node <= 2; node++ { // as a kubelet does
				n.seen(fmt.Sprintf("h%d", 3-node), at(n.address[podOf(node, i)][f]))
			}
		}
		const size = 200_000
		out := n.mustKube("1", "", "exec", podOf(1, 1), "--", "/tool", "curl", "-t", "5s", fmt.Sprintf("http://%sbytes/%d", at(n.address[podOf(2, 1)][f]), size))
		if len(out) < size {
			n.t.Errorf("%d of %d bytes arrived", len(out), size)
		}
	}
}

// servicesAreReached checks Services of the other node's pods, by name from a pod and by
// address from the node.
func (n *networkTest) servicesAreReached() {
	n.t.Helper()
	for node := 1; node <= 2; node++ {
		service := fmt.Sprintf("n%d", 3-node)
		for f, vip := range n.addresses("service/"+service, "{.spec.clusterIPs[*]}") {
			family := map[bool]string{false: "-4", true: "-6"}[vip.Is6()]
			n.wantSeen(podOf(node, 1), service+".default.svc.cluster.local/", n.address[podOf(node, 1)][f], family)
			n.seen(fmt.Sprintf("h%d", node), netip.AddrPortFrom(vip, 80).String()+"/")
		}
	}
	out := n.mustKube("1", "", "exec", "h2", "--", "/tool", "curl", "http://127.0.0.1:10249/proxyMode")
	if want := string(n.plan.Options.Proxy); !strings.Contains(out, want) {
		n.t.Errorf("kube-proxy's mode is %s, want %s", out, want)
	}
}

// podsAreHiddenBehindTheirNode checks the masquerading of what is sent to no pod, and
// which way it goes between subnets.
func (n *networkTest) podsAreHiddenBehindTheirNode() {
	n.t.Helper()
	c := n.plan.Clusters[0]
	for f, to := range c.Nodes[1].Addresses() {
		n.wantSeen(podOf(1, 1), at(n.address["h2"][f]), n.address["h1"][f])
		n.wantSeen(podOf(2, 1), at(n.address["h1"][f]), n.address["h2"][f])
		out, err := n.routeTo(c.Nodes[0].Name, to)
		if err != nil {
			n.t.Fatal(err)
		}
		if routed := strings.Contains(out, "via "+c.lans()[0].gatewayLike(to).String()); routed != (n.plan.Options.Subnets > 1) {
			n.t.Errorf("in %d subnets the way between nodes is %s", n.plan.Options.Subnets, out)
		}
	}
}

// faultsAreBetweenClusters checks that the router applies faults to packets between two clusters,
// on each of their subnets, and not to those within one.
func (n *networkTest) faultsAreBetweenClusters() {
	n.t.Helper()
	a, b := n.plan.Clusters[0], n.plan.Clusters[1]
	wantAnswers := func(when string, across, back bool) {
		n.t.Helper()
		for _, tt := range []struct {
			from, to NodePlan
			want     bool
		}{
			{a.Nodes[0], a.Nodes[1], true},
			{b.Nodes[1], b.Nodes[0], true},
			{a.Nodes[0], b.Nodes[1], across},
			{a.Nodes[1], b.Nodes[0], across},
			{a.Nodes[1], b.Nodes[1], across},
			{b.Nodes[0], a.Nodes[1], back},
			{b.Nodes[1], a.Nodes[0], back},
		} {
			for _, to := range tt.to.Addresses() {
				if got, _ := n.pingAddress(tt.from.Name, to, 2); (got == 2) != tt.want {
					n.t.Errorf("%s: %s has %d of 2 answers from %s, %s", when, tt.from.Name, got, tt.to.Name, to)
				}
			}
		}
	}
	wantAnswers("without faults", true, true)
	n.mustFault(FaultRequest{Kind: "cut", A: a.Name, B: b.Name})
	wantAnswers("cut", false, false)
	n.mustFault(FaultRequest{Kind: "heal"})
	n.mustFault(FaultRequest{Kind: "nat", A: a.Name})
	wantAnswers("behind NAT", true, false)
	n.wantSeen(podOf(1, 1), at(n.address[podOf(2, 1)][0]), n.address[podOf(1, 1)][0])
	n.mustFault(FaultRequest{Kind: "heal"})
	const delay = 30 * time.Millisecond
	n.mustFault(FaultRequest{Kind: "delay", A: a.Name, B: b.Name, Delay: delay})
	for _, from := range a.Nodes {
		for _, to := range b.Nodes {
			for _, a := range to.Addresses() {
				if got, mean := n.pingAddress(from.Name, a, 5); got != 5 || mean < 2*delay {
					n.t.Errorf("delayed: %s has %d of 5 answers from %s, %s, after %v", from.Name, got, to.Name, a, mean)
				}
			}
		}
	}
	n.mustFault(FaultRequest{Kind: "heal"})
	if n.plan.Options.Subnets == 1 {
		return
	}
	if err := n.Capture(n.t.Context(), a.Name, b.Name, filepath.Join(n.t.TempDir(), "x.pcap"), nil); err == nil {
		n.t.Error("a capture is made of one subnet of two")
	}
}

// routeTo is the route of a node's packets to an address, or an error without one.
func (n *networkTest) routeTo(node string, to netip.Addr) (string, error) {
	n.t.Helper()
	cmd, err := n.Exec(n.t.Context(), node, false, "ip", "route", "get", to.String())
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// componentsRun checks that nothing had to be started twice, and that flannel runs if it
// is to.
func (n *networkTest) componentsRun() {
	n.t.Helper()
	s, err := n.Status(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	for _, node := range s.Clusters[0].Nodes {
		flannel := false
		for _, p := range node.Components {
			flannel = flannel || p.Name == "flannel"
			if !p.Running || p.Restarts > 0 {
				n.t.Errorf("%s: %+v", node.Name, p)
			}
		}
		if flannel != (n.plan.Options.CNI == FlannelCNI) {
			n.t.Errorf("%s runs flannel: %t", node.Name, flannel)
		}
	}
}
