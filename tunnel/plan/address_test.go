package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRemap(t *testing.T) {
	for name, tt := range map[string]struct {
		addr, from, to string
		want           string
	}{
		"keeps the host part":                   {"10.200.3.7", "10.200.0.0/16", "10.241.0.0/16", "10.241.3.7"},
		"works within a byte":                   {"10.200.19.7", "10.200.16.0/20", "10.241.96.0/20", "10.241.99.7"},
		"works for IPv6":                        {"fd77:1::a", "fd77:1::/64", "fd88:2::/64", "fd88:2::a"},
		"takes prefixes that are not masked":    {"10.200.3.7", "10.200.9.9/16", "10.241.9.9/16", "10.241.3.7"},
		"refuses an address outside":            {"10.201.3.7", "10.200.0.0/16", "10.241.0.0/16", ""},
		"refuses prefixes of different lengths": {"10.200.3.7", "10.200.0.0/16", "10.241.0.0/17", ""},
		"refuses prefixes of different kinds":   {"10.200.3.7", "10.200.0.0/16", "fd00::/16", ""},
		"refuses an address with a zone":        {"fd77:1::a%eth0", "fd77:1::/64", "fd88:2::/64", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := Remap(netip.MustParseAddr(tt.addr), netip.MustParsePrefix(tt.from), netip.MustParsePrefix(tt.to))
			if ok != (tt.want != "") || ok && got.String() != tt.want {
				t.Errorf("got %v, %t, want %q", got, ok, tt.want)
			}
		})
	}
	if _, ok := Remap(netip.Addr{}, netip.Prefix{}, netip.Prefix{}); ok {
		t.Error("zero values were remapped")
	}
}

func drawAddr(t *rapid.T, label string, six bool) netip.Addr {
	n := 4
	if six {
		n = 16
	}
	a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, label))
	return a
}

// drawPrefix draws from a small space, so that things do overlap.
func drawPrefix(t *rapid.T, label string, least, most int) netip.Prefix {
	a := netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 255).Draw(t, label+" b")), byte(rapid.IntRange(0, 255).Draw(t, label+" c")), 0})
	return netip.PrefixFrom(a, rapid.IntRange(least, most).Draw(t, label+" bits"))
}

func TestRemapThereAndBackIsTheSameAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		six := rapid.Bool().Draw(t, "six")
		addr := drawAddr(t, "addr", six)
		bits := rapid.IntRange(0, addr.BitLen()).Draw(t, "bits")
		from, to := netip.PrefixFrom(addr, bits), netip.PrefixFrom(drawAddr(t, "to", six), bits)
		there, ok := Remap(addr, from, to)
		if !ok || !to.Contains(there) {
			t.Fatalf("%v from %v to %v: %v, %t", addr, from, to, there, ok)
		}
		if back, ok := Remap(there, to, from); !ok || back != addr {
			t.Fatalf("%v came back as %v", addr, back)
		}
	})
}

func TestAllocateOverlapsNothingAndIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pool := drawPrefix(t, "pool", 10, 20)
		var taken []netip.Prefix
		for range rapid.IntRange(0, 12).Draw(t, "taken") {
			taken = append(taken, drawPrefix(t, "taken", 12, 26))
		}
		wanted := drawPrefix(t, "wanted", 12, 26)
		got, err := Allocate(taken, wanted, pool)
		shuffled := rapid.Permutation(taken).Draw(t, "shuffled")
		again, errAgain := Allocate(shuffled, wanted, pool)
		if again != got || (err == nil) != (errAgain == nil) {
			t.Fatalf("order matters: %v (%v), then %v (%v)", got, err, again, errAgain)
		}
		if err != nil {
			if !errors.Is(err, errNoRoom) {
				t.Fatalf("got %v", err)
			}
			if room := firstFree(taken, wanted.Bits(), pool); room.IsValid() {
				t.Fatalf("%v was free", room)
			}
			return
		}
		if got.Bits() != wanted.Bits() || slices.ContainsFunc(taken, got.Overlaps) || got != got.Masked() {
			t.Fatalf("got %v for %v, taken %v", got, wanted, taken)
		}
		if got != wanted.Masked() && (!pool.Contains(got.Addr()) || got.Bits() < pool.Bits()) {
			t.Fatalf("got %v, outside of pool %v", got, pool)
		}
		// Two peers that want the same never get the same.
		next, err := Allocate(append(taken, got), wanted, pool)
		if err == nil && next.Overlaps(got) {
			t.Fatalf("%v was given twice", got)
		}
	})
}

