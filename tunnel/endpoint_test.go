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
	"pgregory.net/rapid"

	"github.com/entente-dev/entente/tunnel/plan"
)

func TestEndpointsAreChosenByWhatAnswers(t *testing.T) {
	one, two, roamed := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"), netip.MustParseAddrPort("192.0.2.3:3")
	none := netip.AddrPort{}
	type step struct {
		after time.Duration
		s     endpointState
		want  netip.AddrPort
	}
	for name, steps := range map[string][]step{
		"a new peer is dialled at its first endpoint": {
			{0, endpointState{candidates: []netip.AddrPort{one, two}}, one},
		},
		"a peer without endpoints is waited for": {
			{0, endpointState{}, none},
		},
		"a live peer is left alone, wherever it is": {
			{0, endpointState{alive: true, endpoint: roamed, candidates: []netip.AddrPort{one, two}}, none},
			{time.Hour, endpointState{alive: true, endpoint: roamed, candidates: []netip.AddrPort{two}}, none},
		},
		"a live peer at an endpoint that was withdrawn follows": {
			{0, endpointState{candidates: []netip.AddrPort{one}}, one},
			{time.Minute, endpointState{alive: true, endpoint: one, candidates: []netip.AddrPort{two}}, two},
		},
		"a silent peer is tried everywhere in turn": {
			{0, endpointState{candidates: []netip.AddrPort{one, two}}, one},
			{time.Second, endpointState{endpoint: one, candidates: []netip.AddrPort{one, two}}, none},
			{endpointTry, endpointState{endpoint: one, candidates: []netip.AddrPort{one, two}}, two},
			{endpointTry, endpointState{endpoint: two, candidates: []netip.AddrPort{one, two}}, one},
		},
		"a peer that fell silent after it roamed is dialled again": {
			{0, endpointState{candidates: []netip.AddrPort{one}}, one},
			{time.Hour, endpointState{endpoint: roamed, candidates: []netip.AddrPort{one}}, one},
		},
		"the only endpoint is not written again and again": {
			{0, endpointState{candidates: []netip.AddrPort{one}}, one},
			{time.Hour, endpointState{endpoint: one, candidates: []netip.AddrPort{one}}, none},
		},
		"the endpoint that worked goes first": {
			{0, endpointState{candidates: []netip.AddrPort{one, two}}, one},
			{endpointTry, endpointState{endpoint: one, candidates: []netip.AddrPort{one, two}}, two},
			{time.Minute, endpointState{alive: true, endpoint: two, candidates: []netip.AddrPort{one, two}}, none},
			{time.Minute, endpointState{candidates: []netip.AddrPort{one, two}}, two},
		},
		"a device that was made again is configured at once": {
			{0, endpointState{alive: true, candidates: []netip.AddrPort{one}}, one},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d dialer
			now := time.Unix(1000, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				got, _ := d.choose(now, s.s, endpointTry)
				if got != s.want {
					t.Errorf("step %d: got %v, want %v", i, got, s.want)
				}
			}
		})
	}
}

