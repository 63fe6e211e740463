package netpolicy

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

const consumer = peering.ClusterID("aaaaaaaabbbbbbbbccccccccdddddddd")

// place is where a thing of the test's two clusters is.
type place int

const (
	atHome place = iota
	atProvider
	atThird
	// providers is the provider's own, internet everybody's.
	providers
	internet
)

// thing is something that a pod abroad may speak with.
type thing struct {
	name, ns string
	labels   map[string]string
	place    place
	// home and there are its address as home knows it, and as the provider does.
	home, there string
	ports       []corev1.ContainerPort
}

func namedPort(name string, number int32) []corev1.ContainerPort {
	return []corev1.ContainerPort{{Name: name, ContainerPort: number, Protocol: corev1.ProtocolTCP}}
}

var (
	homeSpaces = map[string]map[string]string{
		"shop": {corev1.LabelMetadataName: "shop", "team": "a"}, "data": {corev1.LabelMetadataName: "data", "team": "b"},
		"kube-system": {corev1.LabelMetadataName: "kube-system"},
	}
	things = []thing{
		{"web here", "shop", map[string]string{"app": "web"}, atProvider, "198.18.3.1", "10.200.0.1", namedPort("http", 8080)},
		{"tiered here", "shop", map[string]string{"app": "api", "example.com/tier": "x"}, atProvider, "198.18.3.2", "10.200.0.2", namedPort("http", 8081)},
		{"db here", "data", map[string]string{"app": "db"}, atProvider, "198.18.3.3", "10.200.0.3", nil},
		{"web at home", "shop", map[string]string{"app": "web"}, atHome, "10.1.0.1", "10.241.0.1", namedPort("http", 9090)},
		{"api at home", "shop", map[string]string{"app": "api", "example.com/tier": "x"}, atHome, "10.1.0.2", "10.241.0.2", namedPort("http", 8080)},
		{"db at home", "data", map[string]string{"app": "db"}, atHome, "10.1.0.3", "10.241.0.3", nil},
		{"dns at home", "kube-system", map[string]string{"k8s-app": "kube-dns"}, atHome, "10.1.0.9", "10.241.0.9", namedPort("dns", 53)},
		{"web at a third", "shop", map[string]string{"app": "web"}, atThird, "198.18.9.1", "10.242.0.1", namedPort("http", 8080)},
		{"the provider's web", "own", map[string]string{"app": "web"}, providers, "", "10.200.7.7", namedPort("http", 8080)},
		{"the provider's in the namespace", "shop-aaaaaaaa", map[string]string{"app": "web"}, providers, "", "10.200.7.8", namedPort("http", 8080)},
		{"the provider's host", "", nil, providers, "", "192.168.7.7", nil},
		{"the provider's public host", "", nil, providers, "", "203.0.113.9", nil},
		{"metadata", "", nil, providers, "", "169.254.169.254", nil},
		{"a site", "", nil, internet, "1.1.1.1", "1.1.1.1", nil},
		{"another site", "", nil, internet, "8.8.8.8", "8.8.8.8", nil},
		{"a site of IPv6", "", nil, internet, "2606:4700::1", "2606:4700::1", nil},
	}
)

// testWorld is what home knows of things.
func testWorld() *World {
	pods := map[string][]Pod{}
	for _, x := range things {
		if x.place <= atThird {
			pods[x.ns] = append(pods[x.ns], Pod{
				Namespace: x.ns, Labels: x.labels, There: x.place == atProvider, Addresses: []netip.Addr{netip.MustParseAddr(x.home)}, Ports: x.ports,
			})
		}
	}
	dns := &pods["kube-system"][0]
	return &World{
		Namespaces: homeSpaces, There: map[string]bool{"shop": true, "data": true},
		Pods: func(ns string) []Pod { return pods[ns] },
		Own:  cidr.Of(netip.MustParsePrefix("10.1.0.0/16")), Abroad: cidr.Of(netip.MustParsePrefix("198.18.3.0/24")),
		Names: []Server{
			{Pod: dns, Address: dns.Addresses[0], Protocol: corev1.ProtocolUDP, Port: 53, Name: "dns"},
			{Pod: dns, Address: dns.Addresses[0], Protocol: corev1.ProtocolTCP, Port: 53, Name: "dns-tcp"},
			{Address: netip.MustParseAddr("10.96.0.10"), Protocol: corev1.ProtocolUDP, Port: 53},
		},
	}
}

