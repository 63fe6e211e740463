package twonodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/e2e"
	"github.com/entente-dev/entente/integration/only"
)

// balancers are where the test, in place of a cloud, puts the load balancers of the provider's
// gateways.
var balancers = []string{"192.0.2.201", "192.0.2.202"}

// TestGatewaysAreDialledOverServices has the router between the clusters drop what goes from
// one node's own WireGuard port to another's, in both directions. What passes then passes by the
// Services of the provider's gateways, through the kube-proxy of each: by their node ports, and
// by load balancers, for which the test plays the cloud.
func TestGatewaysAreDialledOverServices(t *testing.T) {
	only.Matrix(t, "a minute and a half")
	ctx, s := onStage(t)
	w := s.World
	// What is dropped is from node to node: answers by a Service have its port, or its address.
	_, err := w.OnInternet(ctx, "nft", fmt.Sprintf(`table inet doors { set balancers { type ipv4_addr; elements = { %s }; }; chain forward { type filter hook forward priority 0;
		ip daddr @balancers udp dport %[2]d counter accept comment "balancer";
		ip saddr @balancers accept;
		udp dport 30000-32767 counter accept comment "nodeport";
		udp sport %[2]d udp dport %[2]d counter drop comment "node"; }; }`, strings.Join(balancers, ", "), e2e.WireGuardPort))
	ok(t, err)
	t.Cleanup(func() {
		after := context.WithoutCancel(ctx)
		_, err := w.OnInternet(after, "nft", "delete table inet doors")
		ok(t, err)
		_, err = w.Abroad.Helm(after, w.InstallArgs(w.Abroad)...)
		ok(t, err)
		ok(t, s.outAnswers(after))
		// Traffic may pass before the agent that helm installed has looked at them.
		ok(t, w.Until(after, e2e.Soon, "Services of gateways to be gone", func(ctx context.Context) (string, error) {
			var left corev1.ServiceList
			if err := w.Abroad.Client.List(ctx, &left, ctrlclient.InNamespace(e2e.SystemNamespace), ofGateways); err != nil || len(left.Items) == 0 {
				return "", err
			}
			return fmt.Sprintf("%d are left", len(left.Items)), nil
		}))
	})

	_, err = w.Abroad.Helm(ctx, append(w.InstallArgs(w.Abroad), "--set", "fabric.service.type=NodePort")...)
	ok(t, err)
	ok(t, s.announced(ctx, func(n *v1alpha1.FabricNode, service *corev1.Service) string {
		return fmt.Sprintf("%s:%d", hostOf(n.Status.Endpoints[0]), service.Spec.Ports[0].NodePort)
	}))
	ok(t, s.outAnswers(ctx))
	// The first answers may have come by way of the agents, which carry packets until UDP passes.
	ok(t, w.Until(ctx, e2e.Restarted, "packets to pass by the node port", func(ctx context.Context) (string, error) {
		return s.missing(ctx, "nodeport")
	}))

	_, err = w.Abroad.Helm(ctx, append(w.InstallArgs(w.Abroad), "--set", "fabric.service.type=LoadBalancer")...)
	ok(t, err)
	ok(t, w.Until(ctx, e2e.Soon, "gateways to say that they have no load balancers", func(ctx context.Context) (string, error) {
		text, err := w.Abroad.Entente(ctx, "network", "status")
		if n := strings.Count(text, "has no load balancer yet"); n != len(balancers) {
			return fmt.Sprintf("%d say so:\n%s", n, text), err
		}
		return "", err
	}))
	at := map[string]string{}
	for i, node := range w.Abroad.Plan.Nodes {
		at[node.Name] = balancers[i]
		_, err := w.OnInternet(ctx, "ip", "route", "add", balancers[i]+"/32", "via", node.Address.String())
		ok(t, err)
		t.Cleanup(func() {
			_, err := w.OnInternet(context.WithoutCancel(ctx), "ip", "route", "del", balancers[i]+"/32")
			ok(t, err)
		})
	}
	ok(t, s.balance(ctx, at))
	ok(t, s.announced(ctx, func(n *v1alpha1.FabricNode, _ *corev1.Service) string {
		return fmt.Sprintf("%s:%d", at[n.Name], e2e.WireGuardPort)
	}))
	// A tunnel that works stays where it is: it is to dial again.
	_, err = w.OnInternet(ctx, "nft", "insert rule inet doors forward udp dport 30000-32767 drop")
	ok(t, err)
	ok(t, w.Until(ctx, e2e.Restarted, "packets to pass by a load balancer", func(ctx context.Context) (string, error) {
		return s.missing(ctx, "balancer")
	}))
	ok(t, s.outAnswers(ctx))
}

