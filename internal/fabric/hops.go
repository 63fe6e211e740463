package fabric

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel"
)

// hop is what probes say of the parts of a hop: one for each tunnel, or peer.
type hop struct {
	kind, what string // what is what responds
	parts      []hopPart
}

type hopPart struct {
	status          metav1.ConditionStatus
	reason, message string
}

// hopConditions returns a condition for each hop that there is. They are without the time of their last change.
func hopConditions(peers []tunnel.PeerStatus, paths []v1alpha1.FabricPath, ends []v1alpha1.FabricEndToEnd) []metav1.Condition {
	remote := map[string]bool{}
	for _, p := range peers {
		remote[p.Cluster] = p.Remote
	}
	carrier := hop{kind: v1alpha1.ConditionCarrier, what: "nodes of this cluster that carry traffic with peers"}
	gateways := hop{kind: v1alpha1.ConditionPeerGateways, what: "gateways of peers"}
	endToEnd := hop{kind: v1alpha1.ConditionEndToEnd, what: "the nodes of peers"}
	for _, p := range paths {
		if remote[p.PeerID] {
			gateways.parts = append(gateways.parts, partOfPath(p))
		} else {
			carrier.parts = append(carrier.parts, partOfPath(p))
		}
	}
	for _, e := range ends {
		endToEnd.parts = append(endToEnd.parts, partOfEnd(e))
	}
	var out []metav1.Condition
	for _, h := range []hop{carrier, gateways, endToEnd} {
		if len(h.parts) > 0 {
			out = append(out, h.condition())
		}
	}
	return out
}

func partOfPath(p v1alpha1.FabricPath) hopPart {
	switch {
	case p.State == "Down" && p.Standby:
		return hopPart{metav1.ConditionFalse, v1alpha1.ReasonStandbyDown, p.Message}
	case p.State == "Down":
		return hopPart{metav1.ConditionFalse, v1alpha1.ReasonPathDown, p.Message}
	case p.LargePacketsLost:
		return hopPart{metav1.ConditionFalse, v1alpha1.ReasonLargePacketsLost, p.Message}
	case p.State == "Up":
		return hopPart{metav1.ConditionTrue, v1alpha1.ReasonProbesAnswered, ""}
	}
	return hopPart{metav1.ConditionUnknown, v1alpha1.ReasonNoAnswerYet, p.Message}
}

func partOfEnd(e v1alpha1.FabricEndToEnd) hopPart {
	switch e.State {
	case "Up":
		return hopPart{metav1.ConditionTrue, v1alpha1.ReasonProbesAnswered, ""}
	case "Unknown":
		return hopPart{metav1.ConditionUnknown, v1alpha1.ReasonNoAnswerYet, "no probe to a node of cluster " + e.PeerID + " was answered yet: wait a minute"}
	case "LargePacketsLost":
		return hopPart{metav1.ConditionFalse, v1alpha1.ReasonLargePacketsLost, e.Message}
	}
	return hopPart{metav1.ConditionFalse, v1alpha1.ReasonPodsUnreachable, e.Message}
}

// condition is that of the worst part, with the messages of all that are not well.
func (h hop) condition() metav1.Condition {
	worst := []string{v1alpha1.ReasonPathDown, v1alpha1.ReasonPodsUnreachable, v1alpha1.ReasonLargePacketsLost, v1alpha1.ReasonStandbyDown, v1alpha1.ReasonNoAnswerYet, v1alpha1.ReasonProbesAnswered}
	parts := slices.SortedStableFunc(slices.Values(h.parts), func(a, b hopPart) int {
		return cmp.Compare(slices.Index(worst, a.reason), slices.Index(worst, b.reason))
	})
	out := metav1.Condition{Type: h.kind, Status: parts[0].status, Reason: parts[0].reason}
	if out.Status == metav1.ConditionTrue {
		out.Message = fmt.Sprintf("Probes to %s are answered.", h.what)
		return out
	}
	var messages []string
	for _, p := range parts {
		if p.message != "" && !slices.Contains(messages, p.message) {
			messages = append(messages, p.message)
		}
	}
	out.Message = strings.Join(messages[:min(len(messages), maxHopMessages)], "; ")
	if left := len(messages) - maxHopMessages; left > 0 {
		out.Message += fmt.Sprintf("; and %d more", left)
	}
	out.Message = peering.Text(out.Message, peering.MaxMessageLen)
	return out
}

// sinceWhen returns conditions with the time since which each has its status.
func sinceWhen(before, conditions []metav1.Condition) []metav1.Condition {
	var out []metav1.Condition
	for _, c := range conditions {
		if was := meta.FindStatusCondition(before, c.Type); was != nil {
			out = append(out, *was)
		}
		meta.SetStatusCondition(&out, c)
	}
	return out
}
