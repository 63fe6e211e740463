package firewall

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Whoever chooses the keys of two clusters chooses IDs of which the first bytes of a digest are the same.
// Their chains and sets have names of their own nevertheless, with the same addresses in another order.
func TestPeersOfTheSameOwnerHaveChainsOfTheirOwn(t *testing.T) {
	// The SHA-256 of both begin with 2a58fb67e0d9, found among 2^25.
	ids := []string{"c5bw52h4mhqmzkiuih6ar45qgqbb23pq", "hdrffrxkrxqlkhfgcz4vwsnootmi3do2"}
	own := [2]netip.Addr{netip.MustParseAddr("10.200.1.7"), netip.MustParseAddr("10.200.1.8")}
	var peers []plan.Peer
	for i, id := range ids {
		p := peerNumber(i)
		p.ClusterID, p.Local, p.Inbound = id, nil, nil
		for j := range own {
			p.Local = append(p.Local, plan.Mapping{Real: netip.PrefixFrom(own[j], 32), Alias: netip.PrefixFrom(netip.AddrFrom4([4]byte{11, 0, 0, byte((i + j) % 2)}), 32)})
		}
		peers = append(peers, p)
	}
	want := rulesFor(t, peers...)
	names := map[string]bool{}
	for _, c := range want.chains {
		if names["chain "+c.name] {
			t.Errorf("two chains have the name %s", c.name)
		}
		names["chain "+c.name] = true
	}
	for _, s := range want.sets {
		if names["set "+s.name] {
			t.Errorf("two sets have the name %s", s.name)
		}
		names["set "+s.name] = true
	}
	layout := layoutFor(t, peers...)
	err := alone(t, func() error {
		var w Table
		for pass := range 3 {
			changed, err := w.Apply(time.Unix(1700000000+int64(pass), 0), &layout, "entente0", Ports{Probe: 7445, Relay: 7448})
			if err != nil || changed != (pass == 0) {
				return fmt.Errorf("pass %d: changed %v: %w", pass, changed, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
