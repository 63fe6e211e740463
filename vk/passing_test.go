package vk

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/internal/refusals"
	"github.com/entente-dev/entente/peering"
)

// warnings returns the reasons of the warnings in the namespace shop.
func (h *home) warnings() (out []string) {
	h.t.Helper()
	list, err := h.client.CoreV1().Events("shop").List(h.t.Context(), metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Type == corev1.EventTypeWarning {
			out = append(out, list.Items[i].InvolvedObject.Kind+" "+list.Items[i].Reason)
		}
	}
	return out
}

// notYet is a home whose provider refuses everything in a namespace, as in a moment in which it has no rights there.
func notYet(h *home) {
	h.remote.refuse = func(o peering.Object) *peering.Refusal {
		switch o.Ref.Kind {
		case peering.KindNamespace, peering.KindService:
			return &peering.Refusal{Reason: peering.RefusedInternal, Message: "its agent may not write it", Retryable: true}
		}
		return &peering.Refusal{Reason: peering.RefusedNamespace, Message: "the namespace is not here yet", Retryable: true}
	}
	h.offload(Namespace{Name: "shop", UID: "ns-2", Mapping: "Suffixed"})
	if _, err := h.client.CoreV1().Services("shop").Create(h.t.Context(), service("shop", "1"), metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
	h.bind("u1", "web")
	h.second()
	for range 3 {
		time.Sleep(2 * time.Second)
		h.remote.retry()
		h.second()
	}
}

func TestARefusalThatPassesSoonIsNotShown(t *testing.T) {
	atHome(t, func(h *home) {
		notYet(h)
		if spaces := h.node.Namespaces(); len(spaces) != 1 || spaces[0].Refusal != nil || spaces[0].Accepted {
			t.Errorf("the namespace is %+v", spaces)
		}
		h.wantPhase("web", corev1.PodPending, "")
		h.remote.locked(func() { h.remote.refuse = nil })
		h.remote.retry()
		h.second()
		h.wantPhase("web", corev1.PodRunning, "")
		if spaces := h.node.Namespaces(); len(spaces) != 1 || !spaces[0].Accepted {
			t.Errorf("the namespace is %+v", spaces)
		}
		if w := h.warnings(); len(w) > 0 {
			t.Errorf("there are warnings: %q", w)
		}
	})
}

func TestARefusalThatLastsIsShown(t *testing.T) {
	atHome(t, func(h *home) {
		notYet(h)
		time.Sleep(refusals.Passes)
		h.remote.retry()
		h.second()
		if spaces := h.node.Namespaces(); len(spaces) != 1 || spaces[0].Refusal == nil {
			t.Errorf("the namespace is %+v", spaces)
		}
		if m := h.event("ProviderError"); !strings.Contains(m, "its agent may not write it") {
			t.Errorf("the event says %q", m)
		}
		h.wantPhase("web", corev1.PodPending, "ProviderError") // that of its namespace
		w := strings.Join(h.warnings(), ", ")
		if !strings.Contains(w, "Service ProviderError") || !strings.Contains(w, "Pod ProviderError") {
			t.Errorf("the warnings are %q", w)
		}
	})
}
