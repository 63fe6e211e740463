package plan

import (
	"slices"
	"strings"
	"testing"
)

// thief is a peer that announces a key of its own, and one that is another's.
func thief(key PublicKey) Peer {
	return Peer{
		ClusterID: "thief", PresharedKey: PresharedKey{9},
		Gateways: []Gateway{{Node: "own", PublicKey: PublicKey{66}}, {Node: "stolen", PublicKey: key}},
		Local:    []Mapping{{pfx("10.200.0.0/16"), pfx("10.241.0.0/16")}},
		Remote:   []Mapping{{pfx("10.200.0.0/16"), pfx("10.243.0.0/16")}},
	}
}

func TestAStolenKeyCostsItsOwnerNothing(t *testing.T) {
	owner := func(t *testing.T, l Layout, key PublicKey) string {
		t.Helper()
		i := slices.IndexFunc(l.Peers, func(w WireGuardPeer) bool { return w.PublicKey == key })
		if i < 0 {
			t.Fatalf("no peer has key %v", key)
		}
		return l.Peers[i].Cluster + "/" + l.Peers[i].Node
	}
	for name, first := range map[string]bool{"the thief came first": true, "the thief came last": false} {
		t.Run(name, func(t *testing.T) {
			d := home("gw")
			d.Peers = append(d.Peers, thief(PublicKey{3}))
			if first {
				slices.Reverse(d.Peers)
			}
			tried := map[string]bool{}
			for turn := range uint64(2) {
				got, err := Plan(d, Observed{Turn: turn})
				if err != nil {
					t.Fatal(err)
				}
				tried[owner(t, got, PublicKey{3})] = true
				if owner(t, got, PublicKey{66}) != "thief/own" || owner(t, got, PublicKey{4}) != "away/y" || len(got.Translations) != 2 {
					t.Errorf("more than one gateway was refused: %+v", got.Peers)
				}
				if !slices.ContainsFunc(got.Problems, func(p Problem) bool { return strings.Contains(p.Text, "announces the same WireGuard key") }) {
					t.Errorf("problems %v do not report it", got.Problems)
				}
			}
			if !tried["away/x"] || !tried["thief/stolen"] {
				t.Errorf("who was tried: %v, want both", tried)
			}
			for turn := range uint64(4) {
				got, err := Plan(d, Observed{Turn: turn, Proven: map[PublicKey]string{{3}: "away"}})
				if err != nil || owner(t, got, PublicKey{3}) != "away/x" {
					t.Errorf("turn %d: %v, %v has the key that away has proven", turn, err, owner(t, got, PublicKey{3}))
				}
			}
		})
	}
	t.Run("the key of a home node", func(t *testing.T) {
		d := home("gw")
		d.Peers = append(d.Peers, thief(PublicKey{2}))
		got, err := Plan(d, Observed{})
		if err != nil || owner(t, got, PublicKey{2}) != "home/worker" || owner(t, got, PublicKey{66}) != "thief/own" {
			t.Errorf("%v: %+v", err, got.Peers)
		}
	})
}
