package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestRemapKeepsTheHostPart(t *testing.T) {
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

func TestAggregateJoinsAdjacentPrefixes(t *testing.T) {
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
		"prefixes to avoid stay out": {
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
				t.Fatalf("%v covers a prefix to avoid", g)
			}
		}
	})
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
