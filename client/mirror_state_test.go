package client

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func testRef(k peering.Kind, name, uid string) peering.ObjectRef {
	r := peering.ObjectRef{Kind: k, Namespace: "shop", Name: name, UID: uid}
	if k == peering.KindNamespace {
		r.Namespace = ""
	}
	return r
}

func TestDecideTakesOneStepForEachSituation(t *testing.T) {
	pod := testRef(peering.KindPod, "web", "u1")
	config := testRef(peering.KindConfigMap, "cfg", "u2")
	a, b := peering.Hash{1}, peering.Hash{2}
	tests := map[string]struct {
		r        mirrorRecord
		notReady bool
		nsOpen   bool
		want     mirrorStepKind
	}{
		"what is wanted and not held is applied":                       {r: mirrorRecord{ref: pod, want: true, hash: a}, want: stepApply},
		"what is wanted is applied before Ready":                       {r: mirrorRecord{ref: pod, want: true, hash: a}, notReady: true, want: stepApply},
		"what is held in that form is reported":                        {r: mirrorRecord{ref: pod, want: true, hash: a, held: true, heldHash: a}, want: stepHeld},
		"what is reported to be held in that form is left alone":       {r: mirrorRecord{ref: pod, want: true, hash: a, held: true, heldHash: a, reported: true}, want: stepWait},
		"what is held in another form is applied":                      {r: mirrorRecord{ref: pod, want: true, hash: a, held: true, heldHash: b}, want: stepApply},
		"what waits for its namespace waits":                           {r: mirrorRecord{ref: pod, want: true, hash: a}, nsOpen: true, want: stepWait},
		"what is on its way is not sent twice":                         {r: mirrorRecord{ref: pod, want: true, hash: a, sent: sentApply, sentAt: t0}, want: stepWait},
		"a pod that ran and is no longer held is gone":                 {r: mirrorRecord{ref: pod, want: true, hash: a, ran: true}, want: stepGone},
		"a pod that is gone is not run again":                          {r: mirrorRecord{ref: pod, want: true, hash: a, ran: true, lost: true}, want: stepWait},
		"a config map that was taken away is applied again":            {r: mirrorRecord{ref: config, want: true, hash: a}, want: stepApply},
		"a final refusal is not tried again":                           {r: mirrorRecord{ref: pod, want: true, hash: a, refused: true, refusedHash: a, final: true}, want: stepWait},
		"another form of what was refused is tried":                    {r: mirrorRecord{ref: pod, want: true, hash: b, refused: true, refusedHash: a, final: true}, want: stepApply},
		"a refusal that may pass waits its time":                       {r: mirrorRecord{ref: pod, want: true, hash: a, refused: true, refusedHash: a, notBefore: t0.Add(time.Second)}, want: stepWait},
		"a refusal that may pass is tried after that":                  {r: mirrorRecord{ref: pod, want: true, hash: a, refused: true, refusedHash: a, notBefore: t0}, want: stepApply},
		"what is positively gone is deleted":                           {r: mirrorRecord{ref: pod, unwant: true, held: true}, want: stepDelete},
		"nothing is deleted before Ready":                              {r: mirrorRecord{ref: pod, unwant: true, held: true}, notReady: true, want: stepWait},
		"a pod that is being deleted is waited for":                    {r: mirrorRecord{ref: pod, unwant: true, held: true, deleted: true}, want: stepWait},
		"a pod that is gone on both sides is reported":                 {r: mirrorRecord{ref: pod, unwant: true}, want: stepGone},
		"a pod that was reported is forgotten":                         {r: mirrorRecord{ref: pod, unwant: true, lost: true}, want: stepForget},
		"a config map that is gone on both sides is forgotten":         {r: mirrorRecord{ref: config, unwant: true}, want: stepForget},
		"an orphan is asked about":                                     {r: mirrorRecord{ref: pod, held: true}, want: stepAsk},
		"an orphan is not asked about before Ready":                    {r: mirrorRecord{ref: pod, held: true}, notReady: true, want: stepWait},
		"an orphan that may not go is asked about after a while":       {r: mirrorRecord{ref: pod, held: true, notBefore: t0.Add(time.Minute)}, want: stepWait},
		"what is neither wanted nor held is forgotten":                 {r: mirrorRecord{ref: pod}, want: stepForget},
		"a delete that was refused waits its time":                     {r: mirrorRecord{ref: config, unwant: true, held: true, notBefore: t0.Add(time.Second)}, want: stepWait},
		"a pod that is unwanted while its apply is on its way, waits":  {r: mirrorRecord{ref: pod, unwant: true, sent: sentApply, sentAt: t0}, want: stepWait},
		"a lost pod whose remains are held is deleted when it may be":  {r: mirrorRecord{ref: pod, unwant: true, held: true, ran: true, lost: true}, want: stepDelete},
		"a pod held though its loss was reported is not applied again": {r: mirrorRecord{ref: pod, want: true, hash: a, held: true, heldHash: b, ran: true, lost: true}, want: stepWait},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got, _ := decide(&tc.r, !tc.notReady, tc.nsOpen, t0); got != tc.want {
				t.Fatalf("decide = %d, want %d", got, tc.want)
			}
		})
	}
}

