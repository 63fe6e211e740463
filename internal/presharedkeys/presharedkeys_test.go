package presharedkeys

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// keySide is a cluster of the tests: what it stored, what it last announced, and what its gateways
// have read of that.
type keySide struct {
	self, peer peering.ClusterID
	seed       byte
	status     *v1alpha1.PresharedKeyStatus
	secret     map[string][]byte
	gateways   []map[string][]byte
	wants      bool
	// first is the key with number 0 in-band.
	first []byte
}

func newKeySide(self, peer string, seed byte) *keySide {
	return &keySide{
		self: peering.ClusterID(self), peer: peering.ClusterID(peer), seed: seed,
		secret: map[string][]byte{}, gateways: []map[string][]byte{{}, {}},
	}
}

func (k *keySide) share(number uint64) peering.PresharedKeyShare {
	return peering.PresharedKeyShare{k.seed, byte(number), byte(number >> 8), 1}
}

func (k *keySide) held() GatewayKeys {
	var nodes []v1alpha1.FabricNode
	for _, g := range k.gateways {
		nodes = append(nodes, v1alpha1.FabricNode{Spec: v1alpha1.FabricNodeSpec{Gateway: true}, Status: v1alpha1.FabricNodeStatus{Paths: []v1alpha1.FabricPath{{
			PeerID: string(k.peer), PresharedKeyNumber: int64(numberOf(g, string(k.peer))), NextPresharedKeyStored: len(g[string(k.peer)+v1alpha1.FabricKeyNext]) > 0,
		}}}})
	}
	return OfGateways(nodes, k.peer, nil, time.Time{})
}

func (k *keySide) says() *peering.Network {
	n := &peering.Network{}
	n.PresharedKeyShare, n.Rotation = Announce(k.status, k.held(), k.share)
	return n
}

func (k *keySide) hears(said *peering.Network, now time.Time) { k.store(said, now)() }

// store is the first half of what a side does when it is told something: keys are stored. The other one writes the
// status.
func (k *keySide) store(said *peering.Network, now time.Time) (commit func()) {
	status, ring := Situation{
		Self: k.self, Peer: k.peer, Current: k.status, Announced: said, Rotate: k.wants, Gateways: k.held(), Share: k.share, First: k.first, Now: now,
	}.Decide()
	if k.status != nil && status.Number != k.status.Number {
		k.wants = false
	}
	ring.Apply(k.secret, k.peer)
	if !IsStored(ring, k.secret, k.peer) {
		panic("isStored denies what was just stored")
	}
	return func() { k.status = &status }
}

// has is the keys of a gateway, the one in use first.
func (k *keySide) has(gateway int) [][]byte {
	data := k.gateways[gateway]
	var out [][]byte
	for _, suffix := range []string{"", v1alpha1.FabricKeyNext, v1alpha1.FabricKeyPrevious, v1alpha1.FabricKeyFirst} {
		if key := data[string(k.peer)+suffix]; len(key) > 0 {
			out = append(out, key)
		}
	}
	return out
}

// inCommon returns an error if a gateway of one side uses a key that one of the other does not
// have.
func inCommon(a, b *keySide) error {
	for i := range a.gateways {
		for j := range b.gateways {
			for _, pair := range [][2][][]byte{{a.has(i), b.has(j)}, {b.has(j), a.has(i)}} {
				used, has := pair[0][0], pair[1]
				if !slices.ContainsFunc(has, func(key []byte) bool { return bytes.Equal(key, used) }) {
					return fmt.Errorf("a gateway uses %x, another has %x", used, has)
				}
			}
		}
	}
	return nil
}

// TestGatewaysAlwaysHaveTheKeyThatThePeersUse has two clusters replace keys while messages,
// the words of API servers and time pass at random, one after the other.
func TestGatewaysAlwaysHaveTheKeyThatThePeersUse(t *testing.T) {
	t.Parallel()
	for name, first := range map[string][]byte{"out-of-band": nil, "in-band": bytes.Repeat([]byte{7}, 32)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			replaceAtRandom(t, first)
		})
	}
}

