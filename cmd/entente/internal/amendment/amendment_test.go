package amendment

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

func list(pairs ...string) *ententev1.ResourceList {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return &ententev1.ResourceList{Amounts: m}
}

func TestTheWayBackNamesWhatChanged(t *testing.T) {
	t.Parallel()
	request := func(change func(*ententev1.Peering)) *ententev1.Peering {
		p := &ententev1.Peering{Name: "peerings/batch", Peer: "peers/office", Resources: list("cpu", "1"), PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "1"}, Duration: durationpb.New(time.Hour)}
		if change != nil {
			change(p)
		}
		return p
	}
	for name, tc := range map[string]struct {
		change     func(*ententev1.Peering)
		asks, undo string
	}{
		"nothing":           {},
		"amounts":           {func(p *ententev1.Peering) { p.Resources = list("cpu", "2") }, "cpu 2", "entente amend batch --resources cpu=1"},
		"the same amount":   {change: func(p *ententev1.Peering) { p.Resources = list("cpu", "1000m") }},
		"another amount":    {func(p *ententev1.Peering) { p.Resources = list("cpu", "1", "memory", "1Gi") }, "cpu 1, memory 1Gi", "entente amend batch --resources cpu=1,memory=0"},
		"the price ceiling": {func(p *ententev1.Peering) { p.PriceCeiling = nil }, "a price ceiling of any", `entente amend batch --price-ceiling "EUR 1"`},
		"the duration":      {func(p *ententev1.Peering) { p.Duration = durationpb.New(2 * time.Hour) }, "a duration of 2h", "entente amend batch --duration 1h0m0s"},
		"the tunnel":        {func(p *ententev1.Peering) { p.NoNetwork = true }, "no tunnel", "entente network connect office"},
	} {
		a := &Amendment{Before: request(nil), After: request(tc.change), Now: &ententev1.Contract{Resources: list("cpu", "1")}}
		if asks, undo := a.changes(); asks != tc.asks || undo != tc.undo {
			t.Errorf("%s: it asks for %q, and goes back by %q", name, asks, undo)
		}
	}
}

func TestAmendKeepsAmountsThatAreNotGiven(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ told, before, signed, want []string }{
		"others stay":                         {[]string{"cpu", "8"}, []string{"cpu", "4", "memory", "8Gi"}, []string{"cpu", "4"}, []string{"cpu", "8", "memory", "8Gi"}},
		"none of it, which has to be named":   {[]string{"cpu", "0"}, []string{"cpu", "4", "memory", "8Gi"}, nil, []string{"cpu", "0", "memory", "8Gi"}},
		"none of what only the contract has":  {[]string{"pods", "0"}, []string{"cpu", "4"}, []string{"cpu", "4", "pods", "9"}, []string{"cpu", "4", "pods", "0"}},
		"what was left to the policy is kept": {[]string{"cpu", "8"}, nil, []string{"cpu", "4", "memory", "8Gi"}, []string{"cpu", "8", "memory", "8Gi"}},
		"nothing before":                      {[]string{"cpu", "8"}, nil, nil, []string{"cpu", "8"}},
	} {
		before := list(tc.before...)
		got := Overlay(list(tc.told...), before, list(tc.signed...))
		if diff := cmp.Diff(list(tc.want...).GetAmounts(), got.GetAmounts()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff(list(tc.before...).GetAmounts(), before.GetAmounts()); diff != "" {
			t.Errorf("%s: it changed what was there\n%s", name, diff)
		}
	}
}