func TestObjectsGoInTheOrderInWhichTheyDepend(t *testing.T) {
	s := newMirrorState()
	s.setReady()
	s.connect()
	old := testRef(peering.KindSecret, "old", "o1")
	oldPod := testRef(peering.KindPod, "old", "o2")
	s.hold(peering.Held{Ref: old})
	s.hold(peering.Held{Ref: oldPod})
	s.unwantObject(old, nil)
	s.unwantObject(oldPod, nil)
	for i, k := range []peering.Kind{peering.KindPod, peering.KindService, peering.KindSecret, peering.KindConfigMap} {
		s.want(peering.Object{Ref: testRef(k, "x", fmt.Sprint("u", i)), JSON: []byte("{}")})
	}
	s.sync(t0.Add(-mirrorLastWait))
	steps, _ := s.plan(t0)
	var got []string
	for _, st := range steps {
		got = append(got, fmt.Sprintf("%d%s", st.kind, st.ref.Kind))
	}
	want := fmt.Sprint([]string{"5Pod", "5Secret", "6ConfigMap", "6Secret", "6Service", "6Pod"})
	if fmt.Sprint(got) != want {
		t.Fatalf("order %v, want %v", got, want)
	}
}

// fill has so many objects wanted that there is room for no other.
func fill(t testing.TB, s *mirrorState) {
	t.Helper()
	for i := range mirrorMaxObjects {
		ref := testRef(peering.KindConfigMap, fmt.Sprint("c", i), fmt.Sprint("c", i))
		ref.Namespace = fmt.Sprint("n", i)
		if refusal := s.want(peering.Object{Ref: ref, JSON: []byte("{}")}); refusal != nil {
			t.Fatal(refusal)
		}
	}
}

// One namespace cannot leave the others without room, by many objects or by large ones.
func TestANamespaceLeavesRoomForOthers(t *testing.T) {
	for name, size := range map[string]int{"many objects": 2, "large objects": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			s := newMirrorState()
			object := func(ns string, i, size int) peering.Object {
				return peering.Object{Ref: peering.ObjectRef{Kind: peering.KindService, Namespace: ns, Name: "x", UID: fmt.Sprint(ns, "-", i)}, JSON: make([]byte, size)}
			}
			takes := func(ns string, from, most int) int {
				for i := range most {
					if refusal := s.want(object(ns, from+i, size)); refusal != nil {
						if refusal.Reason != peering.RefusedQuota || !refusal.Retryable || !strings.Contains(refusal.Message, "namespace "+ns) {
							t.Errorf("namespace %s is refused with %+v", ns, refusal)
						}
						return i
					}
				}
				return most
			}
			all := min(mirrorMaxObjects, mirrorMaxBytes/size)
			if got := takes("a", 0, 2*all); got != all-all/8 {
				t.Errorf("one namespace has room for %d, want %d", got, all-all/8)
			}
			if got := takes("b", 0, 2*all); got != all/16 {
				t.Errorf("the next one has room for %d, want %d", got, all/16)
			}
			for i := range 3 {
				ns := fmt.Sprint("c", i)
				if refusal := s.want(peering.Object{Ref: testRef(peering.KindNamespace, ns, ns), JSON: []byte("{}")}); refusal != nil {
					t.Errorf("another namespace is refused: %v", refusal)
				}
				if refusal := s.want(object(ns, 0, size)); refusal != nil {
					t.Errorf("an object of another namespace is refused: %v", refusal)
				}
			}
			// What is there may change, and shrink, and makes room when it goes.
			if refusal := s.want(object("a", 0, max(size-1, 2))); refusal != nil {
				t.Errorf("a smaller form of an object is refused: %v", refusal)
			}
			for i := range all / 2 {
				s.unwantObject(object("a", i, size).Ref, nil)
			}
			if got := takes("b", all, 100); got != 100 || s.uses["a"].objects != all-all/8-all/2 {
				t.Errorf("then there is room for %d; the first one has %+v", got, s.uses["a"])
			}
		})
	}
}

// A caller that wants more than there is room for calls Want again after a while.
func TestObjectsBeyondTheLimitAreRefusedOnceAndTakenLater(t *testing.T) {
	s := newMirrorState()
	fill(t, s)
	pod := peering.Object{Ref: testRef(peering.KindPod, "web", "u"), JSON: []byte("{}")}
	large := peering.Object{Ref: testRef(peering.KindPod, "large", "l"), JSON: make([]byte, wire.MaxObjectBytes+1)}
	for i, want := range []int{2, 0} {
		s.want(pod)
		s.want(large)
		if refusals := s.takeUnreported(); len(refusals) != want {
			t.Errorf("the %d. time %d refusals are reported, want %d: %v", i+1, len(refusals), want, refusals)
		}
	}
	if why := s.excess(); why == "" {
		t.Error("it is not known that there is no room")
	}
	first := testRef(peering.KindConfigMap, "c0", "c0")
	s.unwantObject(first, nil)
	if refusal := s.want(pod); refusal != nil || s.excess() != "" {
		t.Errorf("when there is room: %v, %q", refusal, s.excess())
	}
	s.unwantObject(large.Ref, nil)
	if len(s.barred) != 0 || len(s.unreported) != 0 {
		t.Errorf("%d refusals are left, and %d to report", len(s.barred), len(s.unreported))
	}
	for i := range 2 * mirrorMaxObjects {
		s.want(peering.Object{Ref: testRef(peering.KindConfigMap, "more", fmt.Sprint("more", i)), JSON: []byte("{}")})
	}
	if len(s.barred) != mirrorMaxObjects || len(s.records) != mirrorMaxObjects+2 {
		t.Errorf("%d refusals and %d objects are remembered", len(s.barred), len(s.records))
	}
}

