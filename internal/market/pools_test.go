package market

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fixture"
	"github.com/entente-dev/entente/peering"
)

// nodePool is a pool of the nodes with one label.
func nodePool(name, key, value string, edit ...func(*v1alpha1.NodePool)) v1alpha1.NodePool {
	p := v1alpha1.NodePool{Name: name, NodeSelector: map[string]v1alpha1.LabelValue{key: v1alpha1.LabelValue(value)}}
	for _, e := range edit {
		e(&p)
	}
	return p
}

func withLimits(percent int32, amounts corev1.ResourceList) func(*v1alpha1.NodePool) {
	return func(p *v1alpha1.NodePool) {
		p.Limits = &v1alpha1.PolicyLimits{PercentOfFree: &percent, Resources: amounts}
	}
}

func tolerating(t ...v1alpha1.PoolToleration) func(*v1alpha1.NodePool) {
	return func(p *v1alpha1.NodePool) { p.Tolerations = t }
}

// pooled is a policy for all peers that offers everything of its pools.
func pooled(pools ...v1alpha1.NodePool) *v1alpha1.PeeringPolicy {
	all := int32(100)
	return &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "pools"}, Spec: v1alpha1.PeeringPolicySpec{
		Limits: v1alpha1.PolicyLimits{PercentOfFree: &all}, Pools: pools, NodeSelectorKeys: []string{corev1.LabelArchStable, "zone"},
	}}
}

func labelled(pairs ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, p := range pairs {
			key, value, _ := strings.Cut(p, "=")
			n.Labels[key] = value
		}
	}
}

// marketOf is a market of nodes, in which everybody asks by one policy.
func marketOf(t interface {
	Helper()
	Fatal(...any)
}, policy *v1alpha1.PeeringPolicy, nodes []corev1.Node, reserved ...Reservation,
) *Market {
	t.Helper()
	m := Market{Supply: NewSupply(nodes, nil), Policies: ReadPolicies([]v1alpha1.PeeringPolicy{*policy}), Peers: map[peering.ClusterID]*v1alpha1.ForeignCluster{
		"p": {ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "q": {ObjectMeta: metav1.ObjectMeta{Name: "q"}},
	}}
	out, err := New(m, reserved)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// decide is what a peer gets by the policy that selects it.
func (m *Market) decide(peer peering.ClusterID, ask peering.Ask) (peering.Grant, error) {
	_, l, err := m.PolicyOf(peer)
	if err != nil {
		return peering.Grant{}, err
	}
	ask, policy, err := l.In(ask)
	if err != nil {
		return peering.Grant{}, err
	}
	return m.Decide(peer, ask, policy, "")
}

func TestInvalidPoolsOfferNothing(t *testing.T) {
	t.Parallel()
	two := func(a, b map[string]v1alpha1.LabelValue) []v1alpha1.NodePool {
		return []v1alpha1.NodePool{{Name: "a", NodeSelector: a}, {Name: "b", NodeSelector: b}}
	}
	type labels = map[string]v1alpha1.LabelValue
	for name, tt := range map[string]struct {
		pools   []v1alpha1.NodePool
		message string
	}{
		"two that are apart":         {two(labels{"kind": "x", "zone": "1"}, labels{"kind": "y", "zone": "1"}), ""},
		"a label that one has":       {two(labels{"kind": "x"}, labels{"zone": "1"}), "a node may be in pool a, too"},
		"one within the other":       {two(labels{"kind": "x"}, labels{"kind": "x", "zone": "1"}), "a node may be in pool a, too"},
		"the same name twice":        {[]v1alpha1.NodePool{nodePool("a", "kind", "x"), nodePool("a", "kind", "y")}, "a node may be in pool a, too"},
		"all nodes":                  {two(nil, labels{"kind": "x"}), "a name and a nodeSelector"},
		"no name":                    {[]v1alpha1.NodePool{nodePool("", "kind", "x")}, "a name and a nodeSelector"},
		"a name that is not a label": {[]v1alpha1.NodePool{nodePool("A.b", "kind", "x")}, "its name is not"},
		"a malformed label":          {[]v1alpha1.NodePool{nodePool("a", "kind", "x y")}, "nodeSelector"},
		"a malformed price": {[]v1alpha1.NodePool{nodePool("a", "kind", "x", func(p *v1alpha1.NodePool) {
			p.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "dear"}}
		})}, "price"},
		"a label of nodes that is not": {[]v1alpha1.NodePool{nodePool("a", "kind", "x", func(p *v1alpha1.NodePool) { p.NodeLabels = map[string]string{"a b": ""} })}, "nodeLabels"},
		"a toleration of everything":   {[]v1alpha1.NodePool{nodePool("a", "kind", "x", tolerating(v1alpha1.PoolToleration{Operator: "Exists"}))}, "tolerates all taints"},
		"a toleration of virtual nodes": {[]v1alpha1.NodePool{
			nodePool("a", "kind", "x", tolerating(v1alpha1.PoolToleration{Key: v1alpha1.TaintVirtualNode, Operator: "Exists"})),
		}, "it would be passed on to another provider"},
		"too many tolerations": {[]v1alpha1.NodePool{nodePool("a", "kind", "x", tolerating(make([]v1alpha1.PoolToleration, 9)...))}, "more than 8"},
		"too many":             {make([]v1alpha1.NodePool, peering.MaxPools+1), "more than 16"},
	} {
		p := readPolicy(pooled(tt.pools...))
		_, err := p.Checked()
		e := peering.AsError(err)
		switch {
		case tt.message == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case tt.message != "" && (err == nil || e.Err == nil || !strings.Contains(e.Err.Error(), tt.message)):
			t.Errorf("%s: %v, want %q", name, e, tt.message)
		}
	}
}

