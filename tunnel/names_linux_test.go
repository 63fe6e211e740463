package tunnel

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/plan"
	"github.com/entente-dev/entente/tunnel/probe"
)

// A gateway that is announced by a name is followed when the name's address changes: at once
// when the path is lost, and never away from where it is while it answers from elsewhere.
func TestANameIsFollowedWhenThePathIsLost(t *testing.T) {
	one, two, roamed := netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("[2001:db8::2]:7"), netip.MustParseAddrPort("198.51.100.9:4711")
	for name, test := range map[string]struct {
		at   netip.AddrPort // where the peer is
		lost bool
		// speaks says that the peer sends packets.
		speaks bool
		// tried says that it is sought where it was known to be, and where it was last, until then.
		tried  bool
		want   netip.AddrPort
		within time.Duration
	}{
		"the path is lost":                              {at: one, lost: true, want: two, within: 3 * time.Second},
		"the path is up":                                {at: one, speaks: true, want: two, within: resolveEvery + 3*time.Second},
		"the peer roamed, and answers":                  {at: roamed, speaks: true},
		"the peer roamed, and probes are lost on it":    {at: roamed, speaks: true, lost: true},
		"the peer roamed, and nothing comes from there": {at: roamed, lost: true, tried: true, want: two, within: silence + endpointTry},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, err := New(Config{Device: "none"})
				if err != nil {
					t.Fatal(err)
				}
				address, lookups := one.Addr(), 0
				f.resolver.lookup = func(context.Context, string) ([]netip.Addr, error) {
					lookups++
					time.Sleep(100 * time.Millisecond)
					return []netip.Addr{address}, nil
				}
				w := plan.WireGuardPeer{PublicKey: plan.PublicKey{1}, Endpoints: []string{"gw.example.com:7"}, Overlay: netip.MustParseAddr("fd00::1"), Remote: true}
				peer := wgtypes.Peer{PublicKey: wgtypes.Key(w.PublicKey)}
				look := func() (netip.AddrPort, bool) {
					time.Sleep(resyncEvery / 2)
					p := &pass{now: time.Now()}
					p.read(&wgtypes.Device{Peers: []wgtypes.Peer{peer}})
					got := f.chooseEndpoint(t.Context(), p, w).endpoint
					f.resolver.wait()
					return got, got.IsValid()
				}
				look()
				if got, ok := look(); !ok || got != one {
					t.Fatalf("dialled at %v first, want %v", got, one)
				}
				peer.Endpoint = net.UDPAddrFromAddrPort(test.at)
				for range 15 { // it is a while since the name was looked up
					peer.ReceiveBytes++
					if got, ok := look(); ok {
						t.Fatalf("moved to %v while it answers", got)
					}
				}
				address = two.Addr()
				if test.lost {
					f.prober.Set(netip.Addr{}, 0, []probe.Target{{Overlay: w.Overlay}}, nil)
					ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
					defer stop()
					if err := f.prober.Run(ctx); err != nil { // without a device all probes are lost
						t.Fatal(err)
					}
					if got := f.prober.Status(w.Overlay).State; got != probe.PathDown {
						t.Fatalf("the path is %v", got)
					}
				}
				began, before := time.Now(), lookups
				for time.Since(began) < 5*time.Minute {
					if test.speaks {
						peer.ReceiveBytes++
					}
					got, ok := look()
					if !ok {
						continue
					}
					if test.tried && (got == one || got == test.at) {
						peer.Endpoint = net.UDPAddrFromAddrPort(got)
						continue
					}
					if took := time.Since(began); got != test.want || took > test.within {
						t.Errorf("moved to %v after %s, want %v within %s", got, took, test.want, test.within)
					}
					return
				}
				if test.want.IsValid() {
					t.Errorf("not followed to %v", test.want)
				}
				if most := int(5*time.Minute/resolveDead) + 1; lookups-before > most {
					t.Errorf("looked up %d times, want at most %d", lookups-before, most)
				}
			})
		})
	}
}
