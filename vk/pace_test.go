package vk

import (
	"fmt"
	"testing"
)

// asked counts how often something of the node asks which namespaces are offloaded, as each
// reconcile of a pod does.
func (h *home) asked(do func()) int {
	h.second()
	h.mu.Lock()
	h.looks = 0
	h.mu.Unlock()
	do()
	h.second()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.looks
}

func TestNamespacesThatDidNotChangeCostNothing(t *testing.T) {
	t.Parallel()
	atHome(t, func(h *home) {
		for i := range 20 {
			h.bind(fmt.Sprint("u-", i), fmt.Sprint("web-", i))
		}
		h.node.NamespacesChanged()
		if n := h.asked(h.node.NamespacesChanged); n != 1 {
			t.Errorf("the namespaces are as they were, and were asked for %d times", n)
		}
		// A namespace more, or of another kind, is a change.
		shop := Namespace{Name: "shop", UID: "ns-1", Mapping: "Suffixed"}
		for _, spaces := range [][]Namespace{{shop, {Name: "lab", UID: "ns-2"}}, {{Name: "shop", UID: "ns-1", Mapping: "Suffixed", PodsStay: true}}, {}} {
			if n := h.asked(func() { h.offload(spaces...) }); n <= 20 {
				t.Errorf("with %v they were asked for %d times", spaces, n)
			}
		}
	})
}