func TestAPoolHasItsOwnTerms(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{
		fixture.Node("g1", labelled("kind=gpu", "zone=a", "kubernetes.io/arch=amd64")), fixture.Node("g2", labelled("kind=gpu", "zone=b", "kubernetes.io/arch=amd64")),
		fixture.Node("c1", labelled("kind=cpu", "zone=a", "kubernetes.io/arch=arm64", "secret=x")), fixture.Node("c2", labelled("kind=cpu", "zone=a", "kubernetes.io/arch=arm64", "secret=x")),
		fixture.Node("other"),
	}
	policy := pooled(
		nodePool("gpu", "kind", "gpu", withLimits(50, nil), func(p *v1alpha1.NodePool) {
			p.Price = &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "2"}}
			p.NodeLabels = map[string]string{"gpu.example/model": "h100"}
		}),
		nodePool("default", "kind", "cpu", withLimits(100, fixture.Amounts("5", "10Gi", "200"))),
	)
	selector := func(pairs ...string) map[string]string {
		out := map[string]string{}
		for _, p := range pairs {
			key, value, _ := strings.Cut(p, "=")
			out[key] = value
		}
		return out
	}
	all := peering.Resources{}
	reserved := func(peer peering.ClusterID, amounts, pairs string) Reservation {
		parsed := map[string]string{}
		for a := range strings.SplitSeq(amounts, ", ") {
			name, q, _ := strings.Cut(a, "=")
			parsed[name] = q
		}
		return Reservation{Peer: peer, Contract: string(peer) + pairs, Amounts: resourcesOf(t, parsed), Selector: selector(pairs)}
	}
	for name, tt := range map[string]struct {
		ask      peering.Ask
		reserved []Reservation
		want     string
		labels   string
		message  string
	}{
		"half of the GPU nodes":                  {ask: peering.Ask{Pool: "gpu"}, want: "cpu=4, memory=8Gi, pods=110", labels: "gpu.example/model=h100 kind=gpu kubernetes.io/arch=amd64 kubernetes.io/os=linux"},
		"an ask without a pool gets the default": {ask: peering.Ask{}, want: "cpu=5, memory=10Gi, pods=200", labels: "kind=cpu kubernetes.io/arch=arm64 kubernetes.io/os=linux zone=a"},
		"or names it":                            {ask: peering.Ask{Pool: "default"}, want: "cpu=5, memory=10Gi, pods=200", labels: "kind=cpu kubernetes.io/arch=arm64 kubernetes.io/os=linux zone=a"},
		"some nodes of a pool":                   {ask: peering.Ask{Pool: "gpu", NodeSelector: selector("zone=a")}, want: "cpu=2, memory=4Gi, pods=55", labels: "gpu.example/model=h100 kind=gpu kubernetes.io/arch=amd64 kubernetes.io/os=linux zone=a"},
		"the pool's own label":                   {ask: peering.Ask{Pool: "gpu", NodeSelector: selector("kind=gpu")}, want: "cpu=4, memory=8Gi, pods=110", labels: "gpu.example/model=h100 kind=gpu kubernetes.io/arch=amd64 kubernetes.io/os=linux"},
		"another pool's label":                   {ask: peering.Ask{Pool: "gpu", NodeSelector: selector("kind=cpu")}, message: "choose no nodes by the label kind"},
		"a label that is not selectable":         {ask: peering.Ask{NodeSelector: selector("secret=x")}, message: "choose no nodes by the label secret"},
		"a pool that is not there":               {ask: peering.Ask{Pool: "spot"}, message: "offers no pool spot to this peer, but default, gpu"},
		"what others have of another pool":       {ask: peering.Ask{Pool: "gpu"}, reserved: []Reservation{reserved("q", "cpu=8, memory=16Gi, pods=220", "kind=cpu"), reserved("p", "cpu=8, memory=16Gi, pods=220", "kind=cpu")}, want: "cpu=4, memory=8Gi, pods=110"},
		"what it has of this one":                {ask: peering.Ask{Pool: "gpu"}, reserved: []Reservation{reserved("p", "cpu=1, memory=1Gi, pods=10", "kind=gpu")}, want: "cpu=3, memory=7Gi, pods=100"},
		"what it has of a part of it":            {ask: peering.Ask{Pool: "gpu"}, reserved: []Reservation{{Peer: "p", Contract: "x", Amounts: resourcesOf(t, map[string]string{"cpu": "1"}), Selector: selector("kind=gpu", "zone=b")}}, want: "cpu=3, memory=8Gi, pods=110"},
		"what another has of this one":           {ask: peering.Ask{Pool: "gpu"}, reserved: []Reservation{reserved("q", "cpu=5, memory=1Gi, pods=10", "kind=gpu")}, want: "cpu=3, memory=8Gi, pods=110"},
		"what another has of any node":           {ask: peering.Ask{Pool: "gpu"}, reserved: []Reservation{{Peer: "q", Contract: "any", Amounts: resourcesOf(t, map[string]string{"cpu": "18"}), Selector: nil}}, want: "cpu=2, memory=8Gi, pods=110"},
		"more than the pool's own ceiling":       {ask: peering.Ask{Resources: resourcesOf(t, map[string]string{"cpu": "6"})}, message: "at most cpu 5"},
		"as many pods as are the ask's due":      {ask: peering.Ask{Pool: "gpu", Resources: resourcesOf(t, map[string]string{"cpu": "2"})}, want: "cpu=2, pods=55"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.ask.RequestID = "r"
			if tt.ask.Resources == nil {
				tt.ask.Resources = all
			}
			g, err := marketOf(t, policy, nodes, tt.reserved...).decide("p", tt.ask)
			if tt.message != "" {
				if err == nil || !strings.Contains(err.Error(), tt.message) {
					t.Fatalf("got %v, %v; want %q", g.Resources, err, tt.message)
				}
				return
			}
			if err != nil || g.Resources.String() != tt.want {
				t.Fatalf("got %s, %v; want %s", g.Resources, err, tt.want)
			}
			if g.Pool != tt.ask.Pool {
				t.Errorf("it is of pool %q", g.Pool)
			}
			if want := map[bool]string{true: "2", false: "0"}[tt.ask.Pool == "gpu"]; g.Price.PerHour["cpu"].String() != want {
				t.Errorf("a core costs %v", g.Price)
			}
			if got := strings.Trim(strings.ReplaceAll(selectorKey(g.NodeLabels), ",", " "), " "); tt.labels != "" && got != tt.labels {
				t.Errorf("the node's labels are %s, want %s", got, tt.labels)
			}
		})
	}
}

