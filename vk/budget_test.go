package vk

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// written returns how many statuses were written since the actions were cleared, and
// the size of their patches.
func (h *home) written() (writes, size int) {
	for _, a := range h.client.Actions() {
		if p, ok := a.(k8stesting.PatchAction); ok && a.GetResource().Resource == "pods" {
			writes++
			size += len(p.GetPatch())
		}
	}
	return writes, size
}

func messageStatus(message string, ready corev1.ConditionStatus) corev1.PodStatus {
	return corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.200.0.7",
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "r", Message: message}}}},
	}
}

func TestFloodOfStatusesIsBounded(t *testing.T) {
	atHome(t, func(h *home) {
		const pods, seconds = 5, 600
		for i := range pods {
			h.bind(fmt.Sprint("u", i), fmt.Sprint("web-", i))
		}
		h.bind("u-honest", "honest")
		h.client.ClearActions()
		for i := range seconds {
			for pod := range pods {
				h.remote.set(fmt.Sprint("u", pod), messageStatus(fmt.Sprint(i, strings.Repeat("x", 30<<10)), corev1.ConditionTrue))
			}
			h.second()
		}
		writes, size := h.written()
		if most := pods * (maxFirstStatuses + seconds/int(podPace.Seconds()) + 1); writes > most || size > most*(podstatus.MaxMessagesBytes+4<<10) {
			t.Errorf("%d writes of %d bytes were made, want at most %d", writes, size, most)
		}
		if writes < pods*seconds/int(podPace.Seconds()) {
			t.Errorf("%d writes were made: the latest state has to come through, if late", writes)
		}
		// What others act on comes through all the while.
		h.remote.set("u-honest", messageStatus("", corev1.ConditionFalse))
		h.second()
		if c := podstatus.Condition(h.pod("honest").Status.Conditions, corev1.PodReady); c.Status != corev1.ConditionFalse {
			t.Error("a change of readiness waits")
		}
		h.remote.set("u0", corev1.PodStatus{Phase: corev1.PodSucceeded})
		h.second()
		h.wantPhase("web-0", corev1.PodSucceeded, "")
		// Of many states the last is shown.
		h.remote.set("u1", messageStatus("the last one", corev1.ConditionTrue))
		time.Sleep(2 * podPace)
		synctest.Wait()
		if m := h.pod("web-1").Status.ContainerStatuses[0].State.Waiting.Message; m != "the last one" {
			t.Errorf("the message is %.20q", m)
		}
	})
}

// beyondTheFirst has a pod use up the statuses that it brings, and one more.
func (h *home) beyondTheFirst(uid string) {
	for i := range maxFirstStatuses + 1 {
		h.remote.set(uid, messageStatus(fmt.Sprint("first ", i), corev1.ConditionTrue))
		h.second()
	}
}

func (h *home) wantPodReady(pod string, want corev1.ConditionStatus) {
	h.t.Helper()
	if c := podstatus.Condition(h.pod(pod).Status.Conditions, corev1.PodReady); c == nil || c.Status != want {
		h.t.Errorf("%s: readiness of %s is %v, want %s", time.Now().Format("05.000"), pod, c, want)
	}
}

// Services go by readiness, so it does not wait for the pace of other statuses.
func TestReadinessIsWrittenAtOnceWhileAnotherStatusWaits(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.beyondTheFirst("u1")
		h.remote.set("u1", messageStatus("an ordinary one", corev1.ConditionTrue))
		h.second()
		if m := h.pod("web").Status.ContainerStatuses[0].State.Waiting.Message; m == "an ordinary one" {
			t.Error("an ordinary status does not wait for its pace")
		}
		for i := range maxFlips {
			want := corev1.ConditionFalse
			if i%2 == 1 {
				want = corev1.ConditionTrue
			}
			h.remote.set("u1", messageStatus("a flip", want))
			h.second()
			h.wantPodReady("web", want)
		}
		// What waited does not wait for longer because of these.
		h.remote.set("u1", messageStatus("the last", corev1.ConditionTrue))
		time.Sleep(podPace)
		synctest.Wait()
		if m := h.pod("web").Status.ContainerStatuses[0].State.Waiting.Message; m != "the last" {
			t.Errorf("after %s the message is %q", podPace, m)
		}
		// Later flips are written at once again.
		time.Sleep(maxFlips * flipPace)
		h.remote.set("u1", messageStatus("later", corev1.ConditionFalse))
		h.second()
		h.wantPodReady("web", corev1.ConditionFalse)
	})
}

