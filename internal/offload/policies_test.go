package offload

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/netpolicy"
	"github.com/entente-dev/entente/peering"
)

func (c *cluster) here(peering.ClusterID) (netpolicy.Here, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	alias := c.alias
	if !alias.IsValid() {
		alias = netip.MustParsePrefix("10.241.0.0/16")
	}
	return netpolicy.Here{
		Mappings: []netpolicy.Mapping{{Real: netip.MustParsePrefix("10.1.0.0/16"), Alias: alias}},
		Resolver: netpolicy.Resolver{Namespace: "entente-system", Labels: map[string]string{"app.kubernetes.io/component": "dns"}, Port: 1053},
	}, nil
}

// blocksOf returns the addresses that a policy's ingress rules allow.
func blocksOf(np *networkingv1.NetworkPolicy) (out []string) {
	for _, r := range np.Spec.Ingress {
		for _, p := range r.From {
			if p.IPBlock != nil {
				out = append(out, p.IPBlock.CIDR)
			}
		}
	}
	return out
}

func testPolicies(t *testing.T, c *cluster) {
	p, _ := c.start(t)
	id, name := c.fresh("cpu=1")
	remote := name + "-aaaaaaaa"
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	policy := func(name2, uid, text string) peering.Object {
		return thing(peering.KindNetworkPolicy, name, name2, uid, text)
	}
	allowWeb := policy("web", "np1", `{"pods":{"matchLabels":{"app":"web","example.com/tier":"x"}},"ingress":[{"pods":[{"namespaces":["`+name+`","kube-system"],"selector":{}}],"addresses":["10.1.0.5","10.9.9.9"],"ports":[{"port":8080}]}],"egress":[],"names":["UDP"]}`)
	refused(t, p.Apply(t.Context(), id, allowWeb), peering.RefusedInvalid, true, "networkPolicies: Allowed")
	k, _ := c.contract(id)
	k.NetworkPolicies = true
	c.set(id, &k)

	// One of the provider's own has a name that is as common as it gets.
	own := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: remote, Name: "web"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}}}
	taken := own.DeepCopy()
	taken.Name = "home-taken"
	for _, o := range []client.Object{own, taken} {
		if err := c.owner.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	refused(t, p.Apply(t.Context(), id, policy("taken", "np9", string(allowWeb.JSON))), peering.RefusedInvalid, true, "that is not the consumer's")
	apply(t, p, id, allowWeb, allowWeb)
	got := &networkingv1.NetworkPolicy{}
	if !c.get(t, remote, "home-web", got) {
		t.Fatal("the policy is not there")
	}
	if want := map[string]string{api.LabelManaged: api.Manager, api.LabelPeer: string(peerA), "app": "web", "home.entente.dev/example.com_tier": "x"}; !maps.Equal(got.Spec.PodSelector.MatchLabels, want) {
		t.Errorf("it selects %v", got.Spec.PodSelector)
	}
	if len(got.Spec.Ingress) != 1 || len(got.Spec.Ingress[0].From) != 2 || !slices.Equal(blocksOf(got), []string{"10.241.0.5/32"}) {
		t.Errorf("it allows %+v", got.Spec.Ingress)
	} else if s := got.Spec.Ingress[0].From[0].NamespaceSelector; s.MatchLabels[api.LabelPeer] != string(peerA) || !slices.Equal(s.MatchExpressions[0].Values, []string{"kube-system", name}) {
		t.Errorf("it allows pods of namespaces %+v", s)
	}
	if len(got.Spec.PolicyTypes) != 2 || len(got.Spec.Egress) != 1 || got.Spec.Egress[0].Ports[0].Port.IntValue() != 1053 {
		t.Errorf("egress is %+v", got.Spec.Egress)
	}
	held, err := p.Held(t.Context(), id)
	if err != nil || !slices.Contains(held, peering.Held{Ref: allowWeb.Ref, Hash: allowWeb.Hash()}) {
		t.Errorf("held %v, %v", held, err)
	}

	// Its addresses follow, and changes by other writers are undone.
	c.mu.Lock()
	c.alias = netip.MustParsePrefix("10.242.0.0/16")
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.alias = netip.Prefix{}
		c.mu.Unlock()
	}()
	p.Refresh(peerA)
	eventually(t, "its addresses follow", func() bool {
		return c.get(t, remote, "home-web", got) && slices.Equal(blocksOf(got), []string{"10.242.0.5/32"})
	})
	if err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		c.get(t, remote, "home-web", got)
		got.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}}
		return c.owner.Update(t.Context(), got)
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is put right", func() bool { return c.get(t, remote, "home-web", got) && len(blocksOf(got)) == 1 })

	// An existing policy follows its home though the PeeringPolicy changed; new ones are refused.
	k.NetworkPolicies = false
	c.set(id, &k)
	allowWeb.JSON = []byte(strings.ReplaceAll(string(allowWeb.JSON), "10.1.0.5", "10.1.0.6"))
	apply(t, p, id, allowWeb)
	if c.get(t, remote, "home-web", got); !slices.Equal(blocksOf(got), []string{"10.242.0.6/32"}) {
		t.Errorf("it allows %v", blocksOf(got))
	}
	refused(t, p.Apply(t.Context(), id, policy("other", "np2", string(allowWeb.JSON))), peering.RefusedInvalid, true, "networkPolicies")
	k.NetworkPolicies = true
	c.set(id, &k)
	hostilePolicies(t, p, id, policy)

	for _, ref := range []peering.ObjectRef{{Kind: peering.KindNetworkPolicy, Namespace: name, Name: "web", UID: "another"}, allowWeb.Ref} {
		if !c.get(t, remote, "home-web", got) {
			t.Error("it went by another's UID")
		}
		if err := p.Delete(t.Context(), id, ref, nil); err != nil {
			t.Error(err)
		}
	}
	if c.get(t, remote, "home-web", got) || !c.get(t, remote, "web", got) || !c.get(t, remote, "home-taken", got) {
		t.Error("the deleted policy is not the one that is gone")
	}
	if c.real {
		agent := own.DeepCopy()
		agent.Namespace, agent.ResourceVersion, agent.UID = "default", "", ""
		if err := c.agent.Create(t.Context(), agent); !apierrors.IsForbidden(err) {
			t.Errorf("the agent makes policies anywhere: %v", err)
		}
	}
}