func TestAnOfferHasEachPool(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{fixture.Node("g", labelled("kind=gpu")), fixture.Node("c", labelled("kind=cpu")), fixture.Node("other")}
	policy := pooled(nodePool("gpu", "kind", "gpu"), nodePool("cpu", "kind", "cpu", withLimits(50, nil)), nodePool("spot", "kind", "spot"))
	summary := func(o peering.Offer) string {
		text := fmt.Sprintf("%t %s", o.Available, o.Resources)
		for _, p := range o.Pools {
			text += fmt.Sprintf("; %s %s", p.Name, p.Resources)
		}
		return text
	}
	got := marketOf(t, policy, nodes).Offer("p")
	if text, want := summary(got), "false ; cpu cpu=2, memory=4Gi, pods=55; gpu cpu=4, memory=8Gi, pods=110; spot "; text != want {
		t.Errorf("offers %s, want %s", text, want)
	}
	if want := "ask for one of cpu, gpu, spot"; !strings.Contains(got.Message, want) {
		t.Errorf("the message is %q, want %q", got.Message, want)
	}
	policy.Spec.Accept = v1alpha1.AcceptAfterApproval
	if got = marketOf(t, policy, nodes).Offer("p"); !strings.Contains(got.Message, "approves each request") || len(got.Pools) != 3 {
		t.Errorf("the message is %q", got.Message)
	}
	policy.Spec.Accept = v1alpha1.AcceptNever
	if got = marketOf(t, policy, nodes).Offer("p"); got.Available || len(got.Pools) > 0 {
		t.Errorf("a policy that offers nothing offers %+v", got)
	}
	policy = pooled(nodePool("default", "kind", "cpu"), nodePool("gpu", "kind", "gpu"))
	if text, want := summary(marketOf(t, policy, nodes).Offer("p")), "true cpu=4, memory=8Gi, pods=110; default cpu=4, memory=8Gi, pods=110; gpu cpu=4, memory=8Gi, pods=110"; text != want {
		t.Errorf("offers %s, want %s", text, want)
	}
	var many []v1alpha1.NodePool
	labels := map[string]string{}
	for i := range 32 {
		labels[fmt.Sprintf("%s.example/%d", strings.Repeat("a", 63), i)] = strings.Repeat("v", 63)
	}
	for i := range peering.MaxPools {
		many = append(many, nodePool(fmt.Sprint("p", i), "kind", fmt.Sprint(i), func(p *v1alpha1.NodePool) { p.NodeLabels = labels }))
		nodes = append(nodes, fixture.Node(fmt.Sprint("n", i), labelled(fmt.Sprint("kind=", i))))
	}
	size := 0
	got = marketOf(t, pooled(many...), nodes).Offer("p")
	for _, p := range got.Pools {
		size += p.Size()
	}
	if size > peering.MaxPoolsSize || len(got.Pools) == peering.MaxPools || len(got.Pools) < 4 {
		t.Errorf("%d pools come to %d bytes", len(got.Pools), size)
	}
}

