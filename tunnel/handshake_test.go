package tunnel

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/entente-dev/entente/tunnel/plan"
)

func TestFirstHandshakesRestartThreeTimes(t *testing.T) {
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	endpoint := &net.UDPAddr{IP: net.IPv4(172, 30, 2, 11), Port: 51820}
	silent := wgtypes.Peer{PublicKey: wgtypes.Key{5}, Endpoint: endpoint}
	crossed := wgtypes.Peer{PublicKey: wgtypes.Key{5}, Endpoint: endpoint, LastHandshakeTime: start}
	for name, tc := range map[string]struct {
		self  plan.PublicKey
		noted bool
		peer  wgtypes.Peer
		// answeredAt is when the first probe was answered; 0 is never.
		answeredAt time.Duration
		want       []time.Duration
	}{
		"a peer that never answers":                  {self: plan.PublicKey{1}, peer: silent, want: []time.Duration{time.Second, 3 * time.Second, 7 * time.Second}},
		"the other side has a pace of its own":       {self: plan.PublicKey{9}, peer: silent, want: []time.Duration{1400 * time.Millisecond, 4200 * time.Millisecond, 9800 * time.Millisecond}},
		"two handshakes that crossed":                {self: plan.PublicKey{1}, noted: true, peer: crossed, want: []time.Duration{time.Second, 3 * time.Second, 7 * time.Second}},
		"a session that was there at the start":      {self: plan.PublicKey{1}, peer: crossed},
		"one that answers is not interrupted":        {self: plan.PublicKey{1}, peer: silent, answeredAt: 900 * time.Millisecond},
		"one that answers late is not bothered more": {self: plan.PublicKey{1}, peer: silent, answeredAt: 2 * time.Second, want: []time.Duration{time.Second}},
		"one that dials us is waited for":            {self: plan.PublicKey{1}, peer: wgtypes.Peer{PublicKey: wgtypes.Key{5}}},
	} {
		t.Run(name, func(t *testing.T) {
			h := handshakes{}
			if tc.noted {
				h.yields(start, tc.self, plan.PublicKey(tc.peer.PublicKey))
			}
			var at []time.Duration
			for passed := time.Duration(0); passed < time.Minute; passed += 100 * time.Millisecond {
				again, next := h.due(start.Add(passed), tc.self, []wgtypes.Peer{tc.peer}, func(plan.PublicKey) bool {
					return tc.answeredAt > 0 && passed >= tc.answeredAt
				})
				if len(again) > 0 {
					at = append(at, passed)
				}
				if next < 0 || (len(at) == handshakeTries && next != 0) {
					t.Fatalf("after %s and %d tries it asks again in %s", passed, len(at), next)
				}
			}
			if diff := cmp.Diff(tc.want, at); diff != "" {
				t.Errorf("begins again after (-want +got):\n%s", diff)
			}
		})
	}
}

// A device that was made again has no sessions, whatever was answered before.
func TestAPeerThatTheDeviceLostIsDialledAfresh(t *testing.T) {
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	key := plan.PublicKey{5}
	peer := wgtypes.Peer{PublicKey: wgtypes.Key(key), Endpoint: &net.UDPAddr{IP: net.IPv4(172, 30, 2, 11), Port: 51820}}
	h := handshakes{}
	last := start
	due := func(passed time.Duration) []plan.PublicKey {
		again, _ := h.due(start.Add(passed), plan.PublicKey{1}, []wgtypes.Peer{peer}, func(plan.PublicKey) bool { return last.After(h[key].known) })
		return again
	}
	if again := due(time.Minute); len(again) > 0 || len(h) > 0 {
		t.Fatalf("a peer that answers is dialled afresh: %v, %v", again, h)
	}
	h.begin(start.Add(2*time.Minute), key)
	h.begin(start.Add(2*time.Minute+100*time.Millisecond), key) // still missing in the next pass
	if again := due(2*time.Minute + 200*time.Millisecond); len(again) > 0 {
		t.Errorf("its handshake has no time: %v", again)
	}
	if again := due(2*time.Minute + 1300*time.Millisecond); len(again) != 1 {
		t.Error("WireGuard's own retry is waited for")
	}
	last = start.Add(2*time.Minute + 1400*time.Millisecond)
	if again := due(3 * time.Minute); len(again) > 0 || len(h) > 0 {
		t.Errorf("a peer that answers again is dialled afresh: %v, %v", again, h)
	}
}

func TestTheSideWithTheHigherKeyLetsTheOtherBegin(t *testing.T) {
	start := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	low, high := plan.PublicKey{1}, plan.PublicKey{2}
	h := handshakes{}
	if _, yields := h.yields(start, low, high); yields {
		t.Error("the lower key waits")
	}
	h = handshakes{}
	if left, yields := h.yields(start, high, low); !yields || left != handshakeYield {
		t.Errorf("the higher key waits: %t, for %s", yields, left)
	}
	if _, yields := h.yields(start.Add(handshakeYield), high, low); yields {
		t.Error("the higher key waits for ever")
	}
}

func TestARestartedHandshakeKeepsThePlannedPeer(t *testing.T) {
	key := plan.PublicKey{1}
	endpoint := netip.MustParseAddrPort("172.30.2.11:51820")
	want := []plan.WireGuardPeer{{PublicKey: key, PresharedKey: plan.PresharedKey{9}, Keepalive: 25 * time.Second, AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.240.0.0/16")}}}
	have := []wgtypes.Peer{{PublicKey: wgtypes.Key(key), Endpoint: net.UDPAddrFromAddrPort(endpoint)}}
	got := restart([]plan.PublicKey{key, {7}}, want, have, map[plan.PublicKey]netip.AddrPort{})
	if len(got) != 2 || !got[0].Remove || got[1].Remove || got[1].UpdateOnly {
		t.Fatalf("changes are %+v", got)
	}
	back := got[1]
	if back.Endpoint.AddrPort() != endpoint || len(back.AllowedIPs) != 1 || back.PresharedKey == nil || *back.PersistentKeepaliveInterval != 25*time.Second {
		t.Errorf("the peer comes back as %+v", back)
	}
}
