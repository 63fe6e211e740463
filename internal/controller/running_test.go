package controller

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// A peer that is over its budget says that it no longer runs a pod for another one, whose address it may have given to
// somebody else's: that is recorded at once, and nothing else of the state is.
func TestThatAPodIsGoneAtAPeerWaitsForNoBudget(t *testing.T) {
	t.Parallel()
	milan, rome := peertest.NewOther(t, "milan"), peertest.NewOther(t, "rome")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan))
	now := time.Unix(1_700_000_000, 0)
	clock := func() time.Time { return now }
	pt.States.Now, pt.States.Budget = clock, &store.WriteBudget{Now: clock}
	endpoint := "milan.example.com:7443"
	says := func(running ...string) error {
		var addrs []netip.Addr
		for _, a := range running {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		state := peering.PeerState{Endpoints: []string{endpoint}, Network: &peering.Network{Through: []peering.ClusterID{rome.ID}}}
		if len(addrs) > 0 {
			state.Network.Running = []peering.TransitAddresses{{Cluster: rome.ID, Addresses: addrs}}
		}
		return pt.States.Observe(t.Context(), milan.ID, state)
	}
	recorded := func(want string) {
		t.Helper()
		got := []string{}
		fc := peertest.PeerCalled(t, pt.Client, "milan")
		for _, r := range fc.Status.Network.Running {
			if r.ClusterID != string(rome.ID) {
				t.Errorf("it runs pods for %s", r.ClusterID)
			}
			got = append(got, r.Addresses...)
		}
		if fmt.Sprint(got) != want || fc.Spec.Endpoints[0] != "milan.example.com:7443" || len(fc.Status.Network.Through) != 1 {
			t.Errorf("recorded %v of %v and %v, want %s", got, fc.Spec.Endpoints, fc.Status.Network.Through, want)
		}
	}
	over := func(state func() error) time.Duration {
		t.Helper()
		spendAll(pt.States.Budget, milan.ID)
		later, ok := errors.AsType[*store.LaterError](state())
		if !ok {
			t.Fatal("its state is not over the budget")
		}
		return later.After
	}
	if err := says("10.0.0.1", "10.0.0.2", "10.0.0.3"); err != nil {
		t.Fatal(err)
	}
	recorded("[10.0.0.1 10.0.0.2 10.0.0.3]")
	over(func() error { return says("10.0.0.1", "10.0.0.3", "10.0.0.4") })
	recorded("[10.0.0.1 10.0.0.3]")
	if wait := over(func() error { return says("10.0.0.1") }); wait > closePause {
		t.Errorf("another loss is recorded after %s", wait)
	}
	recorded("[10.0.0.1 10.0.0.3]") // many follow each other
	now = now.Add(closePause)
	endpoint = "elsewhere.example.com:7443"
	over(func() error { return says("10.0.0.1") })
	recorded("[10.0.0.1]")
	now = now.Add(closePause)
	over(func() error { return says() })
	recorded("[]")
	endpoint = "milan.example.com:7443"
	now = now.Add(10 * time.Minute)
	if err := says("10.0.0.4"); err != nil {
		t.Fatal(err)
	}
	recorded("[10.0.0.4]")
	over(func() error { return pt.States.Observe(t.Context(), milan.ID, peering.PeerState{}) })
	recorded("[]") // it wants no tunnel any more
}
