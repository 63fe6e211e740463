package netpolicy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/internal/cidr"
)

// Pod is a pod of home, wherever it runs.
type Pod struct {
	Namespace string
	Labels    map[string]string
	// There: it runs at the provider. Addresses is the addresses by which home knows it.
	There     bool
	Addresses []netip.Addr
	// Ports is its named ports. Callers only read them.
	Ports []corev1.ContainerPort
}

// World is everything that decides how a policy of home is translated for a provider.
type World struct {
	// Namespaces has the labels of all namespaces, by name.
	Namespaces map[string]map[string]string
	// There has the namespaces with pods at the provider.
	There map[string]bool
	// Pods returns the pods of a namespace that have not ended and have a network of their own.
	Pods func(namespace string) []Pod
	// Own is addresses of this cluster that a provider's pods can reach: of its pods, and of hosts.
	Own cidr.Set
	// Abroad is addresses by which this cluster knows pods at the provider.
	Abroad cidr.Set
	// Names is the servers that resolve names for pods of this cluster.
	Names []Server
}

// Server is a port of an address: of a pod, or of a Service.
type Server struct {
	// Pod is nil for a Service.
	Pod      *Pod
	Address  netip.Addr
	Protocol corev1.Protocol
	// Port is the number; zero if it is not known. Name is its name in the pod, if it has one.
	Port int32
	Name string
}

// selects reports whether a policy's own selector selects a pod of its namespace.
func selects(spec *networkingv1.NetworkPolicySpec, pod map[string]string) bool {
	return selector(&spec.PodSelector).Matches(labels.Set(pod))
}

// selector converts a selector. A malformed one, which no API server accepts, matches nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	out, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return out
}

// Leave returns the part of a policy that crosses, and for users what of it does not.
func Leave(namespace string, spec *networkingv1.NetworkPolicySpec, w *World) (Policy, []string) {
	l := &leaving{World: w, namespace: namespace}
	out := Policy{Pods: spec.PodSelector}
	l.total.requirements = countSelector(&out.Pods)
	ingress, egress := directions(spec)
	if ingress {
		out.Ingress = &[]Rule{}
		for i := range spec.Ingress {
			l.at = fmt.Sprintf("ingress rule %d", i+1)
			l.add(out.Ingress, l.rules(spec.Ingress[i].From, spec.Ingress[i].Ports, false))
		}
	}
	if egress {
		out.Egress = &[]Rule{}
		for i := range spec.Egress {
			l.at = fmt.Sprintf("egress rule %d", i+1)
			rule := &spec.Egress[i]
			l.add(out.Egress, l.rules(rule.To, rule.Ports, true))
			for _, s := range w.Names {
				if l.allows(rule, s) && !slices.Contains(out.Names, s.Protocol) {
					out.Names = append(out.Names, s.Protocol)
				}
			}
		}
		slices.Sort(out.Names)
	}
	if l.total.requirements > maxRequirements {
		l.note("its podSelector has more than %d requirements and values", maxRequirements)
	}
	return out, l.notes
}

// directions is what a policy restricts: the API server writes it, and this is its default.
func directions(spec *networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(spec.PolicyTypes) == 0 {
		return true, len(spec.Egress) > 0
	}
	return slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress), slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
}

// leaving is the translation of one policy.
type leaving struct {
	*World
	namespace string
	// at is the rule that is being read.
	at    string
	total count
	notes []string
}

func (l *leaving) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if l.at != "" {
		text = l.at + ": " + text
	}
	if len(l.notes) < maxNotes && !slices.Contains(l.notes, text) {
		l.notes = append(l.notes, text)
	}
}

// add adds rules up to the limits; what exceeds them stays closed.
func (l *leaving) add(to *[]Rule, rules []Rule) {
	for i := range rules {
		r := &rules[i]
		if room := maxAddresses - l.total.addresses; len(r.Addresses) > room {
			l.note("only the first %d of the %d addresses of pods that run elsewhere cross, which is the limit", max(room, 0), len(r.Addresses))
			r.Addresses = r.Addresses[:max(room, 0)]
		}
		if r.empty() {
			continue
		}
		total := l.total.plus(countRule(r))
		if what := total.over(); what != "" {
			l.note("it is left out, since the policy has %s", what)
			continue
		}
		l.total = total
		*to = append(*to, *r)
	}
}

