package peering_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/peering"
)

func resources(t testing.TB, kv ...string) peering.Resources {
	t.Helper()
	m := map[string]string{}
	for i := 0; i < len(kv); i += 2 {
		m[kv[i]] = kv[i+1]
	}
	r, err := peering.ParseResources(m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDecide(t *testing.T) {
	free := resources(t, "cpu", "7", "memory", "16Gi", "pods", "101", "nvidia.com/gpu", "3")
	half := peering.Policy{Name: "half", Accept: true, PercentOfFree: 50, Duration: 8760 * time.Hour, Network: true, PodSecurity: peering.PodSecurityBaseline}
	capped := half
	capped.Ceilings = resources(t, "cpu", "2", "nvidia.com/gpu", "0")
	noTunnel := half
	noTunnel.Network = false
	endless := half
	endless.Duration = 0
	ask := func(kv ...string) peering.Ask { return peering.Ask{RequestID: "r", Resources: resources(t, kv...)} }
	for _, tt := range []struct {
		name   string
		ask    peering.Ask
		policy peering.Policy
		have   peering.Capacity
		want   string
		reason peering.GrantReason
	}{
		{"what was asked for", ask("cpu", "3500m", "memory", "8Gi"), half, peering.Capacity{Free: free}, "cpu=3500m, memory=8Gi", ""},
		{"as much as there may be, whole where it has to be", ask(), half, peering.Capacity{Free: free}, "cpu=3500m, memory=8Gi, nvidia.com/gpu=1, pods=50", ""},
		{"as much as there may be under ceilings", ask(), capped, peering.Capacity{Free: free}, "cpu=2, memory=8Gi, pods=50", ""},
		{"as much as is left of it", ask(), half, peering.Capacity{Free: free, Lent: resources(t, "cpu", "1", "pods", "10"), LentToPeer: resources(t, "cpu", "1", "pods", "10")}, "cpu=2500m, memory=8Gi, nvidia.com/gpu=1, pods=40", ""},
		{"bytes in whole mebibytes, which people can read", ask(), half, peering.Capacity{Free: resources(t, "memory", "25102446592")}, "memory=11969Mi", ""},
		{"others hold what is free", ask("cpu", "1"), half, peering.Capacity{Free: free, Lent: resources(t, "cpu", "6500m")}, "", peering.GrantCapacityExhausted},
		{"one peer after the other does not get more than there is", ask(), half, peering.Capacity{Free: free, Lent: resources(t, "cpu", "6", "memory", "15Gi", "pods", "100")}, "cpu=1, memory=1Gi, nvidia.com/gpu=1, pods=1", ""},
		{"nothing is left", ask(), half, peering.Capacity{Free: free, Lent: free}, "", peering.GrantCapacityExhausted},
		{"nothing is there", ask(), half, peering.Capacity{}, "", peering.GrantCapacityExhausted},
		{"more than the ceiling", ask("cpu", "2001m"), capped, peering.Capacity{Free: free}, "", peering.GrantPolicyRefused},
		{"more than is left of the ceiling", ask("cpu", "1"), capped, peering.Capacity{Free: free, Lent: resources(t, "cpu", "1500m"), LentToPeer: resources(t, "cpu", "1500m")}, "", peering.GrantPolicyRefused},
		{"more than the percentage", ask("cpu", "4"), half, peering.Capacity{Free: free}, "", peering.GrantCapacityExhausted},
		{"a resource that is not there", ask("example.com/fpga", "1"), half, peering.Capacity{Free: free}, "", peering.GrantCapacityExhausted},
		{"half a GPU", ask("nvidia.com/gpu", "500m"), half, peering.Capacity{Free: free}, "", peering.GrantInvalid},
		{"no request ID", peering.Ask{}, half, peering.Capacity{Free: free}, "", peering.GrantInvalid},
		{"a duration below zero", peering.Ask{RequestID: "r", Duration: -1}, half, peering.Capacity{Free: free}, "", peering.GrantInvalid},
		{"no duration at all", ask("cpu", "1"), endless, peering.Capacity{Free: free}, "", peering.GrantInvalid},
		{"a tunnel that the policy does not allow", peering.Ask{RequestID: "r", Network: true}, noTunnel, peering.Capacity{Free: free}, "", peering.GrantPolicyRefused},
		{"a policy that lends nothing", ask("cpu", "1"), peering.Policy{Name: "no"}, peering.Capacity{Free: free}, "", peering.GrantPolicyRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := peering.Decide(tt.ask, tt.policy, tt.have)
			var refused *peering.GrantError
			if tt.reason != "" {
				if !errors.As(err, &refused) || refused.Reason != tt.reason || refused.Message == "" {
					t.Errorf("got %v, want %s", err, tt.reason)
				}
				if g.Resources != nil {
					t.Errorf("a refusal came with %s", g.Resources)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, g.Resources.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if g.Duration != tt.policy.Duration || g.PodSecurity != tt.policy.PodSecurity {
				t.Errorf("got %+v", g)
			}
		})
	}
}

func TestDurationIsTheShorterOfAskAndPolicy(t *testing.T) {
	have := peering.Capacity{Free: resources(t, "cpu", "4")}
	for _, tt := range []struct{ ask, policy, want time.Duration }{
		{0, time.Hour, time.Hour},
		{time.Minute, time.Hour, time.Minute},
		{2 * time.Hour, time.Hour, time.Hour},
		{time.Minute + time.Millisecond, 0, time.Minute},
		{0, 1 << 62, peering.MaxContractLife},
	} {
		g, err := peering.Decide(peering.Ask{RequestID: "r", Duration: tt.ask}, peering.Policy{Accept: true, PercentOfFree: 100, Duration: tt.policy}, have)
		if err != nil || g.Duration != tt.want {
			t.Errorf("ask %s, policy %s: got %s, %v", tt.ask, tt.policy, g.Duration, err)
		}
	}
}

// Never above any ceiling, whatever is asked and however often.
func TestGrantsStayBelowEveryCeiling(t *testing.T) {
	names := []string{"cpu", "memory", "pods", "nvidia.com/gpu"}
	amounts := func(rt *rapid.T, what string) peering.Resources {
		r := peering.Resources{}
		for _, name := range names {
			if rapid.IntRange(0, 3).Draw(rt, what+" has "+name) == 0 {
				continue
			}
			n := peering.Whole(rapid.Int64Range(0, 1<<40).Draw(rt, what+" "+name))
			if peering.Fractional(name) && rapid.Bool().Draw(rt, what+" in parts") {
				n = n.Percent(rapid.IntRange(0, 100).Draw(rt, what+" percent"))
			}
			r[name] = n
		}
		return r
	}
	rapid.Check(t, func(rt *rapid.T) {
		p := peering.Policy{
			Accept: true, Duration: time.Hour, Ceilings: amounts(rt, "ceiling"),
			PercentOfFree: rapid.IntRange(0, 100).Draw(rt, "percent"),
		}
		free := amounts(rt, "free")
		lent, toPeer := peering.Resources{}, [2]peering.Resources{{}, {}}
		for range rapid.IntRange(1, 5).Draw(rt, "asks") {
			peer := rapid.IntRange(0, 1).Draw(rt, "peer")
			ask := peering.Ask{RequestID: "r"}
			if rapid.Bool().Draw(rt, "names amounts") {
				ask.Resources = amounts(rt, "ask")
			}
			g, err := peering.Decide(ask, p, peering.Capacity{Free: free, Lent: lent, LentToPeer: toPeer[peer]})
			if err != nil {
				continue
			}
			for name, q := range g.Resources {
				if !peering.Fractional(name) && !q.IsWhole() {
					rt.Fatalf("%s %s is not whole", name, q)
				}
				if want, asked := ask.Resources[name]; len(ask.Resources) > 0 && (!asked || want.Cmp(q) != 0) {
					rt.Fatalf("asked for %s %s, granted %s", name, want, q)
				}
			}
			if lent, err = lent.Add(g.Resources); err != nil {
				rt.Fatal(err)
			}
			if toPeer[peer], err = toPeer[peer].Add(g.Resources); err != nil {
				rt.Fatal(err)
			}
			for _, name := range names {
				held := toPeer[peer][name]
				if c, ok := p.Ceilings[name]; ok && held.Cmp(c) > 0 {
					rt.Fatalf("%s: the peer holds %s, the ceiling is %s", name, held, c)
				}
				if most := free[name].Percent(p.PercentOfFree); held.Cmp(most) > 0 {
					rt.Fatalf("%s: the peer holds %s, %d%% of what is free is %s", name, held, p.PercentOfFree, most)
				}
				if lent[name].Cmp(free[name]) > 0 {
					rt.Fatalf("%s: %s is lent, %s is free", name, lent[name], free[name])
				}
			}
		}
	})
}
