package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPeeringsShowTheResultOfEachRequest(t *testing.T) {
	golden(t, "peerings", peered(),
		[]string{"peerings"}, []string{"peerings", "provider", "-o", "yaml"}, []string{"peerings", "provider", "--get", "contract"}, []string{"peerings", "nothing"},
	)
}

func TestCreatePeeringRequestDoesNotWait(t *testing.T) {
	w := newWorld()
	w.joined = true
	golden(t, "create", w,
		[]string{"create", "peeringrequest", "gpus", "--peer", "provider", "--resources", "nvidia.com/gpu=2", "--dry-run"},
		[]string{"create", "peeringrequest", "gpus", "--peer", "provider", "--resources", "nvidia.com/gpu=2"},
		[]string{"create", "resourceslice", "gpus", "--peer", "provider", "--resources", "nvidia.com/gpu=2", "--dry-run"},
		[]string{"create", "peeringrequest", "gpus", "--any"},
		[]string{"create", "peeringrequest", "gpus"}, []string{"create", "peeringrequest", "gpus", "--peer", "a", "--any"},
	)
}

func TestCreatePeeringRequestPrintsJSON(t *testing.T) {
	w := newWorld()
	w.joined = true
	golden(t, "create-json", w, []string{"create", "peeringrequest", "--any", "--peer-selector", "region=lombardia", "-o", "json"})
	sent(t, w.consumer, "CreatePeering peers/- : nothing for 0s at most any price no-network=false no-renewal=false nodes= peers=region=lombardia storage=[] runtime=[] id=")
}

func TestAmendWaitsForTheNextRevision(t *testing.T) {
	w := peered()
	golden(t, "amend", w,
		[]string{"amend", "provider", "--resources", "cpu=8", "--dry-run"},
		[]string{"amend", "provider", "--resources", "cpu=8,pods=0", "--price-ceiling", "any"},
		[]string{"amend", "provider", "--no-renewal", "-o", "json"},
		[]string{"amend", "provider"}, []string{"amend", "provider", "--renewal", "--no-renewal"}, []string{"amend", "nothing", "--renewal"},
		[]string{"amend", "provider", "--price-ceiling", "0.5"}, []string{"amend", "provider", "--duration", "-1h"},
	)
	sent(t, w.consumer,
		"UpdatePeering peerings/provider [resources]: cpu 8, memory 8Gi, pods 110 for 0s at most any price no-renewal=false",
		"UpdatePeering peerings/provider [resources price_ceiling]: cpu 8, memory 8Gi, pods 0 for 0s at most any price no-renewal=false",
		"UpdatePeering peerings/provider [no_renewal]: nothing for 0s at most any price no-renewal=true",
	)
	w = peered()
	w.pending = true
	golden(t, "amend-pending", w, []string{"amend", "provider", "--resources", "cpu=8", "--dry-run"})
	w = peered()
	w.stuck = "nothing"
	golden(t, "amend-stuck", w, []string{"amend", "provider", "--cpu", "8"})
	w.refuse = "cpu: 8 is more than the 4 that this peer may have"
	// Repeated, it asks for the same, and is refused again.
	golden(t, "amend-refused", w, []string{"amend", "provider", "--cpu", "16"}, []string{"amend", "provider", "--cpu", "16"})
}

func TestAmendKeepsAmountsThatAreNotGiven(t *testing.T) {
	for name, tc := range map[string]struct{ told, before, signed, want []string }{
		"others stay":                         {[]string{"cpu", "8"}, []string{"cpu", "4", "memory", "8Gi"}, []string{"cpu", "4"}, []string{"cpu", "8", "memory", "8Gi"}},
		"none of it, which has to be named":   {[]string{"cpu", "0"}, []string{"cpu", "4", "memory", "8Gi"}, nil, []string{"cpu", "0", "memory", "8Gi"}},
		"none of what only the contract has":  {[]string{"pods", "0"}, []string{"cpu", "4"}, []string{"cpu", "4", "pods", "9"}, []string{"cpu", "4", "pods", "0"}},
		"what was left to the policy is kept": {[]string{"cpu", "8"}, nil, []string{"cpu", "4", "memory", "8Gi"}, []string{"cpu", "8", "memory", "8Gi"}},
		"nothing before":                      {[]string{"cpu", "8"}, nil, nil, []string{"cpu", "8"}},
	} {
		before := list(tc.before...)
		got := overlay(list(tc.told...), before, list(tc.signed...))
		if diff := cmp.Diff(list(tc.want...).GetAmounts(), got.GetAmounts()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff(list(tc.before...).GetAmounts(), before.GetAmounts()); diff != "" {
			t.Errorf("%s: it changed what was there\n%s", name, diff)
		}
	}
}