// A provider may list other objects on each stream, and end each before the end of the list: the
// records of earlier streams do not add up.
func TestHeldObjectsOfOtherStreamsAreForgotten(t *testing.T) {
	for _, ready := range []bool{false, true} {
		s := newMirrorState()
		s.ready = ready
		for stream := range 5 {
			s.connect()
			for i := range mirrorMaxObjects {
				s.hold(peering.Held{Ref: testRef(peering.KindPod, fmt.Sprint("p", i), fmt.Sprint(stream, "-", i))})
			}
		}
		if most := mirrorMaxRecords; len(s.records) > most {
			t.Errorf("ready %v: %d objects are remembered, want %d at most", ready, len(s.records), most)
		}
		s.ready = true
		s.connect()
		if len(s.records) != 0 {
			t.Errorf("ready %v: %d objects are remembered when another stream begins", ready, len(s.records))
		}
	}
}

// An agent that starts may want other objects than the provider holds: there is room for both, or
// they would never converge.
func TestHeldAndWantedObjectsHaveRoomSideBySide(t *testing.T) {
	s := newMirrorState()
	fill(t, s)
	for stream := range 2 {
		s.connect()
		for i := range mirrorMaxObjects {
			if !s.hold(peering.Held{Ref: testRef(peering.KindPod, fmt.Sprint("p", i), fmt.Sprint("p", i))}) {
				t.Fatalf("there is no room for object %d of stream %d that the provider holds", i, stream)
			}
		}
		if s.hold(peering.Held{Ref: testRef(peering.KindPod, "more", "more")}) {
			t.Error("a provider may hold more than a contract can have")
		}
	}
}

func TestAPodWaitsForTheAckOfItsNamespace(t *testing.T) {
	s := newMirrorState()
	s.connect()
	s.sync(t0.Add(-mirrorLastWait))
	ns := peering.Object{Ref: testRef(peering.KindNamespace, "shop", "n"), JSON: []byte("{}")}
	pod := peering.Object{Ref: testRef(peering.KindPod, "web", "u"), JSON: []byte("{}")}
	s.want(pod)
	s.want(ns)
	if steps, _ := s.plan(t0); len(steps) != 1 || steps[0].ref != ns.Ref {
		t.Fatalf("first %v", steps)
	}
	s.ack(peering.Ack{Ref: ns.Ref, Hash: ns.Hash(), Refusal: &peering.Refusal{Reason: peering.RefusedNamespace, Retryable: true}}, t0)
	if steps, _ := s.plan(t0); len(steps) != 1 || steps[0].ref != pod.Ref {
		t.Fatalf("a pod of a refused namespace has to get its own answer: %v", steps)
	}
	s.ack(peering.Ack{Ref: pod.Ref, Hash: pod.Hash(), Refusal: &peering.Refusal{Reason: peering.RefusedNamespace, Retryable: true}}, t0)
	later := t0.Add(mirrorRetryMin)
	steps, _ := s.plan(later)
	if len(steps) == 0 || steps[0].ref != ns.Ref {
		t.Fatalf("the namespace is tried again: %v", steps)
	}
	s.ack(peering.Ack{Ref: ns.Ref, Hash: ns.Hash()}, later)
	if len(steps) == 1 {
		if steps, _ = s.plan(later); len(steps) != 1 || steps[0].ref != pod.Ref {
			t.Fatalf("the pod follows its namespace at once: %v", steps)
		}
	}
}

// A provider names what it holds, and may name it otherwise than home does.
func TestANamespaceThatTheProviderNamesOtherwiseIsHomes(t *testing.T) {
	for _, known := range []string{"wanted", "unwanted"} {
		s := newMirrorState()
		s.setReady()
		s.connect()
		s.hold(peering.Held{Ref: testRef(peering.KindNamespace, "x", "n")})
		s.hold(peering.Held{Ref: testRef(peering.KindPod, "y", "p")})
		s.sync(t0.Add(-mirrorLastWait))
		ns := peering.Object{Ref: testRef(peering.KindNamespace, "shop", "n"), JSON: []byte("{}")}
		pod := peering.Object{Ref: testRef(peering.KindPod, "web", "p"), JSON: []byte("{}")}
		if known == "wanted" {
			s.want(ns)
			s.want(pod)
			for _, st := range stepsOf(s.plan(t0)) {
				if st.kind != stepApply || st.ref != st.object.Ref {
					t.Errorf("of %s there is step %d", st.ref, st.kind)
				}
				s.ack(peering.Ack{Ref: st.ref, Hash: st.object.Hash()}, t0)
			}
		}
		s.unwantObject(pod.Ref, nil)
		s.unwantObject(ns.Ref, nil)
		for _, st := range stepsOf(s.plan(t0)) {
			if st.kind != stepDelete || st.ref != ns.Ref && st.ref != pod.Ref {
				t.Errorf("%s: of %s there is step %d, want deletes by home's names", known, st.ref, st.kind)
			}
			s.ack(peering.Ack{Ref: st.ref}, t0)
		}
		s.podStatus(peering.PodStatus{Ref: pod.Ref, Gone: true}, t0)
		s.plan(t0)
		if len(s.records) != 0 || len(s.spaces) != 0 || len(s.names) != 0 {
			t.Errorf("%s: %d records, %v and %v are left", known, len(s.records), s.spaces, s.names)
		}
		// A provider may report a pod of the namespace that home does not offload any longer.
		s.podStatus(peering.PodStatus{Ref: testRef(peering.KindPod, "late", "l")}, t0)
		s.plan(t0)
	}
}

