package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

func TestNearNames(t *testing.T) {
	known := []string{"milan", "milan-62hsfgkf", "Milano", "rome", "rom", "office-berlin", "x"}
	for name, tc := range map[string]struct {
		name  string
		known []string
		want  []string
	}{
		"what discovery calls it":          {"milan", []string{"rome", "milan-62hsfgkf"}, []string{"milan-62hsfgkf"}},
		"what discovery called it":         {"milan-62hsfgkf", []string{"rome", "milan"}, []string{"milan"}},
		"another part of the ID":           {"milan-62hsfgkg", []string{"milan-62hsfgkf"}, []string{"milan-62hsfgkf"}},
		"two letters changed places":       {"rmoe", known, []string{"rome"}},
		"a letter too many":                {"roome", known, []string{"rome"}},
		"capitals":                         {"ROME", known, []string{"rome", "rom"}},
		"those with the name first":        {"milan", known[1:], []string{"milan-62hsfgkf", "Milano"}},
		"the beginning of a word is not":   {"off", known, nil},
		"of short names no letter is free": {"y", known, nil},
		"another name":                     {"paris", known, nil},
		"a token":                          {"ent1." + strings.Repeat("x", 400), known, nil},
		"nothing":                          {"", known, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, nearNames(tc.name, tc.known)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func foundPeer(name string) *ententev1.Peer {
	return &ententev1.Peer{
		Name: "peers/" + name, Found: "DNS", Sightings: []*ententev1.Sighting{{Source: "DNS", Where: "example.com"}},
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
			if code != exitError || !strings.Contains(errOut, suggests) || strings.Contains(errOut, "rome") || !strings.Contains(errOut, "entente info peer") {
				t.Errorf("exit %d: %s", code, errOut)
			}
		})
	}
	w := newWorld()
	for i := range 9 { // anybody may publish any name
		w.hints = append(w.hints, foundPeer(fmt.Sprintf("milan-%08d", i)))
	}
	if _, errOut, _ := w.run(t, "", "info", "peer", "milan"); strings.Count(errOut, "milan-") != maxNearNames {
		t.Errorf("it says %s", errOut)
	}
	// Who may not list peers hears no names.
	w.noList = true
	if _, errOut, code := w.run(t, "", "info", "peer", "milan"); strings.Contains(errOut, "did you mean") || code != exitError || !strings.Contains(errOut, "PEER_UNKNOWN") {
		t.Errorf("exit %d: %s", code, errOut)
	}
	remote := &callError{cluster: "remote", err: failure(peering.ReasonPeerUnknown, "no")}
	if err := (&run{cluster: &cluster{label: "local"}}).suggest(t.Context(), remote); !errors.Is(err, remote) || len(remote.near) > 0 {
		t.Error("this cluster's names are suggested for another cluster")
	}
}
