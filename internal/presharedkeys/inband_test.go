package presharedkeys

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// reconcile is what the reconciler does for an in-band peer whose tunnel has been down for long, or not.
func (k *keySide) reconcile(down bool) {
	agreed := !down && k.status != nil && k.status.Number > 0
	First{Key: k.first, Offer: down, Agreed: agreed}.Apply(k.secret, k.peer)
}

// read has all gateways read what is stored. A Secret that has no key leaves the one that they know.
func (k *keySide) read() {
	for i := range k.gateways {
		if len(k.secret[string(k.peer)]) > 0 {
			k.gateways[i] = maps.Clone(k.secret)
		}
	}
}

// meet reports whether a gateway of the cluster that leads and one of the other come to use the same key: the one
// that leads uses its own unless both look for one, and the other tries all that it has.
func meet(leader, follower *keySide, i, j int) bool {
	tries := leader.has(i)[:min(1, len(leader.has(i)))]
	if len(leader.gateways[i][string(leader.peer)+v1alpha1.FabricKeyFirst]) > 0 {
		tries = leader.has(i)
	}
	return slices.ContainsFunc(tries, func(key []byte) bool {
		return slices.ContainsFunc(follower.has(j), func(other []byte) bool { return bytes.Equal(key, other) })
	})
}

// border is two clusters with an in-band tunnel; a leads.
type inBandBorder struct {
	a, b *keySide
	now  time.Time
}

func newInBandBorder() *inBandBorder {
	c := &inBandBorder{a: newKeySide("a", "b", 1), b: newKeySide("b", "a", 2), now: time.Unix(1e9, 0)}
	for _, k := range c.sides() {
		k.first = bytes.Repeat([]byte{7}, 32)
		k.reconcile(true) // there is no session yet
		k.read()
	}
	c.settle(4)
	return c
}

func (c *inBandBorder) sides() []*keySide { return []*keySide{c.a, c.b} }

func (c *inBandBorder) up() (up bool) {
	for i := range c.a.gateways {
		for j := range c.b.gateways {
			up = up || meet(c.a, c.b, i, j)
		}
	}
	return up
}

// all returns an error unless each gateway meets each of the other cluster.
func (c *inBandBorder) all() error {
	for i := range c.a.gateways {
		for j := range c.b.gateways {
			if !meet(c.a, c.b, i, j) {
				return fmt.Errorf("gateway %d of a has %x, gateway %d of b %x", i, c.a.has(i), j, c.b.has(j))
			}
		}
	}
	return nil
}

// settle has the two talk while a tunnel is up, and wait otherwise.
func (c *inBandBorder) settle(rounds int) {
	for range rounds {
		c.now = c.now.Add(keyLeast)
		up := c.up()
		if up {
			c.b.hears(c.a.says(), c.now)
			c.a.hears(c.b.says(), c.now)
		}
		for _, k := range c.sides() {
			k.reconcile(!up)
			k.read()
		}
	}
}

// settled returns an error unless both use one key, the same, and know no other.
func (c *inBandBorder) settled() error {
	c.a.wants, c.b.wants = false, false
	for range 12 {
		if c.settle(1); c.agreed() == nil {
			break
		}
	}
	c.settle(1) // it stays so
	return c.agreed()
}

func (c *inBandBorder) agreed() error {
	switch {
	case c.a.status == nil || c.b.status == nil:
		return errors.New("no announcement was received")
	case c.a.status.RotationStartTime != nil || c.b.status.RotationStartTime != nil:
		return errors.New("another key is on its way")
	case c.all() != nil:
		return c.all()
	case len(c.a.has(0)) != 1 || len(c.b.has(1)) != 1:
		return fmt.Errorf("keys besides the one in use are kept: %x, %x", c.a.has(0), c.b.has(1))
	case c.a.status.Number != c.b.status.Number || numberOf(c.a.secret, "b") != uint64(c.a.status.Number):
		return fmt.Errorf("a is at no. %d, b at no. %d", c.a.status.Number, c.b.status.Number)
	}
	return nil
}

// clone copies what outlives a restart.
func (k *keySide) clone() *keySide {
	out := *k
	out.secret, out.gateways = maps.Clone(k.secret), nil
	for _, g := range k.gateways {
		out.gateways = append(out.gateways, maps.Clone(g))
	}
	if k.status != nil {
		out.status = k.status.DeepCopy()
	}
	return &out
}

// steps plays two rotations one write after the other, and calls check after each.
func (c *inBandBorder) steps(check func()) {
	for range 2 {
		c.a.wants = true
		for range 7 {
			c.now = c.now.Add(keyLeast)
			for _, pair := range [][2]*keySide{{c.a, c.b}, {c.b, c.a}} {
				commit := pair[1].store(pair[0].says(), c.now)
				check() // what ends here leaves keys without a status
				commit()
				check()
				for i := range pair[1].gateways {
					pair[1].gateways[i] = maps.Clone(pair[1].secret)
					check()
				}
			}
		}
	}
}

// TestAnInBandKeyIsReplacedWhateverIsInterrupted stops the exchange of a key after each write, for good, and also
// after a long time without a tunnel: each gateway has a key in common with each other all the time, and the two
// sides agree afterwards.
func TestAnInBandKeyIsReplacedWhateverIsInterrupted(t *testing.T) {
	t.Parallel()
	c, points := newInBandBorder(), 0
	c.steps(func() {
		points++
		if err := c.all(); err != nil {
			t.Fatalf("after %d steps: %v", points, err)
		}
		for _, down := range []bool{false, true} {
			stopped := &inBandBorder{a: c.a.clone(), b: c.b.clone(), now: c.now}
			for _, k := range stopped.sides() {
				k.reconcile(down)
				k.read()
				if err := stopped.all(); err != nil {
					t.Fatalf("restarted after %d steps, down %t: %v", points, down, err)
				}
			}
			if err := stopped.settled(); err != nil {
				t.Fatalf("restarted after %d steps, down %t: %v", points, down, err)
			}
		}
	})
	if err := c.settled(); err != nil || c.a.status.Number != 2 || points < 100 {
		t.Errorf("after %d steps: no. %d, %v", points, c.a.status.Number, err)
	}
}