func stepsOf(steps []mirrorStep, _ time.Time) []mirrorStep { return steps }

// TestADeleteOfAVolumeIsAlwaysAcknowledged deletes a volume that the provider does not list: the
// caller waits for the acknowledgement.
func TestADeleteOfAVolumeIsAlwaysAcknowledged(t *testing.T) {
	s := newMirrorState()
	s.connect()
	s.sync(t0.Add(-mirrorLastWait))
	s.setReady()
	ref := testRef(peering.KindClaim, "entente-u", "u")
	s.unwantObject(ref, nil)
	steps, _ := s.plan(t0)
	if len(steps) != 1 || steps[0].kind != stepDelete || steps[0].ref != ref {
		t.Fatalf("steps %v, want a delete", steps)
	}
	if !s.ack(peering.Ack{Ref: ref}, t0) {
		t.Error("the answer answers nothing")
	}
	if steps, _ := s.plan(t0); len(steps) != 0 || len(s.records) != 0 {
		t.Errorf("afterwards %v, with %d records", steps, len(s.records))
	}
}

// TestObjectsHeldSinceBeforeAreReportedOnce is the start of an agent whose
// provider kept all that was sent before: nothing is sent, so no answer comes.
func TestObjectsHeldSinceBeforeAreReportedOnce(t *testing.T) {
	ns := peering.Object{Ref: testRef(peering.KindNamespace, "shop", "n"), JSON: []byte("{}")}
	for name, order := range map[string]func(*mirrorState){
		"wanted before the provider is asked": func(s *mirrorState) {
			s.want(ns)
			s.connect()
			s.hold(peering.Held{Ref: ns.Ref, Hash: ns.Hash()})
			s.sync(t0.Add(-mirrorLastWait))
		},
		"wanted after": func(s *mirrorState) {
			s.connect()
			s.hold(peering.Held{Ref: ns.Ref, Hash: ns.Hash()})
			s.sync(t0.Add(-mirrorLastWait))
			s.want(ns)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newMirrorState()
			order(s)
			steps, _ := s.plan(t0)
			if len(steps) != 1 || steps[0].kind != stepHeld || steps[0].ref != ns.Ref || steps[0].held.Hash != ns.Hash() {
				t.Fatalf("steps %+v, want that the namespace is held", steps)
			}
			again := func(when string) {
				t.Helper()
				if steps, _ := s.plan(t0); len(steps) != 0 {
					t.Fatalf("%s: %+v", when, steps)
				}
			}
			again("a second time")
			s.connect()
			s.hold(peering.Held{Ref: ns.Ref, Hash: ns.Hash()})
			s.sync(t0.Add(-mirrorLastWait))
			again("on another stream")
		})
	}
}

func TestAPodWaitsForTheEndOfTheOneThatHasItsName(t *testing.T) {
	const old, next = "old-uid", "new-uid"
	object := func(uid string) peering.Object {
		return peering.Object{Ref: testRef(peering.KindPod, "db-0", uid), JSON: []byte("{}")}
	}
	state := func() *mirrorState {
		s := newMirrorState()
		s.setReady()
		s.connect()
		s.hold(peering.Held{Ref: object(old).Ref, Hash: object(old).Hash()})
		s.unwantObject(object(old).Ref, nil)
		s.sync(t0.Add(-mirrorLastWait))
		s.plan(t0)
		s.ack(peering.Ack{Ref: object(old).Ref}, t0) // it ends
		s.want(object(next))
		if steps, wake := s.plan(t0); len(steps) != 0 || !wake.Equal(t0.Add(mirrorNameWait)) {
			t.Fatalf("while the old pod ends: %v, next at %s", steps, wake)
		}
		return s
	}
	t.Run("it follows at once", func(t *testing.T) {
		s := state()
		s.podStatus(peering.PodStatus{Ref: object(old).Ref, Gone: true}, t0)
		steps, _ := s.plan(t0.Add(time.Second))
		if len(steps) == 0 || steps[len(steps)-1].kind != stepApply || steps[len(steps)-1].ref.UID != next {
			t.Fatalf("when the old pod is gone: %v", steps)
		}
		for range 3 {
			s.plan(t0.Add(time.Second))
		}
		if len(s.names) != 1 || len(s.records) != 1 {
			t.Errorf("%d names of %d pods are remembered", len(s.names), len(s.records))
		}
	})
	t.Run("the provider is asked if it takes long", func(t *testing.T) {
		s := state()
		if steps, _ := s.plan(t0.Add(mirrorNameWait)); len(steps) != 1 || steps[0].kind != stepApply {
			t.Fatalf("after a while: %v", steps)
		}
	})
	t.Run("a pod of another name does not wait", func(t *testing.T) {
		s := state()
		s.want(peering.Object{Ref: testRef(peering.KindPod, "db-1", "u"), JSON: []byte("{}")})
		if steps, _ := s.plan(t0); len(steps) != 1 || steps[0].ref.Name != "db-1" {
			t.Fatalf("it got %v", steps)
		}
	})
}

