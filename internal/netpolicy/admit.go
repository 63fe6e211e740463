package netpolicy

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/cidr"
	"github.com/entente-dev/entente/internal/endpoints"
	"github.com/entente-dev/entente/internal/podspec"
	"github.com/entente-dev/entente/peering"
)

// Here is everything that decides how a consumer's policy is translated to this cluster.
type Here struct {
	// Peer is the consumer.
	Peer peering.ClusterID
	// Mappings is the translation of the consumer's addresses to this cluster's aliases.
	Mappings []Mapping
	// Sources is more of it, for addresses that reach pods here and that no pod here is to reach.
	Sources []Mapping
	// Own is addresses of this cluster, which no policy opens though they may look public: those of its pods, its
	// Services, and the aliases of other clusters.
	Own []netip.Prefix
	// Resolver resolves the names of their home for the consumer's pods.
	Resolver Resolver
}

// Resolver is where pods of consumers resolve names: pods of a namespace, behind an address.
type Resolver struct {
	Namespace string
	Labels    map[string]string
	Port      int32
	// Address is the address of its Service, for network plugins that check packets before kube-proxy has changed
	// them; the zero value means none.
	Address netip.Addr
}

// servicePort is the port of a resolver's Service.
const servicePort = 53

// namePrefix begins the names of policies here, which keeps them apart from those of this cluster.
const namePrefix = "home-"

// Name returns the name here of a consumer's policy.
func Name(name string) string {
	if len(namePrefix)+len(name) <= maxName {
		return namePrefix + name
	}
	sum := sha256.Sum256([]byte(name))
	tail := "-" + endpoints.Short(sum[:])
	return namePrefix + name[:maxName-len(namePrefix)-len(tail)] + tail
}

// Admit translates a policy, and returns how many of its blocks were left out because there are too many. What has
// no meaning here is left out, too: a rule without any peers left is removed.
func Admit(p *Policy, here Here) (networkingv1.NetworkPolicySpec, int) {
	a := &admission{Here: here, room: maxAdmitted}
	closed := slices.Clone(here.Own)
	a.Mappings = slices.DeleteFunc(slices.Clone(here.Mappings), func(m Mapping) bool { return !m.sound() })
	for _, m := range a.Mappings {
		if !m.single() {
			closed = append(closed, m.Real)
		}
	}
	a.closed = cidr.Of(closed...)
	sources := slices.DeleteFunc(slices.Clone(here.Sources), func(m Mapping) bool { return !m.sound() })
	spec := networkingv1.NetworkPolicySpec{PodSelector: a.own(&p.Pods)}
	if p.Ingress != nil {
		spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeIngress)
		for i := range *p.Ingress {
			if peers := a.peers(&(*p.Ingress)[i], slices.Concat(a.Mappings, sources)); len(peers) > 0 {
				spec.Ingress = append(spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: peers, Ports: portsHere((*p.Ingress)[i].Ports)})
			}
		}
	}
	if p.Egress != nil {
		spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		for i := range *p.Egress {
			if peers := a.peers(&(*p.Egress)[i], a.Mappings); len(peers) > 0 {
				spec.Egress = append(spec.Egress, networkingv1.NetworkPolicyEgressRule{To: peers, Ports: portsHere((*p.Egress)[i].Ports)})
			}
		}
		spec.Egress = append(spec.Egress, a.names(p.Names)...)
	}
	return spec, a.left
}

// portsHere returns ports in the API server's form, so that they can be compared with stored ones.
func portsHere(in []networkingv1.NetworkPolicyPort) []networkingv1.NetworkPolicyPort {
	out := slices.Clone(in)
	for i := range out {
		if out[i].Protocol == nil {
			out[i].Protocol = new(corev1.ProtocolTCP)
		}
	}
	return out
}

// admission is the translation of one policy.
type admission struct {
	Here
	closed     cidr.Set
	room, left int
}

