package gateways

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// nodePlaceholder is replaced by a gateway's name in an endpoint that was configured for all.
const nodePlaceholder = "{node}"

// gateway is the state of a gateway that decides which endpoints are announced for it.
type gateway struct {
	node string
	// uid is that of its FabricNode.
	uid types.UID
	// annotation is the Node's v1alpha1.AnnotationEndpoint, named the endpoints that were
	// configured for all gateways.
	annotation string
	named      []string
	// gateways is how many gateways there are.
	gateways int
	// service is the result of its Service, if it has one.
	service   served
	addresses []corev1.NodeAddress
	// port is the port of the fabric on the node; empty while that is not known.
	port string
}

// gatewayOf returns the gateway on a node.
func gatewayOf(n *v1alpha1.FabricNode, node *corev1.Node, named []string, gateways int) gateway {
	a := gateway{
		node: n.Name, uid: n.UID, annotation: node.Annotations[v1alpha1.AnnotationEndpoint], named: named, gateways: gateways, addresses: node.Status.Addresses,
	}
	if len(n.Status.Endpoints) > 0 {
		_, a.port, _ = net.SplitHostPort(n.Status.Endpoints[0])
	}
	return a
}

// nodeOf returns the endpoints that are announced for a node that is not a gateway. Endpoints that were
// configured without {node} are those of a gateway.
func nodeOf(n *v1alpha1.FabricNode, node *corev1.Node, named []string) []string {
	named = slices.DeleteFunc(slices.Clone(named), func(text string) bool { return !strings.Contains(text, nodePlaceholder) })
	endpoints, _ := gatewayOf(n, node, named, 0).announce()
	return endpoints
}

// announce returns the endpoints that are announced for a gateway, best first, and the problems of
// the configuration. They come from the first source with a usable endpoint alone, so that no address
// is announced that was not meant for peers: the Node's annotation, the configuration
// for all gateways, its Service, the Node's own addresses, external ones first.
func (g gateway) announce() (endpoints, problems []string) {
	var from []string
	for text := range strings.SplitSeq(g.annotation, ",") {
		if text = strings.TrimSpace(text); text != "" {
			from = append(from, text)
		}
	}
	endpoints, problems = g.usable(from, fmt.Sprintf("the annotation %s of node %s", v1alpha1.AnnotationEndpoint, g.node))
	if len(endpoints) == 0 {
		var named []string
		for _, text := range g.named {
			if strings.Contains(text, nodePlaceholder) || g.gateways <= 1 {
				named = append(named, strings.ReplaceAll(text, nodePlaceholder, g.node))
				continue
			}
			problems = append(problems, fmt.Sprintf(
				"endpoint %q names one machine, and there are %d gateways, each with a key of its own, so packets for one would end at another: write %s into it, annotate each Node with %s, or set network.gateways=1",
				peering.Text(text, peering.MaxEndpointLen), g.gateways, nodePlaceholder, v1alpha1.AnnotationEndpoint))
		}
		var more []string
		endpoints, more = g.usable(named, "fabric.endpoints")
		problems = append(problems, more...)
	}
	if len(endpoints) == 0 {
		var more []string
		endpoints, more = g.usable(g.service.endpoints, "the Service of node "+g.node)
		problems = append(problems, more...)
		if g.service.problem != "" {
			problems = append(problems, g.service.problem)
		}
	}
	if len(endpoints) == 0 && g.port != "" {
		endpoints = nodeEndpoints(g.addresses, g.port)
	}
	if n := len(endpoints) - peering.MaxEndpoints; n > 0 {
		problems = append(problems, fmt.Sprintf("node %s has %d endpoints, of which %d are announced to peers: the last %d are left out", g.node, len(endpoints), peering.MaxEndpoints, n))
		endpoints = endpoints[:peering.MaxEndpoints]
	}
	for i, p := range problems {
		problems[i] = peering.Text(p, peering.MaxMessageLen)
	}
	return endpoints, problems
}

// firstProblems returns as many problems as a FabricNode has room for, with the number of the others.
func firstProblems(problems []string) []string {
	if more := len(problems) - maxProblems; more > 0 {
		return append(slices.Clone(problems[:maxProblems-1]), fmt.Sprintf("and %d more problems, which are listed when some of these are solved", more+1))
	}
	return problems
}

// usable returns the endpoints that can be dialled, each once, with the fabric's port where
// they name none.
func (g gateway) usable(texts []string, where string) (out, problems []string) {
	for _, text := range texts {
		e, err := g.complete(text)
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s: %v", where, err))
		case e != "" && !slices.Contains(out, e):
			out = append(out, e)
		}
	}
	return out, problems
}

// complete returns an endpoint with its port; empty while the port is not known.
func (g gateway) complete(text string) (string, error) {
	e := text
	if _, _, err := net.SplitHostPort(text); err != nil {
		host := strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
		port := g.port
		if port == "" {
			port = "1" // only to check the host
		}
		e = net.JoinHostPort(host, port)
	}
	if err := peering.CheckEndpoint(e); err != nil {
		return "", fmt.Errorf("%q: %w", peering.Text(text, peering.MaxEndpointLen), err)
	}
	host, _, err := net.SplitHostPort(e)
	if err != nil {
		return "", fmt.Errorf("%q: %w", peering.Text(text, peering.MaxEndpointLen), err)
	}
	if addr, err := netip.ParseAddr(host); err == nil && (addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || addr.IsLinkLocalUnicast()) {
		return "", fmt.Errorf("%q: no other cluster can dial %v", peering.Text(text, peering.MaxEndpointLen), addr)
	}
	if e != text && g.port == "" {
		return "", nil
	}
	return e, nil
}

// nodeEndpoints returns a node's own addresses with a port, external ones first.
func nodeEndpoints(addresses []corev1.NodeAddress, port string) (out []string) {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, at := range addresses {
			e := net.JoinHostPort(at.Address, port)
			if at.Type == kind && net.ParseIP(at.Address) != nil && !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	return out
}
