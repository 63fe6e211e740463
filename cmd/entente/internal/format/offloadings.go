package format

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// WhyOffloading says why the offloading of a namespace is not ready, and how many pods have yet to be moved.
func WhyOffloading(o *ententev1.Offloading) string {
	why := o.GetMessage()
	if n := o.GetMisplacedPods(); n > 0 {
		moves := fmt.Sprintf("%d pods to move", n)
		if m := o.GetMisplacedMessage(); m != "" {
			moves += " (" + m + ")"
		}
		why = strings.TrimPrefix(why+"; "+moves, "; ")
	}
	return why
}

// PeerLost says what happens to pods in a provider that does not respond.
func PeerLost(p *ententev1.PeerLost) string {
	if p == nil || p.GetAction() == string(v1alpha1.PeerLostKeep) {
		return string(v1alpha1.PeerLostKeep)
	}
	return p.GetAction() + " " + Span(cmp.Or(p.GetAfter(), durationpb.New(peering.DefaultLossAfter)), "")
}

// OpenTo lists the namespaces that one is open to; none is what is said of an empty list.
func OpenTo(namespaces []string, none string) string {
	names := make([]string, 0, len(namespaces))
	for _, name := range namespaces {
		if name == allNamespaces {
			return "all"
		}
		names = append(names, Short(name))
	}
	return cmp.Or(strings.Join(names, ","), none)
}

// OpenAgain is the command that opens a namespace to others and keeps its pods here.
func OpenAgain(namespace string, to []string) string {
	names := OpenTo(to, "")
	if slices.Contains(to, allNamespaces) {
		names = "'*'"
	}
	return fmt.Sprintf("entente offload namespace %s --strategy Local --open-to %s", namespace, names)
}

// allNamespaces stands for all namespaces.
const allNamespaces = "namespaces/-"

// NotOffloaded returns those of the named namespaces that are not offloaded.
func NotOffloaded(namespaces []string, all []*ententev1.Offloading) (out []string) {
	for _, name := range namespaces {
		if name != allNamespaces && !slices.ContainsFunc(all, func(o *ententev1.Offloading) bool { return o.GetNamespace() == name }) {
			out = append(out, Short(name))
		}
	}
	return out
}