func TestObservedEndpointsAndTheRelayComeLast(t *testing.T) {
	direct, seen, relay := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("203.0.113.9:9"), netip.MustParseAddrPort("127.64.0.1:7")
	const q = endpointQuick
	at := func(e netip.AddrPort, alive bool) endpointState {
		return endpointState{endpoint: e, alive: alive, candidates: []netip.AddrPort{direct}, observed: []netip.AddrPort{seen}, relay: relay}
	}
	none := netip.AddrPort{}
	type step struct {
		after time.Duration
		s     endpointState
		want  netip.AddrPort
	}
	for name, steps := range map[string][]step{
		"a new peer is dialled directly, where it is seen, and through the agents": {
			{0, at(none, false), direct}, {q, at(direct, false), seen}, {q, at(seen, false), relay}, {q, at(relay, false), direct},
		},
		"the relay does not wait for many others": {
			{0, endpointState{candidates: []netip.AddrPort{direct, netip.MustParseAddrPort("192.0.2.2:1"), netip.MustParseAddrPort("192.0.2.3:1")}, observed: []netip.AddrPort{seen}, relay: relay}, direct},
			{relayAfter, endpointState{endpoint: direct, candidates: []netip.AddrPort{direct, netip.MustParseAddrPort("192.0.2.2:1"), netip.MustParseAddrPort("192.0.2.3:1")}, observed: []netip.AddrPort{seen}, relay: relay}, relay},
		},
		"an endpoint that works is left alone": {
			{0, at(relay, true), none}, {time.Hour, at(relay, true), none}, {time.Hour, at(seen, true), none}, {time.Hour, at(direct, true), none},
		},
		"where others saw it and do not any more it is left alone while it works": {
			{0, at(none, false), direct},
			{q, at(direct, false), seen},
			{q, endpointState{endpoint: seen, alive: true, candidates: []netip.AddrPort{direct}, relay: relay}, none},
		},
		"a peer that is lost is reached through the agents at once, and then elsewhere": {
			{0, at(direct, true), none}, {time.Hour, at(direct, false), relay}, {q, at(relay, false), seen}, {q, at(seen, false), direct}, {q, at(direct, false), relay},
		},
		"a peer that is lost through the agents is dialled": {
			{0, at(relay, true), none}, {time.Hour, at(relay, false), direct}, {q, at(direct, false), seen}, {q, at(seen, false), relay},
		},
		"one that the device lost, which says nothing of the ways, is dialled where it was": {
			{0, at(seen, true), none}, {time.Hour, at(none, false), seen}, {q, at(seen, false), relay}, {q, at(relay, false), direct},
		},
		"and so is one that was reached through the agents": {
			{0, at(relay, true), none}, {time.Hour, at(none, false), relay}, {q, at(relay, false), direct},
		},
		"after some rounds there is more time for each": {
			{0, at(none, false), direct},
			{q, at(direct, false), seen},
			{q, at(seen, false), relay},
			{q, at(relay, false), direct},
			{q, at(direct, false), seen},
			{q, at(seen, false), relay},
			{q, at(relay, false), none},
			{endpointTry - q, at(relay, false), direct},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d dialer
			now := time.Unix(1000, 0)
			for i, s := range steps {
				now = now.Add(s.after)
				if got, _ := d.choose(now, s.s, q); got != s.want {
					t.Errorf("step %d: got %v, want %v", i, got, s.want)
				}
			}
		})
	}
	s := at(direct, true)
	for e, want := range map[netip.AddrPort]Way{direct: WayDirect, seen: WayObserved, relay: WayRelayed, netip.MustParseAddrPort("198.51.100.1:1"): WayObserved} {
		if got := s.way(e); got != want {
			t.Errorf("%v is %s, want %s", e, got, want)
		}
	}
}