func TestAPoolIsGivenBackWhateverThePolicySays(t *testing.T) {
	t.Parallel()
	old := peering.Terms{NotAfter: now.AddDate(0, 0, 1), Clauses: peering.Clauses{
		Pool: "gpu", NodeSelector: map[string]string{"kind": "gpu", "zone": "a"}, Resources: resourcesOf(t, map[string]string{"cpu": "2", "pods": "10"}),
	}}
	less := peering.Ask{Pool: "gpu", NodeSelector: map[string]string{"zone": "a"}, Resources: resourcesOf(t, map[string]string{"cpu": "1", "pods": "10"})}
	if g, ok := Lessened(old, less, now); !ok || g.Pool != "gpu" || !maps.Equal(g.NodeSelector, old.NodeSelector) {
		t.Errorf("got %+v, %t", g, ok)
	}
	for name, edit := range map[string]func(*peering.Ask){
		"another pool": func(a *peering.Ask) { a.Pool = "cpu" },
		"no pool":      func(a *peering.Ask) { a.Pool = "" },
		"other nodes":  func(a *peering.Ask) { a.NodeSelector = map[string]string{"zone": "b"} },
		"more":         func(a *peering.Ask) { a.Resources = resourcesOf(t, map[string]string{"cpu": "3", "pods": "10"}) },
	} {
		ask := less
		edit(&ask)
		if g, ok := Lessened(old, ask, now); ok {
			t.Errorf("%s: gave %+v", name, g)
		}
	}
}

