package vk

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/internal/losses"
	"github.com/entente-dev/entente/internal/podstatus"
	"github.com/entente-dev/entente/peering"
)

// churn is a controller at home: it makes a pod, and when that failed the next.
func (h *home) churn(from, n int, lose func(uid string)) {
	h.t.Helper()
	h.churnIn("shop", from, n, lose)
}

func (h *home) churnIn(namespace string, from, n int, lose func(uid string)) {
	h.t.Helper()
	for i := from; i < from+n; i++ {
		uid := fmt.Sprint(namespace, "-churn", i)
		h.bind(uid, uid, in(namespace))
		lose(uid)
		h.second()
		if pod := h.node.localPod(uid); !podstatus.Terminal(pod.Status.Phase) {
			h.t.Errorf("pod %s is %s, so nothing would replace it", uid, pod.Status.Phase)
		}
	}
}

func in(namespace string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = namespace }
}

// losing returns whether the node is tainted because it loses pods, and its condition about that.
func (h *home) losing() (tainted bool, losing corev1.NodeCondition) {
	h.t.Helper()
	node := h.office()
	for _, c := range node.Status.Conditions {
		if c.Type == losses.Condition {
			losing = c
		}
	}
	return slices.Contains(node.Spec.Taints, losingTaint()), losing
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
	tainted, c := h.losing()
	if tainted != losing || (c.Status == corev1.ConditionTrue) != losing || h.node.Status().Ready == losing {
		h.t.Errorf("the node is tainted %v, condition %+v, status %+v; want losing %v", tainted, c, h.node.Status(), losing)
	}
}

// wantRuns wants of a new pod of a namespace that it runs, or that it waits.
func (h *home) wantRuns(namespace, uid string, runs bool) {
	h.t.Helper()
	h.bind(uid, uid, in(namespace))
	pod, phase, reason := h.node.localPod(uid), corev1.PodRunning, ""
	if !runs {
		phase, reason = corev1.PodPending, reasonLosingPods
	}
	if pod.Status.Phase != phase || pod.Status.Reason != reason || h.remote.holds(uid) != runs {
		h.t.Errorf("a new pod of namespace %s is %s %q, the provider has it: %v; want %s %q",
			namespace, pod.Status.Phase, pod.Status.Reason, h.remote.holds(uid), phase, reason)
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
				h.churn(0, losses.Max-1, func(uid string) { lose(h, uid) })
				h.wantLosing(false)
				h.churn(losses.Max-1, 1, func(uid string) { lose(h, uid) })
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
				time.Sleep(losses.MinPause + repairInterval)
				synctest.Wait()
				h.wantLosing(false)
				h.wantPhase("late", corev1.PodRunning, "")

				// It goes on, so the next pause is longer, and comes sooner.
				h.churn(losses.Max, losses.MaxAgain, func(uid string) { lose(h, uid) })
				h.wantLosing(true)
				time.Sleep(losses.MinPause + repairInterval)
				synctest.Wait()
				h.wantLosing(true)
				time.Sleep(losses.MinPause)
				synctest.Wait()
				h.wantLosing(false)
			})
		})
	}
}

