package netpolicy

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Policy is the JSON of an Object of KindNetworkPolicy: what a NetworkPolicy of the consumer allows, in the
// consumer's terms.
type Policy struct {
	// Pods selects the pods of its namespace to which it applies.
	Pods metav1.LabelSelector `json:"pods"`
	// Ingress and Egress are what it allows; nil does not restrict that direction, and an empty list allows
	// nothing.
	Ingress *[]Rule `json:"ingress,omitempty"`
	Egress  *[]Rule `json:"egress,omitempty"`
	// Names is the protocols by which the pods may resolve names at home.
	Names []corev1.Protocol `json:"names,omitempty"`
}

// Rule allows traffic with any of its peers, by any of its ports. One without peers
// allows nothing, one without ports all ports.
type Rule struct {
	// Pods is pods of the consumer that run at the provider.
	Pods []Pods `json:"pods,omitempty"`
	// Addresses is the addresses of pods elsewhere.
	Addresses []string `json:"addresses,omitempty"`
	// Blocks is ranges of addresses: ranges of the consumer's cluster mean that cluster, and public ones the
	// Internet.
	Blocks []networkingv1.IPBlock           `json:"blocks,omitempty"`
	Ports  []networkingv1.NetworkPolicyPort `json:"ports,omitempty"`
}

// Pods is pods of some of the consumer's namespaces, by the labels that they have there.
type Pods struct {
	// All is all namespaces, Namespaces some by their names at the consumer.
	All        bool                 `json:"all,omitempty"`
	Namespaces []string             `json:"namespaces,omitempty"`
	Selector   metav1.LabelSelector `json:"selector"`
}

func (r *Rule) empty() bool { return len(r.Pods)+len(r.Addresses)+len(r.Blocks) == 0 }

// count is the number of each part that has a limit.
type count struct{ rules, selectors, requirements, namespaces, addresses, blocks, ports int }

func (c count) plus(d count) count {
	return count{
		c.rules + d.rules, c.selectors + d.selectors, c.requirements + d.requirements, c.namespaces + d.namespaces,
		c.addresses + d.addresses, c.blocks + d.blocks, c.ports + d.ports,
	}
}

// over names the part that exceeds its limit, if any.
func (c count) over() string {
	for _, l := range []struct {
		n, most int
		what    string
	}{
		{c.rules, maxRules, "rules"},
		{c.selectors, maxSelectors, "selectors of pods"},
		{c.requirements, maxRequirements, "requirements and values of selectors"},
		{c.namespaces, maxNamespaces, "namespaces in its selectors"},
		{c.addresses, maxAddresses, "addresses of pods elsewhere"},
		{c.blocks, maxBlocks, "ipBlocks with what they except"},
		{c.ports, maxPorts, "ports"},
	} {
		if l.n > l.most {
			return fmt.Sprintf("more than %d %s", l.most, l.what)
		}
	}
	return ""
}

func countSelector(s *metav1.LabelSelector) int {
	n := len(s.MatchLabels) + len(s.MatchExpressions)
	for _, r := range s.MatchExpressions {
		n += len(r.Values)
	}
	return n
}

func countRule(r *Rule) count {
	c := count{rules: 1, selectors: len(r.Pods), addresses: len(r.Addresses), blocks: len(r.Blocks), ports: len(r.Ports)}
	for i := range r.Pods {
		c.requirements += countSelector(&r.Pods[i].Selector)
		c.namespaces += len(r.Pods[i].Namespaces)
	}
	for i := range r.Blocks {
		c.blocks += len(r.Blocks[i].Except)
	}
	return c
}

// rules calls f for each rule.
func (p *Policy) rules(f func(*Rule)) {
	for _, list := range []*[]Rule{p.Ingress, p.Egress} {
		if list == nil {
			continue
		}
		for i := range *list {
			f(&(*list)[i])
		}
	}
}

// Check returns why a policy that a consumer sent cannot be accepted. It leaves to the API server the syntax of
// selectors, ports and protocols.
func (p *Policy) Check() error {
	if p.Ingress == nil && p.Egress == nil {
		return fmt.Errorf("it restricts neither ingress nor egress")
	}
	total := count{requirements: countSelector(&p.Pods)}
	p.rules(func(r *Rule) { total = total.plus(countRule(r)) })
	if what := total.over(); what != "" {
		return fmt.Errorf("it has %s", what)
	}
	if len(p.Names) > maxProtocols {
		return fmt.Errorf("it lists %d protocols for resolving names", len(p.Names))
	}
	for _, protocol := range p.Names {
		if protocol != corev1.ProtocolUDP && protocol != corev1.ProtocolTCP {
			return fmt.Errorf("names cannot be resolved by %q", protocol)
		}
	}
	var wrong error
	p.rules(func(r *Rule) {
		for _, a := range r.Addresses {
			if _, err := parseAddr(a); err != nil {
				wrong = err
			}
		}
		for i := range r.Blocks {
			if _, _, err := parseBlock(&r.Blocks[i]); err != nil {
				wrong = err
			}
		}
	})
	return wrong
}

// maxProtocols is UDP and TCP.
const maxProtocols = 2

func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Is4In6() || a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%.64q is not an address of a pod", text)
	}
	return a, nil
}

// parseBlock parses an ipBlock. What it excepts is strictly inside it, as Kubernetes requires.
func parseBlock(b *networkingv1.IPBlock) (block netip.Prefix, except []netip.Prefix, err error) {
	if block, err = parsePrefix(b.CIDR); err != nil {
		return block, nil, err
	}
	for _, text := range b.Except {
		e, err := parsePrefix(text)
		if err != nil {
			return block, nil, err
		}
		if e.Addr().BitLen() != block.Addr().BitLen() || e.Bits() <= block.Bits() || !block.Contains(e.Addr()) {
			return block, nil, fmt.Errorf("%s is not a part of %s, so it cannot be excepted", e, block)
		}
		except = append(except, e)
	}
	return block, except, nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%.64q is not a range of addresses", text)
	}
	return p.Masked(), nil
}
