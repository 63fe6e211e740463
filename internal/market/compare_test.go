package market

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/entente-dev/entente/peering"
)

func TestUnacceptableRefusesAWorseOffer(t *testing.T) {
	t.Parallel()
	ask := peering.Ask{
		Resources: resourcesOf(t, map[string]string{"cpu": "4"}), Duration: time.Hour, Network: true,
		PriceCeiling: peering.Money{Currency: "EUR", Amount: decimal(t, "0.4")},
		NodeSelector: map[string]string{"gpu": "a100"}, RuntimeClasses: []string{"gvisor"}, StorageClasses: []string{"fast"},
	}
	good := peering.Grant{
		Duration: time.Hour, StorageClasses: []string{"fast"},
		Clauses: peering.Clauses{
			Resources: resourcesOf(t, map[string]string{"cpu": "4", "pods": "20"}), Network: true, PodSecurity: peering.PodSecurityBaseline, Price: eur(t, "cpu", "0.1"), NodeSelector: map[string]string{"gpu": "a100"}, RuntimeClasses: []string{"gvisor", "kata"},
		},
	}
	current := &peering.Terms{Clauses: peering.Clauses{PodSecurity: peering.PodSecurityBaseline}}
	for name, tc := range map[string]struct {
		change func(*peering.Grant)
		why    string // empty: it is as good
	}{
		"as asked":              {func(*peering.Grant) {}, ""},
		"shorter":               {func(g *peering.Grant) { g.Duration = time.Minute }, ""},
		"free of charge":        {func(g *peering.Grant) { g.Price = peering.PriceList{} }, ""},
		"a weaker Pod Security": {func(g *peering.Grant) { g.PodSecurity = peering.PodSecurityPrivileged }, ""},
		"less":                  {func(g *peering.Grant) { g.Resources = resourcesOf(t, map[string]string{"cpu": "3"}) }, "3 of cpu"},
		"more":                  {func(g *peering.Grant) { g.Resources = resourcesOf(t, map[string]string{"cpu": "5"}) }, "5 of cpu"},
		"something else besides": {func(g *peering.Grant) {
			g.Resources = resourcesOf(t, map[string]string{"cpu": "4", "memory": "1", "pods": "20"})
		}, "not asked for"},
		"without a limit of pods":    {func(g *peering.Grant) { g.Resources = ask.Resources }, "no number of pods"},
		"longer":                     {func(g *peering.Grant) { g.Duration = 2 * time.Hour }, "instead of 1h"},
		"without a tunnel":           {func(g *peering.Grant) { g.Network = false }, "network"},
		"above the ceiling":          {func(g *peering.Grant) { g.Price = eur(t, "cpu", "0.100000001") }, "ceiling"},
		"in another currency":        {func(g *peering.Grant) { g.Price.Currency = "USD" }, "the currencies differ"},
		"at a price beyond counting": {func(g *peering.Grant) { g.Price = eur(t, "cpu", "999999999") }, "cannot be computed"},
		"on other nodes":             {func(g *peering.Grant) { g.NodeSelector = map[string]string{"gpu": "t4"} }, "gpu=a100"},
		"on any nodes":               {func(g *peering.Grant) { g.NodeSelector = nil }, "gpu=a100"},
		"of a pool":                  {func(g *peering.Grant) { g.Pool = "gpu" }, "pool \"gpu\" instead of \"\""},
		"without the runtime class":  {func(g *peering.Grant) { g.RuntimeClasses = []string{"kata"} }, "gvisor"},
		"without the storage class":  {func(g *peering.Grant) { g.StorageClasses = nil }, "fast"},
		"with other bounds than the current": {func(g *peering.Grant) {
			g.LimitRange = peering.LimitRange{DefaultRequest: resourcesOf(t, map[string]string{"cpu": "1"})}
		}, "limit range"},
		"stricter than the current": {func(g *peering.Grant) { g.PodSecurity = peering.PodSecurityRestricted }, "Pod Security"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := good
			tc.change(&g)
			got := Unacceptable(ask, peering.Advertisement{Grant: g}, Agreed{Contract: current}, now)
			if (got == nil) != (tc.why == "") || !strings.Contains(fmt.Sprint(got), tc.why) {
				t.Errorf("got %q, want %q in it", got, tc.why)
			}
		})
	}
	if err := Unacceptable(peering.Ask{Network: true, Pool: "gpu"}, peering.Advertisement{Grant: good}, Agreed{}, now); !strings.Contains(fmt.Sprint(err), "too old to know pools") {
		t.Errorf("a pool that was not named back: %v", err)
	}
	if err := Unacceptable(peering.Ask{Network: true}, peering.Advertisement{Grant: good}, Agreed{}, now); err != nil {
		t.Errorf("an ask for nothing in particular refuses: %s", err)
	}
}