// A provider reports that a pod is gone when it ended, and again when its record is deleted.
func TestADeletedPodIsReportedGoneOnce(t *testing.T) {
	pod := peering.Object{Ref: testRef(peering.KindPod, "batch", "u"), JSON: []byte("{}")}
	s := newMirrorState()
	s.setReady()
	s.want(pod)
	s.connect()
	s.hold(peering.Held{Ref: pod.Ref, Hash: pod.Hash()})
	s.sync(t0.Add(-mirrorLastWait))
	s.plan(t0)
	s.unwantObject(pod.Ref, nil)
	s.plan(t0)
	gone := peering.PodStatus{Ref: pod.Ref, Gone: true}
	for i, want := range []bool{true, false} {
		if got := s.podStatus(gone, t0); got != want {
			t.Errorf("the %d. time home hears it is %v, want %v", i+1, got, want)
		}
	}
	s.ack(peering.Ack{Ref: pod.Ref}, t0)
	s.plan(t0)
	if len(s.records) != 0 {
		t.Errorf("%d records are left", len(s.records))
	}
}

// A provider first lists what it holds, and then sends how pods ended that went a moment ago.
func TestAPodIsNotReportedGoneBeforeTheProviderCanSendHowItEnded(t *testing.T) {
	pod := peering.Object{Ref: testRef(peering.KindPod, "batch", "u"), JSON: []byte("{}")}
	for name, home := range map[string]func(*mirrorState){
		"wanted": func(s *mirrorState) { s.want(pod); s.markRan(pod.Ref) },
		"ending": func(s *mirrorState) { s.unwantObject(pod.Ref, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newMirrorState()
			s.setReady()
			home(s)
			s.connect()
			s.sync(t0)
			if steps, wake := s.plan(t0); len(steps) != 0 || !wake.Equal(t0.Add(mirrorLastWait)) {
				t.Fatalf("at once %+v, next at %s", steps, wake)
			}
			if !s.podStatus(peering.PodStatus{Ref: pod.Ref, Status: []byte("{}"), Gone: true}, t0) {
				t.Fatal("how it ended is not passed on")
			}
			for _, at := range []time.Time{t0, t0.Add(mirrorLastWait)} {
				if steps, _ := s.plan(at); len(steps) != 0 {
					t.Fatalf("it was reported how it ended, and then %+v", steps)
				}
			}
		})
	}
	s := newMirrorState()
	s.setReady()
	s.want(pod)
	s.markRan(pod.Ref)
	s.connect()
	s.sync(t0)
	s.plan(t0)
	if steps, _ := s.plan(t0.Add(mirrorLastWait)); len(steps) != 1 || steps[0].kind != stepGone {
		t.Fatalf("of a pod of which nothing is known any more: %+v", steps)
	}
}

// An apply that is carried out after its stream ended, and after the provider listed what it has,
// only shows by the pod's status.
func TestAPodThatTheProviderMadeLateIsAnOrphan(t *testing.T) {
	s := newMirrorState()
	s.setReady()
	s.connect()
	s.sync(t0.Add(-mirrorLastWait))
	s.plan(t0)
	late := peering.Object{Ref: testRef(peering.KindPod, "db-0", "old"), JSON: []byte("{}")}
	if s.podStatus(peering.PodStatus{Ref: late.Ref}, t0) {
		t.Error("the status of a pod that home does not have is not passed on")
	}
	if steps, wake := s.plan(t0); len(steps) != 0 || !wake.Equal(t0.Add(mirrorLateWait)) {
		t.Fatalf("steps %+v, next at %s", steps, wake)
	}
	steps, _ := s.plan(t0.Add(mirrorLateWait))
	if len(steps) != 1 || steps[0].kind != stepAsk || steps[0].held.Ref != late.Ref {
		t.Fatalf("steps %+v, want to ask whether it may go", steps)
	}
	s.orphan(late.Ref, true, t0)
	if steps, _ := s.plan(t0); len(steps) != 1 || steps[0].kind != stepDelete {
		t.Fatalf("steps %+v, want a delete", steps)
	}
	s.ack(peering.Ack{Ref: late.Ref}, t0)
	s.podStatus(peering.PodStatus{Ref: late.Ref, Gone: true}, t0)
	s.plan(t0)
	if len(s.records) != 0 || s.late != 0 {
		t.Errorf("%d records are left, %d late ones", len(s.records), s.late)
	}
	for i := range 2 * mirrorMaxLate {
		s.podStatus(peering.PodStatus{Ref: testRef(peering.KindPod, "db-0", fmt.Sprint(i))}, t0)
	}
	if len(s.records) != mirrorMaxLate {
		t.Errorf("%d pods are recorded of a provider that reports pods without end", len(s.records))
	}
}