// A path that broke is tried elsewhere soon, for a moment each, and the peer is left where it was if
// that has no effect.
func TestAPeerWhosePathBrokeIsTriedElsewhere(t *testing.T) {
	direct, other, relay := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:2"), netip.MustParseAddrPort("127.64.0.1:7")
	roamed, none := netip.MustParseAddrPort("203.0.113.9:9"), netip.AddrPort{}
	const after, try = detourAfter, detourTry
	type step struct {
		at time.Duration
		// broken is since when the path is; zero if it is not.
		broken   time.Duration
		endpoint netip.AddrPort
		silent   bool
		want     netip.AddrPort
	}
	for name, test := range map[string]struct {
		others []netip.AddrPort // besides direct
		relay  netip.AddrPort
		steps  []step
		// is where it is reported at the end.
		is netip.AddrPort
	}{
		"through the agents first, then at the others, and where it was in between": {
			others: []netip.AddrPort{other}, relay: relay, is: direct,
			steps: []step{
				{at: 1, endpoint: direct},
				{at: 2, broken: 2, endpoint: direct},
				{at: 2 + after - 1, broken: 2, endpoint: direct},
				{at: 2 + after, broken: 2, endpoint: direct, want: relay},
				{at: 2 + after + try - 1, broken: 2, endpoint: relay},
				{at: 2 + after + try, broken: 2, endpoint: relay, want: direct},
				{at: 2 + after + 2*try, broken: 2, endpoint: direct, want: other},
				{at: 2 + after + 3*try, broken: 2, endpoint: other, want: direct},
				{at: 2 + after + 4*try, broken: 2, endpoint: direct, want: relay},
			},
		},
		"an endpoint that works is kept": {
			relay: relay, is: relay,
			steps: []step{
				{at: 1, endpoint: direct},
				{at: 2 + after, broken: 2, endpoint: direct, want: relay},
				{at: 2 + after + try/2, endpoint: relay},
				{at: time.Hour, endpoint: relay},
			},
		},
		"a peer that is back where it was is left there": {
			relay: relay, is: direct,
			steps: []step{
				{at: 1, endpoint: direct},
				{at: 2 + after, broken: 2, endpoint: direct, want: relay},
				{at: 2 + after + try/2, endpoint: direct},
				{at: 2 + after + 2*try, endpoint: direct},
			},
		},
		"a peer that roamed is left where it roamed to": {
			others: []netip.AddrPort{other}, is: roamed,
			steps: []step{
				{at: 1, endpoint: roamed},
				{at: 2 + after, broken: 2, endpoint: roamed, want: direct},
				{at: 2 + after + try, broken: 2, endpoint: direct, want: roamed},
				{at: 2 + after + 2*try, broken: 2, endpoint: roamed, want: other},
				{at: 2 + after + 3*try, broken: 2, endpoint: other, want: roamed},
			},
		},
		"a peer that roams meanwhile is followed": {
			relay: relay, is: roamed,
			steps: []step{
				{at: 1, endpoint: direct},
				{at: 2 + after, broken: 2, endpoint: direct, want: relay},
				{at: 2 + after + try, broken: 2 + after + try/2, endpoint: roamed},
				{at: time.Minute, broken: 2 + after + try/2, endpoint: roamed},
			},
		},
		"a peer of which something comes though its path is down is left alone": {
			relay: relay, is: direct,
			steps: []step{
				{at: 1, endpoint: direct},
				{at: time.Hour, broken: time.Hour - after + 1, endpoint: direct},
				{at: 2 * time.Hour, broken: 2*time.Hour - after, endpoint: direct, want: relay},
				{at: 2*time.Hour + try, broken: 2*time.Hour + try/2, endpoint: direct},
				{at: 3 * time.Hour, broken: 2*time.Hour + try/2, endpoint: direct},
			},
		},
		"the next time it is tried elsewhere again": {
			relay: relay, is: direct,
			steps: []step{
				{at: 1, endpoint: direct},
				{at: 2 + after, broken: 2, endpoint: direct, want: relay},
				{at: time.Minute, broken: 3 + after, endpoint: direct},
				{at: 2 * time.Minute, endpoint: direct},
				{at: 3 * time.Minute, broken: 3*time.Minute - after, endpoint: direct, want: relay},
			},
		},
		"there is nothing else to try": {
			is:    direct,
			steps: []step{{at: 1, endpoint: direct}, {at: time.Minute, broken: 2, endpoint: direct}},
		},
		"a peer that is silent then is dialled as ever, elsewhere first": {
			relay: relay, is: direct,
			steps: []step{
				{at: 1, endpoint: direct},
				{at: 2 + after, broken: 2, endpoint: direct, want: relay},
				{at: 2 + after + try, broken: 2, endpoint: relay, want: direct},
				{at: 2 + after + 2*try, broken: 2, endpoint: direct, want: relay},
				{at: silence, broken: 2, endpoint: relay, silent: true, want: relay},
				{at: silence + endpointQuick, broken: 2, endpoint: relay, silent: true, want: direct},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var d dialer
			began, last := time.Unix(1000, 0), none
			for i, step := range test.steps {
				s := endpointState{endpoint: step.endpoint, alive: !step.silent, candidates: append([]netip.AddrPort{direct}, test.others...), relay: test.relay}
				if step.broken > 0 {
					s.broken = began.Add(step.broken)
				}
				got, _ := d.choose(began.Add(step.at), s, endpointQuick)
				if got != step.want {
					t.Errorf("step %d: got %v, want %v", i, got, step.want)
				}
				if last = step.endpoint; got.IsValid() {
					last = got
				}
			}
			if got := d.detours.from(last); got != test.is {
				t.Errorf("it is reported at %v, want %v", got, test.is)
			}
		})
	}
}

