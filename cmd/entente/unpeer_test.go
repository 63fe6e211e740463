package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
)

func TestUnpeerDrainsAndWaits(t *testing.T) {
	golden(t, "unpeer", peered(), []string{"unpeer", "provider"})
}

func TestUnpeerBothSidesForgets(t *testing.T) {
	w := peered()
	w.pods = 2
	golden(t, "unpeer-forget", w, []string{"unpeer", "--remote-kubeconfig", "p.yaml", "--now", "--forget"})
	there := w.provider.requests
	asked := slices.IndexFunc(there, func(r string) bool { return strings.HasPrefix(r, "EndPeering") })
	looked := slices.IndexFunc(there, func(r string) bool { return strings.HasPrefix(r, "GetPeer") })
	if asked < 0 || asked > looked {
		t.Errorf("the other side is waited for before it is asked to forget: %q", there)
	}
}

func TestUnpeerOfAConsumerChangesNothing(t *testing.T) {
	w := peered()
	w.provides = true
	golden(t, "unpeer-provider", w, []string{"unpeer", "consumer"})
	sent(t, w.provider)
}

func TestUnpeerPrintsJSON(t *testing.T) {
	golden(t, "unpeer-json", peered(), []string{"unpeer", "provider", "-o", "json"}, []string{"unpeer", "nobody", "-o", "json"})
}

func TestUnpeerEndsOneRequest(t *testing.T) {
	w := peered()
	golden(t, "unpeer-peering", w, []string{"unpeer", "--peering", "provider"}, []string{"unpeer", "provider", "--peering", "gpus"}, []string{"unpeer", "--peering", "gpus", "--now"}, []string{"unpeer", "--peering", "gpus", "--delete-volumes"})
	sent(t, w.consumer, "DeletePeering peerings/provider")
}

func TestUnpeerReportsASlowDrain(t *testing.T) {
	w := peered()
	w.noDrain = true
	golden(t, "unpeer-stuck", w, []string{"unpeer", "provider"})
}

func TestUnpeerReportsThatThePeerIsAway(t *testing.T) {
	w := peered()
	w.noDrain, w.lost = true, true
	golden(t, "unpeer-away", w, []string{"unpeer", "provider"})
}

func TestUnpeerNowAsksForConfirmation(t *testing.T) {
	for _, flag := range []string{"--now", "--forget"} {
		for answer, want := range map[string]bool{"y\n": true, "yes\n": true, "n\n": false, "\n": false, "x": false} {
			w := peered()
			out, _, code := w.run(t, answer, "unpeer", "provider", flag)
			if (code == exit.OK) != want || !strings.Contains(out, "3 pods under the contracts with provider will be killed") {
				t.Errorf("%s, answer %q: exit %d, printed %s", flag, answer, code, out)
			}
			if ended := strings.Contains(strings.Join(w.consumer.requests, " "), "EndPeering"); ended != want {
				t.Errorf("%s, answer %q: ended is %v", flag, answer, ended)
			}
			if strings.Contains(out, "at once") != want || strings.Contains(out, "draining") {
				t.Errorf("%s, answer %q: it does not say that it ends at once: %s", flag, answer, out)
			}
		}
	}
}
