package tunnel

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/plan"
)

func TestEndpointChoice(t *testing.T) {
	one, two, roamed := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"), netip.MustParseAddrPort("192.0.2.3:3")
	none := netip.AddrPort{}
	type step struct {
		after time.Duration
		s     sighting
		want  netip.AddrPort
	}
	for name, steps := range map[string][]step{
		"a new peer is dialled at its first endpoint": {
			{0, sighting{candidates: []netip.AddrPort{one, two}}, one},
		},
		"a peer without endpoints is waited for": {
			{0, sighting{}, none},
		},
		"a live peer is left alone, wherever it is": {
			{0, sighting{alive: true, endpoint: roamed, candidates: []netip.AddrPort{one, two}}, none},
			{time.Hour, sighting{alive: true, endpoint: roamed, candidates: []netip.AddrPort{two}}, none},
		},
		"a live peer at an endpoint that was withdrawn follows": {
			{0, sighting{candidates: []netip.AddrPort{one}}, one},
			{time.Minute, sighting{alive: true, endpoint: one, candidates: []netip.AddrPort{two}}, two},
		},
		"a silent peer is tried everywhere in turn": {
			{0, sighting{candidates: []netip.AddrPort{one, two}}, one},
			{time.Second, sighting{endpoint: one, candidates: []netip.AddrPort{one, two}}, none},
			{endpointTry, sighting{endpoint: one, candidates: []netip.AddrPort{one, two}}, two},
			{endpointTry, sighting{endpoint: two, candidates: []netip.AddrPort{one, two}}, one},
		},
		"a peer that fell silent after it roamed is dialled again": {
			{0, sighting{candidates: []netip.AddrPort{one}}, one},
			{time.Hour, sighting{endpoint: roamed, candidates: []netip.AddrPort{one}}, one},
		},
		"the only endpoint is not written again and again": {
			{0, sighting{candidates: []netip.AddrPort{one}}, one},
			{time.Hour, sighting{endpoint: one, candidates: []netip.AddrPort{one}}, none},
		},
		"the endpoint that worked goes first": {
			{0, sighting{candidates: []netip.AddrPort{one, two}}, one},
			{endpointTry, sighting{endpoint: one, candidates: []netip.AddrPort{one, two}}, two},
			{time.Minute, sighting{alive: true, endpoint: two, candidates: []netip.AddrPort{one, two}}, none},
			{time.Minute, sighting{candidates: []netip.AddrPort{one, two}}, two},
		},
		"a device that was made again is told at once": {
			{0, sighting{alive: true, candidates: []netip.AddrPort{one}}, one},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d dialer
			now := time.Unix(1000, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				got, ok := d.choose(now, s.s)
				if ok != s.want.IsValid() || got != s.want {
					t.Errorf("step %d: got %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

func TestNamesAreResolvedInTheBackground(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		poked, answer, fail := 0, []netip.Addr{netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("192.0.2.1")}, error(nil)
		r := newResolver(func() { poked++ })
		r.lookup = func(context.Context, string) ([]netip.Addr, error) {
			time.Sleep(time.Second)
			return append([]netip.Addr(nil), answer...), fail
		}
		ask := func() []netip.AddrPort {
			got, _ := r.candidates(t.Context(), time.Now(), []string{"gw.example:7", "192.0.2.9:8"}, time.Minute, nil)
			return got
		}
		fixed := netip.MustParseAddrPort("192.0.2.9:8")
		if got := ask(); len(got) != 1 || got[0] != fixed {
			t.Errorf("before the answer: %v", got)
		}
		r.wait()
		want := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:7"), netip.MustParseAddrPort("[2001:db8::1]:7"), fixed}
		if got := ask(); poked != 1 || !cmp.Equal(got, want, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })) {
			t.Errorf("after the answer: %v, poked %d times", got, poked)
		}
		time.Sleep(2 * time.Minute)
		fail = errors.New("no such host")
		ask()
		r.wait()
		if got := ask(); len(got) != 3 {
			t.Errorf("what was known was lost with the name server: %v", got)
		}
		inside, _ := r.candidates(t.Context(), time.Now(), []string{"gw.example:7"}, time.Hour, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
		if len(inside) != 1 {
			t.Errorf("an endpoint inside the tunnel was kept: %v", inside)
		}
	})
}

func TestPeerChanges(t *testing.T) {
	key := func(n byte) plan.PublicKey { return plan.PublicKey{n} }
	p1, p2 := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")
	nets := func(ps ...netip.Prefix) (out []net.IPNet) {
		for _, p := range ps {
			out = append(out, ipNet(p))
		}
		return out
	}
	const keepalive = 25 * time.Second
	keep := new(keepalive)
	has := func(n byte, ps ...netip.Prefix) wgtypes.Peer {
		return wgtypes.Peer{PublicKey: wgtypes.Key(key(n)), AllowedIPs: nets(ps...), PersistentKeepaliveInterval: keepalive, Endpoint: net.UDPAddrFromAddrPort(netip.MustParseAddrPort("192.0.2.7:7"))}
	}
	wants := func(n byte, ps ...netip.Prefix) plan.WireGuardPeer {
		return plan.WireGuardPeer{PublicKey: key(n), AllowedIPs: ps, Keepalive: keepalive}
	}
	secret := wgtypes.Key{9}
	for name, tt := range map[string]struct {
		want []plan.WireGuardPeer
		have []wgtypes.Peer
		dial map[plan.PublicKey]netip.AddrPort
		out  []wgtypes.PeerConfig
	}{
		"nothing when all fits, wherever the peer roamed": {
			want: []plan.WireGuardPeer{wants(1, p1)}, have: []wgtypes.Peer{has(1, p1)},
		},
		"a new peer": {
			want: []plan.WireGuardPeer{{PublicKey: key(1), PresharedKey: plan.PresharedKey{9}, AllowedIPs: []netip.Prefix{p1}, Keepalive: keepalive}},
			dial: map[plan.PublicKey]netip.AddrPort{key(1): netip.MustParseAddrPort("192.0.2.1:1")},
			out: []wgtypes.PeerConfig{{
				PublicKey: wgtypes.Key(key(1)), PresharedKey: &secret, PersistentKeepaliveInterval: keep,
				Endpoint: &net.UDPAddr{IP: net.IP{192, 0, 2, 1}, Port: 1}, AllowedIPs: nets(p1),
			}},
		},
		"a prefix that moves is taken, not removed first": {
			want: []plan.WireGuardPeer{wants(1), wants(2, p1)}, have: []wgtypes.Peer{has(1, p1), has(2)},
			out: []wgtypes.PeerConfig{{PublicKey: wgtypes.Key(key(2)), UpdateOnly: true, AllowedIPs: nets(p1)}},
		},
		"a prefix that goes": {
			want: []plan.WireGuardPeer{wants(1, p1)}, have: []wgtypes.Peer{has(1, p1, p2)},
			out: []wgtypes.PeerConfig{{PublicKey: wgtypes.Key(key(1)), UpdateOnly: true, ReplaceAllowedIPs: true, AllowedIPs: nets(p1)}},
		},
		"a peer that goes": {
			have: []wgtypes.Peer{has(1, p1)},
			out:  []wgtypes.PeerConfig{{PublicKey: wgtypes.Key(key(1)), UpdateOnly: true, Remove: true}},
		},
		"a preshared key that changes touches nothing else": {
			want: []plan.WireGuardPeer{{PublicKey: key(1), PresharedKey: plan.PresharedKey{9}, AllowedIPs: []netip.Prefix{p1}, Keepalive: keepalive}},
			have: []wgtypes.Peer{has(1, p1)},
			out:  []wgtypes.PeerConfig{{PublicKey: wgtypes.Key(key(1)), UpdateOnly: true, PresharedKey: &secret}},
		},
		"a preshared key that is missing is kept": {
			want: []plan.WireGuardPeer{{PublicKey: key(1), KeyMissing: true, AllowedIPs: []netip.Prefix{p1, p2}, Keepalive: keepalive}},
			have: []wgtypes.Peer{func() wgtypes.Peer { h := has(1, p1); h.PresharedKey = secret; return h }()},
			out:  []wgtypes.PeerConfig{{PublicKey: wgtypes.Key(key(1)), UpdateOnly: true, AllowedIPs: nets(p2)}},
		},
		"a new peer waits for its preshared key": {
			want: []plan.WireGuardPeer{{PublicKey: key(1), KeyMissing: true, AllowedIPs: []netip.Prefix{p1}, Keepalive: keepalive}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.out, peerChanges(tt.want, tt.have, tt.dial)); diff != "" {
				t.Errorf("changes differ (-want +got):\n%s", diff)
			}
		})
	}
}
