package podprefixes

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/entente-dev/entente/internal/cidr"
)

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func node(name string, own ...string) Node {
	return Node{Name: name, PodCIDRs: prefixes(own...), Addresses: addrs("192.168.1." + strings.TrimPrefix(name, "n"))}
}

func pod(on string, at ...string) Pod { return Pod{Node: on, Addrs: addrs(at...)} }

func TestPrefixesAreThoseOfTheFirstSourceThatHasThePods(t *testing.T) {
	t.Parallel()
	two := []Node{node("n1", "10.244.0.0/24"), node("n2", "10.244.1.0/24")}
	bare := []Node{node("n1"), node("n2")}
	inside, elsewhere := []Pod{pod("n1", "10.244.0.9"), pod("n2", "10.244.1.9")}, []Pod{pod("n1", "10.0.3.9"), pod("n2", "10.244.1.9")}
	kubeadm := Found{Kubeadm, prefixes("10.244.0.0/16")}
	calico := Found{Calico, prefixes("10.0.0.0/16")}
	for name, tc := range map[string]struct {
		in   Input
		want Learnt
	}{
		"nothing is known": {},
		"all pods are where their nodes say": {
			Input{Nodes: two, Pods: inside, Found: []Found{{Calico, prefixes("10.244.0.0/16")}, kubeadm}}, Learnt{Sources: []Source{Nodes}},
		},
		"a pod is in the prefix of another node": {
			Input{Nodes: two, Pods: []Pod{pod("n1", "10.244.1.9")}, Found: []Found{kubeadm}}, Learnt{prefixes("10.244.0.0/16"), []Source{Nodes, Kubeadm}, nil, ""},
		},
		"a pod is in a pool": {
			Input{Nodes: two, Pods: elsewhere, Found: []Found{calico, kubeadm}}, Learnt{prefixes("10.0.0.0/16"), []Source{Nodes, Calico}, nil, ""},
		},
		"a plugin that is gone left a pool": {
			Input{Nodes: two, Pods: elsewhere, Found: []Found{{Calico, prefixes("172.16.0.0/16")}, {Cilium, prefixes("10.0.3.0/24", "10.0.4.0/24")}}},
			Learnt{prefixes("10.0.3.0/24", "10.0.4.0/24"), []Source{Nodes, Cilium}, nil, ""},
		},
		"two sources have pods": {
			Input{Nodes: bare, Pods: []Pod{pod("n1", "10.0.3.9"), pod("n2", "10.244.1.9")}, Found: []Found{calico, kubeadm}},
			Learnt{prefixes("10.0.0.0/16", "10.244.0.0/16"), []Source{Calico, Kubeadm}, nil, ""},
		},
		"no source has the pod": {Input{Nodes: two, Pods: []Pod{pod("n1", "172.20.0.9")}, Found: []Found{calico, kubeadm}}, Learnt{Sources: []Source{Nodes}}},
		"nodes have only one family": {
			Input{Nodes: two, Pods: []Pod{pod("n1", "10.244.0.9", "fd00::9")}, Found: []Found{{Calico, prefixes("10.244.0.0/16", "fd00::/48")}}},
			Learnt{prefixes("10.244.0.0/16", "fd00::/48"), []Source{Nodes, Calico}, nil, ""},
		},
		"no pod is known, nodes have prefixes":   {Input{Nodes: two, Found: []Found{calico}}, Learnt{Sources: []Source{Nodes}}},
		"neither pods nor prefixes of nodes are": {Input{Nodes: bare, Found: []Found{{Calico, nil}, calico, kubeadm}}, Learnt{prefixes("10.0.0.0/16"), []Source{Calico}, nil, ""}},
		"the pod is on a virtual node":           {Input{Nodes: two, Pods: []Pod{pod("entente-office", "10.0.3.9")}, Found: []Found{calico}}, Learnt{Sources: []Source{Nodes}}},
		"a source that counted before":           {Input{Nodes: two, Pods: inside, Found: []Found{calico}, Used: []Source{Nodes, Calico}}, Learnt{prefixes("10.0.0.0/16"), []Source{Nodes, Calico}, nil, ""}},
		"a source that counted before is empty":  {Input{Nodes: two, Pods: inside, Found: []Found{{Calico, nil}}, Used: []Source{Nodes, Calico}}, Learnt{Sources: []Source{Nodes}}},
		"Cilium's default pool has Services and nodes in it": {
			Input{Nodes: bare, Pods: []Pod{pod("n1", "10.0.3.9")}, Found: []Found{{Cilium, prefixes("10.0.0.0/8")}}, Reserved: prefixes("10.96.0.0/12")},
			Learnt{LeftOut: []string{"10.0.0.0/8 (pools and CiliumNodes of Cilium) is not used as a prefix of pods: 10.96.0.0/12 is in it, which is a node's or one of Services"}},
		},
		"a pool has a node's address": {
			Input{Nodes: bare, Pods: []Pod{pod("n1", "192.168.3.9")}, Found: []Found{{Calico, prefixes("192.168.0.0/16")}, {Kubeadm, prefixes("192.168.2.0/23")}}},
			Learnt{
				prefixes("192.168.2.0/23"),
				[]Source{Kubeadm},
				[]string{"192.168.0.0/16 (IPPools of Calico) is not used as a prefix of pods: 192.168.1.1 is in it, which is a node's or one of Services"},
				"",
			},
		},
		"a pool that is not needed overlaps Services": {Input{Nodes: two, Pods: inside, Found: []Found{{Calico, prefixes("10.96.0.0/16")}}, Reserved: prefixes("10.96.0.0/12")}, Learnt{Sources: []Source{Nodes}}},
	} {
		if diff := cmp.Diff(tc.want, Decide(tc.in), cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// What to set is said only where pods have addresses that nothing in the cluster explains.
func TestAdviceIsForPodsThatNothingExplains(t *testing.T) {
	t.Parallel()
	pool := Found{Calico, prefixes("10.0.0.0/16")}
	for name, tc := range map[string]struct {
		in   Input
		want string
	}{
		"nodes have no prefixes":         {Input{Nodes: []Node{node("n1")}, Pods: []Pod{pod("n1", "192.168.1.77")}}, "set it"},
		"pods are outside of these":      {Input{Nodes: []Node{node("n1", "10.244.0.0/24")}, Pods: []Pod{pod("n1", "192.168.1.77")}, Found: []Found{pool}}, "set it"},
		"a pool has the pods":            {Input{Nodes: []Node{node("n1")}, Pods: []Pod{pod("n1", "10.0.1.77")}, Found: []Found{pool}}, ""},
		"nodes have the pods":            {Input{Nodes: []Node{node("n1", "10.244.0.0/24")}, Pods: []Pod{pod("n1", "10.244.0.7")}}, ""},
		"the pool has a node's address":  {Input{Nodes: []Node{node("n1")}, Pods: []Pod{pod("n1", "192.168.1.77")}, Found: []Found{{Calico, prefixes("192.168.0.0/16")}}}, "set it"},
		"of a pod on the virtual node":   {Input{Nodes: []Node{node("n1")}, Pods: []Pod{pod("entente-office", "198.18.0.9")}}, ""},
		"no pod is known, and no prefix": {Input{Nodes: []Node{node("n1")}}, ""},
	} {
		tc.in.Advice = "set it"
		if got := Decide(tc.in).Advice; got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// Cilium's default pool is left out where Services are in it, and its nodes' own prefixes are not.
func TestPrefixesOfNodesStandInForAPoolThatIsTooWide(t *testing.T) {
	t.Parallel()
	got := Decide(Input{
		Nodes: []Node{node("n1"), node("n2")}, Pods: []Pod{pod("n1", "10.0.3.9")}, Reserved: prefixes("10.96.0.0/12"),
		Found: []Found{{Cilium, prefixes("10.0.0.0/8", "10.0.3.0/24", "10.0.4.0/24")}},
	})
	if len(got.LeftOut) != 1 || !slices.Equal(got.Prefixes, prefixes("10.0.3.0/24", "10.0.4.0/24")) {
		t.Errorf("got %+v", got)
	}
}

// Of random clusters: nothing overlaps Services or nodes, nothing is invented, what counted before and is still
// there counts, and the result decides the same again.
func TestDecisionsAreSafeAndStable(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		in := random(rand.New(rand.NewPCG(seed, 5)))
		out := Decide(in)
		var taken, said []netip.Prefix
		taken = append(taken, in.Reserved...)
		for _, n := range in.Nodes {
			for _, a := range n.Addresses {
				taken = append(taken, netip.PrefixFrom(a, a.BitLen()))
			}
		}
		for _, f := range in.Found {
			said = append(said, f.Prefixes...)
		}
		for _, p := range out.Prefixes {
			if cidr.Of(taken...).Overlaps(p) || !slices.Contains(said, p) {
				t.Fatalf("seed %d: %v of %+v", seed, p, in)
			}
		}
		if len(out.Sources) == 0 {
			continue
		}
		in.Used, in.Pods = out.Sources, nil
		if again := Decide(in); !slices.Equal(again.Prefixes, out.Prefixes) || !slices.Equal(again.Sources, out.Sources) {
			t.Fatalf("seed %d: when the pods are gone: %+v, before %+v", seed, again, out)
		}
	}
}

func random(r *rand.Rand) Input {
	addr := func() netip.Addr {
		return netip.AddrFrom4([4]byte{10, byte(r.IntN(4)), byte(r.IntN(4)), byte(r.IntN(250))})
	}
	prefix := func() netip.Prefix { return netip.PrefixFrom(addr(), 12+r.IntN(20)).Masked() }
	var in Input
	for _, name := range []string{"n1", "n2", "n3"} {
		n := Node{Name: name, Addresses: []netip.Addr{addr()}}
		if r.IntN(2) == 0 {
			n.PodCIDRs = []netip.Prefix{prefix()}
		}
		in.Nodes = append(in.Nodes, n)
		in.Pods = append(in.Pods, Pod{Node: name, Addrs: []netip.Addr{addr()}})
	}
	for _, s := range []Source{Calico, Cilium, OVN, CalicoDisabled, Kubeadm} {
		f := Found{Source: s}
		for range r.IntN(3) {
			f.Prefixes = append(f.Prefixes, prefix())
		}
		in.Found = append(in.Found, f)
	}
	in.Reserved = []netip.Prefix{prefix()}
	return in
}
