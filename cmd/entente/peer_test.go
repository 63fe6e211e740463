package main

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	"github.com/entente-dev/entente/peering"
)

func TestPeerDoesBothSidesAndRepeatsNothing(t *testing.T) {
	w := newWorld()
	golden(t, "peer-both", w,
		[]string{"peer", "--remote-kubeconfig", "provider.yaml", "--cpu", "4", "--memory", "8Gi"},
		[]string{"peer", "--remote-kubeconfig", "provider.yaml"},
		[]string{"peer", "--remote-kubeconfig", "provider.yaml", "--no-renewal", "-o", "yaml"},
	)
	if n := strings.Count(strings.Join(w.provider.requests, "\n"), "CreateToken"); n != 1 {
		t.Errorf("%d tokens were made", n)
	}
}

func TestPeerShowsItsStepsOnATerminal(t *testing.T) {
	w := newWorld()
	w.terminal = true
	golden(t, "peer-terminal", w, []string{"peer", "--remote-kubeconfig", "provider.yaml"}, []string{"info"})
}

func TestWaitingRedrawsOneLineThatFits(t *testing.T) {
	w := newWorld()
	w.terminal, w.joined, w.stuck = true, true, "Network"
	_, errOut, _ := w.run(t, "", "peer", "provider")
	lines := strings.Split(errOut, "\r\x1b[K")
	if len(lines) < 40 {
		t.Fatalf("it was not redrawn: %q", errOut)
	}
	for _, line := range lines[1 : len(lines)-1] {
		if n := utf8.RuneCountInString(line); n >= 100 || strings.Contains(line, "\n") || n > 0 && !strings.Contains(line, "waiting for traffic") {
			t.Errorf("%d characters: %q", n, line)
		}
	}
}

// Pods that are cut off on some nodes keep the others from nothing, and are reported.
func TestPeerSaysThatANodeIsCutOff(t *testing.T) {
	w := newWorld()
	w.joined, w.cutOff = true, true
	out, errOut, code := w.run(t, "", "peer", "provider")
	if code != 0 || !strings.Contains(out, "Not from all nodes: pods on node-b are cut off") {
		t.Errorf("it ends with %d and says %q, %q", code, out, errOut)
	}
}

func TestPeerWithAClusterThatHasJoined(t *testing.T) {
	w := newWorld()
	w.joined = true
	golden(t, "peer-joined", w,
		[]string{
			"peer", "provider", "--no-network", "--resources", "nvidia.com/gpu=1,cpu=4", "--memory", "8192Mi", "--duration", "24h", "--price-ceiling", "EUR 0.50",
			"--node-selector", "kubernetes.io/arch=arm64", "--storage-class", "fast", "--runtime-class", "gvisor", "--no-renewal",
		},
	)
	sent(t, w.consumer, "CreatePeering peers/provider : cpu 4, memory 8Gi, nvidia.com/gpu 1 for 24h0m0s at most EUR 0.5 no-network=true no-renewal=true nodes=kubernetes.io/arch=arm64 peers= storage=[fast] runtime=[gvisor] id=")
}

func TestARepeatedPeerSaysWhetherTheRequestDiffers(t *testing.T) {
	w := newWorld()
	w.joined = true
	w.run(t, "", "peer", "provider", "--cpu", "4", "--memory", "8Gi")
	golden(t, "peer-again", w,
		[]string{"peer", "provider", "--cpu", "4000m", "--memory", "8192Mi"}, []string{"peer", "provider", "--cpu", "5"},
		[]string{"peer", "provider", "--dry-run"}, []string{"peer", "provider", "--cpu", "5", "--dry-run"}, []string{"peer", "provider", "--dry-run", "-o", "json"},
	)
	w.goingDown = 1
	if _, errOut, code := w.run(t, "", "peer", "provider", "--dry-run"); code != exit.Failed || !strings.Contains(errOut, "PEERING_EXISTS") {
		t.Errorf("while the request is being deleted: exit %d: %s", code, errOut)
	}
}

// Of what a request does not name beside other amounts, its contract has nothing.
func TestPeerSaysWhatTheContractLacks(t *testing.T) {
	w := newWorld()
	w.joined, w.signed = true, list("cpu", "2", "pods", "5")
	out, errOut, code := w.run(t, "", "peer", "provider", "--cpu", "2")
	if want := "NOTE   (local) the contract has no memory: "; code != exit.OK || !strings.Contains(out, want) || !strings.Contains(out, "entente amend provider --memory AMOUNT") {
		t.Errorf("exit %d, want %q\n%s%s", code, want, out, errOut)
	}
}

