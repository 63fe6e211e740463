package vk

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestANodeSaysThatThereIsNoRoomUntilThereIs(t *testing.T) {
	const why = "a contract has at most 20000 objects"
	atHome(t, func(h *home) {
		shown := func(full bool) {
			h.t.Helper()
			time.Sleep(repairInterval)
			synctest.Wait()
			for _, c := range h.office().Status.Conditions {
				if c.Type == conditionTooManyObjects && (c.Status == corev1.ConditionTrue) == full && strings.Contains(c.Message, why) == full {
					if is := h.node.Status(); is.Ready == full || strings.Contains(is.Message, why) != full {
						h.t.Errorf("the node's status is %+v", is)
					}
					return
				}
			}
			h.t.Errorf("conditions are %+v, want that there is no room: %v", h.office().Status.Conditions, full)
		}
		shown(false)
		h.node.SetExcess(why)
		shown(true)
		h.node.SetExcess("")
		shown(false)
		events, err := h.client.CoreV1().Events(metav1.NamespaceAll).List(h.t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		said := 0
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "Node" && e.Reason == "ObjectsNotSent" && strings.Contains(e.Message, why) {
				said++
			}
		}
		if said != 1 {
			t.Errorf("%d events of the node say why", said)
		}
	})
}
