package vk

import (
	"fmt"
	"strings"
	"testing"

	"github.com/entente-dev/entente/peering"
)

// A container takes more memory than the few bytes that a provider sends of it.
func TestStatusesOfInventedContainersAreBounded(t *testing.T) {
	atHome(t, func(h *home) {
		h.bind("u1", "web")
		containers := make([]string, 600)
		for i := range containers {
			containers[i] = fmt.Sprintf(`{"name":"c%d"}`, i)
		}
		status := fmt.Appendf(nil, `{"phase":"Running","containerStatuses":[%s]}`, strings.Join(containers, ","))
		const unknown = 100
		for i := range unknown {
			for _, uid := range []string{"u1", fmt.Sprint("x", i)} {
				h.node.PodStatus(peering.PodStatus{Ref: peering.ObjectRef{Kind: peering.KindPod, Namespace: "shop", Name: "x", UID: uid}, Status: status})
			}
		}
		h.node.mu.Lock()
		defer h.node.mu.Unlock()
		if n := len(h.node.state["u1"].remote.ContainerStatuses); n > 1 {
			t.Errorf("of a pod with one container %d are remembered", n)
		}
		if n := len(h.node.state); n > 1+unknown/2 {
			t.Errorf("%d unknown pods of many containers each are remembered", n-1)
		}
	})
}