// Charts request it, and no node without it takes their pods.
func TestPeerSaysThatTheContractLacksTheNodesStorage(t *testing.T) {
	w := newWorld()
	w.joined, w.signed, w.offers = true, list("cpu", "2", "memory", "1Gi", "pods", "5"), list("cpu", "12", "ephemeral-storage", "20Gi")
	out, errOut, code := w.run(t, "", "peer", "provider", "--cpu", "2", "--memory", "1Gi")
	if want := "entente amend provider --resources ephemeral-storage=AMOUNT"; code != exit.OK || !strings.Contains(out, want) {
		t.Errorf("exit %d, want %q\n%s%s", code, want, out, errOut)
	}
}

func TestPeerTakesTheCheapestOfAll(t *testing.T) {
	w := newWorld()
	w.joined = true
	golden(t, "peer-any", w,
		[]string{"peer", "--any", "--resources", "cpu=4,memory=8Gi", "--dry-run"},
		[]string{"peer", "--peer-selector", "region=lombardia", "--resources", "cpu=4,memory=8Gi"},
	)
	// Repeating the command finds the same request.
	w.asked = false
	w.run(t, "", "peer", "--peer-selector", "region=lombardia", "--resources", "memory=8Gi", "--cpu", "4")
	w.asked = false
	w.run(t, "", "peer", "--peer-selector", "region=lombardia", "--resources", "memory=8Gi", "--cpu", "5")
	var ids []string
	for _, r := range w.consumer.requests {
		if _, id, ok := strings.Cut(r, " id="); ok && id != "" {
			ids = append(ids, id)
		}
	}
	if len(ids) != 3 || ids[0] != ids[1] || ids[1] == ids[2] {
		t.Errorf("request IDs %q", ids)
	}
}

func TestPeerDryRunChangesNothing(t *testing.T) {
	w := newWorld()
	golden(t, "peer-dry-run", w, []string{"peer", "--remote-context", "provider", "--dry-run"})
	w.joined = true
	golden(t, "peer-dry-run-joined", w,
		[]string{"peer", "provider", "--resources", "cpu=4,memory=8Gi", "--dry-run"},
		[]string{"peer", "provider", "--resources", "cpu=4,memory=8Gi", "--dry-run", "-o", "json"},
	)
	w.pending = true
	golden(t, "peer-dry-run-pending", w, []string{"peer", "provider", "--dry-run"})
	w.pending, w.refuse = false, `the provider's policy "default" offers nothing to this peer`
	golden(t, "peer-dry-run-refused", w, []string{"peer", "provider", "--dry-run"})
	if w.asked || len(w.provider.requests) > 2 {
		t.Errorf("something was asked: %v, %q", w.asked, w.provider.requests)
	}
}

func TestPeerTimeoutNamesTheConditionAwaited(t *testing.T) {
	for _, hop := range []string{"Connected", "Contract", "Network", "Offloading"} {
		t.Run(hop, func(t *testing.T) {
			w := newWorld()
			w.stuck = hop
			golden(t, "peer-stuck-"+strings.ToLower(hop), w, []string{"peer", "--remote-context", "provider"})
		})
	}
}

func TestPeerAsksOnlyTrustedPeers(t *testing.T) {
	introduced := func(decision string) *world {
		w := newWorld()
		w.introduced, w.decision = true, decision
		return w
	}
	joined := newWorld()
	joined.joined, joined.stuck = true, "Trusted"
	for _, tt := range []struct {
		name, peer string
		w          *world
	}{
		{"discovered", "workshop", discovered()},
		{"introduced", "provider", introduced("")},
		{"denied", "provider", introduced("Denied")},
		{"not-joined", "provider", joined},
	} {
		t.Run(tt.name, func(t *testing.T) {
			golden(t, "peer-untrusted-"+tt.name, tt.w, []string{"peer", tt.peer}, []string{"peer", tt.peer, "--dry-run"})
			sent(t, tt.w.consumer)
		})
	}
}

func TestPeerWaitsForTrustThatIsOnItsWay(t *testing.T) {
	w := newWorld()
	w.joined, w.trustedAt = true, 3
	if out, errOut, code := w.run(t, "", "peer", "provider"); code != exit.OK || !strings.Contains(out, "is Ready") {
		t.Errorf("joined just now: exit %d\n%s%s", code, out, errOut)
	}
	// A peer that this side approved is asked, and without the other side's approval no address helps.
	w = newWorld()
	w.introduced, w.decision = true, "Approved"
	golden(t, "peer-untrusted-approved", w, []string{"peer", "provider"})
}

