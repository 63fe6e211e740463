package vk

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// churn is a controller at home: it makes a pod, and when that failed the next.
func (h *home) churn(from, n int, lose func(uid string)) {
	h.t.Helper()
	for i := from; i < from+n; i++ {
		uid := fmt.Sprint("churn", i)
		h.bind(uid, uid)
		lose(uid)
		h.second()
		if pod := h.pod(uid); !podstatus.Terminal(pod.Status.Phase) {
			h.t.Errorf("pod %s is %s, so nothing would replace it", uid, pod.Status.Phase)
		}
	}
}

// goneAs reports in one message that a pod is gone, and how it ended.
func (h *home) goneAs(uid string, status corev1.PodStatus) {
	h.t.Helper()
	data, err := json.Marshal(status)
	if err != nil {
		h.t.Fatal(err)
	}
	h.node.PodStatus(peering.PodStatus{Ref: podRef(h.pod(uid)), Gone: true, Status: data})
}

func (h *home) wantLosing(losing bool) {
	h.t.Helper()
	node := h.office()
	tainted := false
	for _, t := range node.Spec.Taints {
		tainted = tainted || t == losingTaint()
	}
	var c corev1.NodeCondition
	for _, have := range node.Status.Conditions {
		if have.Type == conditionLosingPods {
			c = have
		}
	}
	if tainted != losing || (c.Status == corev1.ConditionTrue) != losing || h.node.Status().Ready == losing {
		h.t.Errorf("the node is tainted %v, condition %+v, status %+v; want losing %v", tainted, c, h.node.Status(), losing)
	}
}

func TestNodeThatLosesPodsTakesNoNewOnesForAWhile(t *testing.T) {
	for name, lose := range map[string]func(h *home, uid string){
		"gone":      func(h *home, uid string) { h.remote.lose(uid) },
		"failed":    func(h *home, uid string) { h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodFailed}) },
		"succeeded": func(h *home, uid string) { h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodSucceeded}) },
		"failed and gone": func(h *home, uid string) {
			h.goneAs(uid, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "PodDeleted"})
		},
		"succeeded and gone": func(h *home, uid string) { h.goneAs(uid, corev1.PodStatus{Phase: corev1.PodSucceeded}) },
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.churn(0, maxLosses-1, func(uid string) { lose(h, uid) })
				h.wantLosing(false)
				h.churn(maxLosses-1, 1, func(uid string) { lose(h, uid) })
				h.wantLosing(true)
				events, err := h.client.CoreV1().Events(metav1.NamespaceAll).List(h.t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				said := false
				for _, e := range events.Items {
					said = said || e.InvolvedObject.Kind == "Node" && e.Reason == "PodsLost" && strings.Contains(e.Message, "without end")
				}
				if !said {
					t.Error("no event of the node says why")
				}
				h.bind("late", "late") // the scheduler put it there before the taint
				h.wantPhase("late", corev1.PodPending, reasonLosingPods)
				if h.remote.holds("late") {
					t.Error("a new pod was sent")
				}
				time.Sleep(minLossPause + repairInterval)
				synctest.Wait()
				h.wantLosing(false)
				h.wantPhase("late", corev1.PodRunning, "")

				// It goes on, so the next pause is longer, and comes sooner.
				h.churn(maxLosses, lossesAgain, func(uid string) { lose(h, uid) })
				h.wantLosing(true)
				time.Sleep(minLossPause + repairInterval)
				synctest.Wait()
				h.wantLosing(true)
				time.Sleep(minLossPause)
				synctest.Wait()
				h.wantLosing(false)
			})
		})
	}
}

// A Job with a policy that ignores disruptions replaces such pods, and counts none.
func TestNodeThatDisruptsJobsTakesNoNewPods(t *testing.T) {
	disrupted := corev1.PodStatus{Phase: corev1.PodFailed, Conditions: []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}}
	for name, lose := range map[string]func(h *home, uid string){
		"failed":          func(h *home, uid string) { h.remote.set(uid, disrupted) },
		"failed and gone": func(h *home, uid string) { h.goneAs(uid, disrupted) },
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				for i := range maxLosses {
					uid := fmt.Sprint("job", i)
					h.bind(uid, uid, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
					lose(h, uid)
					h.second()
				}
				h.wantLosing(true)
			})
		})
	}
}