// Small prefixes go where the room is good for nothing larger, whatever comes first.
func TestAllocateKeepsRoomForLargePrefixes(t *testing.T) {
	pool := netip.MustParsePrefix("198.18.0.0/15")
	taken := []netip.Prefix{netip.MustParsePrefix("198.19.0.1/32")}
	allocate := func(bits int) netip.Prefix {
		wanted := netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), bits)
		got, err := Allocate(append(slices.Clone(taken), wanted), wanted, pool)
		if err != nil {
			t.Fatalf("no room for a /%d beside %v", bits, taken)
		}
		taken = append(taken, got)
		return got
	}
	for range 40 {
		for _, bits := range []int{32, 24, 29, 25} {
			allocate(bits)
		}
	}
	if got := allocate(16); got != netip.MustParsePrefix("198.18.0.0/16") {
		t.Errorf("a /16 is at %v", got)
	}
}

func TestAggregate(t *testing.T) {
	nodes := func(n int) []netip.Prefix {
		var out []netip.Prefix
		for i := range n {
			out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(244 + i/256), byte(i), 0}), 24))
		}
		return out
	}
	dual := nodes(9)
	for i := range 9 {
		dual = append(dual, netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 1, 0, 0, 0, 0, 0, byte(i)}), 64))
	}
	for name, tt := range map[string]struct {
		prefixes, avoid []netip.Prefix
		want            string
		left            int
	}{
		"few stay as they are":              {nodes(3), nil, "[10.244.0.0/24 10.244.1.0/24 10.244.2.0/24]", 0},
		"the 17th node widens":              {nodes(17), nil, "[10.244.0.0/20 10.244.16.0/20]", 0},
		"one more changes none of the rest": {nodes(33), nil, "[10.244.0.0/20 10.244.16.0/20 10.244.32.0/20]", 0},
		"a thousand nodes":                  {nodes(1000), nil, "[10.244.0.0/16 10.245.0.0/16 10.246.0.0/16 10.247.0.0/16]", 0},
		"nine nodes with two families":      {dual, nil, "[10.244.0.0/20 fd01::/60]", 0},
		"what it may not cover stays out": {
			nodes(17), []netip.Prefix{pfx("10.244.31.0/24")}, "[10.244.0.0/20 10.244.16.0/24]", 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, left := Aggregate(tt.prefixes, 16, tt.avoid)
			if fmt.Sprint(got) != tt.want || left != tt.left {
				t.Errorf("got %v and %d left, want %s and %d", got, left, tt.want, tt.left)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		prefixes := rapid.SliceOf(rapid.Custom(func(t *rapid.T) netip.Prefix { return drawPrefix(t, "p", 18, 28) })).Draw(t, "prefixes")
		avoid := rapid.SliceOf(rapid.Custom(func(t *rapid.T) netip.Prefix { return drawPrefix(t, "a", 18, 28) })).Draw(t, "avoid")
		most := rapid.IntRange(1, 16).Draw(t, "most")
		got, left := Aggregate(prefixes, most, avoid)
		if len(got) > most {
			t.Fatalf("%d prefixes, more than %d", len(got), most)
		}
		missing := 0
		for _, p := range prefixes {
			if !slices.ContainsFunc(got, func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Overlaps(p) }) {
				missing++
			}
		}
		if missing != left {
			t.Fatalf("%d are not held, it says %d", missing, left)
		}
		for _, g := range got {
			if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Bits() <= g.Bits() && p.Overlaps(g) }) && slices.ContainsFunc(avoid, g.Overlaps) {
				t.Fatalf("%v covers what is to be avoided", g)
			}
		}
	})
}

