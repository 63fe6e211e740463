package offload

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "github.com/entente-dev/entente/api/v1alpha1"
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
			var m made
			m.begin(key)(test.answer)
			if got := m.take(key, test.seen); (got != nil) != test.taken {
				t.Errorf("take returns %v", got)
			}
			if got := m.take(key, test.seen); got != nil {
				t.Errorf("take returns %v once more", got)
			}
		})
	}
	t.Run("the watch is faster than the answer", func(t *testing.T) {
		t.Parallel()
		var m made
		answer := m.begin(key)
		time.AfterFunc(answerLate/10, func() { answer(record("u", "1")) })
		if m.take(key, record("u", "1")) == nil {
			t.Error("the answer is not waited for")
		}
	})
	t.Run("there is no answer", func(t *testing.T) {
		t.Parallel()
		var m made
		m.begin(key)
		if got := m.take(key, record("u", "1")); got != nil {
			t.Errorf("take returns %v", got)
		}
	})
}

func TestWhatIsRememberedIsRememberedForAMoment(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var tried trials
	one := trialOf("ns", []byte("a"))
	if tried.taken(one, now) {
		t.Error("a pod that was never tried was taken")
	}
	tried.add(one, now)
	if !tried.taken(one, now.Add(trialLasts/2)) || tried.taken(one, now.Add(trialLasts)) {
		t.Errorf("a trial does not last for %s", trialLasts)
	}
	if tried.taken(trialOf("other", []byte("a")), now) || tried.taken(trialOf("ns", []byte("b")), now) || trialOf("n", []byte("sa")) == trialOf("ns", []byte("a")) {
		t.Error("pods of another namespace, or another form, are the same")
	}
	tried.forget()
	if tried.taken(one, now) {
		t.Error("it is not tried again after the API server refused a pod")
	}
	for i := range 2 * maxTrials {
		tried.add(trialOf("ns", []byte{byte(i), byte(i >> 8)}), now)
	}
	if n := len(tried.took); n > maxTrials {
		t.Errorf("%d trials are remembered", n)
	}

	var held holds
	held.add("ns", "c-1", now)
	if !held.has("ns", "c-1", now.Add(holdLasts/2)) || held.has("ns", "c-1", now.Add(holdLasts)) || held.has("ns", "c-2", now) || held.has("other", "c-1", now) {
		t.Error("another contract or namespace is held, or for too long")
	}
	held.forget("ns")
	if held.has("ns", "c-1", now) {
		t.Error("a namespace that was forgotten is held")
	}
}

// A record that the cache does not show, though it is there, is found by making it, and
// counts once.
func TestARecordThatTheCacheDoesNotShowIsFoundByMakingIt(t *testing.T) {
	t.Parallel()
	c := newFake(t)
	id, name := c.fresh("cpu=1,pods=10")
	p, _ := c.start(t)
	apply(t, p, id, namespaceObject(name, "Suffixed"))
	apply(t, p, id, podObject(name, "web", "100m"))
	key := types.NamespacedName{Namespace: name + "-" + peerA.Short(), Name: "web"}
	eventually(t, "it runs", func() bool {
		o := p.inv.offloaded(key)
		return o != nil && o.Status.PodUID != ""
	})
	if err := p.inv.offloads.Delete(p.inv.offloaded(key)); err != nil {
		t.Fatal(err)
	}
	apply(t, p, id, podObject(name, "web", "100m"))
	used, pods, err := p.Usage(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if cpu := used["cpu"]; pods != 1 || cpu.String() != "100m" {
		t.Errorf("%d pods take %s", pods, cpu.String())
	}
	// Of another UID it is in the way, and stays.
	if err := p.inv.offloads.Delete(&api.OffloadedPod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}); err != nil {
		t.Fatal(err)
	}
	other := podObject(name, "web", "100m")
	other.Ref.UID = "another"
	if err := p.Apply(t.Context(), id, other); err == nil {
		t.Error("a pod takes the place of another")
	}
	if _, pods, err := p.Usage(t.Context(), id); err != nil || pods != 1 {
		t.Errorf("%d pods count, %v", pods, err)
	}
}
