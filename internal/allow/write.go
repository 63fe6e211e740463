package allow

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Closes reports whether the desired Tunnel opens less than the current one: fewer addresses, for less long, or
// fewer prefixes. stays is what of it stays open.
func Closes(current, desired *v1alpha1.TunnelSpec, stays []v1alpha1.Exposure) bool {
	lost := func(current, desired []v1alpha1.PrefixAlias) bool {
		return slices.ContainsFunc(current, func(a v1alpha1.PrefixAlias) bool { return !slices.Contains(desired, a) })
	}
	fewer := slices.ContainsFunc(current.RemoteAliasBlocks, func(b string) bool { return !slices.Contains(desired.RemoteAliasBlocks, b) })
	sooner := current.PeerID != "" && len(current.ContractEnds) == 0 && len(desired.ContractEnds) > 0 || slices.ContainsFunc(desired.ContractEnds, func(e v1alpha1.ContractEnd) bool {
		return slices.ContainsFunc(current.ContractEnds, func(h v1alpha1.ContractEnd) bool { return h.Contract == e.Contract && e.Time.Before(&h.Time) })
	})
	return sooner || current.PeerID != desired.PeerID && current.PeerID != "" || fewer || lost(current.Local, desired.Local) || lost(current.Remote, desired.Remote) ||
		!equality.Semantic.DeepEqual(current.Allow, stays)
}
