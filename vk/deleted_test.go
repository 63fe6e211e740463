package vk

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/internal/losses"
	"github.com/entente-dev/entente/internal/podstatus"
)

// ready is the status of a pod that serves.
func ready() corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
	}}
}

// deleteAbroad has the provider's cluster delete a pod, which serves until the provider loses it.
func (h *home) deleteAbroad(uid string, grace time.Duration) {
	h.t.Helper()
	h.remote.locked(func() {
		h.remote.linger = true
		h.remote.deleting[uid] = time.Now().Add(grace).UTC().Format(time.RFC3339)
	})
	h.remote.set(uid, ready())
	h.second()
}

// To Services at home, and to its controller, a pod that the provider's cluster deletes is as one that is deleted at home:
// it serves while it ends, others are preferred to it, and another is made. Its object is there until it is gone abroad, so
// that none of its name runs beside it.
func TestAPodWithAControllerThatTheProviderDeletesIsDeletedAtHomeAtOnce(t *testing.T) {
	for name, test := range map[string]struct {
		own    int64
		abroad time.Duration
		want   int64 // the least grace period, which the agent passes on to the provider
	}{
		"with its own grace period":            {own: 30, abroad: 30 * time.Second, want: 30},
		"with less":                            {own: 30, abroad: time.Second, want: 30},
		"with more, which stays so":            {own: 30, abroad: 5 * time.Minute, want: 298},
		"with none, and it still takes a time": {own: 0, abroad: 0, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.deletesGracefully()
				ref := podRef(h.bind("u1", "web", ownedBy("StatefulSet", corev1.RestartPolicyAlways), func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &test.own }))
				h.deleteAbroad("u1", test.abroad)
				for range 2 {
					pod := h.pod("web")
					if pod == nil || pod.DeletionTimestamp == nil || *pod.DeletionGracePeriodSeconds < test.want || *pod.DeletionGracePeriodSeconds > test.want+2 {
						t.Errorf("the pod is %+v, want it to be deleted, with %d s", pod, test.want)
						return
					}
					if c := podstatus.Condition(pod.Status.Conditions, corev1.PodReady); pod.Status.Phase != corev1.PodRunning || c == nil || c.Status != corev1.ConditionTrue {
						t.Errorf("its status is %+v, want that it still serves", pod.Status)
					}
					h.remote.locked(func() {
						if g := h.remote.graces[ref]; g < test.want {
							t.Errorf("the provider is asked to end it within %d s, want no less than %d", g, test.want)
						}
					})
					time.Sleep(time.Hour)
					h.stop()
					h.start()
					h.remote.connect(true)
					h.second()
				}
				if h.event(podstatus.ReasonRemoteDeleting) == "" {
					t.Error("no event says that the provider deletes the pod")
				}
				h.remote.locked(func() { h.remote.linger = false })
				h.remote.lose("u1")
				h.second()
				if pod := h.pod("web"); pod != nil {
					t.Errorf("the pod is still there: %+v", pod.Status)
				}
			})
		})
	}
}

func TestAPodThatNobodyReplacesOrThatMayCompleteIsNotDeletedWithThatOfTheProvider(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"without a controller": func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways },
		"of a Job":             ownedBy("Job", corev1.RestartPolicyOnFailure),
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.deletesGracefully()
				h.bind("u1", "web", change)
				h.deleteAbroad("u1", 30*time.Second)
				time.Sleep(20 * time.Second)
				synctest.Wait()
				if pod := h.pod("web"); pod == nil || pod.DeletionTimestamp != nil {
					t.Errorf("the pod is %+v, want it to stay", pod)
				}
				h.remote.set("u1", corev1.PodStatus{Phase: corev1.PodSucceeded})
				h.second()
				phase, reason := corev1.PodFailed, podstatus.ReasonPodDeleted
				if name == "of a Job" {
					phase, reason = corev1.PodSucceeded, ""
				}
				h.wantPhase("web", phase, reason)
			})
		})
	}
}

// remarks returns how many events of a reason the pods have.
func (h *home) remarks(reason string) (n int32) {
	h.t.Helper()
	list, err := h.client.CoreV1().Events("shop").List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Reason == reason {
			n += list.Items[i].Count
		}
	}
	return n
}