// A plan between the calls of Ran and Want for a pod must not lose the record that it ran.
func TestAPodThatRanIsNotSentAfterAPlanInBetween(t *testing.T) {
	s := newMirrorState()
	s.setReady()
	s.connect()
	s.sync(t0.Add(-mirrorLastWait))
	pod := peering.Object{Ref: testRef(peering.KindPod, "db-0", "u"), JSON: []byte("{}")}
	s.markRan(pod.Ref)
	if steps, _ := s.plan(t0); len(steps) != 0 {
		t.Fatalf("steps %+v before it is wanted", steps)
	}
	s.want(pod)
	if steps, _ := s.plan(t0); len(steps) != 1 || steps[0].kind != stepGone {
		t.Errorf("steps %+v, want that it is gone", steps)
	}
}

func TestAnAckWithoutARequestIsIgnored(t *testing.T) {
	s := newMirrorState()
	s.connect()
	s.sync(t0.Add(-mirrorLastWait))
	o := peering.Object{Ref: testRef(peering.KindPod, "web", "u"), JSON: []byte("{}")}
	s.want(o)
	s.plan(t0)
	for name, a := range map[string]peering.Ack{
		"an unknown object":          {Ref: testRef(peering.KindPod, "web", "other"), Hash: o.Hash()},
		"a form that was not sent":   {Ref: o.Ref, Hash: peering.Hash{9}},
		"a delete that was not sent": {Ref: o.Ref},
	} {
		if s.ack(a, t0) {
			t.Errorf("took an answer to %s", name)
		}
	}
	if !s.ack(peering.Ack{Ref: o.Ref, Hash: o.Hash()}, t0) {
		t.Error("did not take the answer")
	}
	if len(s.inFlight) != 0 {
		t.Errorf("%d in flight", len(s.inFlight))
	}
}

// Whatever is to be applied, by number or by size, a delete is sent, and what waits for
// room is sent when there is some, in order.
func TestAppliesLeaveRoomForDeletes(t *testing.T) {
	for name, tc := range map[string]struct{ size, n int }{"many": {100, 2 * mirrorMaxApplies}, "large": {1 << 20, 30}} {
		t.Run(name, func(t *testing.T) {
			size := tc.size
			s := newMirrorState()
			s.connect()
			old := testRef(peering.KindPod, "old", "u-old")
			s.hold(peering.Held{Ref: old, Hash: peering.Hash{1}})
			s.sync(t0.Add(-mirrorLastWait))
			var all []peering.Object
			for i := range tc.n {
				o := peering.Object{Ref: testRef(peering.KindPod, fmt.Sprintf("web-%03d", i), fmt.Sprint("u", i)), JSON: make([]byte, size)}
				if i == 9 { // smaller than those before it, and not to pass them
					o.JSON = o.JSON[:2]
				}
				all = append(all, o)
				s.want(o)
			}
			steps, _ := s.plan(t0)
			if len(steps) == 0 || len(steps) > mirrorMaxApplies || len(steps)*size > mirrorMaxApplyBytes+size {
				t.Fatalf("%d of %d bytes were sent", len(steps), size)
			}
			s.unwantObject(old, nil)
			s.setReady()
			if more, _ := s.plan(t0); len(more) != 1 || more[0].kind != stepDelete {
				t.Errorf("for a delete it does %v", more)
			}
			for sent := 0; sent < len(all); {
				if len(steps) == 0 {
					t.Fatalf("after %d nothing is sent", sent)
				}
				for _, st := range steps {
					if st.ref != all[sent].Ref {
						t.Fatalf("%s is sent before %s", st.ref, all[sent].Ref)
					}
					sent++
					s.ack(peering.Ack{Ref: st.ref, Hash: st.object.Hash()}, t0)
				}
				steps, _ = s.plan(t0)
			}
		})
	}
}

func TestObjectsBeyondLimitsAreRefusedHere(t *testing.T) {
	s := newMirrorState()
	big := peering.Object{Ref: testRef(peering.KindConfigMap, "big", "u"), JSON: make([]byte, 2<<20)}
	if r := s.want(big); r == nil || r.Reason != peering.RefusedInvalid {
		t.Errorf("a big object: %v", r)
	}
	bad := peering.Object{Ref: testRef(peering.KindConfigMap, "../x", "u"), JSON: []byte("{}")}
	if r := s.want(bad); r == nil || r.Reason != peering.RefusedInvalid {
		t.Errorf("a bad name: %v", r)
	}
	for i := range mirrorMaxObjects {
		if !s.hold(peering.Held{Ref: testRef(peering.KindPod, "x", fmt.Sprint("u", i))}) {
			t.Fatalf("no room for object %d", i)
		}
	}
	if s.hold(peering.Held{Ref: testRef(peering.KindPod, "x", "more")}) {
		t.Error("a provider may hold any number of objects")
	}
}

