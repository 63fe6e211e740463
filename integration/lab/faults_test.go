package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func threeClusters(t *testing.T) Plan {
	t.Helper()
	p, err := NewPlan(Options{Clusters: 3})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestFaultRequestsChangeTheirTarget(t *testing.T) {
	p := threeClusters(t)
	ab, bc := Pair{"lab-1", "lab-2"}, Pair{"lab-2", "lab-3"}
	for _, tt := range []struct {
		name string
		from Faults
		r    FaultRequest
		want Faults
	}{
		{
			"a cut names both clusters in order",
			Faults{},
			FaultRequest{Kind: "cut", A: "lab-2", B: "lab-1"},
			Faults{Pairs: []PairFault{{Pair: ab, Cut: true}}},
		},
		{
			"numbers select clusters",
			Faults{},
			FaultRequest{Kind: "cut", A: "2", B: "3"},
			Faults{Pairs: []PairFault{{Pair: bc, Cut: true}}},
		},
		{
			"a second cut changes nothing",
			Faults{Pairs: []PairFault{{Pair: ab, Cut: true}}},
			FaultRequest{Kind: "cut", A: "1", B: "2"},
			Faults{Pairs: []PairFault{{Pair: ab, Cut: true}}},
		},
		{
			"loss and delay add up",
			Faults{Pairs: []PairFault{{Pair: ab, LossPercent: 5}}},
			FaultRequest{Kind: "delay", A: "1", B: "2", Delay: time.Second},
			Faults{Pairs: []PairFault{{Pair: ab, LossPercent: 5, Delay: time.Second}}},
		},
		{
			"a loss of zero is not a fault",
			Faults{Pairs: []PairFault{{Pair: ab, LossPercent: 5}}},
			FaultRequest{Kind: "loss", A: "1", B: "2"},
			Faults{Pairs: []PairFault{}},
		},
		{
			"healing a pair leaves the others",
			Faults{Pairs: []PairFault{{Pair: ab, Cut: true}, {Pair: bc, Cut: true}}, NAT: []string{"lab-1"}},
			FaultRequest{Kind: "heal", A: "1", B: "2"},
			Faults{Pairs: []PairFault{{Pair: bc, Cut: true}}, NAT: []string{"lab-1"}},
		},
		{
			"healing a cluster ends its NAT too",
			Faults{Pairs: []PairFault{{Pair: ab, Cut: true}, {Pair: bc, Cut: true}}, NAT: []string{"lab-1", "lab-3"}},
			FaultRequest{Kind: "heal", A: "1"},
			Faults{Pairs: []PairFault{{Pair: bc, Cut: true}}, NAT: []string{"lab-3"}},
		},
		{
			"healing all ends all",
			Faults{Pairs: []PairFault{{Pair: ab, Cut: true}}, NAT: []string{"lab-1"}},
			FaultRequest{Kind: "heal"},
			Faults{Pairs: []PairFault{}, NAT: []string{}},
		},
		{"NAT twice is NAT once", Faults{NAT: []string{"lab-1"}}, FaultRequest{Kind: "nat", A: "1"}, Faults{NAT: []string{"lab-1"}}},
		{"NAT ends", Faults{NAT: []string{"lab-1", "lab-2"}}, FaultRequest{Kind: "nonat", A: "1"}, Faults{NAT: []string{"lab-2"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.from.with(p, tt.r)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("faults (-want +got):\n%s", d)
			}
		})
	}
}

func TestInvalidFaultRequestsAreRefused(t *testing.T) {
	p := threeClusters(t)
	before := Faults{NAT: []string{"lab-1"}}
	for name, r := range map[string]FaultRequest{
		"an unknown kind":          {Kind: "burn", A: "1", B: "2"},
		"an unknown cluster":       {Kind: "cut", A: "1", B: "7"},
		"a cluster with itself":    {Kind: "cut", A: "1", B: "lab-1"},
		"one cluster for a cut":    {Kind: "cut", A: "1"},
		"two clusters for NAT":     {Kind: "nat", A: "1", B: "2"},
		"more loss than there is":  {Kind: "loss", A: "1", B: "2", LossPercent: 101},
		"negative loss":            {Kind: "loss", A: "1", B: "2", LossPercent: -1},
		"a delay beyond the limit": {Kind: "delay", A: "1", B: "2", Delay: maxDelay + 1},
		"a negative delay":         {Kind: "delay", A: "1", B: "2", Delay: -1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := before.with(p, r)
			if err == nil {
				t.Errorf("accepted: %+v", got)
			}
		})
	}
}

