package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/entente-dev/entente/cmd/entente/internal/exit"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func foundPeer(name string) *ententev1.Peer {
	return &ententev1.Peer{
		Name: "peers/" + name, Source: "DNS", Sightings: []*ententev1.Sighting{{Source: "DNS", Location: "example.com"}},
		Conditions: []*ententev1.Condition{{Type: "Trusted", Status: "False", Reason: "Discovered"}},
	}
}

// A peer that was forgotten and is still found has another name than before.
func TestUnknownPeersAreErrorsThatNameNearOnes(t *testing.T) {
	const suggests = "did you mean milan-62hsfgkf (not trusted)?"
	for _, args := range [][]string{
		{"peer", "milan"}, {"peer", "milan", "--dry-run"}, {"info", "peer", "milan"}, {"approve", "milan", "--yes"}, {"deny", "milan", "--yes"},
	} {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			w := newWorld()
			w.hints = []*ententev1.Peer{foundPeer("milan-62hsfgkf"), foundPeer("rome-aaaaaaaa")}
			_, errOut, code := w.run(t, "", args...)
			if code != exit.Failed || !strings.Contains(errOut, suggests) || strings.Contains(errOut, "rome") || !strings.Contains(errOut, "entente info peer") {
				t.Errorf("exit %d: %s", code, errOut)
			}
		})
	}
	w := newWorld()
	for i := range 9 { // anyone may publish any name
		w.hints = append(w.hints, foundPeer(fmt.Sprintf("milan-%08d", i)))
	}
	if _, errOut, _ := w.run(t, "", "info", "peer", "milan"); strings.Count(errOut, "milan-") != exit.MaxNear {
		t.Errorf("it says %s", errOut)
	}
	// A caller that may not list peers gets no names.
	w.noList = true
	if _, errOut, code := w.run(t, "", "info", "peer", "milan"); strings.Contains(errOut, "did you mean") || code != exit.Failed || !strings.Contains(errOut, "PEER_UNKNOWN") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	remote := &exit.CallError{Cluster: "remote", Err: failure(peering.ReasonPeerUnknown, "no")}
	if err := (&run{cluster: &cluster{label: "local"}}).suggest(t.Context(), remote); !errors.Is(err, remote) || len(remote.Near) > 0 {
		t.Error("this cluster's names are suggested for another cluster")
	}
}