// tainted gives a node taints with these keys.
func tainted(keys ...string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		for _, key := range keys {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
}

func TestNodesWithTaintsAreOfferedByThePoolThatToleratesThem(t *testing.T) {
	t.Parallel()
	gpu := v1alpha1.PoolToleration{Key: "gpu", Operator: "Exists"}
	nodes := []corev1.Node{
		fixture.Node("g1", labelled("kind=gpu", "kubernetes.io/arch=arm64"), tainted("gpu")), fixture.Node("g2", labelled("kind=gpu", "kubernetes.io/arch=arm64"), tainted("gpu")),
		fixture.Node("g3", labelled("kind=gpu"), tainted("gpu", "broken")),
		fixture.Node("c1", labelled("kind=cpu")), fixture.Node("c2", labelled("kind=cpu"), tainted("gpu")),
		fixture.Node("other", tainted("mine")),
	}
	pools := pooled(nodePool("gpu", "kind", "gpu", tolerating(gpu)), nodePool("default", "kind", "cpu"))
	none := pooled()
	none.Spec.NodeSelectorKeys = []string{"kind"}
	reserved := func(cpu string, selector map[string]string, tolerations ...corev1.Toleration) Reservation {
		return Reservation{Peer: "q", Contract: "c", Amounts: resourcesOf(t, map[string]string{"cpu": cpu}), Selector: selector, Tolerations: tolerations}
	}
	ofGPU := map[string]string{"kind": "gpu"}
	for name, tt := range map[string]struct {
		policy   *v1alpha1.PeeringPolicy
		ask      peering.Ask
		reserved []Reservation
		want     string
		message  string
	}{
		"all of the pool's that it tolerates":     {policy: pools, ask: peering.Ask{Pool: "gpu"}, want: "cpu=8, memory=16Gi, pods=220"},
		"none of a pool that does not":            {policy: pools, want: "cpu=4, memory=8Gi, pods=110"},
		"none without pools":                      {policy: none, want: "cpu=4, memory=8Gi, pods=110"},
		"nor by their labels":                     {policy: none, ask: peering.Ask{NodeSelector: ofGPU}, message: "no node of the provider that takes pods of this contract has the labels kind=gpu"},
		"a contract on them takes from no others": {policy: pools, reserved: []Reservation{reserved("8", ofGPU)}, want: "cpu=4, memory=8Gi, pods=110"},
		"one on any nodes takes from none of them": {
			policy: pools, ask: peering.Ask{Pool: "gpu"}, reserved: []Reservation{reserved("4", nil)}, want: "cpu=8, memory=16Gi, pods=220",
		},
		"but from the others, which have no taint": {policy: pools, reserved: []Reservation{reserved("3", nil)}, want: "cpu=1, memory=8Gi, pods=110"},
		"a contract of a pool that is gone is on its nodes": {
			policy: none, reserved: []Reservation{reserved("8", ofGPU, corev1.Toleration{Key: "gpu", Operator: "Exists"})}, want: "cpu=4, memory=8Gi, pods=110",
		},
		"and of any nodes no more is offered for it": {policy: none, ask: peering.Ask{Resources: resourcesOf(t, map[string]string{"cpu": "5"})}, reserved: []Reservation{
			reserved("1", ofGPU, corev1.Toleration{Key: "gpu", Operator: "Exists"}),
		}, message: "cpu 4 is left now"},
		"half of the nodes without a taint": {policy: func() *v1alpha1.PeeringPolicy {
			half := none.DeepCopy()
			half.Spec.Limits.PercentOfFree = new(int32(50))
			return half
		}(), reserved: []Reservation{reserved("1", ofGPU, corev1.Toleration{Key: "gpu", Operator: "Exists"})}, want: "cpu=2, memory=4Gi, pods=55"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.ask.RequestID = "r"
			if tt.ask.Resources == nil {
				tt.ask.Resources = peering.Resources{}
			}
			m := marketOf(t, tt.policy, nodes, tt.reserved...)
			g, err := m.decide("p", tt.ask)
			if tt.message != "" {
				if err == nil || !strings.Contains(err.Error(), tt.message) {
					t.Fatalf("got %v, %v; want %q", g.Resources, err, tt.message)
				}
				return
			}
			if err != nil || g.Resources.String() != tt.want {
				t.Fatalf("got %s, %v; want %s", g.Resources, err, tt.want)
			}
			if want := map[bool]string{true: "arm64", false: "amd64"}[tt.ask.Pool == "gpu"]; g.NodeLabels[corev1.LabelArchStable] != want {
				t.Errorf("the node's labels are %v, want the architecture %s", g.NodeLabels, want)
			}
			if offer := m.Offer("p"); slices.Contains(offer.Architectures, "arm64") {
				t.Errorf("an offer to one that names no pool has the architectures %q", offer.Architectures)
			}
		})
	}
}