func testHere() Here {
	return Here{
		Peer: consumer,
		Mappings: []Mapping{
			{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.241.0.0/16")},
			{netip.MustParsePrefix("198.18.9.1/32"), netip.MustParsePrefix("10.242.0.1/32")},
		},
		Own:      []netip.Prefix{netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("203.0.113.0/28"), netip.MustParsePrefix("10.240.0.0/12")},
		Resolver: Resolver{Namespace: "entente-system", Labels: map[string]string{"app.kubernetes.io/component": "dns"}, Port: 1053, Address: netip.MustParseAddr("10.97.0.7")},
	}
}

// point is a thing as one cluster sees it.
type point struct {
	space  map[string]string
	ns     string
	labels map[string]string
	addr   string
	ports  []corev1.ContainerPort
	pod    bool
}

func (x thing) atHome() point {
	return point{homeSpaces[x.ns], x.ns, x.labels, x.home, x.ports, x.place <= atThird}
}

func (x thing) here() point {
	switch {
	case x.place == atProvider:
		has := map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(consumer)}
		for k, v := range x.labels {
			has[podspec.LabelAbroad(k)] = v
		}
		return point{spaceHere(x.ns), x.ns + "-aaaaaaaa", has, x.there, x.ports, true}
	case x.place == providers && x.ns == "shop-aaaaaaaa":
		return point{spaceHere("shop"), x.ns, x.labels, x.there, x.ports, true}
	case x.place == providers && x.ns != "":
		return point{map[string]string{corev1.LabelMetadataName: x.ns, "team": "a"}, x.ns, x.labels, x.there, x.ports, true}
	}
	return point{addr: x.there}
}

func spaceHere(origin string) map[string]string {
	return map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(consumer), api.LabelOriginNamespace: origin}
}

// resolverHere is the resolver of consumers' names.
func resolverHere() point {
	return point{map[string]string{corev1.LabelMetadataName: "entente-system"}, "entente-system", map[string]string{"app.kubernetes.io/component": "dns", "x": "y"}, "10.200.9.9", nil, true}
}

// allowed is Kubernetes' semantics of a policy that applies to a pod of ours: a second implementation, which does
// not share a line with what it tests.
func allowed(spec *networkingv1.NetworkPolicySpec, own, other point, egress bool, protocol corev1.Protocol, port int32) bool {
	type rule struct {
		peers []networkingv1.NetworkPolicyPeer
		ports []networkingv1.NetworkPolicyPort
	}
	var rules []rule
	listens := own
	if egress {
		listens = other
		for _, r := range spec.Egress {
			rules = append(rules, rule{r.To, r.Ports})
		}
	} else {
		for _, r := range spec.Ingress {
			rules = append(rules, rule{r.From, r.Ports})
		}
	}
	for _, r := range rules {
		if matchesPorts(r.ports, listens, protocol, port) && matchesPeers(r.peers, own, other) {
			return true
		}
	}
	return false
}

func matchesPorts(ports []networkingv1.NetworkPolicyPort, listens point, protocol corev1.Protocol, port int32) bool {
	for _, p := range ports {
		if p.Protocol != nil && *p.Protocol != protocol || p.Protocol == nil && protocol != corev1.ProtocolTCP {
			continue
		}
		switch {
		case p.Port == nil:
			return true
		case p.Port.Type == intstr.String:
			for _, c := range listens.ports {
				if c.Name == p.Port.StrVal && c.ContainerPort == port && c.Protocol == protocol {
					return true
				}
			}
		case p.EndPort != nil && port >= p.Port.IntVal && port <= *p.EndPort, port == p.Port.IntVal:
			return true
		}
	}
	return len(ports) == 0
}

func matchesPeers(peers []networkingv1.NetworkPolicyPeer, own, other point) bool {
	match := func(s *metav1.LabelSelector, has map[string]string) bool {
		q, err := metav1.LabelSelectorAsSelector(s)
		return err == nil && q.Matches(labels.Set(has))
	}
	for _, p := range peers {
		if b := p.IPBlock; b != nil {
			a := netip.MustParseAddr(other.addr)
			in := netip.MustParsePrefix(b.CIDR).Contains(a)
			for _, e := range b.Except {
				in = in && !netip.MustParsePrefix(e).Contains(a)
			}
			if in {
				return true
			}
			continue
		}
		if !other.pod || p.PodSelector != nil && !match(p.PodSelector, other.labels) {
			continue
		}
		if p.NamespaceSelector == nil && own.ns == other.ns || p.NamespaceSelector != nil && match(p.NamespaceSelector, other.space) {
			return true
		}
	}
	return len(peers) == 0
}

// drawn makes up policies.
type drawn struct{ *rand.Rand }

func pick[T any](r drawn, list ...T) T { return list[r.IntN(len(list))] }

func (r drawn) selector() *metav1.LabelSelector {
	requirement := func(key string, op metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
	}
	return pick(r, nil, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		&metav1.LabelSelector{MatchLabels: map[string]string{"example.com/tier": "x"}}, &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
		requirement("app", metav1.LabelSelectorOpNotIn, "web"), requirement("example.com/tier", metav1.LabelSelectorOpDoesNotExist),
		requirement("app", metav1.LabelSelectorOpIn, "db", "api"), requirement(api.LabelPeer, metav1.LabelSelectorOpDoesNotExist))
}