func TestUnacceptableRefusesADearerOffer(t *testing.T) {
	t.Parallel()
	was := eur(t, "cpu", "0.1", "memory", "0.01")
	grant := peering.Grant{
		Duration: time.Hour,
		Clauses: peering.Clauses{
			Resources: resourcesOf(t, map[string]string{"cpu": "4", "memory": "8Gi", "pods": "20"}), Price: was,
		},
	}
	for name, tc := range map[string]struct {
		price   peering.PriceList
		before  *peering.PriceList
		ceiling string
		why     string // empty: it is agreed to
	}{
		"the first, at any price":                {price: eur(t, "cpu", "1000")},
		"as before":                              {price: was, before: &was},
		"cheaper":                                {price: eur(t, "cpu", "0.05", "memory", "0.01"), before: &was},
		"free":                                   {before: &was},
		"abovePrevious":                          {price: eur(t, "cpu", "0.100000001", "memory", "0.01"), before: &was, why: "0.1 before; set spec.priceCeiling"},
		"abovePrevious in one, cheaper in all":   {price: eur(t, "cpu", "0.01", "memory", "0.02"), before: &was, why: "memory"},
		"abovePrevious in what is not granted":   {price: eur(t, "cpu", "0.1", "nvidia.com/gpu", "9"), before: &was},
		"no longer free":                         {price: was, before: &peering.PriceList{}, why: "free of charge"},
		"in another currency":                    {price: peering.PriceList{Currency: "USD", PerHour: was.PerHour}, before: &was, why: "USD"},
		"abovePrevious, below the ceiling":       {price: eur(t, "cpu", "0.2", "memory", "0.01"), before: &was, ceiling: "1"},
		"abovePrevious, above the ceiling":       {price: eur(t, "cpu", "0.2", "memory", "0.01"), before: &was, ceiling: "0.5", why: "ceiling of EUR 0.5"},
		"in the currency of the ceiling instead": {price: eur(t, "cpu", "0.01"), before: &peering.PriceList{Currency: "USD", PerHour: was.PerHour}, ceiling: "1"},
	} {
		ask, g := peering.Ask{}, grant
		g.Price = tc.price
		if tc.ceiling != "" {
			ask.PriceCeiling = peering.Money{Currency: "EUR", Amount: decimal(t, tc.ceiling)}
		}
		err := Unacceptable(ask, peering.Advertisement{Grant: g}, Agreed{Price: tc.before}, now)
		if (err == nil) != (tc.why == "") || !strings.Contains(fmt.Sprint(err), tc.why) || err != nil && peering.ReasonOf(err) != peering.ReasonPriceAboveCeiling {
			t.Errorf("%s: %v, want %q", name, err, tc.why)
		}
	}
}

func TestUnacceptableRefusesAShortContract(t *testing.T) {
	t.Parallel()
	grant := func(d time.Duration) peering.Grant {
		return peering.Grant{Duration: d, Clauses: peering.Clauses{Resources: resourcesOf(t, map[string]string{"cpu": "4", "pods": "20"})}}
	}
	current := &peering.Terms{NotAfter: now.Add(2 * time.Minute)}
	for name, tc := range map[string]struct {
		asked   time.Duration
		offer   peering.Advertisement
		current *peering.Terms
		ok      bool
	}{
		"as the provider likes":                  {0, peering.Advertisement{Grant: grant(minDuration)}, nil, true},
		"shorter than is of use":                 {0, peering.Advertisement{Grant: grant(minDuration - 1)}, nil, false},
		"shorter than is of use by its end":      {0, peering.Advertisement{Grant: grant(time.Hour), NotAfter: now}, nil, false},
		"over before it begins":                  {0, peering.Advertisement{Grant: grant(time.Hour), NotAfter: now.Add(-time.Hour)}, nil, false},
		"as short as was asked for":              {2 * time.Minute, peering.Advertisement{Grant: grant(2 * time.Minute)}, nil, true},
		"shorter than that":                      {2 * time.Minute, peering.Advertisement{Grant: grant(time.Minute)}, nil, false},
		"shorter than a long one that was asked": {10 * time.Hour, peering.Advertisement{Grant: grant(time.Minute)}, nil, false},
		"revised until its end":                  {0, peering.Advertisement{Grant: grant(time.Hour), NotAfter: current.NotAfter}, current, true},
		"revised to end at once":                 {0, peering.Advertisement{Grant: grant(time.Second), NotAfter: current.NotAfter}, current, false},
	} {
		err := Unacceptable(peering.Ask{Duration: tc.asked}, tc.offer, Agreed{Contract: tc.current}, now)
		if (err == nil) != tc.ok || err != nil && !strings.Contains(err.Error(), "spec.duration") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