// firstFree tries one by one.
func firstFree(taken []netip.Prefix, bits int, pool netip.Prefix) netip.Prefix {
	if bits < pool.Bits() {
		return netip.Prefix{}
	}
	p := netip.PrefixFrom(pool.Masked().Addr(), bits)
	for pool.Contains(p.Addr()) {
		if !slices.ContainsFunc(taken, p.Overlaps) {
			return p
		}
		next := After(p)
		if !next.IsValid() {
			break
		}
		p = netip.PrefixFrom(next, bits)
	}
	return netip.Prefix{}
}

func TestAllocate(t *testing.T) {
	pool := netip.MustParsePrefix("10.240.0.0/12")
	for name, tt := range map[string]struct {
		taken  []string
		wanted string
		want   string
	}{
		"the same prefix if it is free":         {[]string{"10.200.0.0/16"}, "10.201.0.0/16", "10.201.0.0/16"},
		"one of the pool if it is taken":        {[]string{"10.200.0.0/16"}, "10.200.0.0/16", "10.240.0.0/16"},
		"the next if that is taken":             {[]string{"10.200.0.0/16", "10.240.0.0/16"}, "10.200.0.0/16", "10.241.0.0/16"},
		"the next behind a small one":           {[]string{"10.200.0.0/16", "10.240.7.0/24"}, "10.200.0.0/16", "10.241.0.0/16"},
		"nothing if the pool is full":           {[]string{"10.200.0.0/16", "10.240.0.0/12"}, "10.200.0.0/16", ""},
		"nothing if the pool is too small":      {[]string{"10.0.0.0/8"}, "10.0.0.0/8", ""},
		"nothing from a pool of another family": {[]string{"fd00::/8"}, "fd00:1::/64", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var taken []netip.Prefix
			for _, s := range tt.taken {
				taken = append(taken, netip.MustParsePrefix(s))
			}
			got, err := Allocate(taken, netip.MustParsePrefix(tt.wanted), pool)
			if tt.want == "" {
				if !errors.Is(err, errNoRoom) {
					t.Errorf("got %v, %v, want errNoRoom", got, err)
				}
				return
			}
			if err != nil || got.String() != tt.want {
				t.Errorf("got %v, %v, want %s", got, err, tt.want)
			}
		})
	}
	last, err := Allocate([]netip.Prefix{netip.MustParsePrefix("255.255.255.254/31")}, netip.MustParsePrefix("255.255.255.254/32"), netip.MustParsePrefix("255.255.255.254/31"))
	if !errors.Is(err, errNoRoom) {
		t.Errorf("at the end of the address space: got %v, %v", last, err)
	}
}

func TestOverlayAddressesAreOfTheirCluster(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cluster, node := rapid.String().Draw(t, "cluster"), rapid.String().Draw(t, "node")
		a := Overlay(cluster, node)
		if a != Overlay(cluster, node) || !overlayPrefix(cluster).Contains(a) || !netip.MustParsePrefix("fd00::/8").Contains(a) {
			t.Fatalf("%v of %q, %q", a, cluster, node)
		}
		other := rapid.String().Draw(t, "other")
		if other != cluster && overlayPrefix(other) == overlayPrefix(cluster) {
			t.Fatalf("%q and %q share a prefix", cluster, other)
		}
	})
	// The derivation is a protocol: both sides compute it.
	if got, want := Overlay("abc", "node-1").String(), overlayOfABC; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

const overlayOfABC = "fd63:a10c:90bf:b8e2:f7a:f1f2:31ee:1220"
