package gateways

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestChoosePrefersLabelledReachableAndWorkingNodes(t *testing.T) {
	t.Parallel()
	node := func(name string, edit ...func(*candidate)) candidate {
		n := candidate{name: name, able: true, works: true, free: true}
		for _, e := range edit {
			e(&n)
		}
		return n
	}
	labelled := func(as string) func(*candidate) { return func(n *candidate) { n.label = as } }
	gateway := func(n *candidate) { n.gateway = true }
	dead := func(n *candidate) { n.works = false }
	external := func(n *candidate) { n.external = true }
	tainted := func(n *candidate) { n.free = false }
	keyless := func(n *candidate) { n.able = false }
	for name, tc := range map[string]struct {
		nodes   []candidate
		failing failures
		want    string
	}{
		"without nodes there are no gateways":                  {},
		"the first by name":                                    {nodes: []candidate{node("c"), node("b"), node("a")}, want: "a b"},
		"no more than there are":                               {nodes: []candidate{node("a")}, want: "a"},
		"those that work first":                                {nodes: []candidate{node("a", dead), node("b"), node("c")}, want: "b c"},
		"one that does not work where there is no other":       {nodes: []candidate{node("a", dead)}, want: "a"},
		"none without a key":                                   {nodes: []candidate{node("a", keyless), node("b")}, want: "b"},
		"those that are labelled, and no others":               {nodes: []candidate{node("a"), node("b", labelled("true")), node("c", gateway)}, want: "b"},
		"all that are labelled, however many":                  {nodes: []candidate{node("a", labelled("true")), node("b", labelled("true")), node("c", labelled("true"), dead, keyless)}, want: "a b c"},
		"none that is labelled otherwise":                      {nodes: []candidate{node("a", labelled("false"), gateway), node("b"), node("c", labelled("sometimes"))}, want: "b"},
		"those with an external address first":                 {nodes: []candidate{node("a", gateway), node("b", gateway), node("c", external)}, want: "a c"},
		"those that are free of taints before others":          {nodes: []candidate{node("a", tainted), node("b"), node("c")}, want: "b c"},
		"those that are gateways stay":                         {nodes: []candidate{node("a"), node("b", gateway), node("c", gateway)}, want: "b c"},
		"one that died a moment ago stays":                     {nodes: []candidate{node("a"), node("b", gateway), node("c", gateway, dead)}, failing: failures{"c": now.Add(-time.Minute)}, want: "b c"},
		"one that died long ago gives way":                     {nodes: []candidate{node("a"), node("b", gateway), node("c", gateway, dead)}, failing: failures{"c": now.Add(-replaceAfter)}, want: "a b"},
		"one that died long ago stays where there is no other": {nodes: []candidate{node("b", gateway), node("c", gateway, dead)}, failing: failures{"c": now.Add(-replaceAfter)}, want: "b c"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(slices.Sorted(maps.Keys(choose(tc.nodes, tc.failing, 2, now))), " ")
			if got != tc.want {
				t.Errorf("gateways are %q, want %q", got, tc.want)
			}
		})
	}
}
