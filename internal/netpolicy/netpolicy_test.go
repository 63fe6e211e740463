package netpolicy

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/internal/waittest"
	"github.com/entente-dev/entente/peering"
)

func specOf(t *testing.T, text string) *networkingv1.NetworkPolicySpec {
	t.Helper()
	spec := &networkingv1.NetworkPolicySpec{}
	if err := yaml.UnmarshalStrict([]byte(text), spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func abroad(t *testing.T, text string) (networkingv1.NetworkPolicySpec, []string) {
	t.Helper()
	p, notes := Leave("shop", specOf(t, text), testWorld())
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	read, err := Read(data)
	if err != nil {
		t.Fatal(err)
	}
	spec, _ := Admit(read, testHere())
	return spec, notes
}

func TestAPolicyIsTranslatedForAbroad(t *testing.T) {
	t.Parallel()
	const ours = `{"matchLabels":{"app.kubernetes.io/managed-by":"entente","entente.dev/peer":"aaaaaaaabbbbbbbbccccccccdddddddd"}`
	const shop = ours + `,"matchExpressions":[{"key":"entente.dev/origin-namespace","operator":"In","values":["shop"]}]}`
	const web = `{"matchLabels":{"app":"web","app.kubernetes.io/managed-by":"entente","entente.dev/peer":"aaaaaaaabbbbbbbbccccccccdddddddd"}}`
	const resolver = `{"ports":[{"protocol":"%s","port":1053}],"to":[{"podSelector":{"matchLabels":{"app.kubernetes.io/component":"dns"}},"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"entente-system"}}}]},` +
		`{"ports":[{"protocol":"%[1]s","port":53}],"to":[{"ipBlock":{"cidr":"10.97.0.7/32"}}]}`
	for name, tc := range map[string]struct {
		spec, want string
		notes      []string
	}{
		"all is closed": {
			`{podSelector: {}, policyTypes: [Ingress, Egress]}`,
			`{"podSelector":` + ours + `},"policyTypes":["Ingress","Egress"]}`, nil,
		},
		"types by default": {
			`{podSelector: {matchLabels: {app: web}}}`, `{"podSelector":` + web + `,"policyTypes":["Ingress"]}`, nil,
		},
		"pods of the namespace, there and elsewhere": {
			`{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: http, protocol: TCP}]}]}`,
			`{"podSelector":` + ours + `},"ingress":[{"ports":[{"protocol":"TCP","port":"http"}],"from":[{"podSelector":` + web + `,"namespaceSelector":` + shop + `},` +
				`{"ipBlock":{"cidr":"10.241.0.1/32"}},{"ipBlock":{"cidr":"10.242.0.1/32"}}]}],"policyTypes":["Ingress"]}`, nil,
		},
		"labels with a domain": {
			`{podSelector: {matchLabels: {example.com/tier: x}}}`,
			`{"podSelector":{"matchLabels":{"app.kubernetes.io/managed-by":"entente","entente.dev/peer":"aaaaaaaabbbbbbbbccccccccdddddddd","home.entente.dev/example.com_tier":"x"}},"policyTypes":["Ingress"]}`, nil,
		},
		"names are asked of the resolver where home allows its own": {
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: 53, protocol: UDP}]}]}`,
			`{"podSelector":` + ours + `},"egress":[{"ports":[{"protocol":"UDP","port":53}],"to":[{"ipBlock":{"cidr":"10.241.0.9/32"}}]},` + fmt.Sprintf(resolver, "UDP") + `],"policyTypes":["Egress"]}`, nil,
		},
		"and by the address of the Service": {
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.96.0.10/32}}], ports: [{port: 53, protocol: UDP}]}]}`,
			`{"podSelector":` + ours + `},"egress":[` + fmt.Sprintf(resolver, "UDP") + `],"policyTypes":["Egress"]}`,
			[]string{"egress rule 1: 10.96.0.10/32 is a private range that is not this cluster's pods"},
		},
		"a named port is each pod's": {
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}], ports: [{port: http}]}]}`,
			`{"podSelector":` + ours + `},"egress":[{"ports":[{"protocol":"TCP","port":"http"}],"to":[{"podSelector":` + ours + `},"namespaceSelector":` + shop + `}]},` +
				`{"ports":[{"protocol":"TCP","port":8080}],"to":[{"ipBlock":{"cidr":"10.241.0.2/32"}},{"ipBlock":{"cidr":"10.242.0.1/32"}}]},` +
				`{"ports":[{"protocol":"TCP","port":9090}],"to":[{"ipBlock":{"cidr":"10.241.0.1/32"}}]}],"policyTypes":["Egress"]}`, nil,
		},
		"the Internet": {
			`{podSelector: {}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 1.0.0.0/8, except: [1.1.1.1/32]}}], ports: [{port: 443, endPort: 444}]}]}`,
			`{"podSelector":` + ours + `},"egress":[{"ports":[{"protocol":"TCP","port":443,"endPort":444}],"to":[{"ipBlock":{"cidr":"1.0.0.0/8","except":["1.1.1.1/32"]}}]}],"policyTypes":["Egress"]}`, nil,
		},
		"home's own range, but for a part": {
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.2.0/24]}}]}]}`,
			`{"podSelector":` + ours + `},"ingress":[{"from":[{"ipBlock":{"cidr":"10.241.0.0/16","except":["10.241.2.0/24"]}}]}],"policyTypes":["Ingress"]}`, nil,
		},
		"a private range has no meaning there": {
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 192.168.0.0/16}}]}]}`,
			`{"podSelector":` + ours + `},"policyTypes":["Ingress"]}`,
			[]string{"ingress rule 1: 192.168.0.0/16 is a private range"},
		},
		"pods abroad by some of their addresses": {
			`{podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 198.18.3.1/32}}]}]}`,
			`{"podSelector":` + ours + `},"policyTypes":["Ingress"]}`,
			[]string{"ingress rule 1: 198.18.3.1/32 has some of the addresses of pods abroad"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec, notes := abroad(t, tc.spec)
			got, err := json.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			a, b := canonical(t, string(got)), canonical(t, tc.want)
			if a != b {
				t.Errorf("got\n%s\nwant\n%s", a, b)
			}
			for _, want := range tc.notes {
				if !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
					t.Errorf("notes are %q, want one that begins with %q", notes, want)
				}
			}
			if len(notes) != len(tc.notes) && name != "pods abroad by some of their addresses" {
				t.Errorf("notes are %q", notes)
			}
		})
	}
}

// canonical is JSON with its keys in order.
func canonical(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestTooMuchIsClosed(t *testing.T) {
	t.Parallel()
	w := testWorld()
	var many []Pod
	for i := range 2 * maxAddresses {
		many = append(many, Pod{Namespace: "shop", Labels: map[string]string{"app": "web"}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})}})
	}
	w.Pods = func(string) []Pod { return many }
	spec := specOf(t, `{podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}`)
	for range 2 * maxRules {
		spec.Ingress = append(spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "1.0.0.0/8", Except: []string{"1.1.0.0/16", "1.3.0.0/16"}}}}})
	}
	p, notes := Leave("shop", spec, w)
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(data); err != nil {
		t.Errorf("the provider refuses it: %v", err)
	}
	if len(data) > MaxBytes || len(notes) < 2 || len(notes) > maxNotes {
		t.Errorf("%d bytes, notes %q", len(data), notes)
	}
	out, left := Admit(&p, testHere())
	total := 0
	for _, r := range out.Ingress {
		total += len(r.From)
		if len(r.From) == 0 {
			t.Error("a rule opens to all")
		}
	}
	if total > maxAdmitted {
		t.Errorf("%d peers, %d left out", total, left)
	}
}

func TestTooManyBlocksAreLeftOutHere(t *testing.T) {
	t.Parallel()
	here := testHere()
	for i := range 3 * maxAdmitted {
		// No two of them join.
		own := netip.AddrFrom4([4]byte{10, 3, byte(i >> 8), byte(i)})
		alias := netip.AddrFrom4([4]byte{10, 128 + byte(i>>15), byte(i >> 7), byte(i << 1)})
		here.Mappings = append(here.Mappings, Mapping{netip.PrefixFrom(own, 32), netip.PrefixFrom(alias, 32)})
	}
	spec, left := Admit(&Policy{Ingress: &[]Rule{{Blocks: []networkingv1.IPBlock{{CIDR: "10.3.0.0/16"}}}, {Blocks: []networkingv1.IPBlock{{CIDR: "10.3.0.0/16"}}}}}, here)
	if len(spec.Ingress) != 1 || len(spec.Ingress[0].From) != maxAdmitted || left != 5*maxAdmitted {
		t.Errorf("%d rules, %d left out", len(spec.Ingress), left)
	}
}

func TestHostilePoliciesAreRefused(t *testing.T) {
	t.Parallel()
	blocks := func(n int, b networkingv1.IPBlock) []Rule {
		return []Rule{{Blocks: slices.Repeat([]networkingv1.IPBlock{b}, n)}}
	}
	for want, rules := range map[string][]Rule{
		"more than 256 rules":                        slices.Repeat([]Rule{{}}, maxRules+1),
		"more than 256 selectors of pods":            {{Pods: slices.Repeat([]Pods{{All: true}}, maxSelectors+1)}},
		"more than 4096 namespaces":                  {{Pods: []Pods{{Namespaces: slices.Repeat([]string{"x"}, maxNamespaces+1)}}}},
		"more than 5000 addresses of pods elsewhere": {{Addresses: slices.Repeat([]string{"10.1.0.1"}, maxAddresses+1)}},
		"more than 1000 ipBlocks":                    blocks(maxBlocks+1, networkingv1.IPBlock{CIDR: "1.0.0.0/8"}),
		"more than 1000 ipBlocks with":               blocks(maxBlocks/2+1, networkingv1.IPBlock{CIDR: "1.0.0.0/8", Except: []string{"1.1.1.1/32"}}),
		"more than 1024 ports":                       {{Ports: slices.Repeat([]networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(1))}}, maxPorts+1)}},
		"more than 4096 requirements": {{Pods: []Pods{{All: true, Selector: metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "a", Operator: metav1.LabelSelectorOpIn, Values: slices.Repeat([]string{"v"}, maxRequirements)},
		}}}}}},
		"is not a range":             blocks(1, networkingv1.IPBlock{CIDR: "10.0.0.0/33"}),
		"is not a range of":          blocks(1, networkingv1.IPBlock{CIDR: "::ffff:10.0.0.0/104"}),
		"so it cannot be excepted":   blocks(1, networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"0.0.0.0/0"}}),
		"is not an address":          {{Addresses: []string{"10.1.0.0/16"}}},
		"is not an address of a pod": {{Addresses: []string{"fe80::1%eth0"}}},
	} {
		for _, p := range []Policy{{Ingress: &rules}, {Egress: &rules}} {
			data, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Read(data); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
	}
	for text, want := range map[string]string{
		`{}`: "restricts neither", `{"egress":[],"names":["SCTP"]}`: "cannot be resolved by", `{"egress":[],"names":["UDP","UDP","UDP"]}`: "3 protocols", `[]`: "cannot unmarshal",
	} {
		if _, err := Read([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A rule without peers opens to all, so one that is left without any goes.
func TestARuleWithoutPeersGoes(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]Rule{
		"no peer": {}, "an address without an alias here": {Addresses: []string{"10.9.9.9"}}, "a private range": {Blocks: []networkingv1.IPBlock{{CIDR: "192.168.0.0/16"}}},
		"no namespace": {Pods: []Pods{{}}}, "what is excepted": {Blocks: []networkingv1.IPBlock{{CIDR: "10.1.0.0/15", Except: []string{"10.1.0.0/16"}}}},
	} {
		spec, _ := Admit(&Policy{Ingress: &[]Rule{r}, Egress: &[]Rule{r}}, testHere())
		if len(spec.Ingress)+len(spec.Egress) > 0 || len(spec.PolicyTypes) != 2 {
			t.Errorf("%s: %+v", name, spec)
		}
	}
}

func TestNamesOfPoliciesHere(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 253)
	if Name("deny-all") != "home-deny-all" || len(Name(long)) != 253 || Name(long) == Name(long[:252]+"b") {
		t.Errorf("%s, %s", Name("deny-all"), Name(long))
	}
}

func TestAPolicyAllowsTheResolverOfNames(t *testing.T) {
	t.Parallel()
	pod := Pod{
		Namespace: "dns", Labels: map[string]string{"a": "b"}, Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.9")},
		Ports: []corev1.ContainerPort{{Name: "udp-53", ContainerPort: 5353, Protocol: corev1.ProtocolUDP}, {Name: "t", ContainerPort: 53, Protocol: corev1.ProtocolTCP}},
	}
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "dns"}, Spec: corev1.ServiceSpec{
		ClusterIPs: []string{"10.96.0.10"}, Selector: map[string]string{"a": "b"},
		Ports: []corev1.ServicePort{
			{Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromString("udp-53")}, {Port: 53, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(53)}, {Port: 9153, Protocol: corev1.ProtocolSCTP},
		},
	}}
	var got []string
	for _, x := range servers(s, func(ns string) []Pod { return map[string][]Pod{"dns": {pod, {Namespace: "dns"}}}[ns] }) {
		got = append(got, fmt.Sprint(x.Pod != nil, x.Address, x.Protocol, x.Port, x.Name))
	}
	want := []string{"false10.96.0.10UDP53", "true10.1.0.9UDP5353udp-53", "false10.96.0.10TCP53", "true10.1.0.9TCP53t"}
	for i := range got {
		got[i] = strings.ReplaceAll(got[i], " ", "")
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A provider that has no room for a policy keeps no part of it.
func TestAPolicyThatIsRefusedIsWantedAgain(t *testing.T) {
	t.Parallel()
	h := NewHome(Config{Client: fake.NewSimpleClientset(), Events: events.NewFakeRecorder(8), Log: slog.New(slog.DiscardHandler)})
	var wanted []peering.Object
	c := h.Open(ContractConfig{ID: "c", Node: "office", Want: func(o peering.Object) { wanted = append(wanted, o) }})
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "closed", UID: "u"}}
	for i, answer := range []*peering.Refusal{{Reason: peering.RefusedQuota, Message: "no room", Retryable: true}, nil, nil} {
		if err := c.want(np, &World{}); err != nil {
			t.Fatal(err)
		}
		if want := min(i+1, 2); len(wanted) != want {
			t.Errorf("planned %d times it was wanted %d times, want %d", i+1, len(wanted), want)
		}
		c.Ack(peering.Ack{Ref: refOf(np), Hash: wanted[0].Hash(), Refusal: answer})
	}
}

// gate refuses lists of a resource until it is opened.
type gate struct {
	mu     sync.Mutex
	closed map[string]bool
}

func (g *gate) open(resource string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.closed, resource)
}

func (g *gate) react(a ktesting.Action) (bool, runtime.Object, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if resource := a.GetResource().Resource; g.closed[resource] {
		return true, nil, apierrors.NewForbidden(a.GetResource().GroupResource(), "", errors.New("not yet"))
	}
	return false, nil, nil
}

// A pod of a namespace that was never offloaded before must not run without its policies for a moment.
func TestAPodIsUndecidedUntilItsPoliciesAreKnown(t *testing.T) {
	t.Parallel()
	closed := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "closed", UID: "u"}, Spec: *specOf(t, `{podSelector: {matchLabels: {app: web}}}`)}
	client := fake.NewSimpleClientset(closed, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"entente.dev/offloading": "enabled"}}})
	g := &gate{closed: map[string]bool{"networkpolicies": true, "pods": true, "services": true}}
	client.PrependReactor("list", "*", g.react)
	var own, decided atomic.Bool
	h := NewHome(Config{
		Client: client, Events: events.NewFakeRecorder(8), Log: slog.New(slog.DiscardHandler), Abroad: func(peering.ClusterID) []netip.Prefix { return nil },
		Own: func() ([]netip.Prefix, error) {
			if !own.Load() {
				return nil, errors.New("no pod has an address")
			}
			return nil, nil
		},
	})
	var mu sync.Mutex
	var wanted []string
	c := h.Open(ContractConfig{
		ID: "c", Node: "office", Unwant: func(peering.ObjectRef) {}, Decided: func() { decided.Store(true) },
		Want: func(o peering.Object) { mu.Lock(); defer mu.Unlock(); wanted = append(wanted, o.Ref.Name) },
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { <-done })
	web, other := map[string]string{"app": "web"}, map[string]string{"app": "other"}
	says := func(labels map[string]string, words ...string) {
		t.Helper()
		waittest.Eventually(t, strings.Join(words, ", "), func() bool {
			text := c.Undecided("shop", labels)
			return (text == "") == (len(words) == 0) && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
		})
	}
	opens := func(resource string) {
		t.Helper()
		decided.Store(false)
		g.open(resource)
		waittest.Eventually(t, "it is announced that "+resource+" are known", decided.Load)
	}
	says(web, "the NetworkPolicies of this cluster are not known yet", "list NetworkPolicies: ", "not yet")
	says(other, "the NetworkPolicies of this cluster are not known yet")
	opens("networkpolicies")
	says(other)
	says(web, "NetworkPolicy closed selects the pod", "list pods: ", "not yet")
	g.open("pods")
	says(web, "NetworkPolicy closed selects the pod", "find the resolver: ", "not yet")
	opens("services")
	says(web, "NetworkPolicy closed selects the pod", "no pod has an address")
	own.Store(true)
	says(web)
	data, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: web}})
	if err != nil {
		t.Fatal(err)
	}
	c.Pod(peering.Object{Ref: peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: "p"}, JSON: data})
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(wanted, []string{"closed"}) {
		t.Errorf("before the pod %q was wanted", wanted)
	}
}

// A policy of a consumer lets pods in that reach its pods here directly. It does not let its pods out to what nobody but the
// consumer says is a pod of its own.
func TestSourcesMayComeInAndNotBeReached(t *testing.T) {
	t.Parallel()
	here := testHere()
	here.Sources = []Mapping{{netip.MustParsePrefix("198.18.9.1/32"), netip.MustParsePrefix("10.243.0.9/32")}, {netip.MustParsePrefix("198.18.9.1/32"), netip.MustParsePrefix("10.243.0.0/24")}}
	rule := []Rule{{Addresses: []string{"198.18.9.1"}}}
	spec, _ := Admit(&Policy{Ingress: &rule, Egress: &rule}, here)
	count := func(peers []networkingv1.NetworkPolicyPeer) (out []string) {
		for _, p := range peers {
			out = append(out, p.IPBlock.CIDR)
		}
		return out
	}
	if got := count(spec.Ingress[0].From); !slices.Equal(got, []string{"10.242.0.1/32", "10.243.0.9/32"}) {
		t.Errorf("from %v", got)
	}
	if got := count(spec.Egress[0].To); !slices.Equal(got, []string{"10.242.0.1/32"}) {
		t.Errorf("to %v", got)
	}
}