func TestFloodOfFlipsIsBounded(t *testing.T) {
	atHome(t, func(h *home) {
		const seconds = 600
		h.bind("u1", "web")
		h.client.ClearActions()
		for i := range seconds {
			ready := corev1.ConditionTrue
			if i%2 == 0 {
				ready = corev1.ConditionFalse
			}
			h.remote.set("u1", messageStatus(fmt.Sprint(i), ready))
			h.second()
		}
		if writes, _ := h.written(); writes > maxFirstStatuses+maxFlips+seconds/int(flipPace.Seconds())+1 {
			t.Errorf("%d writes were made", writes)
		}
		// The state in which it comes to rest is there as soon as the next flip may be written.
		h.remote.set("u1", messageStatus("at rest", corev1.ConditionFalse))
		time.Sleep(flipPace + time.Second)
		synctest.Wait()
		h.wantPodReady("web", corev1.ConditionFalse)
	})
}

func TestFloodOfMalformedStatusesKeepsTheLogShort(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		var lines bytes.Buffer
		h.node.log = slog.New(slog.NewTextHandler(&lines, nil))
		const seconds = 600
		for range seconds {
			for range 10 {
				h.node.PodStatus(peering.PodStatus{Ref: peering.ObjectRef{Kind: peering.KindPod, UID: "u1"}, Status: make([]byte, podstatus.MaxStatusBytes+1)})
				h.node.PodStatus(peering.PodStatus{Ref: peering.ObjectRef{Kind: peering.KindService}})
			}
			time.Sleep(time.Second)
		}
		if got := bytes.Count(lines.Bytes(), []byte("\n")); got > maxComplaints+seconds/int(complainAgain.Seconds())+1 || got < maxComplaints {
			t.Errorf("the log has %d lines of it", got)
		}
	})
}

// A refusal is a text of the provider, too.
func TestFloodOfRefusalsIsBounded(t *testing.T) {
	atHome(t, func(h *home) {
		h.remote.refuse = func(o peering.Object) *peering.Refusal {
			if o.Ref.Kind != peering.KindPod {
				return nil
			}
			return &peering.Refusal{Reason: peering.RefusedQuota, Message: time.Now().String(), Retryable: true}
		}
		h.bind("u1", "web")
		h.client.ClearActions()
		for range 600 {
			h.remote.retry()
			h.second()
		}
		if writes, _ := h.written(); writes > maxFirstStatuses+600/int(podPace.Seconds())+1 {
			t.Errorf("%d statuses were written", writes)
		}
	})
}

func TestFloodOfEventsIsBounded(t *testing.T) {
	atHome(t, func(h *home) {
		const pods, seconds = 200, 30
		for i := range pods {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("u", i))},
				Spec:       corev1.PodSpec{NodeName: "office", Tolerations: tolerated(), Containers: []corev1.Container{{Name: "c"}}},
			}
			if err := h.client.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		h.second()
		h.client.ClearActions()
		for i := range seconds {
			for pod := range pods {
				h.node.PodEvent(peering.PodEvent{
					Ref:    peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "web", UID: fmt.Sprint("u", pod)},
					Reason: "Flood", Message: fmt.Sprint(i), Count: int32(i),
				})
			}
			h.second()
		}
		events := 0
		for _, a := range h.client.Actions() {
			if a.GetResource().Resource == "events" {
				events++
			}
		}
		if most := pods*maxFirstEvents + maxNodeEventsBurst + 2*seconds*maxNodeEvents; events > most {
			t.Errorf("%d events were written, want at most %d", events, most)
		}
	})
}