func TestRouterRules(t *testing.T) {
	p := threeClusters(t)
	f := Faults{
		Pairs: []PairFault{
			{Pair: Pair{"lab-1", "lab-2"}, Cut: true, LossPercent: 50},
			{Pair: Pair{"lab-1", "lab-3"}, LossPercent: 2.5, Delay: time.Second},
		},
		NAT: []string{"lab-3"},
	}
	want := `table inet lab
delete table inet lab
table inet lab {
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname "lan1" oifname "lan2" counter drop
    iifname "lan2" oifname "lan1" counter drop
    iifname "lan1" oifname "lan3" numgen random mod 10000 < 250 counter drop
    iifname "lan3" oifname "lan1" numgen random mod 10000 < 250 counter drop
    oifname "lan3" iifname != "lan3" ct state != { established, related } counter drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
    ip daddr 172.31.0.3 counter drop
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr 172.30.3.0/24 oifname != "lan3" snat ip to 172.31.0.3 fully-random
  }
}
`
	if d := cmp.Diff(want, routerRules(p, f)); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	wantDelay := `*mangle
:FORWARD ACCEPT [0:0]
-A FORWARD -i lan1 -o lan3 -j NFQUEUE --queue-num 20 --queue-bypass
-A FORWARD -i lan3 -o lan1 -j NFQUEUE --queue-num 20 --queue-bypass
COMMIT
`
	if d := cmp.Diff(wantDelay, delayRules(p, f)); d != "" {
		t.Errorf("delay rules (-want +got):\n%s", d)
	}
}

func TestRouterRulesOfSubnets(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 2, Nodes: 2, Subnets: 2})
	if err != nil {
		t.Fatal(err)
	}
	f := Faults{
		Pairs: []PairFault{{Pair: Pair{"lab-1", "lab-2"}, LossPercent: 50, Delay: time.Second}},
		NAT:   []string{"lab-2"},
	}
	for _, want := range []string{
		`iifname { "lan1", "lan1b" } oifname { "lan2", "lan2b" } numgen random mod 10000 < 5000 counter drop`,
		`oifname { "lan2", "lan2b" } iifname != { "lan2", "lan2b" } ct state != { established, related } counter drop`,
		`ip saddr 172.30.2.0/24 oifname != { "lan2", "lan2b" } snat ip to 172.31.0.2 fully-random`,
		`ip saddr 172.30.130.0/24 oifname != { "lan2", "lan2b" } snat ip to 172.31.0.2 fully-random`,
	} {
		if got := routerRules(p, f); !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
	if got := strings.Count(delayRules(p, f), "-j NFQUEUE"); got != 8 {
		t.Errorf("%d of 8 ways are delayed:\n%s", got, delayRules(p, f))
	}
}

// IPv6 is cut and lost by the same rules, and let out and not in behind NAT.
func TestRouterRulesOfIPv6(t *testing.T) {
	for families, want := range map[Families]string{
		DualStack: "ip saddr 172.30.2.0/24 oifname != \"lan2\" snat ip to 172.31.0.2 fully-random\n  }",
		IPv6Only:  "priority srcnat; policy accept;\n  }",
	} {
		got := routerRules(mustPlan(t, Options{Families: families}), Faults{NAT: []string{"lab-2"}})
		if !strings.Contains(got, want) || !strings.Contains(got, `oifname "lan2" iifname != "lan2" ct state != { established, related } counter drop`) || !strings.Contains(got, "table inet lab") {
			t.Errorf("%s: rules are\n%s", families, got)
		}
	}
}

