package plan

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestANextKeyIsUsedOnceItsNodeDoes: and then has all that the key before it had.
func TestANextKeyIsUsedOnceItsNodeDoes(t *testing.T) {
	d := home("gw")
	d.Nodes[1].NextKey, d.Peers[0].Gateways[0].NextKey = PublicKey{22}, PublicKey{33}
	plan := func(o Observed) Layout {
		t.Helper()
		l, err := Plan(d, o)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	of := func(l Layout, node string) WireGuardPeer {
		t.Helper()
		i := slices.IndexFunc(l.Peers, func(w WireGuardPeer) bool { return w.Node == node })
		if i < 0 {
			t.Fatalf("%s is not a peer", node)
		}
		return l.Peers[i]
	}
	before := plan(Observed{})
	for node, want := range map[string][3]PublicKey{"worker": {{2}, {22}, {}}, "x": {{3}, {33}, {}}, "y": {{4}, {}, {}}} {
		if w := of(before, node); w.PublicKey != want[0] || w.NextKey != want[1] || w.FormerKey != want[2] {
			t.Errorf("%s has %v, %v, %v", node, w.PublicKey, w.NextKey, w.FormerKey)
		}
	}
	after := plan(Observed{InUse: map[netip.Addr]PublicKey{Overlay("home", "worker"): {22}, Overlay("away", "x"): {33}, Overlay("away", "y"): {44}}})
	for node, want := range map[string][3]PublicKey{"worker": {{22}, {}, {2}}, "x": {{33}, {}, {3}}, "y": {{4}, {}, {}}} {
		w := of(after, node)
		if w.PublicKey != want[0] || w.NextKey != want[1] || w.FormerKey != want[2] {
			t.Errorf("in use: %s has %v, %v, %v", node, w.PublicKey, w.NextKey, w.FormerKey)
		}
		was := of(before, node)
		was.PublicKey, was.NextKey, was.FormerKey = w.PublicKey, w.NextKey, w.FormerKey
		if diff := cmp.Diff(was, w, compareAddrs()); diff != "" {
			t.Errorf("in use: more than the key of %s changed (-before +after):\n%s", node, diff)
		}
	}
}

// TestANextKeyTakesNoOtherKey: a node that announces another's key as its next one keeps its own, and the
// other one keeps everything.
func TestANextKeyTakesNoOtherKey(t *testing.T) {
	for name, next := range map[string]PublicKey{
		"of this node": {1}, "of a node of this cluster": {2}, "of a gateway of another peer": {66}, "of a gateway of its own": {4}, "its own": {3},
	} {
		for _, first := range []bool{true, false} {
			d := home("gw")
			other := thief(PublicKey{77})
			d.Peers = append(d.Peers, other)
			if first {
				slices.Reverse(d.Peers)
			}
			honest, err := Plan(d, Observed{})
			if err != nil {
				t.Fatal(err)
			}
			for i := range d.Peers {
				if d.Peers[i].ClusterID == "away" {
					d.Peers[i].Gateways[0].NextKey = next
				}
			}
			got, err := Plan(d, Observed{InUse: map[netip.Addr]PublicKey{Overlay("away", "x"): next}, Proven: map[PublicKey]string{{66}: "thief"}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(honest, got, compareAddrs()); diff != "" {
				t.Errorf("%s, it comes first: %v (-before +after):\n%s", name, first, diff)
			}
		}
	}
	// Two that name the same one: only one has it.
	d := home("gw")
	d.Nodes[1].NextKey, d.Peers[0].Gateways[0].NextKey = PublicKey{22}, PublicKey{22}
	got, err := Plan(d, Observed{InUse: map[netip.Addr]PublicKey{Overlay("home", "worker"): {22}, Overlay("away", "x"): {22}}})
	if err != nil {
		t.Fatal(err)
	}
	keys := map[PublicKey]string{}
	for _, w := range got.Peers {
		if who, dup := keys[w.PublicKey]; dup {
			t.Errorf("%s and %s have the same key", who, w.Node)
		}
		keys[w.PublicKey] = w.Node
	}
	if keys[PublicKey{22}] != "worker" || keys[PublicKey{3}] != "x" {
		t.Errorf("keys are %v", keys)
	}
}

// TestANextKeyIsItsNodesWhoeverElseAnnouncesIt: next keys are announced to all peers. One of them that announces
// another's, as its own key or as its next one, changes nothing for that node, before it uses the key, while it
// begins to and after that.
func TestANextKeyIsItsNodesWhoeverElseAnnouncesIt(t *testing.T) {
	victim, worker, thiefs := Overlay("away", "x"), Overlay("home", "worker"), Overlay("thief", "own")
	uses := func(more ...netip.Addr) map[netip.Addr]PublicKey {
		out := map[netip.Addr]PublicKey{victim: {33}, worker: {22}}
		for _, overlay := range more { // of which the thief made this node believe so
			out[overlay] = PublicKey{33}
		}
		return out
	}
	proven := map[PublicKey]string{{33}: "away"}
	for name, o := range map[string]Observed{
		"before it is used":                  {},
		"before it is used, in another turn": {Turn: 1},
		"just followed":                      {InUse: uses()},
		"just followed, in another turn":     {InUse: uses(), Turn: 1},
		"after a handshake":                  {InUse: uses(), Proven: proven},
		"after a handshake, seen for both":   {InUse: uses(thiefs), Proven: proven},
	} {
		for what, steal := range map[string]func(*Peer){
			"a gateway's as the current one":    func(q *Peer) { q.Gateways[1].PublicKey = PublicKey{33} },
			"a gateway's as the next one":       func(q *Peer) { q.Gateways[0].NextKey = PublicKey{33} },
			"a home node's as the current one":  func(q *Peer) { q.Gateways[1].PublicKey = PublicKey{22} },
			"a home node's as the next one":     func(q *Peer) { q.Gateways[0].NextKey = PublicKey{22} },
			"with the overlay of the gateway":   func(q *Peer) { q.Gateways[1].NextKey, q.Gateways[1].Overlay = PublicKey{33}, victim },
			"with the overlay of the home node": func(q *Peer) { q.Gateways[1].NextKey, q.Gateways[1].Overlay = PublicKey{22}, worker },
		} {
			for _, first := range []bool{true, false} {
				d := home("gw")
				d.Nodes[1].NextKey, d.Peers[0].Gateways[0].NextKey = PublicKey{22}, PublicKey{33}
				honest, err := Plan(d, o)
				if err != nil {
					t.Fatal(err)
				}
				other := thief(PublicKey{77})
				steal(&other)
				d.Peers = append(d.Peers, other)
				if first {
					slices.Reverse(d.Peers)
				}
				got, err := Plan(d, o)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(got.Peers, func(w WireGuardPeer) bool { return w.Cluster == "thief" && w.PublicKey == PublicKey{66} }) {
					t.Errorf("%s, %s: the gateway with a key of its own is not a peer", name, what)
				}
				if diff := cmp.Diff(honest.Peers, leave(got, other).Peers, compareAddrs()); diff != "" {
					t.Errorf("%s, %s, it comes first: %v (-before +after):\n%s", name, what, first, diff)
				}
			}
		}
	}
}

// TestAKeyInUseIsNotAnothersNextKey: a node cannot take the key of a gateway by announcing it as its next one, and
// once that key is announced it is its gateway's in each turn.
func TestAKeyInUseIsNotAnothersNextKey(t *testing.T) {
	for turn := range uint64(3) {
		d := home("gw")
		other := thief(PublicKey{77})
		other.Gateways[0].NextKey = PublicKey{3}
		d.Peers = []Peer{other, d.Peers[0]}
		got, err := Plan(d, Observed{Turn: turn})
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(got.Peers, func(w WireGuardPeer) bool { return w.PublicKey == PublicKey{3} }); i < 0 || got.Peers[i].Cluster != "away" || got.Contested {
			t.Errorf("turn %d: %+v", turn, got.Peers)
		}
	}
}