// Of nodes with one label some have a taint: a contract that tolerates it is on nodes that another has not.
func TestNodesOfAPoolWithAndWithoutItsTaintLeaveTheOthersTheirs(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{
		fixture.Node("g1", labelled("kind=gpu"), tainted("gpu")), fixture.Node("g2", labelled("kind=gpu")), fixture.Node("c1", labelled("kind=cpu")),
	}
	reserved := Reservation{
		Peer: "q", Contract: "c", Amounts: resourcesOf(t, map[string]string{"cpu": "5"}), Selector: map[string]string{"kind": "gpu"},
		Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
	}
	m := marketOf(t, pooled(), nodes, reserved)
	g, err := m.decide("p", peering.Ask{RequestID: "r", Resources: peering.Resources{}})
	if cpu := g.Resources["cpu"]; err != nil || cpu.String() != "7" {
		t.Errorf("got %s, %v; want the 7 CPUs that the other contract leaves", g.Resources, err)
	}
	if _, err := m.decide("p", peering.Ask{RequestID: "r", Resources: resourcesOf(t, map[string]string{"cpu": "8"})}); err == nil {
		t.Error("8 CPUs are granted, of which the other contract has one")
	}
}

// A toleration that a pool had when a contract was signed does not make the contract one of other nodes.
func TestAContractCountsAgainstItsPoolWhateverItTolerates(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{fixture.Node("g1", labelled("kind=gpu"), tainted("gpu")), fixture.Node("g2", labelled("kind=gpu"))}
	policy := pooled(nodePool("gpu", "kind", "gpu", withLimits(100, fixture.Amounts("4", "64Gi", "200"))))
	reserved := Reservation{
		Peer: "p", Contract: "c", Amounts: resourcesOf(t, map[string]string{"cpu": "3"}), Selector: map[string]string{"kind": "gpu"},
		Tolerations: []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}},
	}
	g, err := marketOf(t, policy, nodes, reserved).decide("p", peering.Ask{RequestID: "r", Pool: "gpu", Resources: peering.Resources{}})
	if cpu := g.Resources["cpu"]; err != nil || cpu.String() != "1" {
		t.Errorf("got %s, %v; want 1 CPU beside the 3 of 4 that the peer has", g.Resources, err)
	}
}

// Who wants nodes of a kind of its own may be one too many. Others go on getting what they get.
func TestTooManyKindsOfNodesRefuseNoneThatThereIs(t *testing.T) {
	t.Parallel()
	var nodes []corev1.Node
	var reserved []Reservation
	for i := range maxSelectors + 1 {
		zone := fmt.Sprint("z", i)
		nodes = append(nodes, fixture.Node(zone, labelled("zone="+zone)))
		reserved = append(reserved, Reservation{Peer: "q", Contract: zone, Amounts: resourcesOf(t, map[string]string{"cpu": "1"}), Selector: map[string]string{"zone": zone}})
	}
	in := func(zone string) peering.Ask {
		return peering.Ask{RequestID: "r", NodeSelector: map[string]string{"zone": zone}, Resources: peering.Resources{}}
	}
	last := fmt.Sprint("z", maxSelectors)
	if _, err := marketOf(t, pooled(), nodes, reserved[:maxSelectors]...).decide("p", in(last)); err == nil || !strings.Contains(err.Error(), "limit of 64 different sets of nodes") {
		t.Errorf("one set of nodes too many: %v", err)
	}
	all := marketOf(t, pooled(), nodes, reserved...) // as after a change of what pools tolerate
	for _, ask := range []peering.Ask{in("z0"), in(last), {RequestID: "r", Resources: peering.Resources{}}} {
		if _, err := all.decide("p", ask); err != nil {
			t.Errorf("an ask for nodes %v that others have: %v", ask.NodeSelector, err)
		}
	}
}