func TestASharedLANIsCutOnItsBridge(t *testing.T) {
	p, err := NewPlan(Options{Clusters: 3, LAN: SharedLAN})
	if err != nil {
		t.Fatal(err)
	}
	f := Faults{Pairs: []PairFault{
		{Pair: Pair{"lab-1", "lab-2"}, Cut: true, LossPercent: 50},
		{Pair: Pair{"lab-1", "lab-3"}, LossPercent: 2.5},
	}}
	want := `table inet lab
delete table inet lab
table inet lab {
  chain forward {
    type filter hook forward priority filter; policy accept;
    ip saddr { 172.30.1.0/24, 172.29.1.0/24 } ip daddr { 172.30.2.0/24, 172.29.2.0/24 } counter drop
    ip saddr { 172.30.2.0/24, 172.29.2.0/24 } ip daddr { 172.30.1.0/24, 172.29.1.0/24 } counter drop
    ip saddr { 172.30.1.0/24, 172.29.1.0/24 } ip daddr { 172.30.3.0/24, 172.29.3.0/24 } numgen random mod 10000 < 250 counter drop
    ip saddr { 172.30.3.0/24, 172.29.3.0/24 } ip daddr { 172.30.1.0/24, 172.29.1.0/24 } numgen random mod 10000 < 250 counter drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
  }
}
table bridge lab
delete table bridge lab
table bridge lab {
  chain forward {
    type filter hook forward priority filter; policy accept;
    iifname "n1-*" oifname "n2-*" counter drop
    iifname "n2-*" oifname "n1-*" counter drop
    iifname "n1-*" oifname "n3-*" numgen random mod 10000 < 250 counter drop
    iifname "n3-*" oifname "n1-*" numgen random mod 10000 < 250 counter drop
  }
}
`
	if d := cmp.Diff(want, routerRules(p, f)); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	for _, r := range []FaultRequest{{Kind: "nat", A: "1"}, {Kind: "delay", A: "1", B: "2", Delay: time.Second}} {
		if got, err := f.with(p, r); err == nil {
			t.Errorf("%s, which needs a router, was accepted: %+v", r.Kind, got)
		}
	}
}

func TestRulesWithoutFaultsDropNothing(t *testing.T) {
	want := `table inet lab
delete table inet lab
table inet lab {
  chain forward {
    type filter hook forward priority filter; policy accept;
  }
  chain input {
    type filter hook input priority filter; policy accept;
  }
}
`
	if d := cmp.Diff(want, routerRules(threeClusters(t), Faults{})); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
}

func TestEachPairHasAQueueOfItsOwn(t *testing.T) {
	p, err := NewPlan(Options{Clusters: maxClusters})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint16]Pair{}
	for i, a := range p.Clusters {
		for _, b := range p.Clusters[:i] {
			q := queueNumber(a, b)
			if q != queueNumber(b, a) {
				t.Errorf("queue of %s and %s depends on their order", a.Name, b.Name)
			}
			if other, ok := seen[q]; ok {
				t.Errorf("queue %d is %v's and %v's", q, other, NewPair(a.Name, b.Name))
			}
			seen[q] = NewPair(a.Name, b.Name)
		}
	}
}

func TestCaptureFilterKnowsTranslatedAddresses(t *testing.T) {
	p := threeClusters(t)
	want := "(net 172.30.1.0/24 or host 172.31.0.1) and (net 172.30.2.0/24 or host 172.31.0.2)"
	if got := p.captureFilter(p.Clusters[0], p.Clusters[1]); got != want {
		t.Errorf("filter is %q", got)
	}
	p = mustPlan(t, Options{Families: DualStack})
	want = "(net 172.30.1.0/24 or net fd6c:6162:1:1::/64 or host 172.31.0.1) and (net 172.30.2.0/24 or net fd6c:6162:1:2::/64 or host 172.31.0.2)"
	if got := p.captureFilter(p.Clusters[0], p.Clusters[1]); got != want {
		t.Errorf("filter is %q", got)
	}
}