// While none works each candidate is tried in turn, and one that works is never disturbed.
func TestEachEndpointHasItsTurn(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		all := rapid.SliceOfNDistinct(rapid.IntRange(1, 200), 1, 12, rapid.ID).Draw(rt, "candidates")
		s := endpointState{}
		for i, n := range all {
			e := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 1)
			if i%2 == 0 {
				s.candidates = append(s.candidates, e)
			} else {
				s.observed = append(s.observed, e)
			}
		}
		if rapid.Bool().Draw(rt, "relay") {
			s.relay = netip.MustParseAddrPort("127.64.0.1:7")
		}
		works := netip.AddrPort{}
		if rapid.Bool().Draw(rt, "one works") {
			works = rapid.SampledFrom(s.all()).Draw(rt, "works")
		}
		var d dialer
		now, began := time.Unix(1000, 0), time.Unix(1000, 0)
		tried := map[netip.AddrPort]bool{}
		for now.Sub(began) < time.Duration(len(s.all())+1)*endpointTry {
			got, again := d.choose(now, s, endpointQuick)
			switch {
			case got.IsValid() && s.alive:
				rt.Fatalf("moved to %v from %v, which works", got, s.endpoint)
			case got.IsValid():
				s.endpoint, tried[got] = got, true
			}
			s.alive = s.endpoint == works && works.IsValid()
			now = now.Add(max(again, 500*time.Millisecond))
		}
		if !s.alive && len(tried) != len(s.all()) {
			rt.Fatalf("tried %v of %v", tried, s.all())
		}
		if works.IsValid() && !s.alive {
			rt.Fatalf("it never came to %v", works)
		}
	})
}

func TestBetterWaysAreTriedSeldomAndInQuietMoments(t *testing.T) {
	one, two := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:1")}, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.2:2")}
	began := time.Unix(1000, 0)
	type step struct {
		at         time.Duration
		asked      time.Duration // zero is never
		busy       bool
		candidates []netip.AddrPort
		want       bool
	}
	for name, steps := range map[string][]step{
		"soon, then ever more seldom": {
			{at: 0, candidates: one},
			{at: betterFirst, candidates: one, want: true},
			{at: betterFirst + betterMin - 1, candidates: one},
			{at: betterFirst + betterMin, candidates: one, want: true},
			{at: betterFirst + 2*betterMin, candidates: one},
			{at: betterFirst + 3*betterMin, candidates: one, want: true},
		},
		"without candidates never": {{at: 0}, {at: time.Hour}},
		"other candidates are tried soon, and not at each change": {
			{at: 0, candidates: one},
			{at: betterFirst, candidates: one, want: true},
			{at: betterFirst + betterMin, candidates: one, want: true},
			{at: betterFirst + betterMin + time.Second, candidates: two},
			{at: betterFirst + 2*betterMin - 1, candidates: one},
			{at: betterFirst + 2*betterMin, candidates: two, want: true},
		},
		"the first times though there is traffic, and then not while there is, but some time": {
			{at: 0, candidates: one},
			{at: betterFirst, busy: true, candidates: one, want: true},
			{at: betterFirst + betterMin, busy: true, candidates: one, want: true},
			{at: betterFirst + 3*betterMin, busy: true, candidates: one, want: true},
			{at: betterFirst + 7*betterMin, busy: true, candidates: one},
			{at: betterFirst + 7*betterMin + betterBusy - 1, busy: true, candidates: one},
			{at: betterFirst + 7*betterMin + betterBusy, busy: true, candidates: one, want: true},
			{at: betterFirst + 8*betterMin + betterBusy + 1, busy: true, candidates: two},
			{at: 2*betterFirst + 8*betterMin + betterBusy + 1, busy: true, candidates: two, want: true},
		},
		"at once when the peer does, though there is traffic": {
			{at: 0, candidates: one},
			{at: betterFirst, candidates: one, want: true},
			{at: betterFirst + betterAsked, asked: betterFirst + betterAsked, busy: true, candidates: one, want: true},
		},
		"not again because the peer answers the last trial": {
			{at: 0, candidates: one},
			{at: betterFirst, candidates: one, want: true},
			{at: betterFirst + 1, asked: betterFirst + 1, candidates: one},
			{at: betterFirst + betterAsked, asked: betterFirst + 1, candidates: one},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b better
			for i, s := range steps {
				var asked time.Time
				if s.asked > 0 {
					asked = began.Add(s.asked)
				}
				if got := b.next(began.Add(s.at), asked, s.busy, s.candidates); got != s.want {
					t.Errorf("step %d: %v", i, got)
				}
			}
		})
	}
	// For any trials and announcements of a peer the pause is kept.
	rapid.Check(t, func(rt *rapid.T) {
		var b better
		now, last := began, time.Time{}
		for range 200 {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond)
			if b.next(now, now, rapid.Bool().Draw(rt, "busy"), rapid.SampledFrom([][]netip.AddrPort{one, two}).Draw(rt, "candidates")) {
				if !last.IsZero() && now.Sub(last) < betterAsked {
					rt.Fatalf("tried again after %s", now.Sub(last))
				}
				last = now
			}
		}
	})
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