// world is a mirrorState, the home whose words it takes, a provider, and the
// channel between them.
type world struct {
	t     *rapid.T
	state *mirrorState
	now   time.Time

	// home is what there is at home; acked the pods that are known there to have
	// been taken by the provider.
	home  map[mirrorKey]peering.Object
	acked map[mirrorKey]bool
	// unwanted has the objects for which Unwant was called.
	unwanted map[mirrorKey]bool

	provider map[mirrorKey]peering.Held
	ran      map[string]int
	lost     map[mirrorKey]bool

	up   bool
	toP  []mirrorStep
	toC  []func()
	next int
}

func newWorld(t *rapid.T) *world {
	return &world{
		t: t, state: newMirrorState(), now: t0,
		home: map[mirrorKey]peering.Object{}, acked: map[mirrorKey]bool{}, unwanted: map[mirrorKey]bool{},
		provider: map[mirrorKey]peering.Held{}, ran: map[string]int{}, lost: map[mirrorKey]bool{},
	}
}

func (w *world) connect() {
	w.up, w.toP, w.toC = true, nil, nil
	w.state.connect()
	for k, h := range w.provider {
		w.state.hold(h)
		_ = k
	}
	w.state.sync(w.now)
}

func (w *world) drop() { w.up, w.toP, w.toC = false, nil, nil }

func (w *world) plan() {
	if !w.up {
		return
	}
	steps, _ := w.state.plan(w.now)
	for _, st := range steps {
		switch st.kind {
		case stepGone:
			k := keyOf(st.ref)
			if _, runs := w.provider[k]; runs {
				w.t.Fatalf("%s was reported gone and is there", st.ref)
			}
		case stepAsk:
			_, there := w.home[keyOf(st.ref)]
			w.state.orphan(st.ref, !there, w.now)
		case stepApply, stepDelete:
			w.toP = append(w.toP, st)
		}
	}
}

// provide has the provider take the next message.
func (w *world) provide(refuse bool) {
	if len(w.toP) == 0 {
		return
	}
	st := w.toP[0]
	w.toP = w.toP[1:]
	k := keyOf(st.ref)
	ack := peering.Ack{Ref: st.ref}
	if st.kind == stepApply {
		ack.Hash = st.object.Hash()
	}
	if refuse {
		ack.Refusal = &peering.Refusal{Reason: peering.RefusedQuota, Retryable: w.next%2 == 0}
	} else if st.kind == stepApply && w.lost[k] {
		// A provider does not run again what it saw go away.
		w.toC = append(w.toC, func() { w.state.podStatus(peering.PodStatus{Ref: st.ref, Gone: true}, t0) })
	} else if st.kind == stepApply {
		if _, there := w.provider[k]; !there && k.kind == peering.KindPod {
			w.ran[k.uid]++
			if w.ran[k.uid] > 1 {
				w.t.Fatalf("%s was run twice", st.ref)
			}
		}
		w.provider[k] = peering.Held{Ref: st.ref, Hash: ack.Hash}
	} else {
		if _, there := w.home[k]; there {
			w.t.Fatalf("%s was deleted without evidence", st.ref)
		}
		delete(w.provider, k)
	}
	accepted := st.kind == stepApply && !refuse
	w.toC = append(w.toC, func() {
		if w.state.ack(ack, w.now) && accepted {
			w.acked[k] = true
		}
	})
	if st.kind == stepDelete && !refuse && k.kind == peering.KindPod {
		w.toC = append(w.toC, func() { w.state.podStatus(peering.PodStatus{Ref: st.ref, Gone: true}, t0) })
	}
}

func (w *world) hear() {
	if len(w.toC) > 0 {
		f := w.toC[0]
		w.toC = w.toC[1:]
		f()
	}
}

// restart is a consumer's process that forgets all but what its cluster knows.
func (w *world) restart() {
	w.drop()
	w.state = newMirrorState()
	for k, o := range w.home {
		w.state.want(o)
		if w.acked[k] {
			w.state.markRan(o.Ref)
		}
	}
}

func (w *world) settle() {
	for k := range w.home {
		if w.lost[k] {
			continue
		}
		w.state.want(w.home[k])
	}
	w.state.setReady()
	if !w.up {
		w.connect()
	}
	for range 20 {
		for range 200 {
			w.plan()
			if len(w.toP) == 0 && len(w.toC) == 0 {
				break
			}
			w.provide(false)
			w.hear()
		}
		w.now = w.now.Add(mirrorRetryMax)
	}
	// A final refusal is not tried again before a new comparison.
	w.connect()
	for range 500 {
		w.plan()
		w.provide(false)
		w.hear()
	}
}