// rules translates a rule. One with named ports whose numbers differ between pods becomes several, since a pod
// elsewhere is only an address there.
func (l *leaving) rules(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort, egress bool) []Rule {
	who := l.peersOf(peers)
	numbers, names := splitPorts(ports)
	if !egress || len(names) == 0 {
		return []Rule{{Pods: who.there, Addresses: addressesOf(who.elsewhere), Blocks: who.blocks, Ports: ports}}
	}
	out := []Rule{{Pods: who.there, Ports: ports}}
	if len(numbers) > 0 {
		out = append(out, Rule{Addresses: addressesOf(who.elsewhere), Blocks: who.blocks, Ports: numbers})
	}
	if len(peers) == 0 {
		who.elsewhere = l.elsewhere(labels.Everything(), labels.Everything(), true)
	} else if len(who.blocks) > 0 {
		l.note("an ipBlock has no ports of a name")
	}
	return append(out, named(who.elsewhere, names)...)
}

// splitPorts returns the ports that are numbers, and those that are names.
func splitPorts(ports []networkingv1.NetworkPolicyPort) (numbers, names []networkingv1.NetworkPolicyPort) {
	for _, p := range ports {
		if p.Port != nil && p.Port.Type == intstr.String {
			names = append(names, p)
		} else {
			numbers = append(numbers, p)
		}
	}
	return numbers, names
}

func protocolOf(p *networkingv1.NetworkPolicyPort) corev1.Protocol {
	return ptr.Deref(p.Protocol, corev1.ProtocolTCP)
}

// named returns rules with the numbers that ports of these names have in pods, sorted.
func named(pods []Pod, names []networkingv1.NetworkPolicyPort) []Rule {
	type port struct {
		protocol corev1.Protocol
		number   int32
	}
	found := map[port][]Pod{}
	for i := range pods {
		for j := range names {
			for _, c := range pods[i].Ports {
				if c.Name == names[j].Port.StrVal && cmp.Or(c.Protocol, corev1.ProtocolTCP) == protocolOf(&names[j]) {
					at := port{protocolOf(&names[j]), c.ContainerPort}
					found[at] = append(found[at], pods[i])
				}
			}
		}
	}
	var out []Rule
	for _, at := range slices.SortedFunc(maps.Keys(found), func(a, b port) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.number, b.number))
	}) {
		out = append(out, Rule{
			Addresses: addressesOf(found[at]),
			Ports:     []networkingv1.NetworkPolicyPort{{Protocol: new(at.protocol), Port: new(intstr.FromInt32(at.number))}},
		})
	}
	return out
}

