package vk

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/peering"
)

// fencedShop is a namespace whose pods a provider stops after five minutes of silence.
func fencedShop(agreed time.Duration) Namespace {
	return Namespace{
		Name: "shop", UID: "ns-1", Mapping: "Suffixed", Fence: 5 * time.Minute, Fenced: agreed,
		Loss: peering.Loss{Action: peering.LossFence, After: 5 * time.Minute},
	}
}

// wait is how long home waits after its last answer.
const fenceWait = 5*time.Minute + 3*time.Second + 5*time.Second

func TestAFencedPodEndsAtHomeOnceTheProviderHasStoppedIt(t *testing.T) {
	for name, test := range map[string]struct {
		agrees bool // the provider keeps to fences
		course func(h *home)
		ends   bool
	}{
		"not while the provider answers": {true, func(h *home) {
			for range 30 {
				h.node.Asked()
				h.after(time.Minute)
			}
		}, false},
		"not before": {true, func(h *home) {
			h.remote.connect(false)
			h.after(fenceWait - time.Second)
		}, false},
		"then": {true, func(h *home) {
			h.remote.connect(false)
			h.after(fenceWait + time.Second)
		}, true},
		"not if it never agreed": {false, func(h *home) {
			h.remote.connect(false)
			h.after(time.Hour)
		}, false},
		"not if the line is there again before": {true, func(h *home) {
			h.remote.connect(false)
			h.after(fenceWait - 10*time.Second)
			h.remote.connect(true)
			h.second()
			h.node.Asked()
			h.remote.connect(false)
			h.after(fenceWait - 10*time.Second)
		}, false},
		"not while it is connected, if it does not ask": {true, func(h *home) { h.after(time.Hour) }, false},
		"a restart counts from its begin": {true, func(h *home) {
			h.remote.connect(false)
			h.after(4 * time.Minute)
			h.stop()
			h.offload(fencedShop(5 * time.Minute))
			h.start()
			h.after(fenceWait - time.Second)
		}, false},
		"and ends then": {true, func(h *home) {
			h.remote.connect(false)
			h.after(4 * time.Minute)
			h.stop()
			h.offload(fencedShop(5 * time.Minute))
			h.start()
			h.after(fenceWait + time.Second)
		}, true},
		"not if the namespace keeps its pods now": {true, func(h *home) {
			h.remote.connect(false)
			h.after(time.Minute)
			space := fencedShop(0)
			space.Loss = peering.Loss{Action: peering.LossKeep}
			h.offload(space)
			h.after(time.Hour)
		}, false},
		"a longer fence counts at once": {true, func(h *home) {
			h.remote.connect(false)
			h.after(time.Minute)
			space := fencedShop(0)
			space.Loss.After, space.Fence = 20*time.Minute, 20*time.Minute
			h.offload(space)
			h.after(10 * time.Minute)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			atHome(t, func(h *home) {
				h.offload(fencedShop(0))
				h.bind("u-1", "web")
				h.second()
				h.wantPhase("web", corev1.PodRunning, "")
				if test.agrees {
					h.node.Asked()
				}
				test.course(h)
				if gone := h.pod("web") == nil; gone != test.ends {
					t.Errorf("the pod ended at home: %v", gone)
				}
			})
		})
	}
}