func TestAContractToleratesWhatItDidAndWhatItsPoolDoes(t *testing.T) {
	t.Parallel()
	exists := func(keys ...string) (out []corev1.Toleration) {
		for _, key := range keys {
			out = append(out, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
		}
		return out
	}
	of := func(keys ...string) func(*v1alpha1.NodePool) {
		var all []v1alpha1.PoolToleration
		for _, key := range keys {
			all = append(all, v1alpha1.PoolToleration{Key: key, Operator: "Exists"})
		}
		return tolerating(all...)
	}
	kept, gpu := exists("a"), map[string]string{"kind": "gpu", "zone": "1"}
	for name, tt := range map[string]struct {
		policy *v1alpha1.PeeringPolicy
		nodes  map[string]string
		want   []corev1.Toleration
	}{
		"the pool as it was":                 {pooled(nodePool("gpu", "kind", "gpu", of("a"))), gpu, kept},
		"the pool with another one":          {pooled(nodePool("gpu", "kind", "gpu", of("b", "a"))), gpu, exists("a", "b")},
		"the pool without it":                {pooled(nodePool("gpu", "kind", "gpu")), gpu, kept},
		"no pool any more":                   {pooled(), gpu, kept},
		"the pool under another name":        {pooled(nodePool("fast", "kind", "gpu", of("b"))), gpu, exists("a", "b")},
		"a pool of other nodes":              {pooled(nodePool("gpu", "kind", "cpu", of("b"))), gpu, kept},
		"a contract on any nodes":            {pooled(nodePool("gpu", "kind", "gpu", of("b"))), nil, kept},
		"a policy that is invalid otherwise": {pooled(nodePool("gpu", "kind", "gpu", of("b")), nodePool("gpu", "kind", "gpu")), gpu, kept},
	} {
		p := readPolicy(tt.policy)
		if got := p.Tolerations(kept, tt.nodes); !slices.Equal(got, tt.want) {
			t.Errorf("%s: it tolerates %+v, want %+v", name, got, tt.want)
		}
	}
	if len(kept) != 1 {
		t.Errorf("what it was signed with is %+v now", kept)
	}
}

// Whatever is asked for, and by whom: of no pool is more granted than its nodes have whose taints it
// tolerates, what is granted of a pool runs on its nodes, and its limits hold.
func TestPoolsNeverGrantMoreThanTheyHave(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawPoolWorld(t)
		ceiling := rapid.IntRange(1, 12).Draw(t, "ceiling")
		policy := pooled(
			nodePool("x", "kind", "x", w.tolerating("x")), nodePool("y", "kind", "y", w.tolerating("y")),
			nodePool("default", "kind", "z", w.tolerating("z"), withLimits(100, fixture.Amounts(fmt.Sprint(ceiling), "1000Gi", "1000"))),
		)
		var reserved []Reservation
		ofDefault, granted := map[peering.ClusterID]int64{}, int64(0)
		for i := range rapid.IntRange(1, 12).Draw(t, "asks") {
			peer := rapid.SampledFrom([]peering.ClusterID{"p", "q"}).Draw(t, "peer")
			ask := peering.Ask{RequestID: "r", Pool: rapid.SampledFrom([]string{"x", "y", "default", ""}).Draw(t, "pool"), Resources: peering.Resources{"cpu": peering.Whole(rapid.Int64Range(1, 6).Draw(t, "cpu"))}}
			if rapid.Bool().Draw(t, "zoned") {
				ask.NodeSelector = map[string]string{"zone": rapid.SampledFrom([]string{"1", "2"}).Draw(t, "of zone")}
			}
			m := marketOf(t, policy, w.nodes, reserved...)
			var offered int64
			for _, p := range m.Offer(peer).Pools {
				offered += p.Resources["cpu"].Units()
			}
			if left := 4*int64(len(w.of(nil))) - granted; offered > left {
				t.Fatalf("pools offer %d cores together, and %d are left of their nodes", offered, left)
			}
			g, err := m.decide(peer, ask)
			if err != nil {
				continue
			}
			kind := map[string]string{"x": "x", "y": "y", "default": "z", "": "z"}[ask.Pool]
			if g.NodeSelector["kind"] != kind || g.Pool != ask.Pool {
				t.Fatalf("asked for pool %q, and got %+v", ask.Pool, g.Clauses)
			}
			reserved = append(reserved, Reservation{Peer: peer, Contract: fmt.Sprint("c", i), Amounts: g.Resources, Selector: g.NodeSelector})
			granted += g.Resources["cpu"].Units()
			if kind == "z" {
				ofDefault[peer] += g.Resources["cpu"].Units()
			}
		}
		w.check(t, reserved)
		for peer, cores := range ofDefault {
			if cores > int64(ceiling) {
				t.Fatalf("%s has %d cores of the default pool, more than %d", peer, cores, ceiling)
			}
		}
	})
}

