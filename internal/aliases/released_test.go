package aliases

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

// TestNoOtherPeerGetsAPrefixThatWasJustReleased: pods may have addresses in it for a moment longer.
func TestNoOtherPeerGetsAPrefixThatWasJustReleased(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	wide, narrow := []netip.Prefix{netip.MustParsePrefix("10.128.0.0/12")}, []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}
	prefixes := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	for name, tc := range map[string]struct {
		pool  []netip.Prefix
		peer  string
		after time.Duration
		// same: the alias is that of h, and split: the prefix is known address by address.
		same, split bool
	}{
		"another peer at once":                     {wide, "v", time.Second, false, false},
		"another peer, nearly after that":          {wide, "v", quarantine - time.Second, false, false},
		"another peer after that":                  {wide, "v", quarantine, true, false},
		"the same peer at once":                    {wide, "h", time.Second, true, false},
		"another peer, where there is little room": {narrow, "v", shortQuarantine - time.Second, false, true},
		"the same after a minute":                  {narrow, "v", shortQuarantine, true, false},
		"the same after that":                      {narrow, "v", quarantine, true, false},
	} {
		had := Plan(Input{Pool: tc.pool, Prefixes: prefixes, Now: start}).Space().Prefixes
		var released Released
		released.Add("h", had, nil, start)
		now, addr := start.Add(tc.after), netip.MustParseAddr("10.0.0.7")
		in := Input{Pool: tc.pool, Prefixes: prefixes, Addresses: []netip.Addr{addr}, Now: now}
		in.Resting, in.JustReleased = released.OfOthers(tc.peer, now)
		got := Plan(in)
		alias, ok := got.Of(addr)
		if !ok || had[0].Contains(alias) != tc.same || (len(got.ByAddress) > 0) != tc.split {
			t.Errorf("%s: %v is known as %v, by address %v; h had %v", name, addr, alias, got.ByAddress, had)
		}
		// What was allocated stays.
		in.Have, in.Resting, in.JustReleased = got.Allocation, append(in.Resting, got.Space().Prefixes...), append(in.JustReleased, got.Space().Prefixes...)
		if again, _ := Plan(in).Of(addr); again != alias {
			t.Errorf("%s: it is known as %v then", name, again)
		}
	}
}

// TestReleasedPrefixesTakeNoShareOfThePool: a peer that announces ever other prefixes keeps no addresses from others.
func TestReleasedPrefixesTakeNoShareOfThePool(t *testing.T) {
	t.Parallel()
	pool, now := []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")}, time.Unix(1e9, 0)
	var addrs []netip.Addr
	for a := netip.MustParseAddr("10.0.0.1"); len(addrs) < 100; a = a.Next() {
		addrs = append(addrs, a)
	}
	got := Plan(Input{Pool: pool, Resting: pool, JustReleased: pool, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Addresses: addrs, Now: now})
	if len(got.Unallocated) > 0 {
		t.Errorf("%d addresses have no alias", len(got.Unallocated))
	}
	var released Released
	p := netip.MustParsePrefix("198.18.0.0/32")
	for range 2 * maxReleased {
		released.Add("h", []netip.Prefix{p}, nil, now)
		p = netip.PrefixFrom(p.Addr().Next(), 32)
	}
	if kept, _ := released.OfOthers("v", now); len(kept) != maxReleased || !slices.Contains(kept, netip.PrefixFrom(p.Addr().Prev(), 32)) {
		t.Errorf("%d are kept", len(kept))
	}
	released.Add("h", []netip.Prefix{p}, nil, now.Add(quarantine))
	if len(released.list) != 1 {
		t.Errorf("%d are kept after that", len(released.list))
	}
	for _, has := range [][]netip.Prefix{nil, {p}} { // the second time it has it still
		released.Add("h", []netip.Prefix{p}, has, now.Add(quarantine))
		if n := len(released.list); n != 1-len(has) {
			t.Errorf("with %v, %d are kept", has, n)
		}
	}
}