// TestSidesOfAnInBandTunnelFindEachOtherAfterALoss has one side go back to each of its earlier states, as by a
// backup, or lose its keys, its status or both, after each write: once the tunnel has been down for long the two
// have a key in common, with which they agree on one again. An administrator on each side need not wait for that.
func TestSidesOfAnInBandTunnelFindEachOtherAfterALoss(t *testing.T) {
	t.Parallel()
	type state struct{ a, b *keySide }
	c := newInBandBorder()
	states := []state{{c.a.clone(), c.b.clone()}}
	now := []time.Time{c.now}
	c.steps(func() {
		states = append(states, state{c.a.clone(), c.b.clone()})
		now = append(now, c.now)
	})
	forgets := func(k *keySide, keys, status bool) *keySide {
		out := k.clone()
		if keys {
			out.secret = map[string][]byte{}
		}
		if status {
			out.status = nil
		}
		return out
	}
	lost := 0
	for at := range states {
		var olds []state
		for before := at % 5; before <= at; before += 5 {
			olds = append(olds, state{states[before].a, states[at].b}, state{states[at].a, states[before].b})
		}
		for _, what := range [][2]bool{{true, false}, {false, true}, {true, true}} {
			olds = append(olds, state{forgets(states[at].a, what[0], what[1]), states[at].b}, state{states[at].a, forgets(states[at].b, what[0], what[1])})
		}
		for _, alone := range []string{"a", "b"} { // one administrator connects the peer again, without need
			old := state{states[at].a.clone(), states[at].b.clone()}
			k := map[string]*keySide{"a": old.a, "b": old.b}[alone]
			First{Key: k.first, Again: true}.Apply(k.secret, k.peer)
			olds = append(olds, old)
		}
		for i, old := range olds {
			after := &inBandBorder{a: old.a.clone(), b: old.b.clone(), now: now[at]}
			again := &inBandBorder{a: old.a.clone(), b: old.b.clone(), now: now[at]}
			for _, k := range append(after.sides(), again.sides()...) {
				k.reconcile(false)
				k.read()
			}
			if !after.up() {
				lost++
			}
			if err := after.settled(); err != nil {
				t.Fatalf("after %d steps, loss %d: %v\na %+v\nb %+v", at, i, err, after.a.status, after.b.status)
			}
			for _, k := range again.sides() {
				First{Key: k.first, Again: true}.Apply(k.secret, k.peer)
				k.read()
			}
			if err := errors.Join(again.all(), again.settled()); err != nil {
				t.Fatalf("connected again after %d steps, loss %d: %v", at, i, err)
			}
		}
	}
	if lost < 100 {
		t.Errorf("only %d losses took the last key in common", lost)
	}
}

func TestTheFirstKeyIsStoredWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	key, other, next := bytes.Repeat([]byte{7}, 32), bytes.Repeat([]byte{8}, 32), bytes.Repeat([]byte{9}, 32)
	data := func(number string, current, next, previous, first []byte) map[string][]byte {
		out := map[string][]byte{"other": {1}}
		for suffix, value := range map[string][]byte{
			"": current, v1alpha1.FabricKeyNumber: []byte(number), v1alpha1.FabricKeyNext: next, v1alpha1.FabricKeyPrevious: previous, v1alpha1.FabricKeyFirst: first,
		} {
			if len(value) > 0 {
				out["p"+suffix] = value
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		before map[string][]byte
		edit   First
		want   map[string][]byte
	}{
		"there is none":                             {data("", nil, nil, nil, nil), First{}, data("0", key, nil, nil, nil)},
		"it is there":                               {data("0", key, nil, nil, nil), First{Offer: true}, data("0", key, nil, nil, nil)},
		"another exchange key was written":          {data("0", other, nil, nil, nil), First{}, data("0", key, nil, nil, nil)},
		"it is being replaced":                      {data("0", key, next, nil, nil), First{}, data("0", key, next, nil, nil)},
		"a later one is in use":                     {data("3", other, next, nil, nil), First{}, data("3", other, next, nil, nil)},
		"and the tunnel is down":                    {data("3", other, next, nil, nil), First{Offer: true}, data("3", other, next, nil, key)},
		"a later one was lost":                      {data("", nil, nil, nil, nil), First{Offer: true}, data("0", key, nil, nil, nil)},
		"and the session will bring it":             {data("", nil, nil, nil, nil), First{Agreed: true}, data("", nil, nil, nil, nil)},
		"it was lost beside its number":             {data("3", nil, nil, nil, nil), First{}, data("0", key, nil, nil, nil)},
		"an administrator connects the peer again":  {data("3", other, next, key, nil), First{Again: true}, data("0", key, nil, other, key)},
		"and nothing but the first one was ever in": {data("0", key, next, nil, nil), First{Again: true}, data("0", key, next, nil, nil)},
	} {
		tc.edit.Key = key
		got := maps.Clone(tc.before)
		changed := tc.edit.Apply(got, "p")
		if diff := cmp.Diff(tc.want, got); diff != "" || changed == cmp.Equal(tc.before, got) {
			t.Errorf("%s: changed is %t (-want +got)\n%s", name, changed, diff)
		}
		if tc.edit.Apply(got, "p") || !IsStored(tc.edit, got, "p") {
			t.Errorf("%s: the same again changes something", name)
		}
	}
}