// hostilePolicies sends policies that no home would.
func hostilePolicies(t *testing.T, p *Provider, id string, policy func(name, uid, text string) peering.Object) {
	t.Helper()
	many := func(n int, one string) string { return strings.Repeat(one+",", n-1) + one }
	for want, text := range map[string]string{
		"selectors of pods":          `{"ingress":[{"pods":[` + many(10_000, `{"all":true}`) + `]}]}`,
		"addresses of pods":          `{"ingress":[{"addresses":[` + many(10_000, `"10.1.0.1"`) + `]}]}`,
		"ipBlocks":                   `{"egress":[{"blocks":[` + many(5_000, `{"cidr":"1.0.0.0/8"}`) + `]}]}`,
		"bytes; the limit is":        `{"egress":[{"blocks":[` + many(20_000, `{"cidr":"1.0.0.0/8"}`) + `]}]}`,
		"cannot be excepted":         `{"egress":[{"blocks":[{"cidr":"10.1.0.0/16","except":["10.0.0.0/8"]}]}]}`,
		"neither ingress nor egress": `{"pods":{}}`,
		"read NetworkPolicy":         `[1]`,
	} {
		refused(t, p.Apply(t.Context(), id, policy("hostile", "h1", text)), peering.RefusedInvalid, false, want)
	}
	big, err := json.Marshal(netpolicy.Policy{Ingress: &[]netpolicy.Rule{{Addresses: []string{"10.1.0.1"}}}})
	if err != nil {
		t.Fatal(err)
	}
	full := false
	for i := range 600 {
		err := p.Apply(t.Context(), id, policy(fmt.Sprint("many-", i), fmt.Sprint("m", i), string(big)))
		if err != nil {
			refused(t, err, peering.RefusedQuota, true, "NetworkPolicies")
			full = true
			break
		}
	}
	if !full {
		t.Error("a consumer has as many policies as it likes")
	}
	for i := range 600 {
		if err := p.Delete(t.Context(), id, peering.ObjectRef{Kind: peering.KindNetworkPolicy, Namespace: policy("", "", "").Ref.Namespace, Name: fmt.Sprint("many-", i), UID: fmt.Sprint("m", i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
}
