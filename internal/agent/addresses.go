package agent

import (
	"context"
	"net/netip"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/fabric"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/tunnel/plan"
)

// addresses translates between a peer's terms and this cluster's, by what both
// sides said of their prefixes. It reads from a cache.
type addresses struct{ client client.Reader }

// peer returns what is known of a peer, to be read only; nil is nothing.
func (a addresses) peer(id peering.ClusterID) *v1alpha1.ForeignCluster {
	fc, err := store.Peek(context.Background(), a.client, id) //nolint:forbidigo // a cache answers at once
	if err != nil {
		return nil
	}
	return fc
}

// home returns a peer's pod address in this cluster's terms.
func (a addresses) home(peer peering.ClusterID, addr netip.Addr) (netip.Addr, bool) {
	fc := a.peer(peer)
	if fc == nil {
		return netip.Addr{}, false
	}
	return remap(fc.Status.Aliases, addr)
}

func remap(aliases []v1alpha1.PrefixAlias, addr netip.Addr) (netip.Addr, bool) {
	for _, m := range fabric.Mappings(aliases) {
		if out, ok := plan.Remap(addr, m.Real, m.Alias); ok {
			return out, true
		}
	}
	return netip.Addr{}, false
}