func replaceAtRandom(t *testing.T, first []byte) {
	most := int64(0)
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		a, b := newKeySide("a", "b", 1), newKeySide("b", "a", 2)
		a.first, b.first = first, first
		now := time.Unix(1e9, 0)
		sync := func(k *keySide, gateway int) { k.gateways[gateway] = maps.Clone(k.secret) }
		settle := func() {
			for range 8 {
				b.hears(a.says(), now)
				a.hears(b.says(), now)
				for i := range a.gateways {
					sync(a, i)
					sync(b, i)
				}
			}
		}
		settle()
		for step := range 300 {
			switch r.IntN(9) {
			case 0:
				a.wants = true
			case 1:
				b.wants = true
			case 2, 3: // the last state counts, however many were lost before
				b.hears(a.says(), now)
			case 4, 5:
				a.hears(b.says(), now)
			case 6:
				sync([]*keySide{a, b}[r.IntN(2)], r.IntN(2))
			case 7:
				now = now.Add(time.Duration(r.IntN(int(time.Hour))))
			case 8: // in-band, the peer is reconciled, too
				if k := []*keySide{a, b}[r.IntN(2)]; first != nil {
					k.reconcile(false)
				}
			}
			if err := inCommon(a, b); err != nil {
				t.Fatalf("seed %d, step %d: %v\na %+v\nb %+v", seed, step, err, a.status, b.status)
			}
		}
		a.wants, b.wants = false, false
		now = now.Add(keyLeast)
		settle()
		if !bytes.Equal(a.has(0)[0], b.has(1)[0]) || a.status.Number != b.status.Number || a.status.RotationStartTime != nil {
			t.Fatalf("seed %d: in the end they have %x and %x\na %+v\nb %+v", seed, a.has(0), b.has(1), a.status, b.status)
		}
		if len(a.has(0)) != 1 || len(b.has(0)) != 1 {
			t.Fatalf("seed %d: keys before the last are kept: %d and %d", seed, len(a.has(0)), len(b.has(0)))
		}
		most = max(most, a.status.Number)
	}
	if most < 5 {
		t.Errorf("at most %d keys followed one another: too few to show anything", most)
	}
}