// addressesOf returns the addresses of pods, sorted, without duplicates.
func addressesOf(pods []Pod) []string {
	var all []netip.Addr
	for i := range pods {
		all = append(all, pods[i].Addresses...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	var out []string
	for _, a := range slices.Compact(all) {
		out = append(out, a.String())
	}
	return out
}

// peerSet is the peers of a rule: pods at the provider, pods elsewhere, and ranges.
type peerSet struct {
	there     []Pods
	elsewhere []Pod
	blocks    []networkingv1.IPBlock
}

// everywhere is all addresses.
func everywhere() []networkingv1.IPBlock {
	return []networkingv1.IPBlock{{CIDR: "0.0.0.0/0"}, {CIDR: "::/0"}}
}

func (l *leaving) peersOf(peers []networkingv1.NetworkPolicyPeer) (out peerSet) {
	if len(peers) == 0 {
		return peerSet{there: []Pods{{All: true}}, blocks: everywhere()}
	}
	for i := range peers {
		p := &peers[i]
		if p.IPBlock != nil {
			l.block(p.IPBlock, &out)
			continue
		}
		spaces, own := labels.Everything(), p.NamespaceSelector == nil
		if !own {
			spaces = selector(p.NamespaceSelector)
		}
		there := Pods{All: !own && spaces.Empty(), Selector: ptr.Deref(p.PodSelector, metav1.LabelSelector{})}
		if !there.All {
			there.Namespaces = l.selected(spaces, own, l.There)
		}
		if there.All || len(there.Namespaces) > 0 {
			out.there = append(out.there, there)
		}
		out.elsewhere = append(out.elsewhere, l.elsewhere(spaces, selector(&there.Selector), !own)...)
	}
	return out
}

// selected returns those of the namespaces in the given set that are selected, or the policy's own; a nil set means
// all.
func (l *leaving) selected(spaces labels.Selector, own bool, in map[string]bool) (out []string) {
	if own {
		if in == nil || in[l.namespace] {
			out = []string{l.namespace}
		}
		return out
	}
	for name, has := range l.Namespaces {
		if (in == nil || in[name]) && spaces.Matches(labels.Set(has)) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// elsewhere returns the pods that are selected and do not run at the provider.
func (l *leaving) elsewhere(spaces, pods labels.Selector, others bool) (out []Pod) {
	for _, name := range l.selected(spaces, !others, nil) {
		for _, p := range l.Pods(name) {
			if !p.There && pods.Matches(labels.Set(p.Labels)) {
				out = append(out, p)
			}
		}
	}
	return out
}

// block adds an ipBlock, unless no part of it has a meaning at the provider.
func (l *leaving) block(b *networkingv1.IPBlock, out *peerSet) {
	block, except, err := parseBlock(b)
	if err != nil {
		l.note("%v", err)
		return
	}
	holes := cidr.Of(except...)
	own := l.Own.Overlaps(block) && !holes.Covers(l.Own.Overlapping(block))
	// Pods abroad have addresses here that mean nothing there: the provider translates them. A block with
	// exceptions means the rest of the world, and only happens to contain them.
	abroad := len(except) == 0 && l.Abroad.Overlaps(block)
	if abroad {
		if slices.ContainsFunc(l.Abroad, func(p netip.Prefix) bool { return p.Addr().BitLen() == block.Addr().BitLen() && !cidr.Cover(block, p) }) {
			l.note("%s has some of the addresses of pods abroad and not all, and does not open these: select them by their labels", block)
		} else {
			out.there = append(out.there, Pods{All: true})
		}
	}
	if _, some := public(block); !some && !own {
		if !abroad {
			l.note("%s is a private range that is not this cluster's pods, so it means something else at the provider and stays closed", block)
		}
		return
	}
	kept := networkingv1.IPBlock{CIDR: block.String()}
	for _, e := range except {
		kept.Except = append(kept.Except, e.String())
	}
	out.blocks = append(out.blocks, kept)
}

// allows reports whether a rule of egress lets pods reach a server.
func (l *leaving) allows(rule *networkingv1.NetworkPolicyEgressRule, s Server) bool {
	if len(rule.Ports) > 0 && !slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return opens(&p, s) }) {
		return false
	}
	return len(rule.To) == 0 || slices.ContainsFunc(rule.To, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			block, except, err := parseBlock(p.IPBlock)
			return err == nil && block.Contains(s.Address) && !cidr.Of(except...).Contains(s.Address)
		}
		if s.Pod == nil || p.PodSelector != nil && !selector(p.PodSelector).Matches(labels.Set(s.Pod.Labels)) {
			return false
		}
		if p.NamespaceSelector == nil {
			return s.Pod.Namespace == l.namespace
		}
		return selector(p.NamespaceSelector).Matches(labels.Set(l.Namespaces[s.Pod.Namespace]))
	})
}

// opens reports whether a port of a policy is a server's.
func opens(p *networkingv1.NetworkPolicyPort, s Server) bool {
	switch {
	case protocolOf(p) != s.Protocol:
		return false
	case p.Port == nil:
		return true
	case p.Port.Type == intstr.String:
		return s.Pod != nil && s.Name != "" && p.Port.StrVal == s.Name
	}
	return s.Port >= p.Port.IntVal && s.Port <= ptr.Deref(p.EndPort, p.Port.IntVal)
}