var ofGateways = ctrlclient.MatchingLabels{"app.kubernetes.io/component": "gateway"}

func hostOf(endpoint string) string { return netip.MustParseAddrPort(endpoint).Addr().String() }

// outAnswers waits until the pod at home reaches the one abroad.
func (s *stage) outAnswers(ctx context.Context) error {
	return s.World.Home.ReachesAll(ctx, e2e.Restarted, shop, s.inn.Name, "http://"+s.out.Status.PodIP+":8080/name", []corev1.Pod{s.out})
}

// services returns the provider's gateways, each with its Service.
func (s *stage) services(ctx context.Context) (map[string]*corev1.Service, []v1alpha1.FabricNode, error) {
	var list corev1.ServiceList
	var nodes v1alpha1.FabricNodeList
	if err := s.World.Abroad.Client.List(ctx, &list, ctrlclient.InNamespace(e2e.SystemNamespace), ofGateways); err != nil {
		return nil, nil, err
	}
	if err := s.World.Abroad.Client.List(ctx, &nodes); err != nil {
		return nil, nil, err
	}
	out := map[string]*corev1.Service{}
	for i := range list.Items {
		if owners := list.Items[i].OwnerReferences; len(owners) == 1 {
			out[owners[0].Name] = &list.Items[i]
		}
	}
	return out, nodes.Items, nil
}

// announced waits until the peer received the provider's gateways with one endpoint each.
func (s *stage) announced(ctx context.Context, want func(*v1alpha1.FabricNode, *corev1.Service) string) error {
	w := s.World
	return w.Until(ctx, e2e.Restarted, "the consumer to receive the Services' endpoints", func(ctx context.Context) (string, error) {
		services, nodes, err := s.services(ctx)
		if err != nil {
			return "", err
		}
		var expected, told []string
		for i := range nodes {
			if service := services[nodes[i].Name]; service != nil && nodes[i].Spec.Gateway {
				expected = append(expected, want(&nodes[i], service))
			}
		}
		var tunnels v1alpha1.TunnelList
		if err := w.Home.Client.List(ctx, &tunnels); err != nil {
			return "", err
		}
		for _, tunnel := range tunnels.Items {
			for _, g := range tunnel.Spec.Gateways {
				told = append(told, g.Endpoints...)
			}
		}
		slices.Sort(expected)
		slices.Sort(told)
		if len(expected) != len(nodes) || !slices.Equal(expected, told) {
			return fmt.Sprintf("it received %v, want %v", told, expected), nil
		}
		return "", nil
	})
}

// balance says in place of a cloud where the load balancers of gateways are.
func (s *stage) balance(ctx context.Context, at map[string]string) error {
	services, _, err := s.services(ctx)
	if err != nil {
		return err
	}
	for node, service := range services {
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: at[node]}}
		if err := s.World.Abroad.Client.Status().Update(ctx, service); err != nil {
			return err
		}
	}
	return nil
}

// missing says which of the rules of the router no packet met: that of a door, and that at which
// packets from node to node are dropped.
func (s *stage) missing(ctx context.Context, door string) (string, error) {
	rules, err := s.World.OnInternet(ctx, "nft", "list table inet doors")
	if err != nil {
		return "", err
	}
	for _, rule := range []string{door, "node"} {
		met := false
		for line := range strings.Lines(rules) {
			met = met || strings.Contains(line, `comment "`+rule+`"`) && !strings.Contains(line, "packets 0 ")
		}
		if !met {
			return fmt.Sprintf("no packet at the rule %q:\n%s", rule, rules), nil
		}
	}
	return "", nil
}