// Services at home must not send clients to a process that shuts down. Only if the pod is deleted at home, too, do they know
// by that.
func TestAPodThatStaysWhileTheProviderDeletesItIsNotReady(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"without a controller": func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyAlways },
		"of a Job":             ownedBy("Job", corev1.RestartPolicyOnFailure),
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.deletesGracefully()
				h.bind("u1", "web", change)
				h.wantPodReady("web", corev1.ConditionTrue)
				h.deleteAbroad("u1", 10*time.Minute)
				since := podstatus.Condition(h.pod("web").Status.Conditions, corev1.PodReady).LastTransitionTime
				for _, next := range []func(){
					func() {},
					func() { h.remote.set("u1", ready()) },
					func() { h.remote.connect(false); h.second(); h.remote.connect(true) },
					func() { h.stop(); h.start(); h.remote.connect(true) },
				} {
					next()
					h.second()
					s := h.pod("web").Status
					c, containers := podstatus.Condition(s.Conditions, corev1.PodReady), podstatus.Condition(s.Conditions, corev1.ContainersReady)
					if c.Status != corev1.ConditionFalse || c.Reason != podstatus.ReasonRemoteDeleting || c.Message == "" || c.LastTransitionTime != since {
						t.Errorf("Ready is %+v, want it to be False with %s since %s", c, podstatus.ReasonRemoteDeleting, since)
					}
					if s.Phase != corev1.PodRunning || containers.Status != corev1.ConditionTrue {
						t.Errorf("it is %s with %+v, want it to run as at the provider", s.Phase, containers)
					}
					if n := h.remarks(podstatus.ReasonRemoteDeleting); n != 1 {
						t.Errorf("%d events say that the provider deletes the pod, want one", n)
					}
				}
				h.mark("web", 600) // now Services see that it is terminating, and that it still serves
				h.second()
				h.wantPodReady("web", corev1.ConditionTrue)
			})
		})
	}
}

func TestNoPodIsDeletedWhileTheProviderIsSilent(t *testing.T) {
	atHome(t, func(h *home) {
		h.deletesGracefully()
		h.bind("u1", "web", ownedBy("ReplicaSet", corev1.RestartPolicyAlways))
		h.remote.locked(func() { h.remote.linger = true })
		h.remote.connect(false)
		h.second()
		h.remote.locked(func() { h.remote.deleting["u1"] = time.Now().UTC().Format(time.RFC3339) })
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		if pod := h.pod("web"); pod == nil || pod.DeletionTimestamp != nil {
			t.Errorf("the pod is %+v, want it to stay", pod)
		}
		h.remote.connect(true)
		h.second()
		if pod := h.pod("web"); pod == nil || pod.DeletionTimestamp == nil {
			t.Errorf("the pod is %+v, want it to be deleted", pod)
		}
	})
}

// A delete at home and one at the provider at the same time are one.
func TestAPodThatHomeDeletesKeepsItsGracePeriodWhenTheProviderDeletesItToo(t *testing.T) {
	atHome(t, func(h *home) {
		h.deletesGracefully()
		h.bind("u1", "web", ownedBy("ReplicaSet", corev1.RestartPolicyAlways))
		h.remote.locked(func() { h.remote.linger = true })
		h.mark("web", 600)
		h.deleteAbroad("u1", 30*time.Second)
		pod := h.pod("web")
		if pod == nil || *pod.DeletionGracePeriodSeconds != 600 || h.event(podstatus.ReasonRemoteDeleting) != "" {
			t.Errorf("the pod is %+v, want it as home deleted it", pod)
		}
	})
}

// A provider that deletes whatever it gets is given no pods without end, now that each is replaced at once.
func TestAProviderThatDeletesNewPodsGetsNoMoreForAWhile(t *testing.T) {
	atHome(t, func(h *home) {
		h.deletesGracefully()
		for i := range losses.Max {
			h.wantLosing(false)
			uid := fmt.Sprint("web", i)
			h.bind(uid, uid, ownedBy("ReplicaSet", corev1.RestartPolicyAlways))
			h.deleteAbroad(uid, 30*time.Second)
		}
		h.wantLosing(true)
		h.wantRuns("shop", "late", false)
	})
}
