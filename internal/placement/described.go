package placement

import (
	"maps"
	"sync"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Described has the labels by which a provider describes its nodes, as the virtual node shows them: those of the
// contract, without those that the provider's newer offer contradicts. An offer adds none: what makes pods go to a provider it
// has signed. The zero value shows nothing yet.
type Described struct {
	mu sync.Mutex
	// signed is those of the contract, and amended when they changed.
	signed  map[string]string
	amended time.Time
	// shown is those of the node, changed when an offer last changed them, and waits whether it changes them again.
	shown   map[string]string
	changed time.Time
	waits   bool
}

// Update returns the labels to show. signed and selector are the contract's: what the provider described, and by which labels
// its nodes were chosen, which all of them have. peer is its ForeignCluster, nil if it is not known, and pool the one that
// the contract names.
func (d *Described) Update(signed, selector map[string]string, peer *v1alpha1.ForeignCluster, pool string, now time.Time) map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	first := d.shown == nil
	amended := !first && !maps.Equal(signed, d.signed)
	if amended {
		d.amended = now.Truncate(time.Second) // as the offer's time is
	}
	d.signed = signed
	all := map[string]string{}
	maps.Copy(all, signed)
	maps.Copy(all, selector)
	var offered map[string]string
	if peer != nil && peer.Status.Offer != nil && !peer.Status.Offer.ObservedAt.Time.Before(d.amended) {
		offered = offeredLabels(peer.Status.Offer, pool)
	}
	is := stillTrue(all, selector, offered)
	d.waits = false
	switch {
	case maps.Equal(is, d.shown) && !first:
		return d.shown
	case first, amended:
	case now.Sub(d.changed) < describedPause:
		d.waits = true
		return d.shown
	default:
		d.changed = now
	}
	d.shown = is
	return is
}

// Due reports whether labels wait that can be shown now, by another Update.
func (d *Described) Due(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.waits && now.Sub(d.changed) >= describedPause
}

// offeredLabels returns the labels that a virtual node of a pool would have by an offer; none if that does not say.
func offeredLabels(o *v1alpha1.Offer, pool string) map[string]string {
	if pool == "" {
		return o.NodeLabels
	}
	for i := range o.Pools {
		if o.Pools[i].Name == pool {
			return o.Pools[i].NodeLabels
		}
	}
	return nil
}

// stillTrue returns a contract's labels without those that an offer of the same nodes does not have. An offer is of the same
// nodes if all that it is of have the labels by which the contract's were chosen.
func stillTrue(signed, selector, offered map[string]string) map[string]string {
	out := maps.Clone(signed)
	for key, value := range selector {
		if is, ok := offered[key]; !ok || is != value {
			return out
		}
	}
	if len(offered) > 0 {
		maps.DeleteFunc(out, func(key, value string) bool {
			is, ok := offered[key]
			return !ok || is != value
		})
	}
	return out
}
