package main

import "testing"

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
	golden(t, "amend-less-than-used", peered(), []string{"amend", "provider", "--cpu", "100m", "--dry-run"}, []string{"amend", "provider", "--cpu", "0.1"}, []string{"amend", "provider", "--cpu", "0.5"})
	w = peered()
	w.stuck = "nothing"
	golden(t, "amend-stuck", w, []string{"amend", "provider", "--cpu", "8"})
	w.stuck, w.refuse, w.signed = "", "cpu: 8 is more than the 4 that this peer may have", list("cpu", "4", "memory", "8Gi", "pods", "110")
	// Repeated, it asks for the same, and is refused again.
	golden(t, "amend-refused", w, []string{"amend", "provider", "--cpu", "16"}, []string{"amend", "provider", "--cpu", "16"})
}

// An earlier request was refused, and is signed just when the next one is sent.
func TestAmendDoesNotTakeTheRevisionOfAnEarlierRequest(t *testing.T) {
	refused := func() *world {
		w := peered()
		w.want = w.consumer.ask()
		w.want.Resources = list("cpu", "350m", "pods", "42")
		w.signed, w.generation, w.seen = list("cpu", "300m", "pods", "42"), 2, 2
		w.refuse = "cpu: 350m is more than the 300m that this peer may have"
		w.afterAmend = []func(){func() {}, func() {
			w.refuse, w.revision, w.fulfilled, w.signed = "", 2, 2, list("cpu", "350m", "pods", "42")
		}}
		return w
	}
	w := refused()
	w.afterAmend = append(w.afterAmend, func() { w.refuse, w.refusal, w.seen = "cpu: 4 of the 64 cores are left", "CapacityExhausted", 3 })
	golden(t, "amend-earlier-revision", w, []string{"amend", "provider", "--cpu", "64"})

	w = refused()
	w.afterAmend = append(w.afterAmend, func() { w.revision, w.fulfilled, w.seen, w.signed = 3, 3, 3, nil })
	golden(t, "amend-both-revisions", w, []string{"amend", "provider", "--cpu", "1"})

	w = refused()
	w.afterAmend = []func(){func() { w.generation = 4 }}
	golden(t, "amend-changed-again", w, []string{"amend", "provider", "--cpu", "1"})
}

func TestAmendWaitsForTheFirstContract(t *testing.T) {
	w := peered()
	w.contracted, w.fulfilled, w.refuse, w.refusal = false, 0, "it costs EUR 1 an hour", "PriceAboveCeiling"
	w.afterAmend = []func(){func() {}, func() { w.seen = 2 }, func() {}, func() { w.refuse, w.seen, w.fulfilled = "", 3, 3 }}
	golden(t, "amend-first-contract", w,
		[]string{"amend", "provider", "--price-ceiling", "EUR 0.7"}, []string{"amend", "provider", "--price-ceiling", "EUR 5"},
	)
}

func TestARefusalForLackOfCapacityEndsTheWait(t *testing.T) {
	w := peered()
	w.signed, w.refuse, w.refusal = list("cpu", "300m", "pods", "42"), "cpu: 64 are not left", "CapacityExhausted"
	golden(t, "amend-capacity", w,
		[]string{"amend", "provider", "--cpu", "64", "--memory", "1Gi"}, []string{"amend", "provider", "--cpu", "64", "--duration", "2h"},
	)
	w = newWorld()
	w.joined, w.refuse, w.refusal = true, "cpu: 64 are not left", "CapacityExhausted"
	golden(t, "peer-capacity", w, []string{"peer", "provider", "--cpu", "64"})
}