func TestPeerThatComesAndGoesIsBounded(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		h.client.ClearActions()
		const seconds = 1200
		for range seconds / 10 {
			h.remote.connect(false)
			time.Sleep(5 * time.Second)
			h.remote.connect(true)
			time.Sleep(5 * time.Second)
		}
		synctest.Wait()
		nodes := 0
		for _, a := range h.client.Actions() {
			if a.GetResource().Resource == "nodes" && (a.GetVerb() == "patch" || a.GetVerb() == "update") {
				nodes++
			}
		}
		if most := nodeBurst + seconds/int(nodePace.Seconds()) + 10; nodes > most {
			t.Errorf("the node was written %d times, want at most %d", nodes, most)
		}
		if writes, _ := h.written(); writes > maxFirstStatuses+seconds/int(podPace.Seconds())+1 {
			t.Errorf("the pod was written %d times", writes)
		}
	})
}

// reserveAll uses up a share, and returns how much that was.
func reserveAll(s *share, now time.Time, size int) (bytes int) {
	for i := 0; ; i++ {
		w := writes{statuses: maxFirstStatuses}
		if w.wait(now, s, size, i%2 == 0) > 0 {
			return bytes
		}
		bytes += size
	}
}

func TestANodeCannotUseAnothersShare(t *testing.T) {
	b, now := NewBudget(), time.Now()
	var hostile []*share
	for range 3 {
		hostile = append(hostile, newShare(b))
	}
	honest := newShare(b)
	total := 0
	for range 3600 { // an hour
		now = now.Add(time.Second)
		for _, s := range hostile {
			total += reserveAll(s, now, 64<<10)
		}
	}
	// Each share began one write of each kind while there was room.
	if most := maxWriteBytesBurst + 3600*maxWriteBytes + 2*len(hostile)*64<<10; total > most {
		t.Errorf("three peers had %d bytes written in an hour, want at most %d", total, most)
	}
	// The honest one starts 100 pods a second meanwhile, which need half of their own writes.
	for i := range 6000 {
		w := writes{}
		for range maxFirstStatuses {
			if d := w.wait(now.Add(time.Duration(i)*10*time.Millisecond), honest, 4<<10, true); d > 0 {
				t.Fatalf("status of pod %d waits for %s", i, d)
			}
		}
	}
	// Each takes no more than is free: three leave a quarter, of which it takes half.
	if got := reserveAll(honest, now, 4<<10); got < maxWriteBytesBurst/8-len(hostile)*2*64<<10 {
		t.Errorf("%d bytes are left to the honest peer: others took of its share", got)
	}
}

// A status counts the whole pod that the API server stores, not the change.
func TestAStatusCountsAsTheWholePod(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", Annotations: map[string]string{"a": strings.Repeat("x", 64<<10)}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Args: []string{strings.Repeat("y", 32<<10)}}}},
		Status:     messageStatus(strings.Repeat("z", 8<<10), corev1.ConditionTrue),
	}
	status := messageStatus("short", corev1.ConditionFalse)
	got := writtenBytes(pod, &status)
	pod.Status = status
	stored, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if got < len(stored) || got > len(stored)+managedFieldsBytes+16 { // lengths have lengths, too
		t.Errorf("it counts %d bytes, and %d are stored", got, len(stored))
	}
}

// waiter is a pod whose status changes all the time.
type waiter struct {
	writes
	share *share
	next  time.Time
}

