package placement

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

func TestNodeLabels(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 40) + "/" + strings.Repeat("b", 40)
	for name, tc := range map[string]struct {
		peer, own, contract, want map[string]string
		lost                      []string
	}{
		"labels have a prefix":            {peer: map[string]string{"tier": "iron", "example.com/site": "n"}, want: map[string]string{"peer.entente.dev/tier": "iron", "peer.entente.dev/example.com_site": "n"}},
		"but the node's own have none":    {own: map[string]string{v1alpha1.LabelPeer: "p", v1alpha1.LabelLatency: "5", "x": "y"}, want: map[string]string{v1alpha1.LabelPeer: "p", v1alpha1.LabelLatency: "5"}},
		"which a peer cannot forge":       {peer: map[string]string{v1alpha1.LabelPrice: "0", v1alpha1.LabelPeer: "q"}, own: map[string]string{v1alpha1.LabelPeer: "p"}, want: map[string]string{v1alpha1.LabelPeer: "p"}},
		"what is too long is lost":        {peer: map[string]string{long: "x"}, lost: []string{long}},
		"so are two that become one":      {peer: map[string]string{"a/b": "1", "a_b": "2", "c": "3"}, want: map[string]string{"peer.entente.dev/c": "3"}, lost: []string{"a/b", "a_b"}},
		"unless they are equal":           {peer: map[string]string{"a/b": "1", "a_b": "1"}, want: map[string]string{"peer.entente.dev/a_b": "1"}},
		"of a peer that is not known yet": {},
		"the provider describes its nodes": {
			contract: map[string]string{corev1.LabelArchStable: "arm64", corev1.LabelTopologyRegion: "eu", corev1.LabelTopologyZone: "eu-1", "nvidia.com/gpu.product": "H100", "x": "y", v1alpha1.LabelPrice: "0", v1alpha1.LabelGPU: "nvidia.com"},
			own:      map[string]string{v1alpha1.LabelPrice: "7"},
			want:     map[string]string{corev1.LabelArchStable: "arm64", corev1.LabelTopologyRegion: "eu", corev1.LabelTopologyZone: "eu-1", "nvidia.com/gpu.product": "H100", v1alpha1.LabelPrice: "7"},
		},
		"unless home knows better": {
			peer:     map[string]string{corev1.LabelTopologyRegion: "us"},
			contract: map[string]string{corev1.LabelTopologyRegion: "eu"},
			want:     map[string]string{corev1.LabelTopologyRegion: "us", "peer.entente.dev/topology.kubernetes.io_region": "us"},
		},
		"or the value is malformed": {contract: map[string]string{corev1.LabelTopologyRegion: "e u", corev1.LabelTopologyZone: long + long}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, lost := NodeLabels(tc.peer, tc.own, tc.contract)
			if tc.want == nil {
				tc.want = map[string]string{}
			}
			if diff := cmp.Diff(tc.want, node); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, key := range tc.lost {
				if lost[key] == "" {
					t.Errorf("%s is not reported as lost", key)
				}
			}
			if len(lost) != len(tc.lost) {
				t.Errorf("lost are %v", lost)
			}
			for key := range node {
				if problems := validation.IsQualifiedName(key); len(problems) > 0 {
					t.Errorf("%s is not a label: %v", key, problems)
				}
			}
		})
	}
}

// Home offers a namespace to the virtual nodes on which the scheduler may put its pods, whatever
// the labels and the selector are.
func TestHomeAndTheSchedulerSelectTheSameNodes(t *testing.T) {
	t.Parallel()
	keys := []string{"a", "a/b", "a_b", "c", v1alpha1.LabelPeer, v1alpha1.LabelLatency, v1alpha1.LabelPrice, corev1.LabelTopologyRegion, v1alpha1.LabelGPU, strings.Repeat("a", 40) + "/" + strings.Repeat("b", 40)}
	values := []string{"1", "2"}
	selected := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		some := func() map[string]string {
			out := map[string]string{}
			for _, k := range keys {
				if r.IntN(2) == 0 {
					out[k] = values[r.IntN(2)]
				}
			}
			return out
		}
		s := &metav1.LabelSelector{}
		for range 1 + r.IntN(2) {
			e := metav1.LabelSelectorRequirement{Key: keys[r.IntN(len(keys))], Operator: []metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist"}[r.IntN(4)]}
			if e.Operator == "In" || e.Operator == "NotIn" {
				e.Values = values[:1+r.IntN(2)]
			}
			s.MatchExpressions = append(s.MatchExpressions, e)
		}
		node, _ := NodeLabels(some(), some(), some())
		is := Selects(s, node)
		scheduler, err := nodeaffinity.NewNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: Selector(s)}}})
		if err != nil {
			continue // what is too long matches nothing, and the API server refuses the pod
		}
		if is != scheduler.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node}}) {
			t.Errorf("seed %d: home returns %t for %v by %v", seed, is, node, s)
		}
		if is {
			selected++
		}
	}
	if selected < 300 {
		t.Errorf("only %d were selected", selected)
	}
}