func (r drawn) spaces() *metav1.LabelSelector {
	return pick(r, nil, &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
		&metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpExists}}},
		&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"b"}}}})
}

func (r drawn) block() *networkingv1.IPBlock {
	return pick(r, &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}, &networkingv1.IPBlock{CIDR: "::/0"}, &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"}},
		&networkingv1.IPBlock{CIDR: "10.0.0.0/8"}, &networkingv1.IPBlock{CIDR: "10.1.0.0/16", Except: []string{"10.1.0.2/31"}}, &networkingv1.IPBlock{CIDR: "10.200.0.0/16"}, &networkingv1.IPBlock{CIDR: "10.240.0.0/12"},
		&networkingv1.IPBlock{CIDR: "192.168.0.0/16"}, &networkingv1.IPBlock{CIDR: "1.1.1.0/24", Except: []string{"1.1.1.1/32"}}, &networkingv1.IPBlock{CIDR: "8.0.0.0/5"}, &networkingv1.IPBlock{CIDR: "10.1.0.9/32"},
		&networkingv1.IPBlock{CIDR: "198.18.0.0/15"}, &networkingv1.IPBlock{CIDR: "198.18.3.0/30"}, &networkingv1.IPBlock{CIDR: "203.0.113.0/24"}, &networkingv1.IPBlock{CIDR: "169.254.169.254/32"},
		&networkingv1.IPBlock{CIDR: "10.96.0.10/32"}, &networkingv1.IPBlock{CIDR: "198.18.9.0/24"})
}

func (r drawn) peers() (out []networkingv1.NetworkPolicyPeer) {
	for range r.IntN(4) {
		if r.IntN(2) == 0 {
			out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: r.block()})
			continue
		}
		p := networkingv1.NetworkPolicyPeer{PodSelector: r.selector(), NamespaceSelector: r.spaces()}
		if p.PodSelector == nil && p.NamespaceSelector == nil {
			p.PodSelector = &metav1.LabelSelector{}
		}
		out = append(out, p)
	}
	return out
}

func (r drawn) ports() (out []networkingv1.NetworkPolicyPort) {
	for range r.IntN(3) {
		p := networkingv1.NetworkPolicyPort{Protocol: pick(r, nil, new(corev1.ProtocolTCP), new(corev1.ProtocolUDP), new(corev1.ProtocolSCTP))}
		switch r.IntN(5) {
		case 0:
		case 1:
			p.Port = new(intstr.FromString(pick(r, "http", "dns", "other")))
		case 2:
			p.Port, p.EndPort = new(intstr.FromInt32(50)), new(int32(8080))
		default:
			p.Port = new(intstr.FromInt32(pick[int32](r, 53, 8080, 8081, 9090)))
		}
		out = append(out, p)
	}
	return out
}

func (r drawn) spec() *networkingv1.NetworkPolicySpec {
	spec := &networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}
	for range r.IntN(3) {
		spec.Ingress = append(spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: r.peers(), Ports: r.ports()})
		spec.Egress = append(spec.Egress, networkingv1.NetworkPolicyEgressRule{To: r.peers(), Ports: r.ports()})
	}
	return spec
}