func TestNodeThatLosesPodsStaysClosedOverARestart(t *testing.T) {
	atHome(t, func(h *home) {
		lose := func(uid string) { h.remote.lose(uid) }
		h.churn(0, maxLosses, lose)
		time.Sleep(minLossPause + repairInterval)
		synctest.Wait()
		h.churn(maxLosses, lossesAgain, lose)
		h.wantLosing(true)
		restart := func() {
			h.stop()
			h.start()
			h.remote.connect(true)
			time.Sleep(repairInterval)
			synctest.Wait()
		}
		restart()
		h.wantLosing(true)
		h.bind("late", "late")
		h.wantPhase("late", corev1.PodPending, reasonLosingPods)
		// The rest of the pause, and not a second of another.
		time.Sleep(2*minLossPause - repairInterval)
		synctest.Wait()
		h.wantLosing(false)
		h.wantPhase("late", corev1.PodRunning, "")
		// The next pause is longer than this one was, whenever the agent is restarted.
		h.churn(2*maxLosses, lossesAgain, lose)
		restart()
		time.Sleep(4*minLossPause - 3*repairInterval)
		synctest.Wait()
		h.wantLosing(true)
		time.Sleep(3 * repairInterval)
		synctest.Wait()
		h.wantLosing(false)
	})
}

func TestLossesAreReadBackWithinBounds(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	shut := losses{closed: now.Add(time.Minute), pause: 4 * time.Minute}
	for name, tc := range map[string]struct {
		change        func(*corev1.NodeCondition)
		closed, pause time.Duration
	}{
		"as it was":              {func(*corev1.NodeCondition) {}, time.Minute, 4 * time.Minute},
		"never":                  {func(c *corev1.NodeCondition) { c.Status = corev1.ConditionFalse }, 0, 0},
		"another's condition":    {func(c *corev1.NodeCondition) { c.Type = corev1.NodeReady }, 0, 0},
		"another's words":        {func(c *corev1.NodeCondition) { c.Message = "soon" }, 0, 0},
		"no words":               {func(c *corev1.NodeCondition) { c.Message = "" }, 0, 0},
		"longer than any pause":  {func(c *corev1.NodeCondition) { c.Message = (&losses{closed: now.AddDate(1, 0, 0)}).message() }, maxLossPause, maxLossPause},
		"an end before it began": {func(c *corev1.NodeCondition) { c.LastTransitionTime = metav1.NewTime(now.Add(time.Hour)) }, time.Minute, minLossPause},
	} {
		c := shut.condition(now)
		tc.change(&c)
		var l losses
		l.restore(c, now)
		want := losses{}
		if tc.closed > 0 {
			want = losses{count: maxLosses - lossesAgain, at: now.Add(tc.closed), last: now, closed: now.Add(tc.closed), pause: tc.pause}
		}
		if l != want {
			t.Errorf("%s: got %+v, want %+v", name, l, want)
		}
	}
}

func TestLossesThatAreOrdinaryCloseNoNode(t *testing.T) {
	atHome(t, func(h *home) {
		for i := range 3 * maxLosses {
			h.bind(fmt.Sprint("old", i), fmt.Sprint("old", i))
		}
		time.Sleep(youngPod)
		synctest.Wait()
		for i := range 3 * maxLosses { // the provider drains a node
			h.remote.lose(fmt.Sprint("old", i))
		}
		for i := range 3 * maxLosses { // jobs that fail
			uid := fmt.Sprint("job", i)
			h.bind(uid, uid, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
			h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodFailed})
		}
		for i := range 3 * maxLosses { // jobs that are done, and go from the provider as they are
			uid := fmt.Sprint("done", i)
			h.bind(uid, uid, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })
			h.goneAs(uid, corev1.PodStatus{Phase: corev1.PodSucceeded})
		}
		h.second()
		h.wantLosing(false)
		h.wantPhase("old0", corev1.PodFailed, reasonRemoteGone)
	})
}

func TestLossesPauseLongerEachTimeAndAreForgotten(t *testing.T) {
	var l losses
	now := time.Unix(1_000_000, 0)
	lose := func() {
		for !l.add(now) {
			now = now.Add(time.Second)
		}
	}
	for want := minLossPause; ; want *= 2 {
		lose()
		if l.pause != min(want, maxLossPause) {
			t.Fatalf("the pause is %s, want %s", l.pause, min(want, maxLossPause))
		}
		now = l.closed
		if l.isClosed(now) {
			t.Fatal("it is closed after its end")
		}
		if want > 4*maxLossPause {
			break
		}
	}
	now = now.Add(lossesForgotten)
	if lose(); l.pause != minLossPause {
		t.Errorf("after a long time without losses the pause is %s", l.pause)
	}
}
