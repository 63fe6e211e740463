package peering_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/peeringtest"
)

var resources = peeringtest.Resources

func TestDecideGrantsWithinPolicyAndCapacity(t *testing.T) {
	free := resources(t, "cpu", "7", "memory", "16Gi", "pods", "101", "nvidia.com/gpu", "3")
	half := peering.Policy{Name: "half", Accept: peering.Automatic, PercentOfFree: 50, TotalPercent: 100, OvercommitPercent: 100, Duration: 8760 * time.Hour, Network: true, PodSecurity: peering.PodSecurityBaseline}
	capped := half
	capped.Ceilings = resources(t, "cpu", "2", "nvidia.com/gpu", "0")
	fewPods := half
	fewPods.Ceilings = resources(t, "pods", "20")
	eight := half
	eight.PercentOfFree, eight.Ceilings = 100, resources(t, "cpu", "8", "pods", "100")
	zones := half
	zones.NodeSelectorKeys = []string{"zone"}
	noTunnel := half
	noTunnel.Network = false
	approve, approved := half, half
	approve.Accept, approved.Accept, approved.Approved = peering.AfterApproval, peering.AfterApproval, true
	total := half
	total.Total = resources(t, "cpu", "3", "nvidia.com/gpu", "2")
	totalPercent := half
	totalPercent.PercentOfFree, totalPercent.TotalPercent = 100, 50
	over := half
	over.PercentOfFree, over.OvercommitPercent = 100, 250
	none := half
	none.OvercommitPercent = 0
	priced := half
	priced.Price = prices(t, "EUR", "cpu", "0.02", "memory", "0.001")
	classes := half
	classes.RuntimeClasses, classes.StorageClasses = []string{"gvisor", "kata"}, []string{"fast"}
	withClasses := peering.Capacity{Free: free, RuntimeClasses: []string{"gvisor"}, StorageClasses: []string{"fast", "slow"}}
	ceiling := func(m peering.Money, kv ...string) peering.Ask {
		return peering.Ask{RequestID: "r", Resources: resources(t, kv...), PriceCeiling: m}
	}
	const fast, slow = "fast.storageclass.storage.k8s.io/requests.storage", "slow.storageclass.storage.k8s.io/requests.storage"
	disks := classes
	disks.Ceilings, disks.Total = resources(t, fast, "100Gi"), resources(t, fast, "150Gi", "gone.storageclass.storage.k8s.io/requests.storage", "1Gi")
	reservedDisks := withClasses
	reservedDisks.Reserved, reservedDisks.ReservedByPolicy, reservedDisks.ReservedForPeer = resources(t, fast, "120Gi"), resources(t, fast, "120Gi"), resources(t, fast, "80Gi")
	endless := half
	endless.Duration = 0
	ask := func(kv ...string) peering.Ask { return peering.Ask{RequestID: "r", Resources: resources(t, kv...)} }
	for _, tt := range []struct {
		name   string
		ask    peering.Ask
		policy peering.Policy
		have   peering.Capacity
		want   string
		reason peering.Reason
	}{
		{"what was asked for", ask("cpu", "3500m", "memory", "8Gi"), half, peering.Capacity{Free: free}, "cpu=3500m, memory=8Gi, pods=50", ""},
		{"as much as there may be, whole where it has to be", ask(), half, peering.Capacity{Free: free}, "cpu=3500m, memory=8Gi, nvidia.com/gpu=1, pods=50", ""},
		{"as much as there may be under ceilings", ask(), capped, peering.Capacity{Free: free}, "cpu=2, memory=8Gi, pods=50", ""},
		{"as much as is left of it", ask(), half, peering.Capacity{Free: free, Reserved: resources(t, "cpu", "1", "pods", "10"), ReservedForPeer: resources(t, "cpu", "1", "pods", "10")}, "cpu=2500m, memory=8Gi, nvidia.com/gpu=1, pods=40", ""},
		{"bytes in whole mebibytes, which people can read", ask(), half, peering.Capacity{Free: resources(t, "memory", "25102446592", "pods", "8")}, "memory=11969Mi, pods=4", ""},
		{"of the pods the same share as of the rest, if no pods were asked for", ask("cpu", "1"), half, peering.Capacity{Free: resources(t, "cpu", "8", "pods", "10000")}, "cpu=1, pods=1250", ""},
		{"the largest of several shares", ask("cpu", "1", "memory", "2Gi"), half, peering.Capacity{Free: resources(t, "cpu", "8", "memory", "8Gi", "pods", "100")}, "cpu=1, memory=2Gi, pods=25", ""},
		{"all the pods that it may for all of the rest", ask("cpu", "4"), half, peering.Capacity{Free: resources(t, "cpu", "8", "pods", "100")}, "cpu=4, pods=50", ""},
		{"one pod for the least share", ask("cpu", "1m"), half, peering.Capacity{Free: resources(t, "cpu", "8", "pods", "100")}, "cpu=1m, pods=1", ""},
		{"no more pods than the ceiling leaves", ask("cpu", "4"), fewPods, peering.Capacity{Free: resources(t, "cpu", "8", "pods", "100"), Reserved: resources(t, "pods", "12"), ReservedForPeer: resources(t, "pods", "12")}, "cpu=4, pods=8", ""},
		{"of the pods of a ceiling the share that it takes of the rest", ask("cpu", "1"), eight, peering.Capacity{Free: resources(t, "cpu", "12", "pods", "1000"), Reserved: resources(t, "cpu", "2", "pods", "24"), ReservedForPeer: resources(t, "cpu", "2", "pods", "24")}, "cpu=1, pods=12", ""},
		{"a share of the pods that others leave", ask("cpu", "1"), half, peering.Capacity{Free: resources(t, "cpu", "8", "pods", "100"), Reserved: resources(t, "cpu", "4", "pods", "92")}, "cpu=1, pods=2", ""},
		{"fewer pods than by default", ask("cpu", "1", "pods", "7"), half, peering.Capacity{Free: free}, "cpu=1, pods=7", ""},
		{"no pod is left of the ceiling", ask("cpu", "1"), fewPods, peering.Capacity{Free: free, ReservedForPeer: resources(t, "pods", "20")}, "", peering.ReasonPolicyRefused},
		{"no pod is free", ask("cpu", "1"), half, peering.Capacity{Free: free, Reserved: resources(t, "pods", "101")}, "", peering.ReasonCapacityExhausted},
		{"all there is, where no pod is", ask(), half, peering.Capacity{Free: resources(t, "cpu", "7", "memory", "16Gi")}, "", peering.ReasonCapacityExhausted},
		{"others have what is free", ask("cpu", "1"), half, peering.Capacity{Free: free, Reserved: resources(t, "cpu", "6500m")}, "", peering.ReasonCapacityExhausted},
		{"one peer after the other does not get more than there is", ask(), half, peering.Capacity{Free: free, Reserved: resources(t, "cpu", "6", "memory", "15Gi", "pods", "100")}, "cpu=1, memory=1Gi, nvidia.com/gpu=1, pods=1", ""},
		{"nothing is left", ask(), half, peering.Capacity{Free: free, Reserved: free}, "", peering.ReasonCapacityExhausted},
		{"nothing is there", ask(), half, peering.Capacity{}, "", peering.ReasonCapacityExhausted},
		{"more than the ceiling", ask("cpu", "2001m"), capped, peering.Capacity{Free: free}, "", peering.ReasonPolicyRefused},
		{"more than is left of the ceiling", ask("cpu", "1"), capped, peering.Capacity{Free: free, Reserved: resources(t, "cpu", "1500m"), ReservedForPeer: resources(t, "cpu", "1500m")}, "", peering.ReasonPolicyRefused},
		{"more than the percentage", ask("cpu", "4"), half, peering.Capacity{Free: free}, "", peering.ReasonCapacityExhausted},
		{"a resource that is not there", ask("example.com/fpga", "1"), half, peering.Capacity{Free: free}, "", peering.ReasonCapacityExhausted},
		{"half a GPU", ask("nvidia.com/gpu", "500m"), half, peering.Capacity{Free: free}, "", peering.ReasonRequestInvalid},
		{"no request ID", peering.Ask{}, half, peering.Capacity{Free: free}, "", peering.ReasonRequestInvalid},
		{"a duration below zero", peering.Ask{RequestID: "r", Duration: -1}, half, peering.Capacity{Free: free}, "", peering.ReasonRequestInvalid},
		{"no duration at all", ask("cpu", "1"), endless, peering.Capacity{Free: free}, "", peering.ReasonRequestInvalid},
		{"a tunnel that the policy does not allow", peering.Ask{RequestID: "r", Network: true}, noTunnel, peering.Capacity{Free: free}, "", peering.ReasonPolicyRefused},
		{"an administrator has to approve", ask("cpu", "1"), approve, peering.Capacity{Free: free}, "", peering.ReasonPolicyPending},
		{"an administrator approved", ask("cpu", "1"), approved, peering.Capacity{Free: free}, "cpu=1, pods=14", ""},
		{"what approval could not give either", ask("cpu", "4"), approve, peering.Capacity{Free: free}, "", peering.ReasonCapacityExhausted},
		{"more than all peers together get", ask("cpu", "3500m"), total, peering.Capacity{Free: free}, "", peering.ReasonPolicyRefused},
		{"all that all peers together get", ask("cpu", "3"), total, peering.Capacity{Free: free}, "cpu=3, pods=43", ""},
		{"more than they leave", ask("cpu", "2"), total, peering.Capacity{Free: free, Reserved: resources(t, "cpu", "2"), ReservedByPolicy: resources(t, "cpu", "2")}, "", peering.ReasonCapacityExhausted},
		{"what others have by another policy does not count", ask("cpu", "2"), total, peering.Capacity{Free: free, Reserved: resources(t, "cpu", "2")}, "cpu=2, pods=33", ""},
		{"as much as the total leaves", ask(), total, peering.Capacity{Free: free, Reserved: resources(t, "cpu", "2"), ReservedByPolicy: resources(t, "cpu", "2")}, "cpu=1, memory=8Gi, nvidia.com/gpu=1, pods=50", ""},
		{"more than the percentage for all", ask("cpu", "3501m"), totalPercent, peering.Capacity{Free: free}, "", peering.ReasonCapacityExhausted},
		{"the percentage for all", ask("cpu", "3500m", "pods", "50"), totalPercent, peering.Capacity{Free: free}, "cpu=3500m, pods=50", ""},
		{"more than is free, overcommitted", ask("cpu", "17500m", "nvidia.com/gpu", "7"), over, peering.Capacity{Free: free}, "cpu=17500m, nvidia.com/gpu=7, pods=252", ""},
		{"more than overcommitment allows", ask("cpu", "17501m"), over, peering.Capacity{Free: free}, "", peering.ReasonCapacityExhausted},
		{"half a GPU of overcommitment", ask("nvidia.com/gpu", "8"), over, peering.Capacity{Free: free}, "", peering.ReasonCapacityExhausted},
		{"nothing counts as free", ask(), none, peering.Capacity{Free: free}, "", peering.ReasonCapacityExhausted},
		{"at any price", ask("cpu", "3"), priced, peering.Capacity{Free: free}, "cpu=3, pods=42", ""},
		{"at the ceiling", ceiling(eur(t, "0.064"), "cpu", "3", "memory", "4Gi"), priced, peering.Capacity{Free: free}, "cpu=3, memory=4Gi, pods=42", ""},
		{"above the ceiling", ceiling(eur(t, "0.063999999"), "cpu", "3", "memory", "4Gi"), priced, peering.Capacity{Free: free}, "", peering.ReasonPriceAboveCeiling},
		{"all there is, above the ceiling", ceiling(eur(t, "0.07")), priced, peering.Capacity{Free: free}, "", peering.ReasonPriceAboveCeiling},
		{"all there is, below the ceiling", ceiling(eur(t, "0.08")), priced, peering.Capacity{Free: free}, "cpu=3500m, memory=8Gi, nvidia.com/gpu=1, pods=50", ""},
		{"a ceiling of nothing", ceiling(eur(t, "0"), "cpu", "1"), priced, peering.Capacity{Free: free}, "", peering.ReasonPriceAboveCeiling},
		{"a ceiling of nothing for what costs nothing", ceiling(eur(t, "0"), "pods", "1"), priced, peering.Capacity{Free: free}, "pods=1", ""},
		{"a ceiling in another currency", ceiling(money(t, "USD", "100"), "cpu", "1"), priced, peering.Capacity{Free: free}, "", peering.ReasonPriceAboveCeiling},
		{"a ceiling in no currency", ceiling(money(t, "", "100"), "cpu", "1"), priced, peering.Capacity{Free: free}, "", peering.ReasonRequestInvalid},
		{"a ceiling where nothing costs anything", ceiling(money(t, "USD", "1"), "cpu", "1"), half, peering.Capacity{Free: free}, "cpu=1, pods=14", ""},
		{"classes that are there", peering.Ask{RequestID: "r", RuntimeClasses: []string{"gvisor"}, StorageClasses: []string{"fast"}, Resources: resources(t, "cpu", "1")}, classes, withClasses, "cpu=1, pods=14", ""},
		{"a runtime class that the policy does not allow", peering.Ask{RequestID: "r", RuntimeClasses: []string{"runc"}}, classes, withClasses, "", peering.ReasonPolicyRefused},
		{"a runtime class that is not there", peering.Ask{RequestID: "r", RuntimeClasses: []string{"kata"}}, classes, withClasses, "", peering.ReasonPolicyRefused},
		{"a storage class that the policy does not show", peering.Ask{RequestID: "r", StorageClasses: []string{"slow"}}, classes, withClasses, "", peering.ReasonPolicyRefused},
		{"storage of a class, of which it is not known how much is free", ask("cpu", "1", fast, "100Gi"), disks, withClasses, "cpu=1, " + fast + "=100Gi, pods=14", ""},
		{"more storage than the policy allows a peer", ask("cpu", "1", fast, "101Gi"), disks, withClasses, "", peering.ReasonPolicyRefused},
		{"more than is left of it for this peer", ask("cpu", "1", fast, "21Gi"), disks, reservedDisks, "", peering.ReasonPolicyRefused},
		{"storage of which the policy has no amount", ask("cpu", "1", slow, "1Gi"), disks, withClasses, "", peering.ReasonPolicyRefused},
		{"storage of a class that is not there", ask("cpu", "1", "gone.storageclass.storage.k8s.io/requests.storage", "1Gi"), disks, withClasses, "", peering.ReasonPolicyRefused},
		{"all there is, with the storage that is left", peering.Ask{RequestID: "r"}, disks, reservedDisks, "cpu=3500m, " + fast + "=20Gi, memory=8Gi, nvidia.com/gpu=1, pods=50", ""},
		{"classes out of order", peering.Ask{RequestID: "r", RuntimeClasses: []string{"kata", "gvisor"}}, classes, withClasses, "", peering.ReasonRequestInvalid},
		{"a malformed class", peering.Ask{RequestID: "r", StorageClasses: []string{"../x"}}, classes, withClasses, "", peering.ReasonRequestInvalid},
		{"a malformed node selector", peering.Ask{RequestID: "r", NodeSelector: map[string]string{"a b": ""}}, half, peering.Capacity{Free: free}, "", peering.ReasonRequestInvalid},
		{"nodes by a label that the policy allows", peering.Ask{RequestID: "r", NodeSelector: map[string]string{"zone": "a"}, Resources: resources(t, "cpu", "1")}, zones, peering.Capacity{Free: free}, "cpu=1, pods=14", ""},
		{"nodes by a label that it does not allow", peering.Ask{RequestID: "r", NodeSelector: map[string]string{"zone": "a", "gpu": "a100"}, Resources: resources(t, "cpu", "1")}, zones, peering.Capacity{Free: free}, "", peering.ReasonPolicyRefused},
		{"a malformed contract ID", peering.Ask{RequestID: "r", ContractID: "A"}, half, peering.Capacity{Free: free}, "", peering.ReasonRequestInvalid},
		{"a policy that offers nothing", ask("cpu", "1"), peering.Policy{Name: "no"}, peering.Capacity{Free: free}, "", peering.ReasonPolicyRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := peering.Decide(tt.ask, tt.policy, tt.have)
			var refused *peering.Error
			if tt.reason != "" {
				if !errors.As(err, &refused) || refused.Reason != tt.reason || refused.Message == "" {
					t.Fatalf("got %v, want %s", err, tt.reason)
				}
				if passes := tt.reason == peering.ReasonPolicyPending || tt.reason == peering.ReasonCapacityExhausted; passes != (refused.RetryAfter > 0) {
					t.Errorf("%s asks to retry after %s", tt.reason, refused.RetryAfter)
				}
				// Both sides read it, and both may have a policy of that name.
				if strings.Count(refused.Message, "policy") != strings.Count(refused.Message, "the provider's policy") {
					t.Errorf("%q does not name the policy", refused.Message)
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
			if g.Duration != tt.policy.Duration || g.PodSecurity != tt.policy.PodSecurity || !g.Price.Equal(tt.policy.Price) || g.Exposure != peering.ExposureOffloaded {
				t.Errorf("got %+v", g)
			}
			if !slices.Equal(g.RuntimeClasses, tt.ask.RuntimeClasses) || !slices.Equal(g.StorageClasses, tt.ask.StorageClasses) {
				t.Errorf("got %+v", g)
			}
		})
	}
}

func TestDurationIsTheShorterOfAskAndPolicy(t *testing.T) {
	have := peering.Capacity{Free: resources(t, "cpu", "4", "pods", "9")}
	for _, tt := range []struct{ ask, policy, want time.Duration }{
		{0, time.Hour, time.Hour},
		{time.Minute, time.Hour, time.Minute},
		{2 * time.Hour, time.Hour, time.Hour},
		{time.Minute + time.Millisecond, 0, time.Minute},
		{0, 1 << 62, peering.MaxContractLife},
	} {
		g, err := peering.Decide(peering.Ask{RequestID: "r", Duration: tt.ask}, peering.Policy{
			Accept: peering.Automatic, PercentOfFree: 100, TotalPercent: 100, OvercommitPercent: 100, Duration: tt.policy,
		}, have)
		if err != nil || g.Duration != tt.want {
			t.Errorf("ask %s, policy %s: got %s, %v", tt.ask, tt.policy, g.Duration, err)
		}
	}
}

// The conditions of a policy become those of a contract, within what a contract can have.
func TestConditionsAreThoseOfThePolicy(t *testing.T) {
	p := peering.Policy{
		Accept: peering.Automatic, PercentOfFree: 100, TotalPercent: 100, OvercommitPercent: 100, Duration: time.Hour,
		Renewable: true, Notice: 90*time.Minute + time.Millisecond, StatementPeriod: time.Second,
		Price: peering.PriceList{Currency: "EUR"}, NodeSelectorKeys: []string{"kubernetes.io/arch"},
	}
	ask := peering.Ask{RequestID: "r", NodeSelector: map[string]string{"kubernetes.io/arch": "arm64"}}
	g, err := peering.Decide(ask, p, peering.Capacity{Free: resources(t, "cpu", "1", "pods", "9")})
	if err != nil {
		t.Fatal(err)
	}
	if !g.Renewable || g.Notice != 90*time.Minute || g.StatementPeriod != peering.MinStatementPeriod || g.NodeSelector["kubernetes.io/arch"] != "arm64" || g.Price.Currency != "" {
		t.Errorf("got %+v", g)
	}
	p.LimitRange = peering.LimitRange{Max: resources(t, "cpu", "1", "memory", "1Gi")}
	want := peering.LimitRange{Max: p.LimitRange.Max, Default: p.LimitRange.Max, DefaultRequest: resources(t, "cpu", "1", "memory", "0")}
	if g, err = peering.Decide(ask, p, peering.Capacity{Free: resources(t, "cpu", "1", "pods", "9")}); err != nil || !g.LimitRange.Equal(want) {
		t.Errorf("the limit range is %+v, want %+v, %v", g.LimitRange, want, err)
	}
	p.Notice, p.StatementPeriod = 1<<60, 1<<60
	if g, err = peering.Decide(ask, p, peering.Capacity{Free: resources(t, "cpu", "1", "pods", "9")}); err != nil || g.Notice != peering.MaxNotice || g.StatementPeriod != peering.MaxStatementPeriod {
		t.Errorf("got %+v, %v", g, err)
	}
	p.Price = prices(t, "euro", "cpu", "1")
	if _, err = peering.Decide(ask, p, peering.Capacity{Free: resources(t, "cpu", "1", "pods", "9")}); err == nil {
		t.Error("a price in no currency was granted")
	}
	p.Price = prices(t, "EUR", "cpu", "999999999")
	if _, err = peering.Decide(ask, p, peering.Capacity{Free: resources(t, "cpu", "2", "pods", "9")}); err == nil {
		t.Error("a price beyond all numbers was granted")
	}
}

func TestExplainNamesWhatLimitsAGrant(t *testing.T) {
	free := resources(t, "cpu", "8", "memory", "16Gi", "pods", "100", "nvidia.com/gpu", "3")
	p := peering.Policy{
		Accept: peering.Automatic, PercentOfFree: 50, TotalPercent: 75, OvercommitPercent: 100, Duration: time.Hour,
		Ceilings: resources(t, "cpu", "2"), Total: resources(t, "pods", "40"),
	}
	have := peering.Capacity{
		Free: free, Reserved: resources(t, "nvidia.com/gpu", "2", "pods", "10"),
		ReservedByPolicy: resources(t, "pods", "10"), ReservedForPeer: resources(t, "pods", "5"),
	}
	show := func(list []peering.Bound) []string {
		var out []string
		for _, b := range list {
			out = append(out, fmt.Sprintf("%s %s of %s: %s %s", b.Resource, b.Granted, b.Asked, b.By, b.Limit))
		}
		return out
	}
	ask := peering.Ask{RequestID: "r", Resources: resources(t, "cpu", "3", "memory", "9Gi", "nvidia.com/gpu", "1", "pods", "31", "example.com/fpga", "1")}
	if diff := cmp.Diff([]string{
		"cpu 2 of 3: ceiling 2",
		"example.com/fpga 0 of 1: percent of free 0",
		"memory 8Gi of 9Gi: percent of free 8Gi",
		"nvidia.com/gpu 1 of 1:  0",
		"pods 30 of 31: total 40",
	}, show(peering.Explain(ask, p, have))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"cpu 2 of 2: ceiling 2",
		"memory 8Gi of 8Gi: percent of free 8Gi",
		"nvidia.com/gpu 1 of 1: free 3",
		"pods 30 of 30: total 40",
	}, show(peering.Explain(peering.Ask{RequestID: "r"}, p, have))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBoundsThatTieAreAllNamed(t *testing.T) {
	p := peering.Policy{
		Name: "gold", Accept: peering.Automatic, PercentOfFree: 50, TotalPercent: 50, OvercommitPercent: 100, Duration: time.Hour,
		Ceilings: resources(t, "pods", "50"), Total: resources(t, "pods", "60"),
	}
	have := peering.Capacity{
		// Half of it is not a whole number of bytes.
		Free:             resources(t, "cpu", "1920m", "memory", "16473133875", "pods", "101"),
		ReservedByPolicy: resources(t, "pods", "10"), ReservedForPeer: resources(t, "cpu", "0"),
	}
	for name, tc := range map[string]struct {
		ask  peering.Ask
		want []string
	}{
		"what was asked for": {
			peering.Ask{RequestID: "r", Resources: resources(t, "cpu", "4", "memory", "1Gi", "pods", "51")},
			[]string{
				"cpu: 960m of 4, bounded by percent of free of 960m and total of 960m",
				"memory: 1Gi",
				"pods: 40 of 51, bounded by total of 50",
			},
		},
		"all there is": {
			peering.Ask{RequestID: "r"},
			[]string{
				"cpu: 960m, bounded by percent of free of 960m and total of 960m",
				"memory: 7855Mi, bounded by percent of free of 7855Mi and total of 7855Mi",
				"pods: 40, bounded by total of 50",
			},
		},
	} {
		var got []string
		for _, b := range peering.Explain(tc.ask, p, have) {
			got = append(got, b.String())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestRefusalsNameAmountsOnce checks that each amount in a refusal is one quantity in its
// canonical form, with the name of its resource.
func TestRefusalsNameAmountsOnce(t *testing.T) {
	free := resources(t, "cpu", "1920m", "memory", "16473133875", "pods", "100")
	p := peering.Policy{
		Name: "gold", Accept: peering.Automatic, PercentOfFree: 50, TotalPercent: 100, OvercommitPercent: 100, Duration: time.Hour,
		Ceilings: resources(t, "pods", "20"), Total: resources(t, "nvidia.com/gpu", "4"),
	}
	for _, tc := range []struct {
		name   string
		amount string
		change func(*peering.Policy, *peering.Capacity)
		want   string
	}{
		{"cpu", "4", nil, `asked for cpu 4, and the provider's policy "gold" allows this peer 50% of what is free, of which cpu 960m is left now`},
		{"memory", "8Gi", nil, `asked for memory 8Gi, and the provider's policy "gold" allows this peer 50% of what is free, of which memory 7855Mi is left now`},
		{"pods", "30", func(_ *peering.Policy, c *peering.Capacity) { c.ReservedForPeer = resources(t, "pods", "5") }, `asked for pods 30, and the provider's policy "gold" allows this peer at most pods 20, of which it has pods 5`},
		{"nvidia.com/gpu", "5", nil, `asked for nvidia.com/gpu 5, and the provider's policy "gold" allows all peers together at most nvidia.com/gpu 4`},
		{"nvidia.com/gpu", "2", func(_ *peering.Policy, c *peering.Capacity) { c.ReservedByPolicy = resources(t, "nvidia.com/gpu", "3") }, `asked for nvidia.com/gpu 2, and the provider's policy "gold" allows all peers together at most nvidia.com/gpu 4, of which nvidia.com/gpu 1 is left now`},
		{"cpu", "1", func(p *peering.Policy, _ *peering.Capacity) { p.PercentOfFree, p.TotalPercent = 100, 50 }, `asked for cpu 1, and the provider's policy "gold" allows all peers together at most cpu 960m, of which cpu 960m is left now`},
		{"memory", "8Gi", func(p *peering.Policy, c *peering.Capacity) {
			p.PercentOfFree, c.Reserved = 100, resources(t, "memory", "12Gi")
		}, `asked for memory 8Gi, and only memory 3422Mi is free`},
	} {
		p, have := p, peering.Capacity{Free: free}
		if tc.change != nil {
			tc.change(&p, &have)
		}
		_, err := peering.Decide(peering.Ask{RequestID: "r", Resources: resources(t, tc.name, tc.amount)}, p, have)
		if err == nil || err.Error() != tc.want {
			t.Errorf("%s %s is refused by\n  %v\nwant\n  %s", tc.name, tc.amount, err, tc.want)
		}
	}
}

// provider is the contracts and offers of a provider that decides by Decide.
type provider struct {
	policy   [2]peering.Policy
	free     peering.Resources
	grants   []grant
	contract int
}

// grant is a contract, or the part of an amendment's offer that is above it.
type grant struct {
	contract, peer int
	amounts        peering.Resources
}

// policyOf is the policy that selects a peer: peers 0 and 1 share one.
func policyOf(peer int) int { return peer / 2 }

func (p *provider) capacity(rt *rapid.T, peer int) peering.Capacity {
	have := peering.Capacity{Free: p.free, Reserved: peering.Resources{}, ReservedByPolicy: peering.Resources{}, ReservedForPeer: peering.Resources{}}
	add := func(r *peering.Resources, amounts peering.Resources) {
		sum, err := r.Add(amounts)
		if err != nil {
			rt.Fatal(err)
		}
		*r = sum
	}
	for _, h := range p.grants {
		add(&have.Reserved, h.amounts)
		if policyOf(h.peer) == policyOf(peer) {
			add(&have.ReservedByPolicy, h.amounts)
		}
		if h.peer == peer {
			add(&have.ReservedForPeer, h.amounts)
		}
	}
	return have
}

// Grants are never above a ceiling of the peer, of all peers of a policy, or the capacity,
// whatever is asked for, amended and given back, and however often.
func TestGrantsStayBelowEveryCeiling(t *testing.T) {
	names := []string{"cpu", "memory", "pods", "nvidia.com/gpu"}
	amounts := func(rt *rapid.T, what string) peering.Resources {
		r := peering.Resources{}
		for _, name := range names {
			if rapid.IntRange(0, 3).Draw(rt, what+" has "+name) == 0 {
				continue
			}
			// Few units meet bounds often, many meet rounding.
			n := peering.Whole(rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, 1<<40)).Draw(rt, what+" "+name))
			if peering.Fractional(name) && rapid.Bool().Draw(rt, what+" in parts") {
				n = n.Percent(rapid.IntRange(0, 100).Draw(rt, what+" percent"))
			}
			r[name] = n
		}
		return r
	}
	grants := 0
	rapid.Check(t, func(rt *rapid.T) {
		p := provider{free: amounts(rt, "free")}
		for i := range p.policy {
			p.policy[i] = peering.Policy{
				Accept: peering.Automatic, Duration: time.Hour, Ceilings: amounts(rt, "ceiling"), Total: amounts(rt, "total"),
				PercentOfFree:     rapid.IntRange(0, 100).Draw(rt, "percent"),
				TotalPercent:      rapid.IntRange(0, 100).Draw(rt, "total percent"),
				OvercommitPercent: rapid.OneOf(rapid.Just(100), rapid.IntRange(1, 300)).Draw(rt, "overcommit"),
				Price:             peering.PriceList{Currency: "EUR", PerHour: map[string]peering.Decimal{"cpu": decimal(t, "0.5")}},
			}
		}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			peer := rapid.IntRange(0, 3).Draw(rt, "peer")
			have, policy := p.capacity(rt, peer), p.policy[policyOf(peer)]
			ask := peering.Ask{RequestID: "r"}
			if rapid.Bool().Draw(rt, "names amounts") {
				ask.Resources = amounts(rt, "ask")
			}
			if rapid.Bool().Draw(rt, "has a price") {
				ask.PriceCeiling = peering.Money{Currency: "EUR", Amount: decimal(t, fmt.Sprint(rapid.IntRange(0, 9).Draw(rt, "price")))}
			}
			id := 0
			var granted peering.Resources
			if n := len(p.grants); n > 0 {
				switch rapid.IntRange(0, 3).Draw(rt, "what") {
				case 0: // a contract ends
					gone := p.grants[rapid.IntRange(0, n-1).Draw(rt, "which")]
					p.grants = slices.DeleteFunc(p.grants, func(h grant) bool { return h.contract == gone.contract })
					continue
				case 1: // a contract is amended
					h := p.grants[rapid.IntRange(0, n-1).Draw(rt, "which")]
					if h.peer == peer {
						id, granted = h.contract, h.amounts
						have = have.Without(granted)
					}
				}
			}
			g, err := peering.Decide(ask, policy, have)
			explain(rt, ask, policy, have, g, err)
			if err != nil {
				continue
			}
			grants++
			for name, q := range g.Resources {
				if !peering.Fractional(name) && !q.IsWhole() {
					rt.Fatalf("%s %s is not whole", name, q)
				}
				if want, asked := ask.Resources[name]; len(ask.Resources) > 0 && (asked && want.Cmp(q) != 0 || !asked && name != peering.Pods) {
					rt.Fatalf("asked for %s %s, granted %s", name, want, q)
				}
			}
			if hourly, err := g.Price.Hourly(g.Resources); err != nil || !ask.PriceCeiling.IsNone() && hourly.Amount.Cmp(ask.PriceCeiling.Amount) > 0 {
				rt.Fatalf("it costs %s, %v, the ceiling is %s", hourly, err, ask.PriceCeiling)
			}
			if id != 0 { // while the offer is valid both count, whichever is more
				p.grants = append(p.grants, grant{id, peer, g.Resources.Sub(granted)})
				p.check(rt, names)
				p.grants = slices.DeleteFunc(p.grants, func(h grant) bool { return h.contract == id })
			} else {
				p.contract++
				id = p.contract
			}
			p.grants = append(p.grants, grant{id, peer, g.Resources})
			p.check(rt, names)
		}
	})
	if grants == 0 {
		t.Error("nothing was ever granted")
	}
}

// check compares what is reserved with every bound.
func (p *provider) check(rt *rapid.T, names []string) {
	rt.Helper()
	for peer := range 4 {
		have, policy := p.capacity(rt, peer), p.policy[policyOf(peer)]
		for _, name := range names {
			effective := overcommitted(rt, p.free[name], policy.OvercommitPercent)
			if c, ok := policy.Ceilings[name]; ok && have.ReservedForPeer[name].Cmp(c) > 0 {
				rt.Fatalf("%s: peer %d has %s, the ceiling is %s", name, peer, have.ReservedForPeer[name], c)
			}
			if c, ok := policy.Total[name]; ok && have.ReservedByPolicy[name].Cmp(c) > 0 {
				rt.Fatalf("%s: all peers have %s, the total is %s", name, have.ReservedByPolicy[name], c)
			}
			if most := effective.Percent(policy.PercentOfFree); have.ReservedForPeer[name].Cmp(most) > 0 {
				rt.Fatalf("%s: peer %d has %s, %d%% of what is free is %s", name, peer, have.ReservedForPeer[name], policy.PercentOfFree, most)
			}
			if most := effective.Percent(policy.TotalPercent); have.ReservedByPolicy[name].Cmp(most) > 0 {
				rt.Fatalf("%s: all peers have %s, %d%% of what is free is %s", name, have.ReservedByPolicy[name], policy.TotalPercent, most)
			}
		}
	}
	// Of two policies, the one that overcommits more bounds the whole.
	reserved := p.capacity(rt, 0).Reserved
	for _, name := range names {
		most := overcommitted(rt, p.free[name], max(p.policy[0].OvercommitPercent, p.policy[1].OvercommitPercent))
		if reserved[name].Cmp(most) > 0 {
			rt.Fatalf("%s: %s is reserved, %s counts as free", name, reserved[name], most)
		}
	}
}

// overcommitted is q times percent, by another way than that of the package.
func overcommitted(rt *rapid.T, q peering.Quantity, percent int) peering.Quantity {
	sum := q.Percent(percent % 100)
	for range percent / 100 {
		var err error
		if sum, err = sum.Add(q); err != nil {
			rt.Fatal(err)
		}
	}
	return sum
}

// explain compares Explain with Decide: what is refused has a bound, what is granted has no lower
// one.
func explain(rt *rapid.T, ask peering.Ask, p peering.Policy, have peering.Capacity, g peering.Grant, err error) {
	rt.Helper()
	var no *peering.Error
	errors.As(err, &no)
	for _, b := range peering.Explain(ask, p, have) {
		switch {
		case err == nil && len(ask.Resources) > 0 && (b.By != "" || b.Granted.Cmp(b.Asked) != 0):
			rt.Fatalf("granted, but %+v", b)
		case err == nil && g.Resources[b.Resource].Cmp(b.Granted) != 0:
			rt.Fatalf("granted %s, but %+v", g.Resources[b.Resource], b)
		case no != nil && len(ask.Resources) > 0 && no.Metadata[peering.ResourceKey] == b.Resource && b.By == "":
			rt.Fatalf("refused because %v, but %+v", no, b)
		case b.Granted.Cmp(b.Asked) > 0:
			rt.Fatalf("more than was asked for: %+v", b)
		}
	}
}

// TestEveryGrantBoundsPods generates asks, policies and capacities: a grant always has pods, as
// many as were asked for if the ask names them, and within every ceiling; and every revision of
// it has the resources that it has.
func TestEveryGrantBoundsPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(what string, names ...string) peering.Resources {
			r := peering.Resources{}
			for _, name := range names {
				if rapid.Bool().Draw(t, what+" names "+name) {
					r[name] = peering.Whole(rapid.Int64Range(0, 300).Draw(t, what+" of "+name))
				}
			}
			return r
		}
		names := []string{"cpu", "memory", "pods", "nvidia.com/gpu"}
		p := peering.Policy{
			Name: "any", Accept: peering.Automatic, Duration: time.Hour,
			PercentOfFree: rapid.IntRange(0, 100).Draw(t, "percent"), TotalPercent: 100, OvercommitPercent: 100,
			Ceilings: draw("ceiling", names...), Total: draw("total", names...),
		}
		have := peering.Capacity{Free: draw("free", names...), Reserved: draw("reserved", names...)}
		ask := peering.Ask{RequestID: "r", Resources: draw("ask", names...)}
		g, err := peering.Decide(ask, p, have)
		if err != nil {
			return
		}
		pods, bounded := g.Resources[peering.Pods]
		want, named := ask.Resources[peering.Pods]
		most := have.Free[peering.Pods].Sub(have.Reserved[peering.Pods]).Min(have.Free[peering.Pods].Percent(p.PercentOfFree))
		if ceiling, ok := p.Ceilings[peering.Pods]; ok {
			most = most.Min(ceiling)
		}
		if total, ok := p.Total[peering.Pods]; ok {
			most = most.Min(total)
		}
		switch {
		case !bounded:
			t.Fatalf("granted %s: without a limit of pods", g.Resources)
		case named && pods.Cmp(want) != 0:
			t.Fatalf("granted pods %s of %s", pods, want)
		case pods.Cmp(most) > 0:
			t.Fatalf("granted pods %s, more than %s", pods, most)
		case !named && len(ask.Resources) > 0 && pods.IsZero():
			t.Fatal("granted no pod by default")
		}
		next := draw("next", names...)
		revised := next.KeepUnnamed(g.Resources)
		for name, q := range g.Resources {
			want, named := next[name]
			if !named {
				want = q
			}
			if got, ok := revised[name]; !ok || got.Cmp(want) != 0 {
				t.Fatalf("the revision of %s by %s has %s", g.Resources, next, revised)
			}
		}
	})
}