// withoutBlocks is a policy without its addresses: that part crosses whole.
func withoutBlocks(in *networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicySpec {
	spec := in.DeepCopy()
	is := func(p networkingv1.NetworkPolicyPeer) bool { return p.IPBlock != nil }
	spec.Ingress = slices.DeleteFunc(spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool { return slices.ContainsFunc(r.From, is) })
	spec.Egress = slices.DeleteFunc(spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool { return slices.ContainsFunc(r.To, is) })
	return spec
}

// checkTranslated compares a policy at home with its translation at the provider.
func checkTranslated(t *testing.T, spec *networkingv1.NetworkPolicySpec) {
	t.Helper()
	policy, _ := Leave("shop", spec, testWorld())
	data, err := json.Marshal(policy)
	if err != nil {
		t.Fatal(err)
	}
	read, err := Read(data)
	if err != nil {
		t.Fatalf("the provider refuses what home sends: %v", err)
	}
	abroad, left := Admit(read, testHere())
	if left > 0 {
		t.Fatalf("%d blocks were left out", left)
	}
	say := func(format string, args ...any) {
		t.Helper()
		a, _ := json.Marshal(spec)
		b, _ := json.Marshal(abroad)
		t.Errorf("%s\nat home: %s\ncrosses: %s\nabroad: %s", fmt.Sprintf(format, args...), a, data, b)
	}
	plain := withoutBlocks(spec)
	own := things[0]
	for _, x := range things[1:] {
		for _, egress := range []bool{true, false} {
			for _, port := range []int32{53, 8080, 8081, 9090, 7000} {
				for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
					here := allowed(&abroad, own.here(), x.here(), egress, protocol, port)
					if x.place == providers {
						if here {
							say("%s is open, egress %v, %s %d", x.name, egress, protocol, port)
						}
						continue
					}
					home := allowed(spec, own.atHome(), x.atHome(), egress, protocol, port)
					if here && !home {
						say("%s is open abroad and closed at home, egress %v, %s %d", x.name, egress, protocol, port)
					}
					must := allowed(plain, own.atHome(), x.atHome(), egress, protocol, port)
					if x.place == internet {
						must = home
					}
					if must && !here {
						say("%s is open at home and closed abroad, egress %v, %s %d", x.name, egress, protocol, port)
					}
				}
			}
		}
	}
	dns := things[6].atHome()
	vip := point{addr: "10.96.0.10"}
	for _, protocol := range []corev1.Protocol{corev1.ProtocolUDP, corev1.ProtocolTCP} {
		home := allowed(spec, own.atHome(), dns, true, protocol, 53) || protocol == corev1.ProtocolUDP && allowed(spec, own.atHome(), vip, true, protocol, 53)
		here := allowed(&abroad, own.here(), resolverHere(), true, protocol, 1053)
		if named := slices.ContainsFunc(spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
			return slices.ContainsFunc(r.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port != nil && p.Port.Type == intstr.String })
		}); home != here && !named {
			say("names by %s are asked for at home: %v, abroad: %v", protocol, home, here)
		}
		if allowed(&abroad, own.here(), resolverHere(), true, protocol, 7446) {
			say("more than names is asked of the resolver")
		}
	}
}

func TestATranslatedPolicyIsNeverWider(t *testing.T) {
	t.Parallel()
	for seed := range uint64(1500) {
		checkTranslated(t, drawn{rand.New(rand.NewPCG(seed, 1))}.spec())
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func FuzzATranslatedPolicyIsNeverWider(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { checkTranslated(t, drawn{rand.New(rand.NewPCG(a, b))}.spec()) })
}

// FuzzAPolicyOfAHostilePeer reads whatever a peer may send, and has it select nothing but the peer's own.
func FuzzAPolicyOfAHostilePeer(f *testing.F) {
	for seed := range uint64(20) {
		p, _ := Leave("shop", drawn{rand.New(rand.NewPCG(seed, 3))}.spec(), testWorld())
		data, err := json.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Read(data)
		if err != nil {
			return
		}
		spec, _ := Admit(p, testHere())
		checkOwn(t, &spec)
	})
}

// checkOwn reports what of a policy is about anything but the consumer's own pods, the resolver, its home and the Internet.
func checkOwn(t *testing.T, spec *networkingv1.NetworkPolicySpec) {
	t.Helper()
	if spec.PodSelector.MatchLabels[api.LabelPeer] != string(consumer) || spec.PodSelector.MatchLabels[api.LabelManaged] != api.Manager {
		t.Errorf("it applies to other pods: %v", spec.PodSelector)
	}
	ours := func(s *metav1.LabelSelector) bool {
		return s != nil && s.MatchLabels[api.LabelPeer] == string(consumer) && s.MatchLabels[api.LabelManaged] == api.Manager
	}
	resolver := testHere().Resolver
	closed := cidr.Of(slices.Concat(testHere().Own[:2], []netip.Prefix{netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fc00::/7")})...)
	check := func(peers []networkingv1.NetworkPolicyPeer, names bool) {
		if len(peers) == 0 {
			t.Error("a rule opens to all")
		}
		for _, p := range peers {
			switch {
			case p.IPBlock != nil:
				b := netip.MustParsePrefix(p.IPBlock.CIDR)
				if names && b.Addr() == resolver.Address {
					continue
				}
				var holes []netip.Prefix
				for _, e := range p.IPBlock.Except {
					holes = append(holes, netip.MustParsePrefix(e))
				}
				for _, c := range closed {
					if meets, some := meet(b, c); some && !cidr.Of(holes...).Covers(meets) {
						t.Errorf("%v opens %v", p.IPBlock, meets)
					}
				}
			case names && p.NamespaceSelector != nil && p.NamespaceSelector.MatchLabels[corev1.LabelMetadataName] == resolver.Namespace && maps.Equal(p.PodSelector.MatchLabels, resolver.Labels):
			case !ours(p.NamespaceSelector) || !ours(p.PodSelector):
				t.Errorf("%v is of others", p)
			}
		}
	}
	for _, r := range spec.Ingress {
		check(r.From, false)
	}
	for _, r := range spec.Egress {
		check(r.To, true)
	}
}
