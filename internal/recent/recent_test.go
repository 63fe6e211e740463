package recent

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

const (
	peerA peering.ClusterID = "a"
	peerB peering.ClusterID = "b"
)

func TestARecordThatWasJustMadeIsTakenOnce(t *testing.T) {
	t.Parallel()
	key := types.NamespacedName{Namespace: "ns", Name: "web"}
	record := func(uid, version string) *api.OffloadedPod {
		return &api.OffloadedPod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: types.UID(uid), ResourceVersion: version}}
	}
	for name, test := range map[string]struct {
		answer, seen *api.OffloadedPod
		taken        bool
	}{
		"as it was made":            {answer: record("u", "1"), seen: record("u", "1"), taken: true},
		"changed since":             {answer: record("u", "1"), seen: record("u", "2")},
		"another of the name":       {answer: record("u", "1"), seen: record("v", "1")},
		"not in the cache":          {answer: record("u", "1")},
		"not made":                  {seen: record("u", "1")},
		"nothing is known about it": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Made
			m.Begin(key)(test.answer)
			if got := m.Take(key, test.seen); (got != nil) != test.taken {
				t.Errorf("take returns %v", got)
			}
			if got := m.Take(key, test.seen); got != nil {
				t.Errorf("take returns %v once more", got)
			}
		})
	}
	t.Run("the watch is faster than the response", func(t *testing.T) {
		t.Parallel()
		var m Made
		answer := m.Begin(key)
		time.AfterFunc(responseLate/10, func() { answer(record("u", "1")) })
		if m.Take(key, record("u", "1")) == nil {
			t.Error("the response is not waited for")
		}
	})
	t.Run("there is no response", func(t *testing.T) {
		t.Parallel()
		var m Made
		m.Begin(key)
		if got := m.Take(key, record("u", "1")); got != nil {
			t.Errorf("take returns %v", got)
		}
	})
}

func TestTrialsAreRememberedForAMoment(t *testing.T) {
	t.Parallel()
	now := time.Now()
	tried := NewTrials()
	one := TrialOf("ns", []byte("a"))
	if tried.Has(one, now) {
		t.Error("a pod that was never tried was taken")
	}
	tried.Add(one, now)
	if !tried.Has(one, now.Add(trialLasts/2)) || tried.Has(one, now.Add(trialLasts)) {
		t.Errorf("a trial does not last for %s", trialLasts)
	}
	if tried.Has(TrialOf("other", []byte("a")), now) || tried.Has(TrialOf("ns", []byte("b")), now) || TrialOf("n", []byte("sa")) == TrialOf("ns", []byte("a")) {
		t.Error("pods of another namespace, or another form, are the same")
	}
	tried.Forget(func(Trial) bool { return true })
	if tried.Has(one, now) {
		t.Error("it is not tried again after the API server refused a pod")
	}
	for i := range 2 * maxTrials {
		tried.Add(TrialOf("ns", []byte{byte(i), byte(i >> 8)}), now)
	}
	if n := len(tried.at); n > maxTrials {
		t.Errorf("%d trials are remembered", n)
	}

	held := NewBindings()
	held.Add(Binding{"ns", "c-1"}, now)
	if !held.Has(Binding{"ns", "c-1"}, now.Add(bindingLasts/2)) || held.Has(Binding{"ns", "c-1"}, now.Add(bindingLasts)) || held.Has(Binding{"ns", "c-2"}, now) || held.Has(Binding{"other", "c-1"}, now) {
		t.Error("another contract or namespace is bound, or for too long")
	}
	held.Forget(func(h Binding) bool { return h.Namespace == "ns" })
	if held.Has(Binding{"ns", "c-1"}, now) {
		t.Error("a namespace that was forgotten is bound")
	}
}

// Many that ask at once do not all find that the time is over: before it is, one of them asks again.
func TestOneAsksAgainBeforeTheTimeIsOver(t *testing.T) {
	t.Parallel()
	held, hold, now := NewBindings(), Binding{"ns", "c-1"}, time.Now()
	for round := range 3 {
		held.Add(hold, now)
		late := now.Add(bindingLasts * 9 / 10)
		no := 0
		for range 16 {
			if !held.Has(hold, late) {
				no++
			}
		}
		if no != 1 {
			t.Errorf("round %d: %d of 16 ask again, want 1", round, no)
		}
		if now = now.Add(bindingLasts); held.Has(hold, now) {
			t.Errorf("round %d: it is cached for longer than %s, though no caller checked again", round, bindingLasts)
		}
	}
}

// A peer whose pods come and go without end loses its own, and no other peer's.
func TestAPeerForgetsNoGravesOfAnother(t *testing.T) {
	t.Parallel()
	var g Graves
	for n := range maxGraves / 2 {
		g.Add(peerB, fmt.Sprint("b", n))
	}
	for n := range 3 * maxGraves {
		g.Add(peerA, fmt.Sprint("a", n))
	}
	for n := range maxGraves / 2 {
		if !g.Has(peerB, fmt.Sprint("b", n)) {
			t.Fatalf("pod %d of a quiet peer is forgotten", n)
		}
	}
	if g.Has(peerA, "a0") || !g.Has(peerA, fmt.Sprint("a", 3*maxGraves-1)) {
		t.Error("not the oldest was forgotten")
	}
	if g.n > maxGraves {
		t.Errorf("%d are remembered", g.n)
	}
}