func TestTheProviderEndsWithExactlyWhatIsWanted(t *testing.T) {
	kinds := []peering.Kind{peering.KindConfigMap, peering.KindService, peering.KindPod, peering.KindPod}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		pick := func() (mirrorKey, bool) {
			var keys []mirrorKey
			for i := range w.next {
				k := mirrorKey{kinds[i%len(kinds)], fmt.Sprint("u", i)}
				if _, ok := w.home[k]; ok {
					keys = append(keys, k)
				}
			}
			if len(keys) == 0 {
				return mirrorKey{}, false
			}
			return rapid.SampledFrom(keys).Draw(t, "object"), true
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				k := kinds[w.next%len(kinds)]
				o := peering.Object{Ref: testRef(k, fmt.Sprint("x", w.next), fmt.Sprint("u", w.next)), JSON: []byte("{}")}
				w.next++
				w.home[keyOf(o.Ref)] = o
				w.state.want(o)
			},
			"change": func(t *rapid.T) {
				if k, ok := pick(); ok {
					o := w.home[k]
					o.JSON = fmt.Appendf(nil, "{%q:%d}", "v", rapid.IntRange(0, 3).Draw(t, "v"))
					w.home[k] = o
					w.state.want(o)
				}
			},
			"delete": func(t *rapid.T) {
				if k, ok := pick(); ok {
					ref := w.home[k].Ref
					delete(w.home, k)
					w.unwanted[k] = true
					w.state.unwantObject(ref, nil)
				}
			},
			"delete without a stream": func(t *rapid.T) {
				if k, ok := pick(); ok {
					delete(w.home, k)
					w.restart()
				}
			},
			"ready":   func(*rapid.T) { w.state.setReady() },
			"connect": func(*rapid.T) { w.connect() },
			"drop":    func(*rapid.T) { w.drop() },
			"restart": func(*rapid.T) { w.restart() },
			"plan":    func(*rapid.T) { w.plan() },
			"provide": func(*rapid.T) { w.plan(); w.provide(false) },
			"refuse":  func(*rapid.T) { w.provide(true) },
			"hear":    func(*rapid.T) { w.hear() },
			"wait":    func(*rapid.T) { w.now = w.now.Add(mirrorRetryMin) },
			"the provider's owner deletes a pod": func(t *rapid.T) {
				k, ok := pick()
				if !ok || k.kind != peering.KindPod || !w.acked[k] {
					return
				}
				if _, there := w.provider[k]; !there {
					return
				}
				delete(w.provider, k)
				w.lost[k] = true
				ref := w.home[k].Ref
				if w.up {
					w.toC = append(w.toC, func() { w.state.podStatus(peering.PodStatus{Ref: ref, Gone: true}, t0) })
				}
			},
			"": func(t *rapid.T) {
				if len(w.state.inFlight) > mirrorMaxInFlight {
					t.Fatalf("%d in flight", len(w.state.inFlight))
				}
				applies, size := 0, 0
				for _, r := range w.state.records {
					if r.sent == sentApply {
						applies, size = applies+1, size+r.sentSize
					}
				}
				if applies != w.state.applies || size != w.state.applyBytes {
					t.Fatalf("%d applies of %d bytes are counted, and %d of %d on their way", w.state.applies, w.state.applyBytes, applies, size)
				}
			},
		})
		w.settle()
		for k, o := range w.home {
			h, held := w.provider[k]
			switch {
			case w.lost[k] && held:
				t.Fatalf("%s was lost and is there again", o.Ref)
			case !w.lost[k] && (!held || h.Hash != o.Hash()):
				t.Fatalf("%s is wanted, and held: %v", o.Ref, held)
			}
		}
		for k, h := range w.provider {
			if _, ok := w.home[k]; !ok {
				t.Fatalf("%s is held and not wanted", h.Ref)
			}
		}
	})
}

// BenchmarkAnAnswer is one answer and what follows from it, beside pods that run.
func BenchmarkAnAck(b *testing.B) {
	for _, pods := range []int{100, 10_000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			s := newMirrorState()
			s.sync(t0.Add(-mirrorLastWait))
			for i := range pods {
				r := s.record(testRef(peering.KindPod, fmt.Sprint("web-", i), fmt.Sprint("u-", i)))
				r.want, r.held, r.reported = true, true, true
			}
			s.plan(t0)
			for i := 0; b.Loop(); i++ {
				o := peering.Object{Ref: testRef(peering.KindPod, "new", "new"), JSON: fmt.Appendf(nil, `{"a":%d}`, i)}
				if refusal := s.want(o); refusal != nil {
					b.Fatal(refusal)
				}
				s.plan(t0)
				if s.overdue(t0) || !s.ack(peering.Ack{Ref: o.Ref, Hash: o.Hash()}, t0) {
					b.Fatal("it was not sent")
				}
				s.plan(t0)
			}
		})
	}
}

// What one answer costs does not depend on how many objects wait for room.
func BenchmarkAnAckWhileOthersWait(b *testing.B) {
	for _, pods := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			s := newMirrorState()
			s.setReady()
			s.sync(t0.Add(-mirrorLastWait))
			next := 0
			more := func() {
				o := peering.Object{Ref: testRef(peering.KindPod, fmt.Sprint("web-", next), fmt.Sprint("u-", next)), JSON: []byte(`{"a":1}`)}
				next++
				if refusal := s.want(o); refusal != nil {
					b.Fatal(refusal)
				}
			}
			for range pods {
				more()
			}
			steps, _ := s.plan(t0)
			for i := 0; b.Loop(); i++ {
				st := steps[0]
				steps = steps[1:]
				if !s.ack(peering.Ack{Ref: st.ref, Hash: st.object.Hash()}, t0) {
					b.Fatal("it was not sent")
				}
				s.forget(keyOf(st.ref))
				more()
				sent, _ := s.plan(t0)
				steps = append(steps, sent...)
			}
		})
	}
}