// What a pod's own spec says can end it soon, such as a deadline or the size of a volume. Its namespace cannot keep the
// pods of others away from the provider by that, though a provider can be to blame for all of it.
func TestNamespaceThatLosesPodsHoldsNoPodsOfOthers(t *testing.T) {
	atHome(t, func(h *home) {
		var spaces []Namespace
		for _, name := range []string{"shop", "bank", "club", "dock"} {
			spaces = append(spaces, Namespace{Name: name, UID: "ns-of-" + name, Mapping: "Suffixed"})
		}
		h.offload(spaces...)
		end := func(uid string) {
			h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded"})
		}
		wantClosed := func(tainted bool, names ...string) {
			t.Helper()
			is, c := h.losing()
			if is != tainted || h.node.Status().Ready == tainted || c.Status != corev1.ConditionTrue {
				t.Errorf("the node is tainted %v, condition %+v, status %+v; want tainted %v", is, c, h.node.Status(), tainted)
			}
			for _, name := range names {
				if !strings.Contains(c.Message, name+" (closed for ") {
					t.Errorf("the message does not name namespace %s: %q", name, c.Message)
				}
			}
		}
		h.churnIn("shop", 0, losses.Max, end)
		wantClosed(false, "shop")
		h.wantRuns("shop", "shop-new", false)
		h.wantRuns("bank", "bank-new", true)
		// It goes on as long as its controller does, and is nobody else's matter.
		for i := range 4 {
			time.Sleep(losses.MinPause << i)
			synctest.Wait()
			h.churnIn("shop", losses.Max+i*losses.MaxAgain, losses.MaxAgain, end)
			wantClosed(false, "shop")
			h.wantRuns("bank", fmt.Sprint("bank-then", i), true)
		}
		h.churnIn("bank", 0, losses.Max, h.remote.lose)
		wantClosed(false, "shop", "bank")
		h.wantRuns("club", "club-new", true)
		h.churnIn("club", 0, losses.Max, h.remote.lose)
		// Most likely it is the provider's fault.
		wantClosed(true, "shop", "bank", "club")
		h.wantRuns("club", "club-late", false)
		h.wantRuns("dock", "dock-new", true) // it was bound before the taint
		h.stop()
		h.start()
		h.remote.connect(true)
		time.Sleep(repairInterval)
		synctest.Wait()
		wantClosed(true, "shop", "bank", "club")
		h.wantRuns("bank", "bank-late", false)
		h.wantRuns("dock", "dock-then", true)
		time.Sleep(losses.MaxPause)
		synctest.Wait()
		h.wantLosing(false)
		for _, uid := range []string{"shop-new", "bank-late", "club-late"} {
			if !h.remote.holds(uid) {
				t.Errorf("pod %s waits though its namespace is open again", uid)
			}
		}
	})
}

// offloadAll offloads namespaces by their names.
func (h *home) offloadAll(names ...string) {
	h.t.Helper()
	var spaces []Namespace
	for _, name := range names {
		spaces = append(spaces, Namespace{Name: name, UID: "ns-of-" + name, Mapping: "Suffixed"})
	}
	h.offload(spaces...)
}

// A tenant with several namespaces can have its pods end by their own specs, too.
func TestATenantOfSeveralNamespacesTaintsNoNodeOfOthers(t *testing.T) {
	end := func(h *home) func(string) {
		return func(uid string) {
			h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodFailed, Reason: "DeadlineExceeded"})
		}
	}
	tenants := []string{"evil-1", "evil-2", "evil-3"}
	for name, tc := range map[string]struct {
		others  []string
		before  func(h *home)
		tainted bool
	}{
		"others have a pod there that stays": {[]string{"bank"}, func(h *home) {
			h.bind("bank-old", "bank-old", in("bank"))
			h.after(losses.Young + time.Minute)
		}, false},
		"others have none yet, and are as many": {[]string{"bank", "club", "dock"}, func(*home) {}, false},
		"others had one, which ended": {[]string{"bank"}, func(h *home) {
			h.bind("bank-old", "bank-old", in("bank"), func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
			h.after(losses.Young + time.Minute)
			h.remote.set("bank-old", corev1.PodStatus{Phase: corev1.PodSucceeded})
		}, true},
		"there are hardly any others": {[]string{"bank"}, func(*home) {}, true},
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.offloadAll(append(slices.Clone(tenants), tc.others...)...)
				tc.before(h)
				for _, space := range tenants {
					h.churnIn(space, 0, losses.Max, end(h))
				}
				is, c := h.losing()
				if is != tc.tainted || h.node.Status().Ready == tc.tainted || c.Status != corev1.ConditionTrue {
					t.Errorf("the node is tainted %v, condition %+v; want tainted %v", is, c, tc.tainted)
				}
				h.wantRuns("evil-1", "evil-new", false)
				h.wantRuns("bank", "bank-new", true)
			})
		})
	}
}