func TestAKeyIsReplacedWhenBothSidesHaveTheNext(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	long, replaced := metav1.NewTime(now.Add(-time.Hour)), metav1.NewTime(now.Add(-time.Minute))
	share := func(n uint64) peering.PresharedKeyShare { return peering.PresharedKeyShare{9, byte(n)} }
	said := func(number, held uint64, offers bool) *peering.Network {
		n := &peering.Network{PresharedKeyShare: peering.PresharedKeyShare{1, byte(number)}, Rotation: &peering.KeyRotation{Number: number, NewestInstalled: held}}
		if offers {
			n.Rotation.NextKeyShare = peering.PresharedKeyShare{1, byte(number + 1)}
		}
		return n
	}
	at := func(number int64, since metav1.Time, replacing bool) *v1alpha1.PresharedKeyStatus {
		s := &v1alpha1.PresharedKeyStatus{Number: number, Since: since}
		if replacing {
			s.RotationStartTime = &replaced
		}
		return s
	}
	type want struct {
		number          int64
		current, next   bool // the key with the number, and the next one
		replacing, says bool
	}
	for name, tc := range map[string]struct {
		standing *v1alpha1.PresharedKeyStatus
		said     *peering.Network
		wanted   bool
		held     uint64
		want     want
	}{
		"the first announcement":                       {nil, said(0, 0, false), false, 0, want{current: true}},
		"neither side wants another":                   {at(3, long, false), said(3, 3, false), false, 3, want{number: 3, current: true}},
		"this cluster wants another":                   {at(3, long, false), said(3, 3, false), true, 3, want{number: 3, current: true, replacing: true, says: true}},
		"the peer wants another":                       {at(3, long, false), said(3, 3, true), false, 3, want{number: 3, current: true, next: true, replacing: true, says: true}},
		"the peer wants another all the time":          {at(3, replaced, false), said(3, 3, true), false, 3, want{number: 3, current: true, next: true, replacing: true, says: true}},
		"and more often than that":                     {at(3, metav1.NewTime(now), false), said(3, 3, true), false, 3, want{number: 3, current: true}},
		"only the peer's gateways have it":             {at(3, long, true), said(3, 4, true), false, 3, want{number: 3, current: true, next: true, replacing: true, says: true}},
		"only the gateways here have it":               {at(3, long, true), said(3, 3, true), false, 4, want{number: 3, current: true, next: true, replacing: true, says: true}},
		"all have it":                                  {at(3, long, true), said(3, 4, true), false, 4, want{number: 4, current: true}},
		"the peer uses the next":                       {at(3, long, true), said(4, 4, false), false, 3, want{number: 4, current: true}},
		"the peer uses the next, which was wanted":     {at(3, long, true), said(4, 4, false), true, 3, want{number: 4, current: true}},
		"the peer is far ahead":                        {at(3, long, false), said(9, 9, false), false, 3, want{number: 9, current: true}},
		"the peer is behind":                           {at(3, long, false), said(2, 2, true), false, 3, want{number: 3}},
		"the peer keeps the first":                     {at(0, long, false), &peering.Network{PresharedKeyShare: peering.PresharedKeyShare{1}}, true, 0, want{current: true, says: true}},
		"the peer keeps the first, since it was older": {at(5, long, true), &peering.Network{PresharedKeyShare: peering.PresharedKeyShare{1}}, false, 6, want{current: true}},
		"the last number":                              {at(peering.MaxRevision, long, false), said(peering.MaxRevision, 0, true), true, 0, want{number: peering.MaxRevision, current: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Situation{Self: "a", Peer: "b", Current: tc.standing, Announced: tc.said, Rotate: tc.wanted, Gateways: GatewayKeys{tc.held, min(tc.held, 3)}, Share: share, Now: now}
			status, ring := s.Decide()
			got := want{status.Number, ring.Current != nil, ring.Next != nil, status.RotationStartTime != nil, status.Message != ""}
			if got != tc.want || ring.Number != uint64(status.Number) || status.NextStored != (ring.Next != nil) {
				t.Errorf("got %+v, want %+v (%+v)", got, tc.want, status)
			}
			if of := (peering.PresharedKeyShare{1, byte(ring.Number)}); tc.want.current && !bytes.Equal(ring.Current, Derive("a", share(ring.Number), "b", of)) {
				t.Error("it is not the key with its number")
			}
		})
	}
}