// poolWorld is a cluster with pools of the kinds x, y and z, and what each of them tolerates.
type poolWorld struct {
	nodes     []corev1.Node
	tolerates map[string][]string
}

func drawPoolWorld(t *rapid.T) poolWorld {
	w := poolWorld{tolerates: map[string][]string{}}
	taints := rapid.SampledFrom([][]string{nil, nil, {"a"}, {"b"}, {"a", "b"}})
	for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
		kind, zone := rapid.SampledFrom([]string{"x", "y", "z", "none"}).Draw(t, "kind"), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "zone")
		w.nodes = append(w.nodes, fixture.Node(fmt.Sprint("n", i), labelled("kind="+kind, "zone="+zone), tainted(taints.Draw(t, "taints")...)))
	}
	for _, kind := range []string{"x", "y", "z"} {
		w.tolerates[kind] = taints.Draw(t, "tolerates")
	}
	return w
}

func (w poolWorld) tolerating(kind string) func(*v1alpha1.NodePool) {
	var all []v1alpha1.PoolToleration
	for _, key := range w.tolerates[kind] {
		all = append(all, v1alpha1.PoolToleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	return tolerating(all...)
}

// of returns the nodes to which pods of a contract on these labels can come, by their number: those of a
// pool that tolerates all of their taints.
func (w poolWorld) of(selector map[string]string) (out []int) {
	for i := range w.nodes {
		n := &w.nodes[i]
		tolerates, ok := w.tolerates[n.Labels["kind"]]
		if ok && hasLabels(n.Labels, selector) && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return !slices.Contains(tolerates, t.Key) }) {
			out = append(out, i)
		}
	}
	return out
}

// check wants what is granted to have room: of any nodes no more is granted to contracts that can run nowhere else
// than they have. By Hall's theorem there is a place for each pod then.
func (w poolWorld) check(t *rapid.T, reserved []Reservation) {
	for some := range 1 << len(w.nodes) {
		granted := int64(0)
		for _, h := range reserved {
			nodes := w.of(h.Selector)
			if len(nodes) == 0 {
				t.Fatalf("%s is granted on no node: %v", h.Contract, h.Selector)
			}
			if !slices.ContainsFunc(nodes, func(i int) bool { return some&(1<<i) == 0 }) {
				granted += h.Amounts["cpu"].Units()
			}
		}
		if has := 4 * int64(bits.OnesCount(uint(some))); granted > has {
			t.Fatalf("of the nodes %b %d cores are granted, and they have %d", some, granted, has)
		}
	}
}

// Virtual nodes of contracts that have all of it go by what an offer says of the nodes.
func TestAnOfferDescribesNodesOfWhichNothingIsLeft(t *testing.T) {
	t.Parallel()
	nodes := []corev1.Node{fixture.Node("a", labelled("kind=gpu", "zone=a")), fixture.Node("b", labelled("kind=gpu", "zone=a"))}
	offered := func(policy *v1alpha1.PeeringPolicy, nodes []corev1.Node) string {
		o := marketOf(t, policy, nodes).Offer("p")
		if o.Available || len(o.Resources) > 0 {
			t.Fatalf("%+v is offered", o)
		}
		text := o.NodeLabels["zone"]
		for _, p := range o.Pools {
			if len(p.Resources) > 0 {
				t.Fatalf("of %s %s is offered", p.Name, p.Resources)
			}
			text += fmt.Sprintf(" %s:%s", p.Name, p.NodeLabels["zone"])
		}
		return text
	}
	nothing := withLimits(0, nil)
	policy := pooled(nodePool("default", "kind", "cpu", nothing), nodePool("gpu", "kind", "gpu", nothing))
	if got := offered(policy, nodes); got != " default: gpu:a" {
		t.Errorf("it says %q", got)
	}
	if got := offered(policy, append(nodes, fixture.Node("c", labelled("kind=gpu", "zone=b")), fixture.Node("d", labelled("kind=cpu", "zone=c")))); got != "c default:c gpu:" {
		t.Errorf("with other nodes it says %q", got)
	}
	policy.Spec.Accept = v1alpha1.AcceptNever
	if got := offered(policy, nodes); got != "" {
		t.Errorf("a policy that offers nothing says %q", got)
	}
}
