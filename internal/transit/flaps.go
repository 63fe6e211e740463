package transit

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// Opening is an address of a peer's, of a pod that it runs for another cluster and opened to pods of the same cluster.
type Opening struct {
	Home peering.ClusterID
	Addr netip.Addr
}

// Openings returns what a peer says it opened.
func Openings(peer *v1alpha1.ForeignCluster) map[Opening]bool {
	out := map[Opening]bool{}
	if peer.Status.Network != nil {
		for _, t := range ToWire(peer.Status.Network.Opened) {
			for _, a := range t.Addresses {
				out[Opening{t.Cluster, a}] = true
			}
		}
	}
	return out
}

// Flap is what is known of an Opening over time.
type Flap struct {
	// Open says that it is open, since Changed, and counts from From on. Otherwise it was taken back at Changed.
	Open          bool
	Changed, From time.Time
	// Again is how often it came again after it was taken back.
	Again int
}

// Counts reports whether an Opening counts as open.
func (f Flap) Counts(now time.Time) bool { return f.Open && !now.Before(f.From) }

// Damp returns what is known of a peer's openings, by what was known before and what is open now. Services follow what
// is open: one that comes again soon after it was taken back counts after a pause, so that a peer cannot have them
// written as often as it likes.
func Damp(before map[Opening]Flap, open map[Opening]bool, now time.Time) map[Opening]Flap {
	out := make(map[Opening]Flap, len(open))
	for o := range open {
		f, known := before[o]
		switch {
		case f.Open:
		case !known || now.Sub(f.Changed) >= flapForget:
			f = Flap{Open: true, Changed: now}
		default:
			doubled := min(max(f.Again-flapsAllowed+1, 0), 16)
			f = Flap{Open: true, Changed: now, From: now.Add(min(flapPause<<doubled, flapPauseMost)), Again: f.Again + 1}
		}
		out[o] = f
	}
	var back []Opening
	for o, f := range before {
		lasted := now.Sub(f.Changed) >= flapForget
		switch {
		case open[o] || !f.Open && lasted:
			continue
		case f.Open && lasted:
			f = Flap{Changed: now}
		case f.Open:
			f = Flap{Changed: now, Again: f.Again}
		}
		out[o], back = f, append(back, o)
	}
	if len(back) > maxTakenBack {
		slices.SortFunc(back, func(a, b Opening) int {
			return cmp.Or(out[a].Changed.Compare(out[b].Changed), strings.Compare(string(a.Home), string(b.Home)), a.Addr.Compare(b.Addr))
		})
		for _, o := range back[:len(back)-maxTakenBack] {
			delete(out, o)
		}
	}
	return out
}

// Due returns when the next of these begins to count; the zero time if none is about to.
func Due(flaps map[Opening]Flap, now time.Time) (due time.Time) {
	for f := range maps.Values(flaps) {
		if f.Open && f.From.After(now) && (due.IsZero() || f.From.Before(due)) {
			due = f.From
		}
	}
	return due
}