// own translates a selector of pods: it selects only the consumer's pods, whatever else is in its namespaces.
func (a *admission) own(in *metav1.LabelSelector) metav1.LabelSelector {
	out := *podspec.SelectorAbroad(in)
	if out.MatchLabels == nil {
		out.MatchLabels = map[string]string{}
	}
	out.MatchLabels[api.LabelManaged], out.MatchLabels[api.LabelPeer] = api.Manager, string(a.Peer)
	return out
}

// namespaces returns a selector for the namespaces of the consumer here.
func (a *admission) namespaces(p *Pods) *metav1.LabelSelector {
	out := &metav1.LabelSelector{MatchLabels: map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(a.Peer)}}
	if !p.All {
		out.MatchExpressions = []metav1.LabelSelectorRequirement{{
			Key: api.LabelOriginNamespace, Operator: metav1.LabelSelectorOpIn, Values: slices.Compact(slices.Sorted(slices.Values(p.Namespaces))),
		}}
	}
	return out
}

// peers translates the peers of a rule.
func (a *admission) peers(r *Rule, mappings []Mapping) (out []networkingv1.NetworkPolicyPeer) {
	for i := range r.Pods {
		if p := &r.Pods[i]; p.All || len(p.Namespaces) > 0 {
			selector := a.own(&p.Selector)
			out = append(out, networkingv1.NetworkPolicyPeer{NamespaceSelector: a.namespaces(p), PodSelector: &selector})
		}
	}
	var whole []netip.Prefix
	var blocks []networkingv1.IPBlock
	for _, text := range r.Addresses {
		if address, err := parseAddr(text); err == nil {
			found, _ := translated(netip.PrefixFrom(address, address.BitLen()), nil, mappings)
			whole = append(whole, found...)
		}
	}
	for i := range r.Blocks {
		block, except, err := parseBlock(&r.Blocks[i])
		if err != nil {
			continue
		}
		found, parts := translated(block, except, mappings)
		whole, blocks = append(whole, found...), append(blocks, parts...)
		if b := sameEverywhere(block, except, a.closed); b != nil {
			blocks = append(blocks, *b)
		}
	}
	for _, p := range cidr.Of(whole...).Joined() {
		blocks = append(blocks, networkingv1.IPBlock{CIDR: p.String()})
	}
	slices.SortFunc(blocks, func(a, b networkingv1.IPBlock) int {
		return cmp.Or(cmp.Compare(a.CIDR, b.CIDR), slices.Compare(a.Except, b.Except))
	})
	blocks = slices.CompactFunc(blocks, func(a, b networkingv1.IPBlock) bool { return a.CIDR == b.CIDR && slices.Equal(a.Except, b.Except) })
	for i := range blocks {
		if a.room -= 1 + len(blocks[i].Except); a.room < 0 {
			a.left += len(blocks) - i
			break
		}
		out = append(out, networkingv1.NetworkPolicyPeer{IPBlock: &blocks[i]})
	}
	return out
}

// names returns the rules by which pods reach the resolver for the names of their home.
func (a *admission) names(protocols []corev1.Protocol) []networkingv1.NetworkPolicyEgressRule {
	r := a.Resolver
	if len(protocols) == 0 || r.Namespace == "" || len(r.Labels) == 0 {
		return nil
	}
	ports := func(number int32) (out []networkingv1.NetworkPolicyPort) {
		for _, p := range slices.Compact(slices.Sorted(slices.Values(protocols))) {
			out = append(out, networkingv1.NetworkPolicyPort{Protocol: new(p), Port: new(intstr.FromInt32(number))})
		}
		return out
	}
	out := []networkingv1.NetworkPolicyEgressRule{{
		To: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: r.Namespace}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: r.Labels},
		}},
		Ports: ports(r.Port),
	}}
	if r.Address.IsValid() {
		out = append(out, networkingv1.NetworkPolicyEgressRule{
			To:    []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(r.Address, r.Address.BitLen()).String()}}},
			Ports: ports(servicePort),
		})
	}
	return out
}

// Read reads a policy that a consumer sent.
func Read(data []byte) (*Policy, error) {
	p := &Policy{}
	if err := json.Unmarshal(data, p); err != nil {
		return nil, err //nolint:wrapcheck // the caller adds the context
	}
	return p, p.Check()
}
