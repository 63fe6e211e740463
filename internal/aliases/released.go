package aliases

import (
	"net/netip"
	"slices"
	"time"
)

// Released is the prefixes of aliases that peers gave up lately. A pod that still uses an address in one must not
// reach a pod of another cluster.
type Released struct{ list []release }

// release is a prefix that a peer gave up at a time.
type release struct {
	peer  string
	alias netip.Prefix
	at    time.Time
}

// Add records that a peer had some prefixes of aliases, and which it has from now on.
func (r *Released) Add(peer string, had, has []netip.Prefix, now time.Time) {
	r.list = slices.DeleteFunc(r.list, func(x release) bool {
		return now.Sub(x.at) >= quarantine || x.peer == peer && slices.Contains(had, x.alias)
	})
	for _, p := range had {
		if !slices.Contains(has, p) {
			r.list = append(r.list, release{peer, p, now})
		}
	}
	r.list = r.list[max(0, len(r.list)-maxReleased):]
}

// OfOthers returns what other peers than one gave up less than quarantine ago, and less than shortQuarantine ago.
func (r *Released) OfOthers(peer string, now time.Time) (resting, justReleased []netip.Prefix) {
	for _, x := range r.list {
		age := now.Sub(x.at)
		if x.peer == peer || age >= quarantine {
			continue
		}
		resting = append(resting, x.alias)
		if age < shortQuarantine {
			justReleased = append(justReleased, x.alias)
		}
	}
	return resting, justReleased
}