func TestPeerGivesUpWhenTheProviderRefuses(t *testing.T) {
	w := newWorld()
	w.refuse = `the provider's policy "default" offers nothing to this peer`
	golden(t, "peer-refused", w, []string{"peer", "--remote-context", "provider"})
}

func TestPeerAndAmendGiveUpOnAnInvalidRequest(t *testing.T) {
	w := newWorld()
	w.joined, w.refuse, w.refusal = true, "nvidia.com/gpu 500m is not a whole number", "RequestInvalid"
	golden(t, "peer-invalid", w, []string{"peer", "provider", "--resources", "cpu=1"}, []string{"amend", "provider", "--duration", "2h"})
}

func TestPeerAndAmendGiveUpOnARequestThatIsOver(t *testing.T) {
	const again = "next: end the request: entente unpeer --peering provider, and ask again: entente peer provider"
	for reason, tc := range map[string]struct{ message, says, next string }{
		"Expired": {
			"contract 7f3c9a reached its end and spec.renewal is Never; delete this PeeringRequest, and create another to ask again", "the request is over: ",
			again + "; or let it ask again and be renewed: entente amend provider --renewal\n",
		},
		"EndedHere":       {"this cluster ended contract 7f3c9a; delete this PeeringRequest, and create another to ask again", "the request is over: ", again + "\n"},
		"EndedByProvider": {"the provider ended contract 7f3c9a; delete this PeeringRequest, and create another to ask again", "the provider refuses: EndedByProvider: ", again + "\n"},
	} {
		w := newWorld()
		w.joined, w.refuse, w.refusal = true, tc.message, reason
		ask := []string{"peer", "provider", "--resources", "cpu=1"}
		for _, args := range [][]string{ask, {"amend", "provider", "--duration", "2h"}, {"peer", "provider", "--resources", "cpu=2"}} {
			out, errOut, code := w.run(t, "", args...)
			if code != exit.Refused || !strings.Contains(errOut, tc.says+tc.message) || !strings.Contains(errOut, tc.next) || strings.Contains(out, "entente amend") {
				t.Errorf("%q, %s: exit %d: %s%s", args, reason, code, out, errOut)
			}
		}
		if out, errOut, code := w.run(t, "", "peer", "provider", "--resources", "cpu=2", "--dry-run"); code != exit.OK || !strings.Contains(out, "would not be applied; "+strings.TrimPrefix(tc.next, "next: ")) || strings.Contains(out, "--dry-run") {
			t.Errorf("what would be offered, %s: exit %d: %s%s", reason, code, out, errOut)
		}
	}
}

func TestPeerWaitsWhileTheAgentIsAway(t *testing.T) {
	w := newWorld()
	w.away = map[int]bool{3: true, 4: true, 7: true}
	out, errOut, code := w.run(t, "", "peer", "--remote-context", "provider")
	if code != exit.OK || !strings.Contains(out, "is Ready") || !strings.Contains(errOut, "for the agent to respond (no leader)") {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
}

func TestPeerFailsAtOnceWhereItCannotAsk(t *testing.T) {
	w := newWorld()
	w.consumer.err = &peering.Error{Reason: peering.ReasonKubernetes, Message: "no API server"}
	_, errOut, code := w.run(t, "", "peer", "provider")
	if code != exit.Failed || !strings.Contains(errOut, "KUBERNETES_UNAVAILABLE") {
		t.Errorf("got %d %s", code, errOut)
	}
}

func TestPeerJoinsFromTheProviderIfThatCannotBeDialled(t *testing.T) {
	w := newWorld()
	w.hidden = true
	golden(t, "peer-hidden", w, []string{"peer", "--remote-context", "provider"})
}

func TestPeerWaitsForAnEndingRequestOfTheSameName(t *testing.T) {
	w := newWorld()
	w.joined, w.goingDown = true, 3
	golden(t, "peer-going-down", w, []string{"peer", "provider"})
}

func TestPeerCanBeInterrupted(t *testing.T) {
	w := newWorld()
	w.joined, w.stuck, w.interrupt = true, "Contract", true
	_, errOut, code := w.run(t, "", "peer", "provider")
	if code != exit.Interrupted || !strings.Contains(errOut, "the clusters continue what was started") {
		t.Errorf("exit %d: %s", code, errOut)
	}
}