func TestSilentGatewaysAreWaitedForButNotForEver(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	node := func(gateway bool, seen time.Duration, keys ...int64) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{Spec: v1alpha1.FabricNodeSpec{Gateway: gateway}, Status: v1alpha1.FabricNodeStatus{ObservedAt: metav1.NewTime(now.Add(-seen))}}
		for _, key := range keys {
			n.Status.Paths = append(n.Status.Paths, v1alpha1.FabricPath{PeerID: "b", PresharedKeyNumber: key - 1, NextPresharedKeyStored: true}, v1alpha1.FabricPath{PeerID: "c", PresharedKeyNumber: 99})
		}
		return n
	}
	since := func(d time.Duration) *v1alpha1.PresharedKeyStatus {
		return &v1alpha1.PresharedKeyStatus{RotationStartTime: new(metav1.NewTime(now.Add(-d)))}
	}
	for name, tc := range map[string]struct {
		nodes  []v1alpha1.FabricNode
		status *v1alpha1.PresharedKeyStatus
		want   GatewayKeys
	}{
		"no gateway":                      {[]v1alpha1.FabricNode{node(false, 0, 7)}, nil, GatewayKeys{}},
		"the least of two":                {[]v1alpha1.FabricNode{node(true, 0, 7), node(true, 0, 6), node(false, 0, 1)}, nil, GatewayKeys{6, 5}},
		"one that has no tunnel yet":      {[]v1alpha1.FabricNode{node(true, 0, 7), node(true, 0)}, nil, GatewayKeys{}},
		"a silent one is waited for":      {[]v1alpha1.FabricNode{node(true, 0, 7), node(true, time.Hour, 6)}, since(time.Hour), GatewayKeys{6, 5}},
		"a silent one is not for so long": {[]v1alpha1.FabricNode{node(true, 0, 7), node(true, keyPatience, 6)}, since(keyPatience), GatewayKeys{7, 6}},
		"one that became silent later is": {[]v1alpha1.FabricNode{node(true, 0, 7), node(true, 5*time.Minute, 6)}, since(keyPatience + time.Hour), GatewayKeys{6, 5}},
		"one silent since before it, too": {[]v1alpha1.FabricNode{node(true, 0, 7), node(true, 2*keyPatience, 6)}, since(time.Hour), GatewayKeys{6, 5}},
		"one that has never reported":     {[]v1alpha1.FabricNode{node(true, 0, 7), {Spec: v1alpha1.FabricNodeSpec{Gateway: true}}}, since(keyPatience), GatewayKeys{7, 6}},
	} {
		if got := OfGateways(tc.nodes, "b", tc.status, now); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestKeysAreDueByAgeOrWhenAsked(t *testing.T) {
	t.Parallel()
	since := time.Unix(1e9, 0).UTC()
	peer := func(id, asked string) *v1alpha1.ForeignCluster {
		return &v1alpha1.ForeignCluster{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationRotateKey: asked}},
			Spec:       v1alpha1.ForeignClusterSpec{ClusterID: id}, Status: v1alpha1.ForeignClusterStatus{PresharedKey: &v1alpha1.PresharedKeyStatus{Since: metav1.NewTime(since)}},
		}
	}
	const every = 100 * time.Hour
	spread := map[time.Time]bool{}
	for i := range 100 {
		due := Due(peer(fmt.Sprint(i), ""), every)
		if age := due.Sub(since); age <= every*9/10 || age > every {
			t.Fatalf("due after %v", age)
		}
		spread[due] = true
	}
	if len(spread) < 90 {
		t.Errorf("100 keys are due at %d times", len(spread))
	}
	for asked, want := range map[string]time.Time{
		since.Add(time.Second).Format(time.RFC3339): since.Add(time.Second),
		since.Format(time.RFC3339):                  {},
		"now":                                       {},
		"":                                          {},
	} {
		if got := Due(peer("b", asked), 0); !got.Equal(want) {
			t.Errorf("asked at %q, due at %v, want %v", asked, got, want)
		}
	}
	if due := Due(&v1alpha1.ForeignCluster{}, every); !due.IsZero() {
		t.Errorf("without a tunnel a key is due at %v", due)
	}
}

func TestNoKeyIsInAPeersStatus(t *testing.T) {
	t.Parallel()
	a, b := newKeySide("a", "b", 1), newKeySide("b", "a", 2)
	a.wants = true
	for range 4 {
		a.hears(b.says(), time.Unix(1e9, 0))
		b.hears(a.says(), time.Unix(1e9, 0))
	}
	text := fmt.Sprintf("%+v %s", *a.status, a.says().PresharedKeyShare)
	for _, key := range a.secret {
		if len(key) == 32 && strings.Contains(text, fmt.Sprintf("%x", key)) {
			t.Errorf("%s has the key %x", text, key)
		}
	}
	if said := fmt.Sprintf("%+v", a.says()); strings.Contains(said, fmt.Sprint([]byte{a.seed, 1})) || !strings.Contains(said, "hidden") {
		t.Errorf("the announcement shows a share: %s", said)
	}
}