func TestLatencyHasAClass(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		was, want string
		roundTrip time.Duration
	}{
		{"", "2", 40 * time.Microsecond},
		{"", "20", 12 * time.Millisecond},
		{"", "10000", time.Minute},
		{"20", "20", 23 * time.Millisecond},
		{"20", "50", 25 * time.Millisecond},
		{"50", "50", 17 * time.Millisecond},
		{"50", "20", 15 * time.Millisecond},
		{"2", "2", 0},
		{"7", "5", 3 * time.Millisecond},
		{"0x5", "10", 6 * time.Millisecond},
		{"10000", "10000", time.Hour},
	} {
		if got := Latency(tc.was, tc.roundTrip); got != tc.want {
			t.Errorf("%s of one in class %q is in class %s, want %s", tc.roundTrip, tc.was, got, tc.want)
		}
	}
}

// A round trip that goes to and fro by a tenth changes its class once at most.
func TestLatencyStays(t *testing.T) {
	t.Parallel()
	for micros := 100; micros < 2_000_000; micros += 97 + micros/50 {
		r := rand.New(rand.NewPCG(uint64(micros), 2))
		middle := time.Duration(micros) * time.Microsecond
		class, changes := Latency("", middle), 0
		for range 50 {
			is := Latency(class, time.Duration(float64(middle)*(0.91+0.18*r.Float64())))
			if is != class {
				changes++
			}
			class = is
		}
		if changes > 1 || !IsLatency(class) {
			t.Errorf("around %s the class changes %d times, to %s", middle, changes, class)
		}
	}
}

func TestGPUsHaveALabel(t *testing.T) {
	t.Parallel()
	for resources, want := range map[string]string{
		"cpu=4":                              "",
		"nvidia.com/gpu=2":                   "nvidia.com",
		"nvidia.com/gpu=0":                   "",
		"nvidia.com/mig-1g.5gb=7":            "nvidia.com",
		"nvidia.com/gpu.shared=7":            "nvidia.com",
		"gpu.intel.com/i915=1":               "gpu.intel.com",
		"amd.com/gpu=1,nvidia.com/gpu=1":     "amd.com_nvidia.com",
		"example.com/fpga=1,smarter/mice=1":  "",
		strings.Repeat("a", 70) + ".a/gpu=1": "",
	} {
		list := corev1.ResourceList{}
		for item := range strings.SplitSeq(resources, ",") {
			name, amount, _ := strings.Cut(item, "=")
			list[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
		if got := GPU(list)[v1alpha1.LabelGPU]; got != want {
			t.Errorf("%s has the label %q, want %q", resources, got, want)
		}
	}
}

func TestPriceFitsALabel(t *testing.T) {
	t.Parallel()
	list := func(currency string, kv ...string) peering.PriceList {
		p := peering.PriceList{Currency: currency, PerHour: map[string]peering.Decimal{}}
		for i := 0; i < len(kv); i += 2 {
			d, err := peering.ParseDecimal(kv[i+1])
			if err != nil {
				t.Fatal(err)
			}
			p.PerHour[kv[i]] = d
		}
		return p
	}
	for name, tc := range map[string]struct {
		list            peering.PriceList
		price, currency string
	}{
		"free":                        {peering.PriceList{}, "0", ""},
		"core and memory":             {list("EUR", "cpu", "0.02", "memory", "0.005"), "40", "EUR"},
		"less than a thousandth":      {list("EUR", "cpu", "0.000000001"), "1", "EUR"},
		"a resource it has not":       {list("USD", "nvidia.com/gpu", "3"), "0", "USD"},
		"as much as can be expressed": {list("EUR", "cpu", "999999999.999999999"), "1000000000000", "EUR"},
		"more than can be expressed":  {list("EUR", "cpu", "999999999.999999999", "pods", "1"), "", ""},
		"a pod costs something, too":  {list("EUR", "pods", "0.01"), "10", "EUR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Price(tc.list)
			if got[v1alpha1.LabelPrice] != tc.price || got[v1alpha1.LabelCurrency] != tc.currency {
				t.Errorf("it is %v", got)
			}
			if tc.price != "" {
				if _, err := strconv.ParseInt(tc.price, 10, 64); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