func TestChangesOfPeersAreTheSmallest(t *testing.T) {
	key := func(n byte) plan.PublicKey { return plan.PublicKey{n} }
	p1, p2, overlay := netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd00::1/128")
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
		"the next key of a peer that stays, and one that still is another's": {
			want: []plan.WireGuardPeer{
				{PublicKey: key(1), NextKey: key(2), FormerKey: key(3), AllowedIPs: []netip.Prefix{p1}, Keepalive: keepalive},
				{PublicKey: key(4), NextKey: key(5), Keepalive: keepalive},
			},
			have: []wgtypes.Peer{has(1), has(2, p1), has(3), has(4), has(5, p2)},
			out: []wgtypes.PeerConfig{
				{PublicKey: wgtypes.Key(key(1)), UpdateOnly: true, AllowedIPs: nets(p1)},
				{PublicKey: wgtypes.Key(key(5)), UpdateOnly: true, Remove: true},
			},
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
		"without firewall rules no key has prefixes of other clusters": {
			want: shut(plan.Layout{Remote: []netip.Prefix{p2}, Peers: []plan.WireGuardPeer{
				{PublicKey: key(1), NextKey: key(2), AllowedIPs: []netip.Prefix{p2, overlay}, Keepalive: keepalive, Remote: true},
				{PublicKey: key(3), FormerKey: key(4), AllowedIPs: []netip.Prefix{p1, p2}, Keepalive: keepalive},
			}}),
			have: []wgtypes.Peer{has(1), has(2, p2, overlay), has(3, p1, p2), has(4)},
			out: []wgtypes.PeerConfig{
				{PublicKey: wgtypes.Key(key(3)), UpdateOnly: true, ReplaceAllowedIPs: true, AllowedIPs: nets(p1)},
				{PublicKey: wgtypes.Key(key(2)), UpdateOnly: true, Remove: true},
			},
		},
		"without firewall rules a former key has none while the preshared key is missing": {
			want: shut(plan.Layout{Remote: []netip.Prefix{p2}, Peers: []plan.WireGuardPeer{
				{PublicKey: key(1), FormerKey: key(2), AllowedIPs: []netip.Prefix{p2}, Keepalive: keepalive, Remote: true, KeyMissing: true},
			}}),
			have: []wgtypes.Peer{has(1), has(2, p2)},
			out:  []wgtypes.PeerConfig{{PublicKey: wgtypes.Key(key(2)), UpdateOnly: true, Remove: true}},
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