// Until an agent that was restarted knows which namespaces are offloaded, the node stays as it was.
func TestARestartTaintsNoNodeAndOpensNone(t *testing.T) {
	for name, tc := range map[string]struct {
		offloaded []string
		tainted   bool
	}{
		"one of several loses pods": {[]string{"shop", "bank", "club", "dock"}, false},
		"the only one loses pods":   {[]string{"shop"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.offloadAll(tc.offloaded...)
				h.churnIn("shop", 0, losses.Max, h.remote.lose)
				want := func(when string) {
					t.Helper()
					if is, c := h.losing(); is != tc.tainted || c.Status != corev1.ConditionTrue {
						t.Errorf("%s the node is tainted %v, condition %+v; want tainted %v", when, is, c, tc.tainted)
					}
				}
				want("before the restart")
				h.stop()
				h.mu.Lock()
				h.err = errors.New("the cache is not filled yet")
				h.mu.Unlock()
				h.start()
				h.remote.connect(true)
				h.after(repairInterval)
				want("before the namespaces are known")
				h.mu.Lock()
				h.err = nil
				h.mu.Unlock()
				h.after(repairInterval)
				want("afterwards")
			})
		})
	}
}

// However many namespaces there are, nothing is replaced without end, whenever the agent is restarted.
func TestProviderThatLosesEveryPodIsSentFewerAndFewer(t *testing.T) {
	atHome(t, func(h *home) {
		names := []string{"shop", "bank", "club", "dock", "exit"}
		var spaces []Namespace
		for _, name := range names {
			spaces = append(spaces, Namespace{Name: name, UID: "ns-of-" + name, Mapping: "Suffixed"})
		}
		h.offload(spaces...)
		last := map[string]string{} // of each namespace, its controller's pod
		const hours = 6
		made := 0
		for minute := range hours * 60 {
			if minute%120 == 60 {
				h.stop()
				h.start()
				h.remote.connect(true)
				h.second()
			}
			for _, name := range names {
				for last[name] == "" || h.remote.holds(last[name]) {
					h.remote.lose(last[name])
					h.second()
					made++
					last[name] = fmt.Sprint(name, made)
					h.bind(last[name], last[name], in(name))
				}
			}
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if most := len(names) * (losses.Max + losses.MaxAgain*(5+2*hours)); made > most {
			t.Errorf("%d pods were made in %d hours, want at most %d", made, hours, most)
		}
		if is, c := h.losing(); !is {
			t.Errorf("the node is not tainted, its condition is %+v", c)
		}
	})
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
				for i := range losses.Max {
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
		h.churn(0, losses.Max, lose)
		time.Sleep(losses.MinPause + repairInterval)
		synctest.Wait()
		h.churn(losses.Max, losses.MaxAgain, lose)
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
		time.Sleep(2*losses.MinPause - repairInterval)
		synctest.Wait()
		h.wantLosing(false)
		h.wantPhase("late", corev1.PodRunning, "")
		// The next pause is longer than this one was, whenever the agent is restarted.
		h.churn(2*losses.Max, losses.MaxAgain, lose)
		restart()
		time.Sleep(4*losses.MinPause - 3*repairInterval)
		synctest.Wait()
		h.wantLosing(true)
		time.Sleep(3 * repairInterval)
		synctest.Wait()
		h.wantLosing(false)
	})
}

func TestLossesThatAreOrdinaryCloseNoNode(t *testing.T) {
	atHome(t, func(h *home) {
		for i := range 3 * losses.Max {
			h.bind(fmt.Sprint("old", i), fmt.Sprint("old", i))
		}
		time.Sleep(losses.Young)
		synctest.Wait()
		for i := range 3 * losses.Max { // the provider drains a node
			h.remote.lose(fmt.Sprint("old", i))
		}
		for i := range 3 * losses.Max { // jobs that fail
			uid := fmt.Sprint("job", i)
			h.bind(uid, uid, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever })
			h.remote.set(uid, corev1.PodStatus{Phase: corev1.PodFailed})
		}
		for i := range 3 * losses.Max { // jobs that are done, and go from the provider as they are
			uid := fmt.Sprint("done", i)
			h.bind(uid, uid, func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })
			h.goneAs(uid, corev1.PodStatus{Phase: corev1.PodSucceeded})
		}
		h.second()
		h.wantLosing(false)
		h.wantPhase("old0", corev1.PodFailed, reasonRemoteGone)
	})
}