// Nodes without writes leave their shares to the others, whatever was queued before others came;
// all together stay within the budget, and each has its part.
func TestIdleSharesAreUsedByOthers(t *testing.T) {
	const nodes, pods, size, lasts = 8, 500, 32 << 10, 30 * time.Minute
	b, begin := NewBudget(), time.Now()
	var shares []*share
	for range nodes {
		shares = append(shares, newShare(b))
	}
	var waiters []*waiter
	flood := func(n int) {
		for i := range pods {
			waiters = append(waiters, &waiter{writes: writes{statuses: maxFirstStatuses, urgent: i%2 == 0}, share: shares[n]})
		}
	}
	now, all, tries := begin, 0, 0
	written := func(d time.Duration) map[*share]int {
		out := map[*share]int{}
		for end := now.Add(d); now.Before(end); now = now.Add(time.Second) {
			for i, w := range waiters {
				if now.Before(w.next) {
					continue
				}
				tries++
				if wait := w.wait(now, w.share, size, i%2 == 0); wait > 0 {
					w.next = now.Add(wait)
					continue
				}
				out[w.share] += size
				all += size
			}
			if most := int(Writes().Most(now.Sub(begin))) + 2*nodes*size; all > most {
				t.Fatalf("after %s %d bytes were written, want at most %d", now.Sub(begin), all, most)
			}
		}
		return out
	}
	flood(0)
	written(lasts) // what it could at once
	const whole = int(lasts/time.Second) * maxWriteBytes
	if got := written(lasts)[shares[0]]; got < whole*9/10 {
		t.Errorf("alone it had %d bytes written in %s, want about %d: the shares of those that are idle are lost", got, lasts, whole)
	}
	for n := 1; n < nodes; n++ {
		flood(n)
		written(time.Minute)
	}
	written(lasts)
	before := tries
	for _, got := range written(lasts) {
		if got < whole/nodes/2 || got > whole/nodes*2 {
			t.Errorf("one of %d had %d bytes written in %s, want about %d", nodes, got, lasts, whole/nodes)
		}
	}
	if most := 3 * nodes * whole / size; tries-before > most {
		t.Errorf("pods tried %d times, want at most %d", tries-before, most)
	}
}

// A status whose turn has come among the ordinary ones, whose budget is used up, does not wait with
// these once it is of readiness.
func TestReadinessDoesNotWaitInTheTurnOfAnotherStatus(t *testing.T) {
	t.Parallel()
	b, now := NewBudget(), time.Now()
	s := newShare(b)
	w := writes{statuses: maxFirstStatuses, next: now.Add(podPace)}
	if w.wait(now, s, 1000, false) == 0 {
		t.Fatal("it does not wait")
	}
	now = now.Add(podPace)
	for range 1000 {
		other := newShare(b)
		for s.take(now, 1<<20, false) == 0 || other.take(now, 1<<20, false) == 0 {
			continue
		}
	}
	if got := w.wait(now, s, 1000, true); got != 0 {
		t.Errorf("it waits for %s", got)
	}
}

// An honest peer that starts 100 pods a second is not slowed down.
func TestHundredPodsASecondPassTheBudget(t *testing.T) {
	atHome(t, func(h *home) {
		const pods = 300
		for i := range pods {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint("web-", i), UID: types.UID(fmt.Sprint("u", i))},
				Spec:       corev1.PodSpec{NodeName: "office", Tolerations: tolerated(), Containers: []corev1.Container{{Name: "c"}}},
			}
			if err := h.client.Tracker().Add(pod); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			uid := fmt.Sprint("u", i)
			for _, reason := range []string{"ContainerCreating", "PodInitializing"} {
				h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
					{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}},
				}})
				synctest.Wait()
			}
			h.remote.set(uid, messageStatus("", corev1.ConditionTrue))
			synctest.Wait()
			if got := h.pod(pod.Name).Status; got.Phase != corev1.PodRunning {
				data, _ := json.Marshal(got)
				t.Fatalf("pod %d waits: %s", i, data)
			}
		}
	})
}

func TestStatusBeforeAPodRunsIsGathered(t *testing.T) {
	t.Parallel()
	now := time.Now()
	status := func(phase corev1.PodPhase) *corev1.PodStatus { return &corev1.PodStatus{Phase: phase} }
	pending, running, none := status(corev1.PodPending), status(corev1.PodRunning), status("")
	var w writes
	for _, step := range []struct {
		after   time.Duration
		was, is *corev1.PodStatus
		want    time.Duration
	}{
		{0, none, pending, startGather},
		{startGather / 3, pending, pending, startGather - startGather/3},
		{startGather, pending, pending, 0},
		// It begins again with the following statuses.
		{startGather, pending, pending, startGather},
		{startGather, pending, running, 0},
		{startGather, running, running, 0},
		// Other statuses are not held up.
		{startGather, running, pending, 0},
		{startGather, pending, status(corev1.PodFailed), 0},
	} {
		if got := w.gather(now.Add(step.after), step.was, step.is); got != step.want {
			t.Errorf("after %s from %q to %q it waits for %s, want %s", step.after, step.was.Phase, step.is.Phase, got, step.want)
		}
	}
}
