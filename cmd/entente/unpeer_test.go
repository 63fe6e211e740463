package main

import (
	"strings"
	"testing"
)

func TestUnpeerDrainsAndWaits(t *testing.T) {
	golden(t, "unpeer", peered(), []string{"unpeer", "provider"})
}

func TestUnpeerBothSidesForgets(t *testing.T) {
	w := peered()
	w.pods = 2
	golden(t, "unpeer-forget", w, []string{"unpeer", "--remote-kubeconfig", "p.yaml", "--now", "--forget"})
}

func TestUnpeerOfWhatIsOnlyLentSaysSo(t *testing.T) {
	w := peered()
	w.lends = true
	golden(t, "unpeer-lender", w, []string{"unpeer", "consumer"})
	sent(t, w.provider)
}

func TestUnpeerIsForPrograms(t *testing.T) {
	golden(t, "unpeer-json", peered(), []string{"unpeer", "provider", "-o", "json"}, []string{"unpeer", "nobody", "-o", "json"})
}

func TestUnpeerEndsOneAsk(t *testing.T) {
	w := peered()
	golden(t, "unpeer-peering", w, []string{"unpeer", "--peering", "provider"}, []string{"unpeer", "provider", "--peering", "gpus"}, []string{"unpeer", "--peering", "gpus", "--now"})
	sent(t, w.consumer, "DeletePeering peerings/provider")
}

func TestUnpeerTellsWhenDrainingTakesTooLong(t *testing.T) {
	w := peered()
	w.noDrain = true
	golden(t, "unpeer-stuck", w, []string{"unpeer", "provider"})
}

func TestUnpeerNowAsksWhoeverIsThere(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "yes\n": true, "n\n": false, "\n": false, "x": false} {
		w := peered()
		out, _, code := w.run(t, answer, "unpeer", "provider", "--now")
		if (code == exitOK) != want || !strings.Contains(out, "3 pods by the contracts with provider will be killed") {
			t.Errorf("answer %q: exit %d, printed %s", answer, code, out)
		}
		if ended := strings.Contains(strings.Join(w.consumer.requests, " "), "EndPeering"); ended != want {
			t.Errorf("answer %q: ended is %v", answer, ended)
		}
	}
}
