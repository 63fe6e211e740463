package direct

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/peering"
)

// What follows from an address that comes again is read when it counts, and once for each that begins to.
func TestAnAddressThatComesAgainIsAnnouncedWhenItCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		o := &Openings{}
		one, two := transit.Opening{Home: "h", Addr: netip.MustParseAddr("10.0.0.1")}, transit.Opening{Home: "h", Addr: netip.MustParseAddr("10.0.0.2")}
		o.Changed = func(peer peering.ClusterID) {
			if peer != "p" || !o.Count("p", one) {
				t.Errorf("called for %s, and the first counts: %v", peer, o.Count("p", one))
			}
			calls.Add(1)
		}
		see := func(open ...transit.Opening) {
			set := map[transit.Opening]bool{}
			for _, x := range open {
				set[x] = true
			}
			o.See("p", set)
			time.Sleep(time.Second)
		}
		see()
		see(one, two)
		if !o.Count("p", one) || o.Count("q", one) {
			t.Error("a new address does not count at once, or counts for another peer")
		}
		see()
		see(one)
		see(one, two)
		if o.Count("p", one) || o.Count("p", two) {
			t.Error("addresses that come again count at once")
		}
		time.Sleep(time.Hour)
		if got := calls.Load(); got != 2 || !o.Count("p", one) || !o.Count("p", two) {
			t.Errorf("called %d times, want 2; they count: %v, %v", got, o.Count("p", one), o.Count("p", two))
		}
		see()
		see(one)
		o.Forget("p")
		time.Sleep(time.Hour)
		if got := calls.Load(); got != 2 || len(o.of) > 0 || o.Count("p", one) {
			t.Errorf("called %d times after the peer was forgotten", got-2)
		}
		see(one)
		see()
		time.Sleep(time.Hour)
		see()
		if len(o.of) > 0 {
			t.Error("a peer that opens nothing is remembered")
		}
	})
}
