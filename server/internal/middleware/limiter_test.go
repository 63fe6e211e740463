package middleware

import (
	"fmt"
	"testing"
	"time"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestLimiterRefillsCountsAndForgets(t *testing.T) {
	now := time.Unix(0, 0)
	l := NewLimiter(10, 5, 3, func() time.Time { return now })
	enter := func(key string, want peering.Reason) func() {
		t.Helper()
		leave, err := l.Enter(key)
		if got := wire.ReasonOf(err); got != want {
			t.Fatalf("%s: got %v (%s), want %q", key, err, got, want)
		}
		return leave
	}
	a, b, c := enter("x", ""), enter("x", ""), enter("x", "")
	enter("x", peering.ReasonTooManyCalls)
	enter("y", "")()
	a()
	b()
	enter("x", "")()
	enter("x", "")()
	enter("x", peering.ReasonRateLimited)
	now = now.Add(100 * time.Millisecond)
	enter("x", "")()
	enter("x", peering.ReasonRateLimited)
	c()

	// A flood of keys finds the limit, and room once the others are as good as new.
	busy := enter("busy", "")
	for i := range MaxTracked {
		if _, err := l.Enter(fmt.Sprint(i)); err != nil {
			break
		}
	}
	enter("one more", peering.ReasonRateLimited)
	if len(l.keys) > MaxTracked {
		t.Errorf("%d keys are kept", len(l.keys))
	}
	for _, q := range l.keys {
		if q != l.keys["busy"] {
			q.calls = 0
		}
	}
	now = now.Add(10 * time.Second)
	enter("one more", "")()
	if l.keys["busy"] == nil {
		t.Error("a key with a call was forgotten")
	}
	busy()
}

func TestAddressKey(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1:5000":          "192.0.2.1",
		"[::ffff:192.0.2.1]:5000": "192.0.2.1",
		"[2001:db8:0:1::7]:443":   "2001:db8:0:1::/64",
		"[fe80::1%eth0]:443":      "fe80::/64",
		"127.0.0.1":               "127.0.0.1",
		"@":                       "unknown",
		"":                        "unknown",
	} {
		if got := AddressKey(in); got != want {
			t.Errorf("addressKey(%q) = %q, want %q", in, got, want)
		}
	}
}
